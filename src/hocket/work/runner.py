"""One run of a handler, and what the handler knows about it, its context. However a handler ends, even by `sys.exit`,
that becomes the run's outcome. `handler_threads` provides the threads.
"""

import asyncio
import math
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from enum import Enum
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any, Generic

import msgspec

from hocket.errors import NotAuthorised
from hocket.families.jobs.requests import RESULT_BYTES_MAX, Claim, Held
from hocket.families.jobs.rescue import DEATHS_ALONE
from hocket.families.jobs.rules import Job
from hocket.families.jobs.tracing import RunTrace
from hocket.families.json_values import encode_json
from hocket.kernel.extension import part
from hocket.kernel.ids import ulid_text
from hocket.kernel.lease import Lease
from hocket.kernel.ops import Beat, schedule_payload
from hocket.kernel.texts import counted
from hocket.kernel.vocabulary import Payload
from hocket.log import Transaction
from hocket.work import chains
from hocket.work.checkpoints import last_checkpoint
from hocket.work.handler_errors import description, stack_text
from hocket.work.handlers import JobType
from hocket.work.inference import infer, question
from hocket.work.interruption import Cancelled, absorb, is_traced, raise_in
from hocket.work.output_capture import Capture, captured
from hocket.work.output_files import CLOSED_FILE, HANDLER, OutputFile, OutputFiles
from hocket.work.pacing import Ending, Limit, Pacer, RunEnded, pacers_of
from hocket.work.parts import RunParts, gathered, gathered_async
from hocket.work.retrying import Later, may_retry
from hocket.work.run_outputs import RunOutput, RunOutputs, RunServices

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    class AnyNode:
        """The node of a `Context` without a parameter: everything on it is allowed. It is not Any itself, because a
        type checker cannot choose between the overloads of `@job` for a function that takes Any.
        """

        def __getattr__(self, name: str) -> Any: ...

    N_co = TypeVar("N_co", covariant=True, default=AnyNode)
else:
    from typing import TypeVar

    N_co = TypeVar("N_co", covariant=True)
R = TypeVar("R")

NOTE_BYTES_MAX = 64 * 1024
# A handler that was told to stop by the flag gets an exception after this long, where one can be raised.
INTERRUPTED_AFTER_S = 0.5
# How long a handler may go on after its timeout, and after it was stopped for another reason; then it is given up.
TIMED_OUT_S = 1.0
STOPPED_S = 10.0
NO_FALLBACK: Any = object()


