"""The queries and commands of the service for programs: `hocket.admin(node)`. It lists and counts jobs, reads and
stores artifacts, sets schedules, lists, drains and resumes nodes, and tells of agents, with the same typed answers that
the other interfaces get.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import aclosing
from functools import partial
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from hocket.api import (
    Service,
    agents,
    artifacts,
    job_lists,
    jobs,
    kinds,
    nodes,
    ops,
    programs,
    rights,
    schedules,
    status,
)
from hocket.api.agents import AgentShown
from hocket.api.job_lists import JobsPage
from hocket.api.job_operations import job_answers, job_changes, job_erasure, job_logs, job_news, job_submits
from hocket.api.log_operations import author_checkpoints
from hocket.api.nodes import LiveNode
from hocket.api.operation import Operation, extension_operations
from hocket.api.retention import keeping, pruning, snapshots
from hocket.api.workers import claiming, ending
from hocket.errors import Usage
from hocket.families.jobs.cron import NewSchedule
from hocket.families.jobs.drafts import Duration
from hocket.kernel.texts import duration_ms
from hocket.node.node import Node, SyncNode
from hocket.work.handlers import JobType, named_kind

P = ParamSpec("P")
A = TypeVar("A")


class Method(Generic[P, A]):
    """A function on a Service as a method of Admin, which returns its answer, and of AsyncAdmin, which is awaited."""

    def __init__(self, function: Callable[Concatenate[Service, P], A]) -> None:
        self._function = function
        self._changes = isinstance(function, Operation) and function.method != "GET"
        self.__doc__ = function.help if isinstance(function, Operation) else function.__doc__

    @overload
    def __get__(self, admin: None, owner: type) -> "Method[P, A]": ...
    @overload
    def __get__(self, admin: "Admin", owner: type) -> Callable[P, A]: ...
    @overload
    def __get__(self, admin: "AsyncAdmin", owner: type) -> Callable[P, Coroutine[Any, Any, A]]: ...
    def __get__(self, admin: "Admin | AsyncAdmin | None", owner: type) -> Any:
        if isinstance(admin, Admin):
            return self._on(admin.node)
        return self if admin is None else self._on_async(admin.node)

    def _on(self, node: SyncNode) -> Callable[P, A]:
        def call(*args: P.args, **kwargs: P.kwargs) -> A:
            answer = node.call(lambda: self._function(Service(node.runtime, node=node), *args, **kwargs))
            if self._changes:
                node.wrote()
            return answer

        return call

    def _on_async(self, node: Node) -> Callable[P, Coroutine[Any, Any, A]]:
        async def call(*args: P.args, **kwargs: P.kwargs) -> A:
            service = Service(node.runtime, node=node.blocking())
            answer = await node.call(lambda: self._function(service, *args, **kwargs))
            if self._changes:
                node.wrote()
            return answer

        return call


class StreamMethod(Generic[P, A]):
    """An operation whose answer is a stream: an iterator of Admin, and an async one of AsyncAdmin."""

    def __init__(self, operation: Operation[P, AsyncIterator[A]]) -> None:
        self._operation = operation
        self.__doc__ = operation.help

    @overload
    def __get__(self, admin: None, owner: type) -> "StreamMethod[P, A]": ...
    @overload
    def __get__(self, admin: "Admin", owner: type) -> Callable[P, Iterator[A]]: ...
    @overload
    def __get__(self, admin: "AsyncAdmin", owner: type) -> Callable[P, AsyncIterator[A]]: ...
    def __get__(self, admin: "Admin | AsyncAdmin | None", owner: type) -> Any:
        if isinstance(admin, Admin):
            return partial(self._operation, Service(admin.node.runtime, node=admin.node))
        return self if admin is None else partial(self._items, admin.node)

    async def _items(self, node: Node, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[A]:
        service = Service(node.runtime, node=node.blocking())
        items = await self._operation.function(service, node, *args, **kwargs)
        async with aclosing(items):
            async for each in items:
                yield each


def _jobs(
    service: Service,
    *,
    state: str | None = None,
    outcome: str | None = None,
    kind: str | None = None,
    limit: int = 50,
    before: str | None = None,
) -> JobsPage:
    """Jobs, newest first. The `next` of a page, as `before`, gives the following page."""
    return job_lists.page(service, job_lists.query(state, outcome, kind, limit, before))


def _count(service: Service, *, state: str | None = None, outcome: str | None = None, kind: str | None = None) -> int:
    """How many jobs match."""
    return job_lists.count(service, job_lists.query(state, outcome, kind))


def _content(service: Service, artifact_id: str) -> bytes:
    """The content of an artifact, fetched from another node if this one lacks it."""
    return artifacts.content(service, artifact_id).data


def _schedule(
    service: Service,
    name: str,
    cron: str,
    job: JobType | str,
    payload: dict[str, Any] | None = None,
    *,
    timezone: str = "UTC",
) -> None:
    """Sets a schedule; replaces one of the same name. Each tick submits a job."""
    schedules.put(service, NewSchedule(name, cron, timezone, named_kind(job).draft(payload or {})))


def _live_nodes(service: Service, stale: Duration | None = None) -> list[LiveNode]:
    """The nodes with how alive each is and what its machine has; with `stale`, only those that were heard within that
    time.
    """
    return nodes.live(service, None if stale is None else _duration_ms(stale))


def _agents(service: Service, stale: Duration | None = None) -> list[AgentShown]:
    """The agents of the mesh; with `stale`, only those that were seen within that time."""
    return agents.listing(service, None if stale is None else _duration_ms(stale))


def _beat(service: Service, agent: str, doing: str = "", *, every: Duration = "1m") -> AgentShown:
    """An agent of this node says what it does, and that it will say so again within `every`. Other nodes hear of it
    with this node's next heartbeat.
    """
    return agents.beat(service, agent, doing, _duration_ms(every))


class _Methods:
    drain = Method(nodes.drain)
    quarantine = Method(nodes.quarantine)
    resume = Method(nodes.resume)
    routes = Method(rights.routes)
    route = Method(rights.route)
    coordinator = Method(rights.coordinator)
    designate = Method(rights.designate)
    succession = Method(rights.succession)
    set_succession = Method(rights.succeed)
    nodes = Method(nodes.listing)
    live_nodes = Method(_live_nodes)
    job = Method(jobs.show)
    history = Method(jobs.history)
    cancel = Method(jobs.cancel)
    retry = Method(jobs.retry)
    reschedule = Method(jobs.reschedule)
    approve = Method(job_answers.approve)
    refuse = Method(job_answers.refuse)
    answer = Method(job_answers.answer)
    ask_for_job = Method(claiming.ask_for_job)
    erase = Method(job_erasure.erase)
    parts = StreamMethod(job_news.parts)
    logs = StreamMethod(job_logs.logs)
    events = StreamMethod(ops.events)
    checkpoints = Method(author_checkpoints.checkpoints)
    checkpoint = Method(author_checkpoints.checkpoint)
    prove_op = Method(author_checkpoints.prove)
    archive_log = Method(ops.archive_log)
    verify_archive = Method(ops.verify_archive)
    write_snapshot = Method(snapshots.write_snapshot)
    verify_snapshot = Method(snapshots.verify_snapshot)
    load_snapshot = Method(snapshots.load_snapshot)
    retain = Method(keeping.retain)
    forecast_retention = Method(keeping.forecast)
    horizon = Method(pruning.horizon)
    prune = Method(pruning.prune)
    retention = Method(keeping.listing)
    submit = Method(job_submits.submit)
    submit_many = Method(job_submits.submit_many)
    jobs = Method(_jobs)
    list_jobs = Method(job_lists.listing)
    count_jobs = Method(job_lists.count_which)
    cancel_jobs = StreamMethod(job_changes.cancel_jobs)
    retry_jobs = StreamMethod(job_changes.retry_jobs)
    reschedule_jobs = StreamMethod(job_changes.reschedule_jobs)
    count = Method(_count)
    claim_jobs = Method(claiming.claim)
    renew_jobs = Method(claiming.renew)
    complete_job = Method(ending.complete)
    fail_job = Method(ending.fail)
    postpone_job = Method(ending.postpone)
    yield_job = Method(ending.yield_)
    end_jobs = Method(ending.end)
    send_parts = Method(ending.send_parts)
    goodbye = Method(claiming.goodbye)
    drain_worker = Method(claiming.drain)
    put = Method(artifacts.put)
    artifact = Method(artifacts.show)
    evict = Method(artifacts.evict)
    kinds = Method(kinds.listing)
    tokens = Method(programs.listing)
    content = Method(_content)
    artifacts = Method(artifacts.page)
    schedule = Method(_schedule)
    unschedule = Method(schedules.remove)
    schedules = Method(schedules.listing)
    agents = Method(_agents)
    beat = Method(_beat)
    status = Method(status.status)

    def __getattr__(self, name: str) -> Any:
        operation = extension_operations().get(name)
        if operation is None:
            raise AttributeError(f"no operation {name!r}; hocket.admin has those of the API and of its extensions")
        return Method(operation).__get__(self, type(self))  # type: ignore[call-overload]


class Admin(_Methods):
    """The synchronous API, on a `SyncNode`."""

    def __init__(self, node: SyncNode) -> None:
        self.node = node


class AsyncAdmin(_Methods):
    """The async API, on a `Node`."""

    def __init__(self, node: Node) -> None:
        self.node = node


@overload
def admin(node: Node) -> AsyncAdmin: ...
@overload
def admin(node: SyncNode) -> Admin: ...
def admin(node: Node | SyncNode) -> AsyncAdmin | Admin:
    """What an operator can ask of a node, for programs."""
    return AsyncAdmin(node) if isinstance(node, Node) else Admin(node)


def _duration_ms(duration: Duration) -> int:
    try:
        return duration_ms(duration)
    except ValueError as error:
        raise Usage(str(error)) from None
