"""What a program asks of a node, in the forms that jobs have, and the answers that it gets. `ProgramNode` is the node
as its handles, inboxes and tables see it. The rest are their async methods for synchronous code: on a `DirectNode` no
request suspends, so a blocking call runs its coroutine to the end in the caller's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Concatenate, Generic, NamedTuple, ParamSpec, Protocol, TypeVar, overload

from hocket.errors import Conflict, Unreachable, Usage
from hocket.families.access import NodeAccess
from hocket.kernel.arbitration import Reason
from hocket.kernel.ids import parse_ulid

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterable

    from hocket.bus.signed import SignedMessages
    from hocket.families.artifacts import Fetch
    from hocket.families.jobs.parts import Part
    from hocket.families.jobs.requests import Decision, Draft
    from hocket.families.jobs.rules import Job
    from hocket.families.locks.processes import LockProcesses
    from hocket.log import Transaction
    from hocket.mesh.waiting import Waiting
    from hocket.node.delivery import Delivery
    from hocket.node.runtime import Runtime
    from hocket.work.environment import Environment
    from hocket.work.handlers import JobType

    Pairs = Iterable[tuple[JobType | str, dict[str, Any]]]
    Step = tuple[JobType | str, dict[str, Any]] | JobType | str


class PreparedJob(Protocol):
    """A job that is ready for the log."""

    @property
    def draft(self) -> Draft: ...
    def submit(self, tx: Transaction, runtime: Runtime) -> bytes: ...


class JobRequest(Protocol):
    """A job that is submitted with more than its payload, like the files of a command."""

    def prepared(self, runtime: Runtime) -> PreparedJob: ...


class StreamNews(NamedTuple):
    """News for a listener besides parts: each new progress note, and while the job is not running, about every
    second what it waits for (None once it runs).
    """

    progress: Callable[[Any], None] = lambda note: None
    waiting: Callable[[Waiting | None], None] | None = None


P = ParamSpec("P")
T = TypeVar("T")


class ProgramNode(NodeAccess, Protocol):
    """A `Node`, as its handles, inboxes and tables see it: they are imported by it and cannot import it."""

    environment: Environment
    delivery: Delivery | None
    lock_processes: LockProcesses

    @property
    def runtime(self) -> Runtime: ...
    @property
    def fetch(self) -> Fetch: ...
    @property
    def send(self) -> Callable[..., Awaitable[str]]: ...
    def wrote(self, to: int | None = None) -> None: ...
    def parts(self, job_id: bytes, news: StreamNews) -> AsyncGenerator[Part, None]: ...
    async def waiting(self, job_id: bytes) -> Waiting | None: ...
    async def message_bus(self) -> SignedMessages: ...


def drafts_of(pairs: Pairs) -> tuple[list[JobType], list[Draft]]:
    from hocket.work.handlers import named_kind

    given = [(named_kind(job), payload) for job, payload in pairs]
    return [job for job, _ in given], [job.draft(payload) for job, payload in given]


def pairs_of(steps: Iterable[Step]) -> Pairs:
    return [step if isinstance(step, tuple) else (step, {}) for step in steps]


def id_of(text: str) -> bytes:
    try:
        return parse_ulid(text)
    except ValueError as error:
        raise Usage(f"{text!r} is not a job id: {error}") from None


def accepted(decision: Decision) -> Job:
    if isinstance(decision, Reason):
        raise Conflict(f"not accepted: {decision.sentence}")
    return decision


def kept(error: Unreachable) -> Unreachable:
    """The error for a request that could not be sent."""
    from hocket.mesh.waiting import DELIVERS

    return Unreachable(f"{error}; the request waits here, and {DELIVERS}")


# For synchronous code.


def now(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that never suspends, and returns its result."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("a blocking call waits for an event loop")


def each(source: AsyncIterator[T]) -> Generator[T, None, None]:
    """Yields what an async generator that never suspends yields."""
    try:
        while True:
            try:
                item: T = now(anext(source))  # type: ignore[arg-type]
            except StopAsyncIteration:
                return
            yield item
    finally:
        now(source.aclose())  # type: ignore[attr-defined]


class Blocking(Generic[P, T]):
    """An async method as a blocking method of a class whose `_target` has it."""

    def __init__(self, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> None:
        self._name, self.__doc__ = method.__name__, method.__doc__

    @overload
    def __get__(self, holder: None, owner: type) -> Blocking[P, T]: ...
    @overload
    def __get__(self, holder: Any, owner: type) -> Callable[P, T]: ...
    def __get__(self, holder: Any, owner: type) -> Blocking[P, T] | Callable[P, T]:
        if holder is None:
            return self

        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            work: Coroutine[Any, Any, T] = getattr(holder._target, self._name)(*args, **kwargs)
            return now(work)

        return call