class Context(Generic[N_co]):
    """What a handler knows about its job. `Context[SyncNode]` and, for a coroutine, `Context[Node]` tell a type checker
    what `ctx.node` is.
    """

    _run: "Run"

    def __init__(self, run: "Run") -> None:
        self._run = run
        self.kind = run.job.kind
        self.fence = run.job.fence
        """The fence of this claim. Pass it to the resource that you change, and let that refuse lower numbers."""
        self.attempt = run.job.failures + 1
        """Which try this is: 1 for the first, one more after each failure. A claim that was lost or returned is not a
        try of its own. `hocket retry` starts again from 1.
        """

    @property
    def job_id(self) -> str:
        return self._run.job_id

    @property
    def cancelled(self) -> bool:
        """Whether to stop: the job was cancelled, or another worker may hold it by now."""
        return self._run.cancelled

    @property
    def deadline(self) -> float:
        """When the lease ends unless renewed, in seconds since the epoch. The worker renews it while the handler
        runs.
        """
        return self._run.deadline_ms / 1000.0

    @cached_property
    def results(self) -> list[Any]:
        """The results of the jobs that this one comes after, in the order of `after`, as plain JSON values.
        `results_of` gives them as the types that their handlers return.
        """
        job = self._run.job
        found: list[Any] = self._run.products.kit.read(lambda session: chains.results(session, job))
        return found

    def results_of(self, job: JobType[..., R]) -> list[R]:
        """The results of those jobs of this kind that this one comes after, each as the type that their handler
        returns.
        """
        found = self._run.products.kit.read(lambda session: chains.results_of(session, self._run.job, job.kind))
        return [value if job.signature is None else job.signature.result(job_id, value) for job_id, value in found]

    @cached_property
    def node(self) -> N_co:
        """The node that runs this job: a `Node` for a coroutine, else a `SyncNode`."""
        node: N_co = self._run.products.kit.node(self._run.job_type.is_async)
        return node

    def progress(self, note: Any) -> None:
        """Tells how far the job has come, as any JSON value, to those who look at it while it runs. The newest note
        counts. The log gets one once a minute at most.
        """
        encoded = encode_json(note, "the progress note")
        if len(encoded) > NOTE_BYTES_MAX:
            raise ValueError(f"the progress note has {len(encoded)} bytes, at most {NOTE_BYTES_MAX}")
        self._run.report(encoded)

    def part(self, value: Any) -> None:
        """Gives a part of the result to those who follow the job: text, bytes, or any other JSON value. All parts
        together are the result, unless the handler returns one. It never waits for a listener.
        """
        self._run.part(value)

    def checkpoint(self, state: Any) -> None:
        """Keeps how far this job has come, as any JSON value, for the next try: after a failure, a lost lease or the
        end of this worker. Frequent checkpoints are merged: the newest one counts. It is on the log at most half a
        second later (a hundredth of the running time, if that is more), and always before a failure.
        """
        written = encode_json(state, "the checkpoint")
        if len(written) > NOTE_BYTES_MAX:
            raise ValueError(
                f"the checkpoint has {len(written)} bytes, at most {NOTE_BYTES_MAX}; keep a reference instead"
            )
        self._run.save(written)

    @cached_property
    def last_checkpoint(self) -> Any:
        """The newest checkpoint of the earlier tries of this job, on whichever node; None if there is none."""
        job_id = self._run.job.id
        found: bytes | None = self._run.products.kit.read(lambda session: last_checkpoint(session, job_id))
        return None if found is None else msgspec.json.decode(found)

    @property
    def audited(self) -> bool:
        """Whether every model call of this node must be recorded."""
        return self._run.products.kit.audited()

    def used(
        self,
        *,
        gpu_sec: Mapping[str, float] | None = None,
        accel_sec: Mapping[str, float] | None = None,
        net_egress_mb: float = 0.0,
    ) -> None:
        """Adds what this run has used that its worker cannot measure: seconds of GPUs and of other accelerators by
        their class, and megabytes that it has sent. Only a run that is priced or has a budget counts it.
        """
        amounts = {"gpu_sec": dict(gpu_sec or {}), "accel_sec": dict(accel_sec or {}), "net_egress_mb": net_egress_mb}
        self._call("used", amounts)

    @property
    def beat(self) -> Beat | None:
        """The beat of the cluster: `index` within its bar, `is_downbeat`, `epoch_ms`, `window_ms`. None if neither the
        worker has a tempo nor the job a score.
        """
        beat: Beat | None = self._call("beat")
        return beat

    @property
    def phase(self) -> str | None:
        """The phase in which the job is by its score, or else in which the cluster is."""
        phase: str | None = self._call("phase")
        return phase

    @property
    def beats_left(self) -> int | None:
        """How many whole beats the phase has left after this one; negative after the end of the phrase."""
        beats: int | None = self._call("beats_left")
        return beats

    def set_fallback(self, name: str, value: Any) -> None:
        """Keeps the result with which the job ends if its score says `fallback:NAME` when beats run out. The newest
        one counts.
        """
        self._call("set_fallback", name, value)

    def wait_for(self, awaited: Awaitable[Any], *, budget: str = "io", fallback: Any = NO_FALLBACK) -> Any:
        """Waits for a coroutine, a future or `ask_help`, at most as many beats as the score's `wait_budget` has left
        for `budget` ("help" or "io"), and not beyond the phase. Then the score decides: it returns `fallback` (called,
        if it is a function), ends the job with its fallback, defers it to the next phrase, or raises WaitExhausted.
        Each is recorded. In a coroutine, await it; in a plain handler it returns the value.
        """
        return self._call("wait_for", awaited, budget, fallback)

    def ask_help(self, to: str, body: Any) -> Coroutine[Any, Any, Any]:
        """A request for help to an agent or a group, to be passed to `wait_for` with `budget="help"`: the value is the
        message with the help. The wait is spent if nobody promises help by the end of the bar, or helps until the
        promise fails.
        """
        asking: Coroutine[Any, Any, Any] = self._call("ask_help", to, body)
        return asking

    def promise(
        self,
        request: Any,
        beats: int,
        *,
        fail_after: int | None = None,
        confidence: float = 1.0,
        on_fail: str = "fallback",
    ) -> Any:
        """Promises help within so many beats to the agent that sent this request. After `fail_after` beats, default
        twice as many, the requester goes on without. In a coroutine, await it.
        """
        return self._call("promise", request, beats, fail_after, confidence, on_fail)

    def _call(self, name: str, *arguments: Any) -> Any:
        """What an extension offers under this name."""
        return part("context", name)(self._run, *arguments)

    def artifact(
        self,
        content: bytes | PathLike[str],
        *,
        type: str,
        ttl: str | float | None = None,
        inputs: Iterable[str | bytes] = (),
    ) -> str:
        """Stores bytes, or a copy of a file, as an artifact of this job; returns its id. It goes on the log when the
        job completes; otherwise it is discarded. After `ttl` it may be evicted; `inputs` are the ids of the evidence
        that it was made from.
        """
        return ulid_text(self._run.products.artifact(content, type, ttl, inputs))

    def emit(self, payload: Payload) -> None:
        """Writes an op about a knowledge graph, such as a CreateClaim, when the job completes. After model calls, the
        op is linked to their records.
        """
        self._run.products.emit(payload)

    def new_id(self) -> bytes:
        """A new id, for a claim or an entity."""
        return self._run.products.new_id()

    def infer(
        self,
        *,
        model: str,
        version: str,
        prompt: str,
        call: Callable[..., Any],
        context: Iterable[str | bytes] = (),
        backend: str = "python",
        audit: bool = True,
        **options: Any,
    ) -> Any:
        """Calls a model, `call(prompt, **options)`, and records the call: the model and its version, the prompt, what
        it was made from (`context`: ids as `evidence:ID`, `claim:ID`, `entity:ID`; a bare id is evidence), the answer,
        times and token counts. Returns the result of the call; await it if the call is async. The record goes on the
        log however the job ends. `audit=False` records nothing, which is an error on an audited node.
        """
        asked = question(model, version, backend, prompt, context)
        if audit:
            return infer(self._run.products, asked, call, options)
        if self.audited:
            raise NotAuthorised("every model call of this node must be recorded; call it without audit=False")
        return call(asked.prompt, **options)


def products_of(ctx: Context) -> RunOutputs:
    """For handlers of our own, which may keep more than users' handlers."""
    return ctx._run.products


def claim_of(ctx: Context) -> bytes:
    """The claim op of the handler's job; for handlers of our own."""
    return ctx._run.held.claim_op


def job_of(ctx: Context) -> Job:
    """The handler's job at the time of its claim; for handlers of our own."""
    return ctx._run.job


def set_cost(ctx: Context, cost: float) -> None:
    """Keeps what the handler has measured that its run cost; for handlers of our own."""
    ctx._run.cost = cost


def schedule_of(ctx: Context) -> bytes:
    """The op that made the handler's job, encoded; for handlers of our own."""
    return ctx._run.schedule


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
        self._kit = kit
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
            call = self._call()
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
        return self.job_type.call(Context(self), schedule_payload(self.schedule))

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
