"""One run of a handler. However a handler ends, even by `sys.exit`, that becomes the run's outcome. `handler_threads`
provides the threads.
"""

import asyncio
import inspect
import math
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, aclosing, closing, contextmanager, nullcontext, suppress
from enum import Enum
from types import GeneratorType
from typing import Any

from hocket.families.jobs.apart import Erased
from hocket.families.jobs.requests import RESULT_BYTES_MAX, Claim, Held
from hocket.families.jobs.rescue import DEATHS_ALONE
from hocket.families.jobs.tracing import RunTrace
from hocket.families.json_values import encode_json
from hocket.families.lease import Lease
from hocket.kernel.ids import ulid_text
from hocket.kernel.ops import schedule_payload
from hocket.kernel.texts import counted
from hocket.log import Transaction
from hocket.work.handler_errors import Cancelled, Later, absorb, description, is_traced, may_retry, raise_in, stack_text
from hocket.work.handlers import JobType
from hocket.work.output_capture import Capture, captured
from hocket.work.output_files import CLOSED_FILE, HANDLER, OutputFile, OutputFiles
from hocket.work.pacing import Ending, Limit, Pacer, RunEnded, pacers_of
from hocket.work.run_outputs import RunOutput, RunOutputs, RunParts, RunServices

# A handler that was told to stop by the flag gets an exception after this long, where one can be raised.
INTERRUPTED_AFTER_S = 0.5
# How long a handler may go on after its timeout, and after it was stopped for another reason; then it is given up.
TIMED_OUT_S = 1.0
STOPPED_S = 10.0


class Step(Enum):
    """What follows when the handler of a run goes on: pacers look at it, and it is told to stop after too long."""

    TIME_OUT = 1
    INTERRUPT = 2
    GIVE_UP = 3
    LOOK = 4


