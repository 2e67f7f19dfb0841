"""Tells git workers on other machines that a job was submitted to a repository: over the bus of the settings, or over
the nodes' own connections. An announcement is kept for a while, so that a worker that starts later hears of it too, and
repeated while the job waits (`git_announcing`). Workers also list the refs.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hocket.bus.messages import ANNOUNCED_S_MAX
from hocket.cancelling import end_tasks
from hocket.events import Emit, ignore
from hocket.node.bus_settings import BusSettings
from hocket.node.git_announcing import AGAIN, ANNOUNCE_S, announce_pending, pending_subject
from hocket.node.git_watch import GitWatch
from hocket.node.local_node import LocalNode
from hocket.node.pending_git_jobs import PendingGitJobs
from hocket.node.runtime import Runtime
from hocket.work.supervision import supervised

# However many jobs are announced, a worker lists the refs once in this time because of them.
HEARD_S = 0.5
WAIT_S = 1.0


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
        tasks = [asyncio.create_task(supervised("announcing git jobs", node.announce_git_jobs, emit, node.environment))]
        if repository is not None:
            bus = lambda: node.message_bus(emit, settings)  # noqa: E731
            watch = GitWatch(runtime.home, runtime.log.user, bus, node.environment, repository)
            tasks.append(asyncio.create_task(supervised(f"watching {repository}", watch.run, emit, node.environment)))
        try:
            await listen(node)
        finally:
            await end_tasks(tasks)
            await node.finish()

    thread = threading.Thread(target=lambda: asyncio.run(run()), name="hocket-git-bus", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
