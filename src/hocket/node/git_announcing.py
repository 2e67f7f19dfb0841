"""Announces jobs in git on the bus, for workers on other machines. A message can be lost, so the home keeps a note of
each job that it has submitted, and its long-running processes announce the job again, at growing intervals, until a
worker has claimed it or it has ended.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from hocket.bus.messages import ANNOUNCED_S_MAX, MessageBus
from hocket.bus.subject_names import subject_name
from hocket.errors import HocketError
from hocket.kernel.backoff import RetryPolicy
from hocket.kernel.ids import hash_text
from hocket.node.home import Home
from hocket.node.pending_git_jobs import PendingGitJob, PendingGitJobs
from hocket.work.environment import Environment

PENDING = "gatos/jobs/pending"
# How long a submitter tries to reach a server, and how often it looks whether it has.
ANNOUNCE_S = 5.0
LOOK_S = 0.02
# How often a process looks for announcements that are due again.
ROUND_S = 1.0
# The last interval is as long as an announcement is kept, so that a late joiner always finds one.
AGAIN = RetryPolicy(2.0, ANNOUNCED_S_MAX)


def pending_subject(cluster: str) -> str:
    return subject_name(cluster, PENDING, "")


async def announce_pending(messages: MessageBus, cluster: str, content_id: bytes, timeout_s: float) -> bool:
    """Announces a job until a server has taken the announcement. False if none did in time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while loop.time() < deadline:
        if messages.state.is_connected:
            lost = messages.state.lost
            await messages.announce(pending_subject(cluster), hash_text(content_id).encode())
            if messages.state.is_connected and messages.state.lost == lost:
                return True
        await asyncio.sleep(LOOK_S)
    return False


class GitAnnouncing:
    """Announces the jobs of a home's notes again, while they wait for a worker. Any number of processes of the home may
    run it: a note says when the next announcement is due.
    """

    def __init__(
        self,
        home: Home,
        cluster: str,
        bus: Callable[[], Awaitable[MessageBus]],
        environment: Environment,
        outside: Mapping[str, str] = os.environ,
    ) -> None:
        self._home, self._cluster, self._bus, self._environment = home, cluster, bus, environment
        self._outside = outside
        self._notes = PendingGitJobs(home.pending_git_jobs)

    async def run(self) -> None:
        while True:
            for job in self._notes.due(self._environment.physical_ms()):
                await self._announce(job)
            await asyncio.sleep(ROUND_S)

    async def _announce(self, job: PendingGitJob) -> None:
        delay_s = AGAIN.delay_s(job.tries + 1, self._environment.chance.random())
        if not self._notes.announced(job, self._environment.physical_ms() + round(delay_s * 1000)):
            return
        if await asyncio.to_thread(self._is_taken, job):
            self._notes.drop(job.id)
        else:
            await announce_pending(await self._bus(), self._cluster, job.id, ANNOUNCE_S)

    def _is_taken(self, job: PendingGitJob) -> bool:
        """Whether the job is claimed, has ended or is gone. If the repository does not answer, it may still wait."""
        # Every worker looks for jobs to announce, and few homes have some.
        from hocket.gitplane import jobs
        from hocket.gitplane.opening import open_plane

        with suppress(HocketError, OSError):
            plane = open_plane(job.repository, self._home.git_cache, self._outside)
            try:
                return not jobs.is_unclaimed(plane, job.id)
            finally:
                plane.close()
        return False