class Run:
    """One execution of a job, from the claim to its outcome. It makes what a plain run never needs on first use."""

    trace: RunTrace | None = None
    cost: float | None = None
    """What it cost, if that was measured."""
    started_at: float | None = None
    entered_at: float | None = None
    """When its handler was called, in the thread or on the loop that it got."""
    told_at: float | None = None
    """When the handler was told to stop."""
    ended_at: float | None = None
    result: bytes | None = None
    error: str | None = None
    traceback = ""
    may_retry = True
    later_ms: int | None = None
    cancelled = False
    """Whether the handler is to stop."""
    stopped = False
    timed_out = False
    given_up = False
    """Whether the worker counts the run as ended although its handler goes on."""
    note: bytes | None = None
    unlogged: bytes | None = None
    noted_at = -math.inf
    checkpoint: bytes | None = None
    checkpoint_at = 0.0
    kept_checkpoint: bytes | None = None
    task: asyncio.Task[None] | None = None
    """The task of an async handler, or the one that a plain handler waits for."""
    has_begun = False
    _limit: Limit | None = None
    """The limit of a pacer that sets its timeout."""
    _job_id: str | None = None
    _products: RunOutputs | None = None
    _parts: RunParts | None = None
    _is_sealed = False
    _revoked = False
    _interrupted = False
    _thread: int | None = None

    def __init__(
        self,
        claim: Claim,
        job_type: JobType,
        lease_ms: int,
        claimed_at: float,
        kit: RunServices,
        context: Callable[["Run"], object],
    ) -> None:
        job = claim.job
        assert job.claim_op is not None and job.deadline is not None
        self.claim = claim
        self.job = job
        self.held = Held(job.id, job.claim_op)
        self.job_type = job_type
        self.lease_ms = lease_ms
        timeout_ms = job_type.policy.timeout_ms if job.policy.timeout_ms is None else job.policy.timeout_ms
        self.timeout_s = timeout_ms / 1000 if timeout_ms else math.inf
        self.deadline_ms = job.deadline
        self.claimed_at = self.checked_at = claimed_at
        self.waits_since = kit.monotonic()
        """Since when it waits for a slot. Another node's decision on the claim may have taken long before that."""
        self.is_alone = claim.deaths >= DEATHS_ALONE
        """Whether no other run may be lost if this one ends its process."""
        self.lease = Lease(lease_ms / 1000, claimed_at)
        self.logged_at = claimed_at
        self.schedule = claim.schedule
        self._kit, self._context = kit, context
        self._monotonic = kit.monotonic
        self._lock = threading.Lock()
        self.pacers = self._new_pacers()
        for pacer in self.pacers.values():
            self._keep_to(pacer.limits())

    def _new_pacers(self) -> Mapping[str, Pacer]:
        return pacers_of(self.job, self.job_type, self._kit, lambda: self.products)

    def _keep_to(self, limits: Iterable[Limit]) -> None:
        """The shortest limit counts; of equal ones the first."""
        for limit in limits:
            if limit.seconds < self.timeout_s or (limit.seconds == self.timeout_s and self._limit is None):
                self.timeout_s, self._limit = limit.seconds, limit

    @property
    def job_id(self) -> str:
        if self._job_id is None:
            self._job_id = ulid_text(self.job.id)
        return self._job_id

    @property
    def products(self) -> RunOutputs:
        """What it produces besides its result."""
        if self._products is None:
            with self._lock:
                self._products = self._products or self._new_outputs(self._is_sealed)
        return self._products

    def _new_outputs(self, is_sealed: bool) -> RunOutputs:
        return RunOutputs(self._kit, self.job, is_sealed)

    @property
    def has_staged(self) -> bool:
        """Whether its outputs include content that is staged."""
        return self._products is not None and self._products.has_staged

    def seal(self, tx: Transaction) -> list[RunOutput]:
        """Everything that it has produced besides its result; from here on nothing is added."""
        with self._lock:
            self._is_sealed = True
            products = self._products
        return [] if products is None else products.seal(tx)

    @property
    def parts(self) -> RunParts:
        if self._parts is None:
            self._parts = RunParts(self.job.id, self.job.fence)
        return self._parts

    @property
    def ran_s(self) -> float:
        """How long its handler ran, until it ended."""
        return 0.0 if self.started_at is None or self.ended_at is None else self.ended_at - self.started_at

    # The beginning.

    def revoke(self) -> bool:
        """Cancels a run that has not begun. False if it has."""
        with self._lock:
            self._revoked = self._revoked or self.started_at is None
            return self._revoked

    def begin(self, now: float) -> bool:
        """False if the run was cancelled, or its lease is over."""
        with self._lock:
            self._revoked = self._revoked or now >= self.lease.ends_at
            if not self._revoked:
                self.started_at = now
                for pacer in self.pacers.values():
                    self._keep_to(pacer.begin(now))
            return not self._revoked

    def execute(self) -> None:
        """Calls a plain handler in this thread. Raises nothing."""
        for pacer in self.pacers.values():
            pacer.enter()
        try:
            try:
                call = self._call()
                if self._enter():
                    with self._surroundings():
                        self._keep(gathered(call(), self.part))
            except BaseException as error:
                self._fail(error)
            self._leave()
        except Cancelled:
            # The exception was already on its way when the handler ended. No second one can come: a run is interrupted
            # once.
            self._leave()

    async def execute_async(self) -> None:
        try:
            # A payload that is not on the log may have to be fetched.
            call = self._call() if self.job.policy.content is None else await asyncio.to_thread(self._call)
            if self._enter_task():
                with self._surroundings():
                    running: Any = gathered_async(call(), self.part)
                    for pacer in self.pacers.values():
                        running = pacer.watched(running)
                    self._keep(await running)
        except BaseException as error:
            self._fail(error)

    def _surroundings(self) -> AbstractContextManager[None]:
        """What the handler prints and logs inside the block is kept, and spans that are made there belong to the
        run.
        """
        around = nullcontext() if self._kit.output is None else captured(_RunCapture(self, self._kit.output))
        return around if self.trace is None else _both(around, self.trace.entered())

    def attach(self, task: asyncio.Task[None]) -> bool:
        """The task that is to execute the run. False if another one does already."""
        with self._lock:
            if not self.has_begun:
                self.task = task
            return not self.has_begun

    def _enter_task(self) -> bool:
        with self._lock:
            if self.has_begun:
                return False  # on another loop
            self.has_begun = True
            if self.task is not None:
                self.task = asyncio.current_task()
            return self._may_start()

    def _may_start(self) -> bool:
        """Checked right before the first line of the handler: the process may have been suspended since the claim."""
        self.entered_at = now = self._monotonic()
        if now >= self.lease.ends_at:
            self.cancelled = self.stopped = True
        return not self.stopped

    # The end.

    def stop(self) -> None:
        """Tells the handler to stop: by the flag, and by an exception if possible. Its outcome does not count."""
        self.stopped = True
        self._tell()
        self._interrupt()

    def take(self, step: Step) -> None:
        """Takes a step that is due. After GIVE_UP the run is over, whatever its handler does."""
        if step is Step.TIME_OUT:
            self.timed_out = True
            self._tell()
        elif step is Step.INTERRUPT:
            self._interrupt()
        elif step is Step.LOOK:
            self._look()
        else:
            self.given_up = True
            self.traceback = self.traceback or self.stack()

    def next_step(self) -> tuple[float, Step]:
        """What follows if the handler goes on, and when: at its timeout it is told to stop, then it is interrupted, and
        then it is given up.
        """
        if self.given_up:
            return math.inf, Step.GIVE_UP
        if self.told_at is None:
            due = math.inf if self.started_at is None else self.started_at + self.timeout_s
            look_at = min((pacer.look_at for pacer in self.pacers.values()), default=math.inf)
            if self.started_at is not None and look_at < due:
                return look_at, Step.LOOK
            return due, Step.TIME_OUT
        stop_s = self._limit.stop_s if self._limit is not None and self.timed_out else STOPPED_S
        if not self._interrupted:
            return self.told_at + min(INTERRUPTED_AFTER_S, stop_s / 2), Step.INTERRUPT
        return self.told_at + min(TIMED_OUT_S if self.timed_out else STOPPED_S, stop_s), Step.GIVE_UP

    def _look(self) -> None:
        for pacer in self.pacers.values():
            if (limit := pacer.look()) is not None:
                self._limit, self.timed_out = limit, True
                self._tell()

    def end(self, now: float) -> bool:
        """The run is over. False if it was over before."""
        with self._lock:
            if self.ended_at is not None:
                return False
            self.ended_at = now
        if self._parts is not None and self._parts.made:
            self._parts.is_over = True
            self._kit.stream(self._parts)
        for pacer in self.pacers.values():
            cost = pacer.end()
            self.cost = cost if self.cost is None else self.cost
        if self.timed_out:
            state = ", and its handler did not stop" if self.given_up else ""
            self.result, self.later_ms = None, None
            self.error = f"timed out after {counted(self.timeout_s, 'second')}{state}"
            if self._limit is not None:
                self._end_at(self._limit, state)
        return True

    def _end_at(self, limit: Limit, state: str) -> None:
        ending = limit.ending(state)
        self.result, self.error, self.may_retry = ending.result, ending.error, ending.may_retry

    def _tell(self) -> None:
        self.cancelled = True
        if self.told_at is None:
            self.told_at = self._monotonic()
        if (task := self.task) is not None:
            with suppress(RuntimeError):  # the loop of a plain handler's wait has just ended
                task.get_loop().call_soon_threadsafe(task.cancel)

    def _interrupt(self) -> None:
        with self._lock:
            if self._thread is not None and not self._interrupted and not is_traced():
                raise_in(self._thread, Cancelled)
            self._interrupted = True

    def _enter(self) -> bool:
        """From here on, an exception in this thread can stop the handler. False if it was stopped before."""
        with self._lock:
            if self._may_start():
                self._thread = threading.get_ident()
            return not self.stopped

    def _leave(self) -> None:
        """From here on, no exception may be raised in this thread for this run; one that is on its way arrives now or
        never.
        """
        with self._lock:
            self._thread = None
            may_be_under_way = self._interrupted
        for pacer in self.pacers.values():
            pacer.leave()
        if may_be_under_way:
            absorb()

    def stack(self) -> str:
        """Where the thread of a plain handler is now."""
        frame = sys._current_frames().get(self._thread) if self._thread is not None else None
        return "" if frame is None else stack_text(frame)

    def _call(self) -> Callable[[], Any]:
        try:
            payload = self._kit.payload(self.job, schedule_payload(self.schedule))
        except Erased as error:
            raise RunEnded(Ending(None, str(error), may_retry=False)) from None
        return self.job_type.call(self._context(self), payload)

    def _keep(self, value: Any) -> None:
        if self._parts is not None and self._parts.made:
            self.products.keep_parts(self._parts, RESULT_BYTES_MAX)
        if value is None:
            return
        written = encode_json(value, "the result")
        if len(written) > RESULT_BYTES_MAX:
            raise ValueError(
                f"the result has {len(written)} bytes, at most {RESULT_BYTES_MAX}; return a reference instead"
            )
        self.conclude(Ending(written))

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, RunEnded):
            self.conclude(error.ending)
            return
        is_told = isinstance(error, Cancelled | asyncio.CancelledError) and (self.stopped or self.timed_out)
        said, trace = description(error)
        later_ms = error.delay_ms if isinstance(error, Later) else None
        retries = may_retry(error, self.job_type.retry_on, self.job_type.give_up_on)
        self.conclude(Ending(None, None if is_told else said, trace, retries, later_ms))

    def part(self, value: Any) -> None:
        """The next part of the result. Raises Cancelled if the handler is to stop."""
        if self.cancelled:
            raise Cancelled
        self.add_part(*self.parts.encode(value))

    def add_part(self, written: bytes, is_bytes: bool) -> None:
        self.parts.add(written, is_bytes)
        self._kit.stream(self.parts)

    def report(self, note: bytes) -> None:
        """The newest progress note."""
        self.note = note
        for pacer in self.pacers.values():
            pacer.note(note)

    def save(self, checkpoint: bytes) -> None:
        """The newest checkpoint. The same one again has no effect."""
        self.checkpoint = None if checkpoint == self.kept_checkpoint else checkpoint

    def ending(self) -> Ending:
        return Ending(self.result, self.error, self.traceback, self.may_retry, self.later_ms)

    def conclude(self, ending: Ending) -> None:
        """Keeps how the handler ended, unless the run was over before."""
        with self._lock:
            if self.ended_at is None:
                self.result, self.error, self.traceback, self.may_retry, self.later_ms = ending


