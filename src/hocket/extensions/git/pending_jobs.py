"""The git jobs that this home has submitted and that no worker has claimed yet, as far as it knows: a small file each.
The home's long-running processes announce them on the bus, for workers on other machines. A message can be lost, so
they announce each again, at growing intervals and also after a restart, until a worker has claimed it or it has ended.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from hocket.bus.messages import ANNOUNCED_S_MAX, MessageBus, subject_name
from hocket.errors import HocketError
from hocket.events import Emit
from hocket.kernel.decoding import decode_json
from hocket.kernel.ids import hash_text
from hocket.kernel.retrying import RetryPolicy
from hocket.node.home import Home
from hocket.node.local_node import LocalNode
from hocket.work.environment import Environment

# Jobs that are noted; more push out the oldest.
NOTED_MAX = 1_024
# A job that nobody has claimed for so long is not announced any more: workers find it when they list the refs.
NOTED_MS_MAX = 86_400_000
_SUFFIX = ".json"
_HASH_BYTES = 32


class PendingGitJob(msgspec.Struct, frozen=True):
    """`content_id` is bare hex. `tries` are the announcements so far, and `next_ms` is when the next is due."""

    repository: str
    content_id: str
    submitted_ms: int
    next_ms: int
    tries: int = 1

    @property
    def id(self) -> bytes:
        return bytes.fromhex(self.content_id)


class PendingGitJobs:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def add(self, repository: str, content_id: bytes, now_ms: int, next_ms: int) -> None:
        """Notes a job that is announced now."""
        from hocket.extensions.git.planes import is_address

        where = repository if is_address(repository) else str(Path(repository).expanduser().resolve())
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        files = sorted(self._files(), key=lambda path: path.stat().st_mtime)
        for path in files[: max(0, len(files) - NOTED_MAX + 1)]:
            path.unlink(missing_ok=True)
        self._put(PendingGitJob(where, content_id.hex(), now_ms, next_ms))

    def due(self, now_ms: int) -> list[PendingGitJob]:
        found = []
        for path in self._files():
            with suppress(OSError):
                job = _read(path)
                if job is None or now_ms > job.submitted_ms + NOTED_MS_MAX:
                    path.unlink(missing_ok=True)
                elif job.next_ms <= now_ms:
                    found.append(job)
        return found

    def announced(self, job: PendingGitJob, next_ms: int) -> bool:
        """Notes that the job is announced now. False if another process has noted that, or has dropped the job."""
        with suppress(OSError):
            if _read(self._path(job.id)) == job:
                self._put(msgspec.structs.replace(job, tries=job.tries + 1, next_ms=next_ms))
                return True
        return False

    def drop(self, job_id: bytes) -> None:
        with suppress(OSError):
            self._path(job_id).unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        return list(self._directory.glob(f"*{_SUFFIX}"))

    def _path(self, job_id: bytes) -> Path:
        return self._directory / f"{job_id.hex()}{_SUFFIX}"

    def _put(self, job: PendingGitJob) -> None:
        """An address may have a password in it: only the owner reads the file."""
        new = self._directory / f"{job.id.hex()}.{os.getpid()}.new"
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(msgspec.json.encode(job))
        new.replace(self._path(job.id))


def _read(path: Path) -> PendingGitJob | None:
    try:
        job = decode_json(path.read_bytes(), PendingGitJob)
        return job if len(job.id) == _HASH_BYTES else None
    except (msgspec.MsgspecError, ValueError):
        return None


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


def announcing(node: LocalNode, emit: Emit) -> Callable[[], Coroutine[Any, Any, None]]:
    """Announces the git jobs that this home has submitted, until they are claimed."""
    return GitAnnouncing(node.runtime.home, node.log.user, node.message_bus, node.environment).run


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
    ) -> None:
        self._home, self._cluster, self._bus, self._environment = home, cluster, bus, environment
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
        from hocket.extensions.git import git_jobs
        from hocket.extensions.git.planes import open_plane

        with suppress(HocketError, OSError):
            plane = open_plane(job.repository, self._home.git_cache)
            try:
                return not git_jobs.is_unclaimed(plane, job.id)
            finally:
                plane.close()
        return False
