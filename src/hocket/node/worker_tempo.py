"""The tempo of a worker: which beats it follows, and what it tells others on each beat. A worker without a
policy has no tempo, and pays nothing for it.
"""

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from hocket.kernel.beats.policy import TempoPolicy
from hocket.kernel.candidates import worker_id
from hocket.store import JobFilter, Session, Stage
from hocket.work.supervision import supervised
from hocket.work.worker import WorkerOptions

if TYPE_CHECKING:
    from hocket.node.local_node import LocalNode


@asynccontextmanager
async def in_tempo(node: "LocalNode", options: WorkerOptions, policy: TempoPolicy | None) -> AsyncIterator[None]:
    """A worker that is made with these options inside the block keeps to the tempo, and tells others what it runs."""
    if policy is None:
        yield
        return
    from hocket.node.help import answered_at
    from hocket.node.tempo import heard_beats
    from hocket.rhythm.promise_watch import PromiseWatch
    from hocket.rhythm.status_claims import StatusClaims
    from hocket.rhythm.tempo_messages import TempoMessages

    def ready(session: Session) -> int:
        return session.job_count(JobFilter((Stage.READY,)))

    async def answered(thread_id: str, agent_id: str) -> int | None:
        return await node.peek(lambda session: answered_at(session, thread_id, agent_id))

    log, emit = node.runtime.log, options.emit
    async with heard_beats(node, policy, emit) as beats:
        agent_id = worker_id(log.node, node.environment.name("worker"))
        claims = StatusClaims(beats, agent_id, options.concurrency, log.reading, lambda: node.peek(ready))
        messages = None if options.messages is None else TempoMessages(options.messages, log.user)
        watch = PromiseWatch(messages, policy.cluster_id, log.reading, lambda: beats.now().at_ms, answered)
        tasks: list[tuple[str, Callable[[], Awaitable[None]]]] = []
        if messages is not None:
            tasks.append(("telling what runs", functools.partial(claims.send, messages)))
            tasks += [("telling of promises", watch.send), ("hearing of promises", watch.hear)]
        node.runtime.tempo, options.emit = claims.keeper, claims.listening(emit)
        node.runtime.promises = watch
        running = [asyncio.create_task(supervised(name, make, emit, node.environment)) for name, make in tasks]
        try:
            yield
        finally:
            node.runtime.tempo = node.runtime.promises = None
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
