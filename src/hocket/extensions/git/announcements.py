"""Tells git workers that a job was submitted to a repository, so that they look at once. Those of this machine are
woken through the home; those on other machines over the bus of the settings, or over the nodes' own connections. An
announcement is kept for a while, so that a worker that starts later hears of it too, and repeated while the job waits
(`pending_git_jobs`). A process that watches a repository also announces the jobs that were pushed there with plain git.
A hint can be lost: workers also list the refs at intervals.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, closing, contextmanager, nullcontext, suppress
from pathlib import Path

from hocket.bus.hints import GIT, Bus, Pipes, about
from hocket.bus.messages import ANNOUNCED_S_MAX, MessageBus
from hocket.errors import HocketError
from hocket.events import Emit, ignore
from hocket.extensions.git import git_jobs
from hocket.extensions.git.pending_jobs import (
    AGAIN,
    ANNOUNCE_S,
    PendingGitJobs,
    announce_pending,
    announcing,
    pending_subject,
)
from hocket.extensions.git.plane import Plane
from hocket.extensions.git.planes import open_plane
from hocket.node.home import Home
from hocket.node.local_node import LocalNode
from hocket.node.message_bus import BusSettings
from hocket.node.runtime import Runtime
from hocket.work.environment import Environment, supervising

# How often the refs of a repository are listed.
WATCH_S = 2.0
# However many jobs are announced, a worker lists the refs once in this time because of them.
HEARD_S = 0.5
WAIT_S = 1.0


def wake_workers(processes: Path, content_id: bytes) -> None:
    """Wakes the git workers of a home, if the home exists."""
    if processes.is_dir():
        with closing(Pipes(processes)) as bus:
            bus.publish(about(GIT, content_id))


class GitWatch:
    """At first announces the jobs that no worker has claimed, and from then on every new one with a good manifest."""

    def __init__(
        self,
        home: Home,
        cluster: str,
        bus: Callable[[], Awaitable[MessageBus]],
        environment: Environment,
        repository: str,
    ) -> None:
        self._home, self._cluster, self._bus, self._environment = home, cluster, bus, environment
        self._repository = repository
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
        wake_workers(self._home.processes, content_id)
        await announce_pending(await self._bus(), self._cluster, content_id, ANNOUNCE_S)

    def _new(self) -> list[bytes]:
        """The jobs to announce now. A repository that does not answer is asked again in the next round."""
        with suppress(HocketError, OSError):
            plane = open_plane(self._repository, self._home.git_cache)
            with closing(plane):
                return self._looked(plane)
        return []

    def _looked(self, plane: Plane) -> list[bytes]:
        found = {job: refs for job, refs in git_jobs.group(plane.refs()).items() if refs.job is not None}
        known, self._known = self._known, set(found)
        if known is None:
            new = {job: refs for job, refs in found.items() if refs.is_unclaimed}
        else:
            new = {job: refs for job, refs in found.items() if job not in known}
        orders = git_jobs.orders_of(plane, new.values()) if new else {}
        return [job for job, order in orders.items() if not isinstance(order, str)]


def watching(
    node: LocalNode, repository: str, emit: Emit, settings: BusSettings | None = None
) -> AbstractAsyncContextManager[None]:
    """Watches a repository until the block ends."""
    bus = lambda: node.message_bus(emit, settings)  # noqa: E731
    watch = GitWatch(node.runtime.home, node.log.user, bus, node.environment, repository)
    return supervising(f"watching {repository}", watch.run, emit, node.environment)


def announce(runtime: Runtime, settings: BusSettings | None, content_id: bytes) -> bool:
    """Announces a git job from a program that only submits. Returns whether the bus took the message."""

    async def run() -> bool:
        node = LocalNode(runtime)
        try:
            messages = await node.message_bus(ignore, settings)
            return await announce_pending(messages, runtime.log.user, content_id, ANNOUNCE_S)
        finally:
            await node.finish()

    return asyncio.run(run())


def note_submitted(runtime: Runtime, repository: str, content_id: bytes, now_ms: int) -> None:
    """Notes a job that was just submitted and is about to be announced for the first time."""
    notes = PendingGitJobs(runtime.home.pending_git_jobs)
    notes.add(repository, content_id, now_ms, now_ms + round(AGAIN.base_s * 1000))


@contextmanager
def hearing(
    runtime: Runtime,
    settings: BusSettings | None,
    heard: Callable[[], None],
    emit: Emit,
    repository: str | None = None,
) -> Iterator[None]:
    """Calls `heard`, in a thread of its own, when a job has been announced lately or is now. Without settings it hears
    what the other processes of this home carry. Announces what is pushed to the `repository`.
    """
    is_over = threading.Event()

    async def listen(node: LocalNode) -> None:
        messages = await node.message_bus(emit, settings)
        queue = await messages.subscribe(pending_subject(runtime.log.user), since_s=ANNOUNCED_S_MAX)
        while not is_over.is_set():
            if await queue.get(WAIT_S) is not None:
                heard()
                await asyncio.sleep(HEARD_S)

    async def run() -> None:
        node = LocalNode(runtime)
        watch = nullcontext() if repository is None else watching(node, repository, emit, settings)
        try:
            async with supervising("announcing git jobs", announcing(node, emit), emit, node.environment), watch:
                await listen(node)
        finally:
            await node.finish()

    thread = threading.Thread(target=lambda: asyncio.run(run()), name="hocket-git-bus", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@contextmanager
def listening(bus: Bus, heard: Callable[[], None]) -> Iterator[None]:
    """Calls `heard`, in a thread of its own, whenever a job is announced."""
    changes = bus.subscribe(about(GIT))

    def listen() -> None:
        while changes.wait(None):
            heard()

    thread = threading.Thread(target=listen, name="hocket-git-hints", daemon=True)
    thread.start()
    try:
        yield
    finally:
        changes.close()
        thread.join()
