"""The queries and commands of the service for programs: `hocket.admin(node)`. It lists and counts jobs, reads and
stores artifacts, sets schedules, lists, drains and resumes nodes, and tells of agents, with the same typed answers that
the other interfaces get.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, overload

import msgspec

from hocket.errors import Usage
from hocket.kernel.decoding import convert
from hocket.kernel.durations import duration_ms
from hocket.node.node import Node, SyncNode
from hocket.service import ListPage, Service, agents, artifacts, jobs, nodes, schedules, status
from hocket.service.agents import AgentShown
from hocket.service.artifacts import ArtifactBrief, ArtifactKept
from hocket.service.jobs import JobQuery, JobsPage
from hocket.service.nodes import AvailabilitySet, LiveNode, NodeShown
from hocket.service.schedules import ScheduleShown
from hocket.service.status import NodeStatus
from hocket.work.cron import NewSchedule
from hocket.work.handlers import JobType, named_kind
from hocket.work.job_options import Duration


class Admin:
    """The synchronous API, on a `SyncNode`."""

    def __init__(self, node: SyncNode) -> None:
        self._node = node

    @property
    def _service(self) -> Service:
        return Service(self._node.runtime)

    def jobs(
        self,
        *,
        state: str | None = None,
        outcome: str | None = None,
        kind: str | None = None,
        limit: int = 50,
        before: str | None = None,
    ) -> JobsPage:
        """Jobs, newest first. The `next` of a page, as `before`, gives the following page."""
        query = _query(state=state, outcome=outcome, kind=kind, limit=limit, before=before)
        return self._node.call(lambda: jobs.page(self._service, query))

    def count(self, *, state: str | None = None, outcome: str | None = None, kind: str | None = None) -> int:
        """How many jobs match."""
        query = _query(state=state, outcome=outcome, kind=kind)
        return self._node.call(lambda: jobs.count(self._service, query))

    def artifacts(
        self, *, job: str | None = None, limit: int = 50, after: str | None = None
    ) -> ListPage[ArtifactBrief]:
        """Artifacts, of one job or all. The `next` of a page, as `after`, gives the following page."""
        return self._node.call(lambda: artifacts.page(self._service, job, limit, after))

    def content(self, artifact_id: str) -> bytes:
        """The content of an artifact, fetched from another node if this one lacks it."""
        return self._node.call(lambda: artifacts.content(self._service, artifact_id).data)

    def put(self, content: bytes | Path, type: str, *, ttl: Duration | None = None) -> ArtifactKept:
        """Stores bytes, or a copy of a file, as an artifact that belongs to no job."""
        return self._node.call(lambda: artifacts.put(self._service, content, type, ttl))

    def schedules(self) -> list[ScheduleShown]:
        return self._node.call(lambda: schedules.listing(self._service))

    def schedule(
        self, name: str, cron: str, job: JobType | str, payload: dict[str, Any] | None = None, *, timezone: str = "UTC"
    ) -> None:
        """Sets a schedule; replaces one of the same name. Each tick submits a job."""
        plan = NewSchedule(name, cron, timezone, named_kind(job).draft(payload or {}))
        self._node.call(lambda: schedules.add(self._service, plan))

    def unschedule(self, name: str) -> None:
        """Removes a schedule."""
        self._node.call(lambda: schedules.remove(self._service, name))

    def nodes(self) -> list[NodeShown]:
        """The nodes of the mesh."""
        return self._node.call(lambda: nodes.listing(self._service))

    def live_nodes(self, stale: Duration | None = None) -> list[LiveNode]:
        """The nodes with how alive each is and what its machine has; with `stale`, only those that were heard within
        that time.
        """
        within_ms = None if stale is None else _duration_ms(stale)
        return self._node.call(lambda: nodes.live(self._service, within_ms))

    def drain(self, node: str, reason: str = "") -> AvailabilitySet:
        """Lets a node finish its jobs and take no new ones."""
        return self._set(lambda: nodes.drain(self._service, node, reason))

    def quarantine(self, node: str, reason: str = "") -> AvailabilitySet:
        """Takes all work from a node."""
        return self._set(lambda: nodes.quarantine(self._service, node, reason))

    def resume(self, node: str) -> AvailabilitySet:
        """Lets a node take new jobs again."""
        return self._set(lambda: nodes.resume(self._service, node))

    def _set(self, work: Callable[[], AvailabilitySet]) -> AvailabilitySet:
        done = self._node.call(work)
        self._node.wrote()
        return done

    def agents(self, stale: Duration | None = None) -> list[AgentShown]:
        """The agents of the mesh; with `stale`, only those that were seen within that time."""
        within_ms = None if stale is None else _duration_ms(stale)
        return self._node.call(lambda: agents.listing(self._service, within_ms))

    def beat(self, agent: str, doing: str = "", *, every: Duration = "1m") -> AgentShown:
        """An agent of this node says what it does, and that it will say so again within `every`. Other nodes hear of it
        with this node's next heartbeat.
        """
        every_ms = _duration_ms(every)
        return self._node.call(lambda: agents.beat(self._service, agent, doing, every_ms))

    def status(self) -> NodeStatus:
        """This node: its log, jobs, workers and peers."""
        return self._node.call(lambda: status.status(self._service))


class AsyncAdmin:
    """The async API, on a `Node`. Its methods are those of `Admin`."""

    def __init__(self, node: Node) -> None:
        self._node = node

    @property
    def _admin(self) -> Admin:
        return Admin(SyncNode(self._node.runtime))

    async def jobs(
        self,
        *,
        state: str | None = None,
        outcome: str | None = None,
        kind: str | None = None,
        limit: int = 50,
        before: str | None = None,
    ) -> JobsPage:
        admin = self._admin
        return await self._node.call(
            lambda: admin.jobs(state=state, outcome=outcome, kind=kind, limit=limit, before=before)
        )

    async def count(self, *, state: str | None = None, outcome: str | None = None, kind: str | None = None) -> int:
        admin = self._admin
        return await self._node.call(lambda: admin.count(state=state, outcome=outcome, kind=kind))

    async def artifacts(
        self, *, job: str | None = None, limit: int = 50, after: str | None = None
    ) -> ListPage[ArtifactBrief]:
        admin = self._admin
        return await self._node.call(lambda: admin.artifacts(job=job, limit=limit, after=after))

    async def content(self, artifact_id: str) -> bytes:
        admin = self._admin
        return await self._node.call(lambda: admin.content(artifact_id))

    async def put(self, content: bytes | Path, type: str, *, ttl: Duration | None = None) -> ArtifactKept:
        admin = self._admin
        return await self._node.call(lambda: admin.put(content, type, ttl=ttl))

    async def schedules(self) -> list[ScheduleShown]:
        return await self._node.call(self._admin.schedules)

    async def schedule(
        self, name: str, cron: str, job: JobType | str, payload: dict[str, Any] | None = None, *, timezone: str = "UTC"
    ) -> None:
        admin = self._admin
        await self._node.call(lambda: admin.schedule(name, cron, job, payload, timezone=timezone))

    async def unschedule(self, name: str) -> None:
        admin = self._admin
        await self._node.call(lambda: admin.unschedule(name))

    async def nodes(self) -> list[NodeShown]:
        return await self._node.call(self._admin.nodes)

    async def live_nodes(self, stale: Duration | None = None) -> list[LiveNode]:
        admin = self._admin
        return await self._node.call(lambda: admin.live_nodes(stale))

    async def drain(self, node: str, reason: str = "") -> AvailabilitySet:
        admin = self._admin
        return await self._set(lambda: admin.drain(node, reason))

    async def quarantine(self, node: str, reason: str = "") -> AvailabilitySet:
        admin = self._admin
        return await self._set(lambda: admin.quarantine(node, reason))

    async def resume(self, node: str) -> AvailabilitySet:
        admin = self._admin
        return await self._set(lambda: admin.resume(node))

    async def _set(self, work: Callable[[], AvailabilitySet]) -> AvailabilitySet:
        done = await self._node.call(work)
        self._node.wrote()
        return done

    async def agents(self, stale: Duration | None = None) -> list[AgentShown]:
        admin = self._admin
        return await self._node.call(lambda: admin.agents(stale))

    async def beat(self, agent: str, doing: str = "", *, every: Duration = "1m") -> AgentShown:
        admin = self._admin
        return await self._node.call(lambda: admin.beat(agent, doing, every=every))

    async def status(self) -> NodeStatus:
        return await self._node.call(self._admin.status)


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


def _query(**wanted: Any) -> JobQuery:
    try:
        return convert(wanted, JobQuery)
    except msgspec.ValidationError as error:
        raise Usage(f"bad query: {error}") from None
