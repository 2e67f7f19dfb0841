"""Paces a run by its score: where the run is in its phases, how long it may still wait, and what happens when beats run
out. A phrase begins with the first beat after its handler has started, and keeps the tempo that is in force then, so
its end does not move. A run waits no longer than its budgets allow, and ends no later than its phrase; then it does
what the score says, and records that as evidence: a degraded result is never silent. A short job without a score
never asks which beat it is, so a tempo costs it next to nothing. The rules are in `beats.score`.
"""

import asyncio
import concurrent.futures
import inspect
import math
import threading
from collections.abc import Awaitable, Callable, Iterator
from functools import cached_property
from typing import Any

import msgspec

from hocket.cancelling import end_loop
from hocket.errors import Usage
from hocket.extensions.cost.budgets import cap_of_phases, cap_of_waits, capped_score, hard_end_ms
from hocket.extensions.tempo.beat_source import BeatNow, BeatSource, LocalBeats
from hocket.extensions.tempo.beats.messages import BEATS_MAX, WAITS_MAX
from hocket.extensions.tempo.beats.policy import make_policy
from hocket.extensions.tempo.beats.score import (
    WAITS,
    Escalation,
    NextStep,
    PhrasePlace,
    ScoreEvent,
    Waits,
    escalate,
    fitted_score,
    phrase_phases,
    phrase_place,
    wait_end,
)
from hocket.extensions.tempo.beats.tempo import BPM_DEFAULT, Tempo, next_beat
from hocket.families.inbox.facts import SendMessage
from hocket.families.jobs.requests import RESULT_BYTES_MAX
from hocket.families.jobs.rules import Job
from hocket.families.jobs.view import DEGRADED_TYPE
from hocket.families.json_values import encode_json
from hocket.kernel.clock import wall_text
from hocket.kernel.ids import node_text, ulid_text
from hocket.kernel.ops import NO_ID, Beat
from hocket.kernel.policy import Score
from hocket.kernel.texts import counted
from hocket.work.context import NO_FALLBACK
from hocket.work.handler_errors import Fatal
from hocket.work.handlers import JobType
from hocket.work.pacing import Ending, Limit, Pacer, RunEnded
from hocket.work.run_outputs import RunOutput, RunOutputs, RunServices
from hocket.work.runner import Run

EXTENSION = "tempo"
ESCALATION_TYPE = "escalation"
SENDER = "score"
ESCALATION_TTL_MS = 7 * 24 * 3600 * 1000
ESCALATION_TRIES = 5
# A handler that has passed its job's hard end has this part of a beat to stop.
STOP_BEATS = 0.5


class WaitExhausted(Fatal):
    """A wait has used all the beats that the job's score gives it, and there is no fallback."""


class HelpMissing(Exception):
    """Nobody has promised help in time, or the promise was not kept: the wait for it is spent."""


# The cluster of a job whose worker has no tempo: its score's own.
ALONE = "local"


def keeper_alone(job: Job, clock_ms: Callable[[], int]) -> "ScoreKeeper | None":
    """For a worker without a tempo: a job with a score is kept to the tempo that its score suggests, and a hard
    end to the usual one.
    """
    score, budget = capped_score(job.policy.score, job.policy.budget), job.policy.budget
    if score is None:
        if budget is None or budget.hard_end is None:
            return None
        return ScoreKeeper(LocalBeats(make_policy(ALONE), clock_ms), job)
    policy = make_policy(ALONE, score.tempo or BPM_DEFAULT, score.bar_len)
    return ScoreKeeper(LocalBeats(policy, clock_ms), job)


