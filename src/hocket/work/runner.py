"""Runs handlers in the worker's slots: plain functions on threads of their own, coroutines on an event loop of their
own. Neither can block the worker's loop, which keeps renewing leases whatever a handler does. However a handler ends,
even by `sys.exit`, that becomes the run's outcome.
"""

import asyncio
import ctypes
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from os import PathLike
from queue import SimpleQueue
from typing import Any

import msgspec

from hocket.errors import HocketError, NotAuthorised
from hocket.kernel.ids import ulid_text
from hocket.kernel.ops import schedule_payload
from hocket.kernel.vocabulary import Payload
from hocket.work.handlers import JobType
from hocket.work.inference import infer, question
from hocket.work.jobs import RESULT_BYTES_MAX, Claim, Held
from hocket.work.lease import Lease
from hocket.work.output_capture import Capture, captured
from hocket.work.output_files import HANDLER
from hocket.work.run_outputs import RunOutputs, RunServices

TRACEBACK_CHARS_MAX = 16_384
ERROR_CHARS_MAX = 500
NOTE_BYTES_MAX = 64 * 1024


class Cancelled(BaseException):
    """Raised inside a plain handler whose job was cancelled or whose lease is lost."""


class Context:
    """What a handler knows about its job."""

    def __init__(self, run: "Run", claim: Claim) -> None:
        self._run = run
        self.job_id = ulid_text(claim.job.id)
        self.kind = claim.job.kind
        self.fence = claim.job.fence
        """The fence of this claim. Pass it to the resource that you change, and let that refuse lower numbers."""
        self.attempt = claim.job.failures + 1
        """Which try this is: 1 for the first, one more after each failure. A claim that was lost or returned is not a
        try of its own. `hocket retry` starts again from 1.
        """
        self.cancelled = False
        """Whether to stop: the job was cancelled, or another worker may hold it by now."""

    @property
    def deadline(self) -> float:
        """When the lease ends unless renewed, in seconds since the epoch. The worker renews it while the handler
        runs.
        """
        return self._run.deadline_ms / 1000.0

    def progress(self, note: Any) -> None:
        """Records the progress of the job, as any JSON value. Frequent notes are merged: the newest one counts."""
        encoded = msgspec.json.encode(note)
        if len(encoded) > NOTE_BYTES_MAX:
            raise ValueError(f"the progress note has {len(encoded)} bytes, at most {NOTE_BYTES_MAX}")
        self._run.note = encoded

    @property
    def audited(self) -> bool:
        """Whether every model call of this node must be recorded."""
        return self._run.products.kit.audited()

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


def schedule_of(ctx: Context) -> bytes:
    """The op that made the handler's job, encoded; for handlers of our own."""
    return ctx._run.schedule


