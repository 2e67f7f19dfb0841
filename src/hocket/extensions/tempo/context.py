"""The part of a handler's context that is about beats: which beat it is, and how long the handler may wait."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

import msgspec

from hocket.cancelling import end_loop
from hocket.errors import Usage
from hocket.extensions.tempo.beats.messages import HelpPromise, to_json
from hocket.extensions.tempo.beats.score import WAITS
from hocket.extensions.tempo.beats.tempo import Beat
from hocket.extensions.tempo.run_tempo import RunTempo
from hocket.extensions.tempo.scored_run import NO_FALLBACK, PROMISE_TYPE, ScoredRun
from hocket.kernel.decoding import convert
from hocket.work.handlers import JobType
from hocket.work.run_outputs import RunOutputs


class Threaded(Protocol):
    @property
    def thread(self) -> str: ...


class HelpRequest(Protocol):
    """A message that asks for help, as its receiver holds it."""

    @property
    def data(self) -> Threaded: ...
    @property
    def reply(self) -> Callable[..., Any]: ...


class BeatingRun(Protocol):
    """What the context needs of its run."""

    task: asyncio.Task[None] | None

    @property
    def tempo(self) -> RunTempo | None: ...
    @property
    def scored(self) -> ScoredRun | None: ...
    @property
    def products(self) -> RunOutputs: ...
    @property
    def job_type(self) -> JobType: ...
    def keep_fallback(self, name: str, value: Any) -> None: ...


class TempoContext:
    _run: BeatingRun

    @property
    def beat(self) -> Beat | None:
        """The beat of the cluster: `index` within its bar, `is_downbeat`, `epoch_ms`, `window_ms`. None if neither the
        worker has a tempo nor the job a score.
        """
        tempo = self._run.tempo
        return None if tempo is None else tempo.beat

    @property
    def phase(self) -> str | None:
        """The phase in which the job is by its score, or else in which the cluster is."""
        tempo = self._run.tempo
        return None if tempo is None else tempo.place.phase

    @property
    def beats_left(self) -> int | None:
        """How many whole beats the phase has left after this one; negative after the end of the phrase."""
        tempo = self._run.tempo
        return None if tempo is None else tempo.place.beats_left

    def set_fallback(self, name: str, value: Any) -> None:
        """Keeps the result with which the job ends if its score says `fallback:NAME` when beats run out. The newest
        one counts.
        """
        self._run.keep_fallback(name, value)

    def wait_for(self, awaited: Awaitable[Any], *, budget: str = "io", fallback: Any = NO_FALLBACK) -> Any:
        """Waits for a coroutine, a future or `ask_help`, at most as many beats as the score's `wait_budget` has left
        for `budget` ("help" or "io"), and not beyond the phase. Then the score decides: it returns `fallback` (called,
        if it is a function), ends the job with its fallback, defers it to the next phrase, or raises WaitExhausted.
        Each is recorded. In a coroutine, await it; in a plain handler it returns the value.
        """
        run = self._run
        if budget not in WAITS:
            raise Usage(f"unknown budget {budget!r}; known are {', '.join(WAITS)}")
        if run.scored is None:
            if inspect.iscoroutine(awaited):
                awaited.close()
            raise Usage("this job has no score, so nothing limits its waits; submit it with score=… or --score FILE")
        waiting = run.scored.wait_for(awaited, budget, fallback)
        return waiting if run.job_type.is_async else _wait_here(run, waiting)

    def ask_help(self, to: str, body: Any) -> Coroutine[Any, Any, Any]:
        """A request for help to an agent or a group, to be passed to `wait_for` with `budget="help"`: the value is the
        message with the help. The wait is spent if nobody promises help by the end of the bar, or helps until the
        promise fails.
        """
        run = self._run
        if run.tempo is None:
            raise Usage("this job has no score, so nothing limits its waits; submit it with score=… or --score FILE")
        return run.products.kit.ask_help(to, body, run.tempo)

    def promise(
        self,
        request: HelpRequest,
        beats: int,
        *,
        fail_after: int | None = None,
        confidence: float = 1.0,
        on_fail: str = "fallback",
    ) -> Any:
        """Promises help within so many beats to the agent that sent this request. After `fail_after` beats, default
        twice as many, the requester goes on without. In a coroutine, await it.
        """
        made = make_promise(request.data.thread, beats, fail_after, confidence, on_fail)
        return request.reply(to_json(made), type=PROMISE_TYPE)


def make_promise(thread_id: str, beats: int, fail_after: int | None, confidence: float, on_fail: str) -> HelpPromise:
    """Raises Usage."""
    members = {
        "thread_id": thread_id,
        "promise_beats": beats,
        "confidence": confidence,
        "fail_after_beats": 2 * beats if fail_after is None else fail_after,
        "on_fail": on_fail,
    }
    try:
        return convert(members, HelpPromise)
    except msgspec.ValidationError as error:
        raise Usage(f"bad promise: {error}") from None


def _wait_here(run: BeatingRun, waiting: Any) -> Any:
    """Waits in this thread. The worker can cancel the wait, as it cancels an async handler."""
    loop = asyncio.new_event_loop()
    try:
        run.task = loop.create_task(waiting)
        return loop.run_until_complete(run.task)
    finally:
        run.task = None
        end_loop(loop)