class _RunCapture(Capture):
    """The output of a run's handler. It gets its file with the first byte."""

    _file: OutputFile | None = None

    def __init__(self, run: Run, files: OutputFiles) -> None:
        self._run, self._files = run, files

    @property
    def job_id(self) -> str:
        return self._run.job_id

    def write(self, data: bytes) -> None:
        if (file := self._file) is None:
            # One step, without a lock: a finaliser that prints may run anywhere.
            made = self._files.file(self.job_id, self._run.job.fence, HANDLER)
            file = self.__dict__.setdefault("_file", made)
        file.write(data)

    def close(self) -> None:
        if (file := self.__dict__.setdefault("_file", CLOSED_FILE)) is not CLOSED_FILE:
            file.close()


@contextmanager
def _both(outer: AbstractContextManager[None], inner: AbstractContextManager[None]) -> Iterator[None]:
    with outer, inner:
        yield


def gathered(made: Any, part: Callable[[Any], None]) -> Any:
    """What a handler returns. If it is a generator, makes each yielded value a part first."""
    if not isinstance(made, GeneratorType):
        return made
    with closing(made) as generator:
        while True:
            try:
                value = next(generator)
            except StopIteration as end:
                return end.value
            part(value)


async def gathered_async(made: Any, part: Callable[[Any], None]) -> Any:
    """What a coroutine returns. Of an async generator, makes each yielded value a part."""
    if not inspect.isasyncgen(made):
        return await made
    async with aclosing(made) as generator:
        async for value in generator:
            part(value)
    return None
