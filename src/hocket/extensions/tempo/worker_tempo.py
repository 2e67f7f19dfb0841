"""The tempo of a worker: which beats it follows, and what it tells others on each beat. A worker without a
policy has no tempo, and pays nothing for it.
"""

import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from hocket.errors import StoreError, Usage
from hocket.extensions.tempo.beats.phases import Phases, hold_end
from hocket.extensions.tempo.beats.tempo import Tempo
from hocket.extensions.tempo.policy_file import home_timeline, tempo_policy
from hocket.families.jobs.candidates import worker_id
from hocket.kernel.ids import node_text
from hocket.kernel.policy import LEASE_MS_MIN
from hocket.node.runtime import Runtime
from hocket.store import JobFilter, Session, Stage
from hocket.work.environment import WorkerOptions
from hocket.work.supervision import supervising

if TYPE_CHECKING:
    from hocket.extensions.tempo.beats.messages import PromiseResult
    from hocket.node.local_node import LocalNode


def hold_length(runtime: Runtime, length: str | float, beats: int) -> Callable[[int], int]:
    """How long a hold of so many beats of the tempo in force lasts that is taken at a time; it ends at a beat. Raises
    Usage if the home has no policy.
    """
    policy = tempo_policy(runtime.home)
    if policy is None:
        raise Usage(f"{length} is a length in beats, and this node has no tempo; write {runtime.home.tempo}")
    tempi = home_timeline(runtime.home, policy)
    return lambda now_ms: hold_end(tempi.at(now_ms), policy.phases, beats, now_ms) - now_ms


def lease_ms(tempo: Tempo, phases: Phases, beats: int, now_ms: int) -> int:
    """How long a lease of so many beats lasts that is taken now. It ends at a beat, and leaves time to renew it."""
    end_ms = hold_end(tempo, phases, beats, now_ms)
    short_ms = max(0, now_ms + LEASE_MS_MIN - end_ms)
    return end_ms - now_ms - -short_ms // tempo.beat_ms * tempo.beat_ms


@asynccontextmanager
async def in_tempo(node: "LocalNode", options: WorkerOptions) -> AsyncIterator[None]:
    """A worker that is made with these options inside the block keeps to the tempo, and tells others what it runs. The
    setting `tempo` names the file of a policy; the default is the home's own.
    """
    if (policy := tempo_policy(node.runtime.home, options.settings.get("tempo"))) is None:
        yield
        return
    from hocket.extensions.tempo.node_tempo import heard_beats
    from hocket.extensions.tempo.promises import PromiseWatch, answered_at, may_tell
    from hocket.extensions.tempo.run_pace import EXTENSION, Pacing
    from hocket.extensions.tempo.status_claims import StatusClaims
    from hocket.extensions.tempo.tempo_messages import TempoMessages

    def ready(session: Session) -> dict[str, int]:
        return {kind: session.job_count(JobFilter((Stage.READY,), kind=kind)) for kind in session.ready_kinds()}

    async def answered(thread_id: str, agent_id: str) -> int | None:
        return await node.peek(lambda session: answered_at(session, thread_id, agent_id))

    async def tells(result: "PromiseResult", author: int) -> bool:
        try:
            return await node.peek(lambda session: may_tell(session, result, author))
        except StoreError:
            return False

    log, emit = node.runtime.log, options.emit
    async with heard_beats(node, policy, emit) as beats:
        beats_now = beats.now
        agent_id = worker_id(log.node, node.environment.name("worker"))
        claims = StatusClaims(beats, agent_id, options.concurrency, log.reading, lambda: node.peek(ready))
        messages = TempoMessages(await node.message_bus(emit), log.user)
        watch = PromiseWatch(messages, policy.cluster_id, log.reading, lambda: beats_now().at_ms, answered, tells)
        tasks: list[tuple[str, Callable[[], Awaitable[None]]]] = [
            ("telling what runs", functools.partial(claims.send, messages)),
            ("telling of promises", watch.send),
            ("hearing of promises", watch.hear),
        ]
        runtime, own_beat_ms = node.runtime, node.runtime.beat_ms
        runtime.pacers[EXTENSION], options.emit = Pacing(claims.keeper, watch), claims.listening(emit)
        runtime.beat_ms = lambda: beats_now().tempo.beat_ms
        if options.settings.get("weighs_promises"):
            # A weight that changes by little all the time would only make others rank anew.
            options.reliability = lambda: round(watch.counts.of_node(node_text(log.node), beats_now().at_ms), 1)
        options.hold_ms = lambda beats, now_ms: lease_ms(beats_now().tempo, beats_now().phases, beats, now_ms)
        async with AsyncExitStack() as stack:
            for name, make in tasks:
                await stack.enter_async_context(supervising(name, make, emit, node.environment))
            try:
                yield
            finally:
                del runtime.pacers[EXTENSION]
                runtime.beat_ms = own_beat_ms
