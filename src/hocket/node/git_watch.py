"""Announces jobs that were pushed to a repository with plain git. A job is a commit, however it came there: a process
that watches the repository announces each job that is new, and notes it, so that it is announced again until a worker
has claimed it.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing, suppress

from hocket.bus.messages import MessageBus
from hocket.errors import HocketError
from hocket.gitplane import jobs
from hocket.gitplane.hints import announce
from hocket.gitplane.opening import open_plane
from hocket.gitplane.plane import Plane
from hocket.node.git_announcing import AGAIN, ANNOUNCE_S, announce_pending
from hocket.node.home import Home
from hocket.node.pending_git_jobs import PendingGitJobs
from hocket.work.environment import Environment

# How often the refs of a repository are listed.
WATCH_S = 2.0


class GitWatch:
    """At first announces the jobs that no worker has claimed, and from then on every new one with a good manifest."""

    def __init__(
        self,
        home: Home,
        cluster: str,
        bus: Callable[[], Awaitable[MessageBus]],
        environment: Environment,
        repository: str,
        outside: Mapping[str, str] = os.environ,
    ) -> None:
        self._home, self._cluster, self._bus, self._environment = home, cluster, bus, environment
        self._repository, self._outside = repository, outside
        self._known: set[bytes] | None = None

    async def run(self) -> None:
        while True:
            for content_id in await asyncio.to_thread(self._new):
                await self.announce(content_id)
            await asyncio.sleep(WATCH_S)

    async def announce(self, content_id: bytes) -> None:
        now_ms = self._environment.physical_ms()
        next_ms = now_ms + round(AGAIN.base_s * 1000)
        PendingGitJobs(self._home.pending_git_jobs).add(self._repository, content_id, now_ms, next_ms)
        announce(self._home.processes, content_id)
        await announce_pending(await self._bus(), self._cluster, content_id, ANNOUNCE_S)

    def _new(self) -> list[bytes]:
        """The jobs to announce now. A repository that does not answer is asked again in the next round."""
        with suppress(HocketError, OSError):
            plane = open_plane(self._repository, self._home.git_cache, self._outside)
            with closing(plane):
                return self._looked(plane)
        return []

    def _looked(self, plane: Plane) -> list[bytes]:
        found = {job: refs for job, refs in jobs.group(plane.refs()).items() if refs.job is not None}
        known, self._known = self._known, set(found)
        if known is None:
            new = {job: refs for job, refs in found.items() if refs.is_unclaimed}
        else:
            new = {job: refs for job, refs in found.items() if job not in known}
        orders = jobs.orders_of(plane, new.values()) if new else {}
        return [job for job, order in orders.items() if not isinstance(order, str)]