class Run:
    """One execution of a job, from the claim to its outcome."""

    def __init__(self, claim: Claim, job_type: JobType, lease_ms: int, claimed_at: float, kit: RunServices) -> None:
        job = claim.job
        assert job.claim_op is not None and job.deadline is not None
        self.job = job
        self.held = Held(job.id, job.claim_op)
        self.job_type = job_type
        self.lease_ms = lease_ms
        self.deadline_ms = job.deadline
        self.claimed_at = claimed_at
        self.lease = Lease(lease_ms / 1000, claimed_at)
        self.checked_at = claimed_at
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.result: bytes | None = None
        self.error: str | None = None
        self.traceback = ""
        self.stopped = False
        self.note: bytes | None = None
        self.noted_at = 0.0
        self.products = RunOutputs(kit, job.id)
        self.context = Context(self, claim)
        self.schedule = claim.schedule
        self._lock = threading.Lock()
        self._revoked = False
        self._thread: int | None = None
        self.task: asyncio.Task[None] | None = None

    def revoke(self) -> bool:
        """Cancels a run that has not begun. False if it has."""
        with self._lock:
            self._revoked = self._revoked or self.started_at is None
            return self._revoked

    def begin(self, now: float) -> bool:
        with self._lock:
            if self._revoked:
                return False
            self.started_at = now
            return True

    def execute(self) -> None:
        """Calls a plain handler in this thread."""
        try:
            try:
                if self._enter():
                    with self._captured():
                        self._keep(self.job_type(self.context, **self._arguments()))
            except BaseException as error:
                self._fail(error)
            self._leave()
        except Cancelled:
            # The exception was already on its way when the handler ended. No second one can come: a run is stopped
            # once.
            self._leave()

    async def execute_async(self) -> None:
        try:
            with self._captured():
                self._keep(await self.job_type(self.context, **self._arguments()))
        except BaseException as error:
            self._fail(error)

    @contextmanager
    def _captured(self) -> Iterator[None]:
        """What the handler prints and logs inside the block is kept."""
        kept = self.products.kit.output
        if kept is None:
            yield
            return
        with closing(kept.file(self.context.job_id, self.job.fence, HANDLER)) as file:
            with captured(Capture(self.context.job_id, file.write)):
                yield

    def stop(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Tells the handler to stop: by the flag, and by an exception if possible."""
        self.context.cancelled = True
        self.stopped = True
        if self.task is not None and loop is not None:
            loop.call_soon_threadsafe(self.task.cancel)
        with self._lock:
            if self._thread is not None:
                _raise_in(self._thread, Cancelled)

    def _enter(self) -> bool:
        """From here on, an exception in this thread can stop the handler. False if it was stopped before."""
        with self._lock:
            if not self.stopped:
                self._thread = threading.get_ident()
            return not self.stopped

    def _leave(self) -> None:
        """From here on, no exception may be raised in this thread for this run; one that is on its way arrives now or
        never.
        """
        with self._lock:
            self._thread = None
            may_be_under_way = self.stopped
        if may_be_under_way:
            _raise_in(threading.get_ident(), None)

    def _arguments(self) -> dict[str, Any]:
        payload = schedule_payload(self.schedule)
        arguments = msgspec.json.decode(payload) if payload else {}
        if not isinstance(arguments, dict):
            raise TypeError(f"the payload is a JSON {type(arguments).__name__}, not an object")
        return arguments

    def _keep(self, value: Any) -> None:
        if value is None:
            return
        encoded = msgspec.json.encode(value)
        if len(encoded) > RESULT_BYTES_MAX:
            raise ValueError(
                f"the result has {len(encoded)} bytes, at most {RESULT_BYTES_MAX}; return a reference instead"
            )
        self.result = encoded

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, Cancelled | asyncio.CancelledError) and self.stopped:
            return
        self.error = type(error).__name__
        try:
            said = f"{self.error}: {error}"
            if isinstance(error, SystemExit):
                said = f"the handler called sys.exit({error.code!r})"
            elif isinstance(error, HocketError):
                said = str(error)
            self.error = _text(said.splitlines()[0][:ERROR_CHARS_MAX])
            self.traceback = _text("".join(traceback.format_exception(error))[-TRACEBACK_CHARS_MAX:])
        except Exception as second:
            self.traceback = f"{self.error}, and describing it raised {type(second).__name__}"


class Runner:
    """Threads and a loop for the handlers of one worker. `finished` is called, from any thread, with each run that has
    ended; `monotonic` is the clock.
    """

    def __init__(self, slots: int, finished: Callable[[Run], None], monotonic: Callable[[], float]) -> None:
        self._slots = slots
        self._finished = finished
        self._monotonic = monotonic
        self._waiting: deque[Run] = deque()
        self._busy = 0
        self._lock = threading.Lock()
        self._queue: SimpleQueue[Run | None] = SimpleQueue()
        self._threads = 0
        self.loop: asyncio.AbstractEventLoop | None = None

    def start(self, run: Run) -> None:
        """Starts the run as soon as a slot is free."""
        self._waiting.append(run)
        self._fill()

    def _fill(self) -> None:
        with self._lock:
            while self._busy < self._slots and self._waiting:
                run = self._waiting.popleft()
                if run.begin(self._monotonic()):
                    self._busy += 1
                    self._launch(run)

    def _launch(self, run: Run) -> None:
        if run.job_type.is_async:
            loop = self.loop or self._start_loop()
            loop.call_soon_threadsafe(self._start_task, loop, run)
            return
        self._queue.put(run)
        if self._threads < self._slots:
            self._threads += 1
            threading.Thread(target=self._slot, name=f"hocket-handler-{self._threads}", daemon=True).start()

    def _over(self, run: Run) -> None:
        with self._lock:
            self._busy -= 1
        self._fill()
        self._finished(run)

    def close(self) -> None:
        """Lets the threads end when they are free; a thread that is stuck in a handler ends with the process."""
        self._waiting.clear()
        for _ in range(self._threads):
            self._queue.put(None)
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self.loop.stop)

    def _slot(self) -> None:
        while (run := self._queue.get()) is not None:
            run.execute()
            run.ended_at = self._monotonic()
            self._over(run)

    def _start_loop(self) -> asyncio.AbstractEventLoop:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, name="hocket-async-handlers", daemon=True).start()
        return self.loop

    def _start_task(self, loop: asyncio.AbstractEventLoop, run: Run) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            run.ended_at = self._monotonic()
            self._over(run)

        run.task = loop.create_task(run.execute_async())
        run.task.add_done_callback(ended)
        if run.stopped:
            run.task.cancel()


def _text(said: str) -> str:
    """Text that can be stored: replaces characters that stand for undecodable bytes, as in a file's name."""
    return said.encode("utf-8", "replace").decode()


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error) if error else None)
