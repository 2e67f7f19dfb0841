"""Histories on disk: each client writes a line before it asks and one after the answer, and the checker reads them all.
The clock is the machine's monotonic one, which all processes share.
"""

import json
import os
import time
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from hocket.testing.linearizability import UNKNOWN, Acquire, Call, Expire, Release, Renew

# A deadline is counted in whole milliseconds, by another clock.
SLACK_S = 0.05
# The answer to a call that turned out to ask for nothing.
NOT_ASKED = "not asked"
# The answer to a client that has waited in vain. It may have had the lock for a moment.
GAVE_UP = "gave up"


class Death(NamedTuple):
    """A process died between these two times."""

    before: float
    after: float


NEVER = Death(inf, inf)


class Recorder:
    """Writes the calls of one process. Each line is written at once, so a killed process leaves whole lines."""

    def __init__(self, directory: Path) -> None:
        self.client = f"{os.getpid()}-{os.urandom(2).hex()}"
        self._file = os.open(directory / f"calls-{self.client}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        self._calls = 0

    def call(self, what: str, **details: Any) -> int:
        self._calls += 1
        self._write({"call": self._calls, "what": what, **details})
        return self._calls

    def answer(self, call: int, result: Any, until_ms: int | None = None) -> None:
        """A call whose result is not known is never answered. `until_ms`, a time of day, is when its hold ends."""
        until = None if until_ms is None else until_ms / 1000 - time.time() + time.monotonic()
        self._write({"answer": call, "result": result, "until": until})

    def note(self, what: str) -> None:
        self._write({"note": what})

    def _write(self, line: dict[str, Any]) -> None:
        os.write(self._file, json.dumps({"at": time.monotonic(), "pid": os.getpid(), **line}).encode() + b"\n")


class Recorded(NamedTuple):
    history: list[Call]
    notes: list[str]


def recorded(directory: Path, died: dict[int, Death], acts_after_death: bool) -> Recorded:
    """The history of all clients. `died` says when processes were killed. What a client of a mesh has asked for can
    still be done after its death, by another process of its node.
    """
    history: list[Call] = []
    notes: list[str] = []
    for path in sorted(directory.glob("calls-*")):
        client = path.name.removeprefix("calls-")
        death = died.get(int(client.partition("-")[0]), NEVER)
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        notes += [line["note"] for line in lines if "note" in line]
        answers = {line["answer"]: line for line in lines if "answer" in line}
        last = inf if acts_after_death else death.after
        calls = [
            _RecordedCall(client, line, answers.get(line["call"], {"result": UNKNOWN, "at": last}))
            for line in lines
            if "call" in line
        ]
        history += [each.call for each in calls if each.call.result != NOT_ASKED]
        for each in calls:
            if isinstance(each.call.op, Acquire) and each.call.result not in (None, NOT_ASKED):
                history.append(_expiry(each, calls, death))
    return Recorded(history, notes)


class _RecordedCall:
    def __init__(self, client: str, asked: dict[str, Any], answered: dict[str, Any]) -> None:
        self.asked, self.answered = asked, answered
        result = UNKNOWN if answered["result"] == GAVE_UP else answered["result"]
        self.call = Call(self._op(client), result, asked["at"], answered["at"], client)

    def _op(self, client: str) -> Acquire | Renew | Release:
        asked, keys = self.asked, frozenset(self.asked["keys"])
        match asked["what"]:
            case "acquire":
                return Acquire(f"{client}:{asked['call']}", asked["agent"], keys, asked.get("shared", False))
            case "renew":
                return Renew(asked["agent"], asked["fence"], keys)
            case what:
                return Release(asked["agent"], asked["fence"], keys, what == "complete")


def _expiry(granted: _RecordedCall, calls: list[_RecordedCall], death: Death) -> Call:
    """A hold may end when the time is over that its client was told last, and with its process if it is bound to that.
    A hold of which the client was told nothing may end at any time, and has ended if the client gave up.
    """
    call, end = granted.call, inf
    begin = call.start
    if call.result is not UNKNOWN:
        same_hold = Renew(call.op.agent, call.result, call.op.keys), True
        told = [granted, *(each for each in calls if (each.call.op, each.call.result) == same_hold)]
        begin = max(each.answered["until"] for each in told) - SLACK_S
    elif granted.answered["result"] == GAVE_UP:
        end = call.end
    if granted.asked["bound"]:
        begin = min(begin, death.before)
    return Call(Expire(call.op.hold, call.op.keys), UNKNOWN, begin, end, call.client)
