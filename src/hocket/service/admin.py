"""The queries and commands of the service for programs: `hocket.admin(node)`. It lists and counts jobs, reads and
stores artifacts, sets schedules, and lists the nodes, with the same typed answers that the other interfaces get.
"""

from pathlib import Path
from typing import Any, overload

import msgspec

from hocket.errors import Usage
from hocket.node.node import Node, SyncNode
from hocket.service import ListPage, Service, artifacts, jobs, nodes, schedules, status
from hocket.service.artifacts import ArtifactBrief, ArtifactKept
from hocket.service.jobs import JobQuery, JobsPage
from hocket.service.nodes import NodeShown
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

    async def status(self) -> NodeStatus:
        return await self._node.call(self._admin.status)


@overload
def admin(node: Node) -> AsyncAdmin: ...
@overload
def admin(node: SyncNode) -> Admin: ...
def admin(node: Node | SyncNode) -> AsyncAdmin | Admin:
    """What an operator can ask of a node, for programs."""
    return AsyncAdmin(node) if isinstance(node, Node) else Admin(node)


def _query(**wanted: Any) -> JobQuery:
    try:
        return msgspec.convert(wanted, JobQuery)
    except msgspec.ValidationError as error:
        raise Usage(f"bad query: {error}") from None
