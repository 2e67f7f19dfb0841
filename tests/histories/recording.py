"""Histories on disk: each client writes a line before it asks and one after the answer, and the checker reads them all.
The clock is the machine's monotonic one, which all processes share.
"""

import json
import os
import time
from collections.abc import Iterable
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from hocket.testing.linearizability import UNKNOWN, Acquire, Call, Expire, Release, Renew

# A deadline is counted in whole milliseconds, by another clock.
SLACK_S = 0.05


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

    def answer(self, call: int, result: Any) -> None:
        """A call whose result nobody can tell is never answered."""
        self._write({"answer": call, "result": result})

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
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        notes += [line["note"] for line in lines if "note" in line]
        calls = {line["call"]: line for line in lines if "call" in line}
        answers = {line["answer"]: line for line in lines if "answer" in line}
        client = path.name.removeprefix("calls-")
        pid = int(client.partition("-")[0])
        death = died.get(pid, NEVER)
        last = inf if acts_after_death else death.after
        made = {number: _call(client, line, answers.get(number), last) for number, line in calls.items()}
        history += made.values()
        history += _expiries(client, calls, made, death.before)
    return Recorded(history, notes)


def _call(client: str, asked: dict[str, Any], answered: dict[str, Any] | None, last: float) -> Call:
    keys = frozenset(asked["keys"])
    op: Any
    match asked["what"]:
        case "acquire":
            op = Acquire(f"{client}:{asked['call']}", asked["agent"], keys, asked.get("shared", False))
        case "renew":
            op = Renew(asked["agent"], asked["fence"], keys)
        case _:
            op = Release(asked["agent"], asked["fence"], keys, asked["what"] == "complete")
    if answered is None:
        return Call(op, UNKNOWN, asked["at"], last, client)
    return Call(op, answered["result"], asked["at"], answered["at"], client)


def _expiries(client: str, asked: dict[int, dict[str, Any]], made: dict[int, Call], died: float) -> Iterable[Call]:
    """Every hold may end once its time is over, counted from before its last renewal, or when its process has died."""
    for number, call in made.items():
        if not isinstance(call.op, Acquire) or call.result is None:
            continue
        ends = asked[number]["at"] + asked[number]["ttl_ms"] / 1000
        for other, renewal in made.items():
            is_of_it = isinstance(renewal.op, Renew) and (renewal.op.fence, renewal.op.keys) == (
                call.result,
                call.op.keys,
            )
            if is_of_it and renewal.result is True:
                ends = asked[other]["at"] + asked[other]["ttl_ms"] / 1000
        yield Call(Expire(call.op.hold, call.op.keys), UNKNOWN, min(ends - SLACK_S, died), client=client)