class ScoreKeeper:
    """Any thread may use it. `changed` is called when the run begins, and when it begins or ends a wait."""

    def __init__(self, beats: BeatSource, job: Job, changed: Callable[[], None] = lambda: None) -> None:
        self.beats, self._job, self._changed = beats, job, changed
        self.has_begun = False
        self.progress = 0.0
        """The part of its work that the handler has reported as done."""
        self._threads: list[str] = []
        self.score: Score | None = None
        if (score := capped_score(job.policy.score, job.policy.budget)) is not None:
            self.score = fitted_score(score, beats.now().tempo.bar_len)
        self.phrase = job.failures
        self._bar_seen_ms = 0
        self._waits = Waits()
        self._began_ms: list[tuple[str, int]] = []
        self._lock = threading.Lock()

    @cached_property
    def _begun(self) -> BeatNow:
        """When the phrase began. A job without a score has no phrase: this is when it was first asked for."""
        return self.beats.now()

    @property
    def tempo(self) -> Tempo:
        return self._begun.tempo

    @property
    def beat(self) -> Beat:
        return self.beats.now().beat

    @property
    def beat_ms(self) -> int:
        return self.tempo.beat_ms

    @property
    def now_ms(self) -> int:
        return self.beats.now().at_ms

    @property
    def is_waiting(self) -> bool:
        return bool(self._began_ms)

    @property
    def project(self) -> str:
        """The first part of the job's kind."""
        return self._job.kind.partition(".")[0]

    @property
    def waits_for(self) -> tuple[str, ...]:
        """The threads in which help was asked for, and what else the run waits for."""
        kinds = {kind for kind, _ in self._began_ms} - ({"help"} if self._threads else set())
        return (*self._threads[-WAITS_MAX + len(WAITS) :], *sorted(kinds)) if self.is_waiting else ()

    def ask(self, thread_id: str) -> None:
        """Help was asked for in this thread."""
        self._threads.append(thread_id)
        self._changed()

    def begin(self) -> float:
        """The handler starts now. Returns how many seconds its phrase has."""
        if self.score is not None:
            self._begun = self.beats.now()
        self.has_begun = True
        self._changed()
        if self.score is None:
            return math.inf
        return (self._start_ms + self._phrase_beats * self.beat_ms - self._begun.at_ms) / 1000

    def left_s(self) -> float:
        """How many seconds are left until the hard end of the job's budget."""
        if (budget := self._job.policy.budget) is None:
            return math.inf
        return max(0.0, (hard_end_ms(self.tempo, budget, self._job.scheduled.wall) - self.now_ms) / 1000)

    @property
    def place(self) -> PhrasePlace:
        """Where the phrase is. After its end, the beats left are negative."""
        return self.place_at(self.beats.now())

    def place_at(self, now: BeatNow) -> PhrasePlace:
        if self.score is None:
            phase = now.phase
            left = phase.end - now.beat.index
            return PhrasePlace(phase.name, left, left)
        beats = self._beats_at(now.at_ms)
        over = max(self._phrase_beats - beats - 1, -BEATS_MAX)
        last = PhrasePlace(next(reversed(self.score.phases)), over, over)
        return phrase_place(self.score, self.phrase, beats) or last

    def begin_wait(self, kind: str) -> float:
        """A wait begins. Returns how many seconds it may take."""
        assert self.score is not None
        with self._lock:
            now_ms = self.beats.now().at_ms
            end_ms = wait_end(self.score, self._waits, kind, self.beat_ms, now_ms, self._phase_end(now_ms))
            self._began_ms.append((kind, now_ms))
        self._changed()
        return (end_ms - now_ms) / 1000

    def end_wait(self, kind: str) -> int:
        """A wait has ended. Returns how long the phrase has waited for this kind of thing, in milliseconds."""
        with self._lock:
            began = next(each for each in self._began_ms if each[0] == kind)
            self._began_ms.remove(began)
            self._waits = self._waits.after(kind, self.beats.now().at_ms - began[1])
            if kind == "help":
                self._threads = []
        self._changed()
        return self._waits.of(kind)

    def report(self, note: bytes) -> None:
        """The handler has reported its progress, as JSON. A number from 0 to 1 is the part that is done."""
        value = msgspec.json.decode(note)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1:
            self.progress = float(value)

    def has_new_bar(self) -> bool:
        """Whether a downbeat has passed since this was last asked."""
        seen_ms = max(self._begun.beat.window_ms, self._bar_seen_ms)
        self._bar_seen_ms = self.beat.window_ms
        return self._bar_seen_ms > seen_ms

    @property
    def _start_ms(self) -> int:
        return next_beat(self.tempo, self._begun.at_ms)

    @property
    def _phrase_beats(self) -> int:
        assert self.score is not None
        return sum(phrase_phases(self.score, self.phrase).values())

    def _beats_at(self, at_ms: int) -> int:
        return max(0, (at_ms - self._start_ms) // self.beat_ms)

    def _phase_end(self, at_ms: int) -> int:
        assert self.score is not None
        beats = self._beats_at(at_ms)
        place = phrase_place(self.score, self.phrase, beats)
        return at_ms if place is None else self._start_ms + (beats + 1 + place.beats_left) * self.beat_ms


class Pace(Pacer):
    """`keeper` has the beats of the run, and `promises` watches the promises that it is given, if anything does."""

    def __init__(
        self,
        keeper: ScoreKeeper,
        job: Job,
        job_type: JobType,
        outputs: Callable[[], RunOutputs],
        promises: Any = None,
    ) -> None:
        self.keeper, self.promises = keeper, promises
        self._job, self._job_type, self._new_outputs = job, job_type, outputs
        self.fallbacks: dict[str, bytes] = {}
        """The results with which the job may end, as JSON, by the names that its score has for them."""
        self._recorded = 0
        if keeper.score is not None or self._hard_end is not None:
            self.twin = f"{__name__.removeprefix('hocket.')}:pace_twin", None

    @cached_property
    def _outputs(self) -> RunOutputs:
        return self._new_outputs()

    @property
    def score(self) -> Score:
        """The score of the job, as it fits into the bars of the cluster. Raises Usage if it has none."""
        if self.keeper.score is None:
            raise Usage(NO_SCORE)
        return self.keeper.score

    @property
    def _hard_end(self) -> int | None:
        return None if self._job.policy.budget is None else self._job.policy.budget.hard_end

    def begin(self, now: float) -> Iterator[Limit]:
        phrase_s = self.keeper.begin()
        if self._hard_end is not None:
            over = f"over its budget hard_end: it ends with bar+{self._hard_end}"
            stop_s = math.inf if self._job_type.keeps_budget else STOP_BEATS * self.keeper.beat_ms / 1000
            yield Limit(self.keeper.left_s(), lambda state: Ending(None, over + state, may_retry=False), stop_s)
        if self.keeper.score is not None:
            yield Limit(phrase_s, self.overran)

    def note(self, note: bytes) -> None:
        self.keeper.report(note)

    def may_save(self) -> bool:
        """With a tempo, checkpoints go on the log with the bars."""
        return self.keeper.has_new_bar()

    def hear(self, message: tuple[str, bytes]) -> None:
        """A fallback that the handler has set."""
        name, written = message
        self.fallbacks[name] = written
        self.tell(message)

    async def wait_for(self, awaited: Awaitable[Any], kind: str, fallback: Any) -> Any:
        """What the awaited gives or, when the wait is spent, the fallback. Raises WaitExhausted or RunEnded."""
        task = asyncio.ensure_future(_awaitable(awaited))
        # A task that does not end when it is cancelled must not prolong the wait, nor complain later.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        seconds = self.keeper.begin_wait(kind)
        try:
            done, _ = await asyncio.wait({task}, timeout=seconds)
        finally:
            waited_ms = self.keeper.end_wait(kind)
            task.cancel()
        if done:
            try:
                return task.result()
            except HelpMissing:
                pass
        return await self._spent(kind, waited_ms, fallback)

    async def _spent(self, kind: str, waited_ms: int, fallback: Any) -> Any:
        escalation = escalate(self.score, ScoreEvent.WAIT_EXHAUSTED, self.keeper.phrase)
        is_replaced = fallback is not NO_FALLBACK and escalation.step is not NextStep.DEFER
        step = NextStep.FALLBACK if is_replaced else escalation.step
        self._record(
            ScoreEvent.WAIT_EXHAUSTED,
            escalation,
            {"wait": kind, "budget_beats": self.score.wait_budget[kind], "waited_ms": waited_ms, "step": step},
        )
        if is_replaced:
            value = fallback() if callable(fallback) else fallback
            return await value if inspect.isawaitable(value) else value
        beats = counted(self.score.wait_budget[kind], "beat")
        capped = cap_of_waits(self._job.policy.budget, kind)
        said = f"{capped}it waited in vain for {kind}: its score allows {beats}, and no wait outlasts its phase"
        if step is NextStep.FAIL:
            raise WaitExhausted(said)
        raise RunEnded(self._end(escalation, said))

    def overran(self, more: str) -> Ending:
        """The phrase has ended, and the handler went on. `more` says what became of the handler."""
        phrase = self.keeper.phrase
        escalation = escalate(self.score, ScoreEvent.OVERRUN, phrase)
        beats = sum(phrase_phases(self.score, phrase).values())
        self._record(ScoreEvent.OVERRUN, escalation, {"budget_beats": beats, "step": escalation.step})
        said = f"overran phrase {phrase + 1} of {self.score.max_phrases}, which has {counted(beats, 'beat')}{more}"
        return self._end(escalation, cap_of_phases(self._job.policy.budget) + said)

    def _end(self, escalation: Escalation, said: str) -> Ending:
        if escalation.step is NextStep.FALLBACK:
            return Ending(self.fallbacks.get(escalation.fallback), may_retry=False)
        return Ending(None, said, may_retry=escalation.step is NextStep.DEFER)

    def _record(self, event: ScoreEvent, escalation: Escalation, found: dict[str, Any]) -> None:
        """Keeps what happened as evidence, and sends the messages that the score asks for, with the end of the run."""
        tempo = self.keeper
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


class Pacing:
    """Paces runs by the keepers that their jobs get."""

    def __init__(self, keeper: Callable[[Job], ScoreKeeper | None], promises: Any = None) -> None:
        self._keeper, self.promises = keeper, promises

    def __call__(
        self, job: Job, job_type: JobType, services: RunServices, outputs: Callable[[], RunOutputs]
    ) -> Pacer | None:
        keeper = self._keeper(job)
        return None if keeper is None else Pace(keeper, job, job_type, outputs, self.promises)


def paced_alone(job: Job, job_type: JobType, services: RunServices, outputs: Callable[[], RunOutputs]) -> Pacer | None:
    """In a process without a tempo."""
    return Pacing(lambda job: keeper_alone(job, services.clock_ms))(job, job_type, services, outputs)


def pace_twin(
    made_of: None, job: Job, job_type: JobType, services: RunServices, outputs: Callable[[], RunOutputs]
) -> Pacer | None:
    """In a handler process."""
    return paced_alone(job, job_type, services, outputs)


# What a handler's context offers.

NO_SCORE = "this job has no score, so nothing limits its waits; submit it with score=… or --score FILE"


def pace_of(run: Run) -> Pace | None:
    pacer = run.pacers.get(EXTENSION)
    return pacer if isinstance(pacer, Pace) else None


def beat(run: Run) -> Beat | None:
    pace = pace_of(run)
    return None if pace is None else pace.keeper.beat


def phase(run: Run) -> str | None:
    pace = pace_of(run)
    return None if pace is None else pace.keeper.place.phase


def beats_left(run: Run) -> int | None:
    pace = pace_of(run)
    return None if pace is None else pace.keeper.place.beats_left


def set_fallback(run: Run, name: str, value: Any) -> None:
    written = encode_json(value, "the fallback")
    if len(written) > RESULT_BYTES_MAX:
        raise ValueError(f"the fallback has {len(written)} bytes, at most {RESULT_BYTES_MAX}")
    if (pace := pace_of(run)) is not None:
        pace.hear((name, written))


def wait_for(run: Run, awaited: Awaitable[Any], budget: str, fallback: Any) -> Any:
    if budget not in WAITS:
        raise Usage(f"unknown budget {budget!r}; known are {', '.join(WAITS)}")
    pace = pace_of(run)
    if pace is None or pace.keeper.score is None:
        if inspect.iscoroutine(awaited):
            awaited.close()
        raise Usage(NO_SCORE)
    waiting = pace.wait_for(awaited, budget, fallback)
    return waiting if run.job_type.is_async else _wait_here(run, waiting)


def _wait_here(run: Run, waiting: Any) -> Any:
    """Waits in this thread. The worker can cancel the wait, as it cancels an async handler."""
    loop = asyncio.new_event_loop()
    try:
        run.task = loop.create_task(waiting)
        return loop.run_until_complete(run.task)
    finally:
        run.task = None
        end_loop(loop)
