"""What a handler knows about its job, and what it can do besides its result: `Context`, the first parameter of a
handler.
"""

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any, Generic

import msgspec

from hocket.errors import NotAuthorised
from hocket.families.jobs.rules import Job
from hocket.families.jobs.view import results_before
from hocket.families.json_values import encode_json
from hocket.kernel.extension import part
from hocket.kernel.ids import ulid_text
from hocket.kernel.ops import Beat, decode
from hocket.kernel.policy import covers
from hocket.kernel.vocabulary import JOB, Payload, SaveCheckpoint, Subject, number_of
from hocket.store import Session
from hocket.work.handlers import JobType
from hocket.work.inference import infer, question
from hocket.work.run_outputs import RunOutputs
from hocket.work.runner import Run

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
NO_FALLBACK: Any = object()
_CHECKPOINT = number_of(SaveCheckpoint)


class Context(Generic[N_co]):
    """What a handler knows about its job. `Context[SyncNode]` and, for a coroutine, `Context[Node]` tell a type checker
    what `ctx.node` is.
    """

    _run: Run

    def __init__(self, run: Run) -> None:
        self._run = run
        self._asked: dict[str, int] = {}
        self.kind: str = run.job.kind
        self.fence: int = run.job.fence
        """The fence of this claim. Pass it to the resource that you change, and let that refuse lower numbers."""
        self.attempt: int = run.job.failures + 1
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
        return [value for _, value in self._results()]

    def results_of(self, job: JobType[..., R]) -> list[R]:
        """The results of those jobs of this kind that this one comes after, each as the type that their handler
        returns.
        """
        found = [(ulid_text(each.id), value) for each, value in self._results() if covers(job.kind, each.kind)]
        return [value if job.signature is None else job.signature.result(job_id, value) for job_id, value in found]

    def _results(self) -> list[tuple[Job, Any]]:
        """The jobs that this one comes after, with their results."""
        job, kit = self._run.job, self._run.products.kit
        found: list[tuple[Job, Any]] = kit.read(lambda session: results_before(session, job, kit.blobs, kit.fetch))
        return found

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
        """Keeps the result with which the job ends if its score says `fallback:NAME` when beats run out. The newest one
        counts.
        """
        self._call("set_fallback", name, value)

    def wait_for(self, awaited: Awaitable[Any], *, budget: str = "io", fallback: Any = NO_FALLBACK) -> Any:
        """Waits for a coroutine, a future or `ask_help`, at most as many beats as the score's `wait_budget` has left
        for `budget` ("help" or "io"), and not beyond the phase. Then the score decides: it returns `fallback` (called,
        if it is a function), ends the job with its fallback, defers it to the next phrase, or raises WaitExhausted.
        Each is recorded. In a coroutine, await it; in a plain handler it returns the value.
        """
        return self._call("wait_for", awaited, budget, fallback)

    def ask(self, question: str, *, wait: str | float, fallback: Any = NO_FALLBACK) -> Any:
        """Asks the submitter of the job, and returns the answer as text: that of the agent in `questions_to`, else of
        the owner of the node that submitted the job. The question and the answer are on the log, so a run that follows
        a dead one gets the old answer. Without an answer within `wait` it returns `fallback`, or raises TimeoutError.
        In a coroutine, await it; in a plain handler it returns the value.
        """
        self._asked[question] = number = self._asked.get(question, 0) + 1
        node: Any = self.node
        job = node.job(self.job_id)
        if self._run.job_type.is_async:
            return _answered(job.ask(question, wait, number), fallback)
        try:
            return job.ask(question, wait, number)
        except TimeoutError:
            if fallback is NO_FALLBACK:
                raise
            return fallback

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


async def _answered(asking: Awaitable[str], fallback: Any) -> Any:
    try:
        return await asking
    except TimeoutError:
        if fallback is NO_FALLBACK:
            raise
        return fallback


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


def last_checkpoint(session: Session, job_id: bytes) -> bytes | None:
    """The newest checkpoint of the job that counts."""
    rows = [row for row in session.ops_about(Subject(JOB, job_id)) if row.variant == _CHECKPOINT and row.reason == 0]
    if not rows:
        return None
    payload = decode(max(rows, key=lambda row: row.hlc).body).payload
    assert isinstance(payload, SaveCheckpoint)
    return payload.state
