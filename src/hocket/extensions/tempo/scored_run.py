"""What a run does by its score: it waits no longer than its budgets allow, and ends no later than its phrase. When
beats run out, it does what the score says, and records that as evidence: a degraded result is never silent. The rules
are in `extensions.tempo.beats.score`.
"""

import asyncio
import concurrent.futures
import inspect
from collections.abc import Awaitable
from typing import Any, NamedTuple

import msgspec

from hocket.extensions.cost.budgets import cap_of_phases, cap_of_waits
from hocket.extensions.tempo.beats.score import Escalation, NextStep, ScoreEvent, escalate, phrase_phases
from hocket.extensions.tempo.run_tempo import RunTempo
from hocket.families.inbox.facts import SendMessage
from hocket.families.jobs.rules import Job
from hocket.kernel.clock import wall_text
from hocket.kernel.ids import node_text, ulid_text
from hocket.kernel.ops import NO_ID
from hocket.kernel.policy import Score
from hocket.kernel.texts import counted
from hocket.work.retrying import Fatal
from hocket.work.run_outputs import RunOutput, RunOutputs
from hocket.work.view import DEGRADED_TYPE

ESCALATION_TYPE = "escalation"
SENDER = "score"
HELP_TYPE = "help"
PROMISE_TYPE = "promise"
ESCALATION_TTL_MS = 7 * 24 * 3600 * 1000
ESCALATION_TRIES = 5
NO_FALLBACK: Any = object()


class WaitExhausted(Fatal):
    """A wait has used all the beats that the job's score gives it, and there is no fallback."""


class HelpMissing(Exception):
    """Nobody has promised help in time, or the promise was not kept: the wait for it is spent."""


class PhraseEnd(NamedTuple):
    """How a job ends, or its phrase, when beats have run out."""

    result: bytes | None = None
    error: str | None = None
    may_retry: bool = False


class PhraseEnded(BaseException):
    """Raised inside a handler whose wait was the last thing that its phrase does. Catch it only to raise it again."""

    def __init__(self, end: PhraseEnd) -> None:
        super().__init__(end.error or "the job ends with its fallback")
        self.end = end


class ScoredRun:
    def __init__(self, score: Score, tempo: RunTempo, outputs: RunOutputs, job: Job) -> None:
        self._score, self._tempo, self._outputs, self._job = score, tempo, outputs, job
        self.fallbacks: dict[str, bytes] = {}
        """The results with which the job may end, as JSON, by the names that its score has for them."""
        self._recorded = 0

    async def wait_for(self, awaited: Awaitable[Any], kind: str, fallback: Any) -> Any:
        """What the awaited gives or, when the wait is spent, the fallback. Raises WaitExhausted or PhraseEnded."""
        task = asyncio.ensure_future(_awaitable(awaited))
        # A task that does not end when it is cancelled must not prolong the wait, nor complain later.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        seconds = self._tempo.begin_wait(kind)
        try:
            done, _ = await asyncio.wait({task}, timeout=seconds)
        finally:
            waited_ms = self._tempo.end_wait(kind)
            task.cancel()
        if done:
            try:
                return task.result()
            except HelpMissing:
                pass
        return await self._spent(kind, waited_ms, fallback)

    async def _spent(self, kind: str, waited_ms: int, fallback: Any) -> Any:
        escalation = escalate(self._score, ScoreEvent.WAIT_EXHAUSTED, self._tempo.phrase)
        is_replaced = fallback is not NO_FALLBACK and escalation.step is not NextStep.DEFER
        step = NextStep.FALLBACK if is_replaced else escalation.step
        self._record(
            ScoreEvent.WAIT_EXHAUSTED,
            escalation,
            {"wait": kind, "budget_beats": self._score.wait_budget[kind], "waited_ms": waited_ms, "step": step},
        )
        if is_replaced:
            value = fallback() if callable(fallback) else fallback
            return await value if inspect.isawaitable(value) else value
        beats = counted(self._score.wait_budget[kind], "beat")
        capped = cap_of_waits(self._job.policy.budget, kind)
        said = f"{capped}it waited in vain for {kind}: its score allows {beats}, and no wait outlasts its phase"
        if step is NextStep.FAIL:
            raise WaitExhausted(said)
        raise PhraseEnded(self._end(escalation, said))

    def overran(self, more: str) -> PhraseEnd:
        """The phrase has ended, and the handler went on. `more` says what became of the handler."""
        phrase = self._tempo.phrase
        escalation = escalate(self._score, ScoreEvent.OVERRUN, phrase)
        beats = sum(phrase_phases(self._score, phrase).values())
        self._record(ScoreEvent.OVERRUN, escalation, {"budget_beats": beats, "step": escalation.step})
        said = f"overran phrase {phrase + 1} of {self._score.max_phrases}, which has {counted(beats, 'beat')}{more}"
        return self._end(escalation, cap_of_phases(self._job.policy.budget) + said)

    def _end(self, escalation: Escalation, said: str) -> PhraseEnd:
        if escalation.step is NextStep.FALLBACK:
            return PhraseEnd(self.fallbacks.get(escalation.fallback))
        return PhraseEnd(error=said, may_retry=escalation.step is NextStep.DEFER)

    def _record(self, event: ScoreEvent, escalation: Escalation, found: dict[str, Any]) -> None:
        """Keeps what happened as evidence, and sends the messages that the score asks for, with the end of the run."""
        tempo = self._tempo
        self._recorded += 1
        told = {
            "event": event,
            "number": self._recorded,
            "phrase": tempo.phrase + 1,
            "phase": tempo.place.phase,
            "beat_ms": tempo.beat_ms,
            "beat_index": tempo.beat.index,
            "window": wall_text(tempo.beat.window_ms),
            "fallback": escalation.fallback,
            "emitted": escalation.emits,
        } | found
        self._outputs.evidence(msgspec.json.encode(told), DEGRADED_TYPE)
        body = msgspec.json.encode({"job_id": ulid_text(self._job.id), "kind": self._job.kind} | told)
        for name in escalation.emits:
            to = f"{name}@{node_text(self._job.scheduled.node)}"
            message = SendMessage(
                *(NO_ID, to, SENDER, ESCALATION_TYPE, None, None, 0, ESCALATION_TTL_MS, ESCALATION_TRIES, body)
            )
            self._outputs.add(RunOutput(self._outputs.new_id(), message, is_evidence=True))


def _awaitable(awaited: Any) -> Awaitable[Any]:
    return asyncio.wrap_future(awaited) if isinstance(awaited, concurrent.futures.Future) else awaited
