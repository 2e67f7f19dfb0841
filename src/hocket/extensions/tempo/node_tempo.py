"""Tempo in a process of a node: the beats that it hears on its bus, a pulse of its own, and a reverb; and the tempo of
a worker: which beats it follows, and what it tells others on each beat. A worker without a policy has no tempo, and
pays nothing for it.
"""

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, closing

from hocket.bus.envelope import LIFE_MS
from hocket.cancelling import end_tasks
from hocket.errors import StoreError, Usage
from hocket.events import Emit, ignore
from hocket.extensions.tempo.beats import Phases, Tempo, hold_end
from hocket.extensions.tempo.events import PulseStarted
from hocket.extensions.tempo.heard_beats import BeatListener, HeardBeats, Leaders, TempoClock
from hocket.extensions.tempo.leader_lock import (
    ArbiterLock,
    LeaderCheck,
    LeaderLock,
    LeaderRegister,
    NatsLeaderLock,
    is_incident,
)
from hocket.extensions.tempo.messages import BarReport, PromiseResult, PulseMessage
from hocket.extensions.tempo.policy import TempoPolicy
from hocket.extensions.tempo.policy_file import home_timeline, needed_policy, tempo_changed, tempo_policy
from hocket.extensions.tempo.pulse import Pulse
from hocket.extensions.tempo.reverb import Reverb
from hocket.extensions.tempo.tempo_messages import TempoMessages, TempoQueue
from hocket.families.jobs.candidates import worker_id
from hocket.kernel.ids import node_text
from hocket.kernel.policy import LEASE_MS_MIN
from hocket.node.local_node import LocalNode
from hocket.node.locks import lock_client
from hocket.node.message_bus import NodeMessages
from hocket.node.runtime import Runtime
from hocket.store import JobFilter, Session, Stage
from hocket.work.environment import WorkerOptions, supervising

WAIT_S = 60.0


@asynccontextmanager
async def heard_beats(node: LocalNode, policy: TempoPolicy, emit: Emit = ignore) -> AsyncIterator[HeardBeats]:
    """The beats of a cluster as this process hears them on the node's bus."""
    bus = await node.message_bus(emit)
    messages = TempoMessages(bus, node.log.user)
    clock = TempoClock(node.environment.monotonic, lambda: node.environment.physical_ms() / 1000)
    leaders = leader_check(node, policy, bus)
    beats = HeardBeats(policy, clock, LIFE_MS, emit, leaders, tempo_changed(node.runtime, policy))
    await leaders.refresh()
    with closing(await messages.subscribe(PulseMessage, policy.cluster_id)) as queue:
        task = asyncio.create_task(BeatListener(beats, leaders).run(queue))
        try:
            yield beats
        finally:
            await end_tasks([task])


def pulsing(
    node: LocalNode, policy: TempoPolicy, emit: Emit = ignore, began: Callable[[Pulse], None] = lambda pulse: None
) -> AbstractAsyncContextManager[None]:
    """Runs a pulse until the block ends. `began` is called with it."""
    return supervising("the pulse", lambda: _run_pulse(node, policy, emit, began), emit, node.environment)


def pulse_beside(node: LocalNode, file: str, emit: Emit) -> AbstractAsyncContextManager[None]:
    """Runs a pulse beside a server, by the policy of the file, or of the home if the name is empty."""
    return pulsing(node, needed_policy(node.runtime.home, file or None), emit)


async def _run_pulse(node: LocalNode, policy: TempoPolicy, emit: Emit, began: Callable[[Pulse], None]) -> None:
    bus = await node.message_bus(emit)
    messages = TempoMessages(bus, node.log.user)
    async with heard_beats(node, policy, emit) as beats:
        lock = leader_lock(node, policy, bus, beats.leaders, emit)
        pulse = Pulse(beats, lock, lambda message: messages.publish(message, policy.cluster_id), emit)
        with closing(await messages.subscribe(BarReport, policy.cluster_id)) as reports:
            emit(PulseStarted(policy.cluster_id))
            began(pulse)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(pulse.run())
                tasks.create_task(_adapt(node, reports, pulse))


async def _adapt(node: LocalNode, reports: TempoQueue[BarReport], pulse: Pulse) -> None:
    while True:
        heard = await reports.get(WAIT_S)
        if heard is not None and pulse.fence:
            now_ms = node.environment.physical_ms()
            try:
                frozen = await node.peek(lambda session, now_ms=now_ms: is_incident(session, now_ms))  # type: ignore[misc]
            except StoreError:
                frozen = True  # the beats go on without the store
            pulse.hear_report(heard.message, heard.at.node, is_incident=frozen)


def leader_lock(
    node: LocalNode, policy: TempoPolicy, bus: NodeMessages, leaders: Leaders, emit: Emit = ignore
) -> LeaderLock:
    """On a bus with a NATS server, a register of that server: pulses that hear each other share it. Otherwise a lock of
    the mesh.
    """
    name = node.environment.name("pulse")
    if bus.is_local:
        return ArbiterLock(node, lock_client(node, node.lock_processes), policy.cluster_id, name)
    return NatsLeaderLock(_register(node, policy, bus, leaders), name, node.environment.monotonic, emit)


def leader_check(node: LocalNode, policy: TempoPolicy, bus: NodeMessages) -> LeaderCheck:
    """Reads who leads where `leader_lock` keeps it."""
    made = LeaderCheck(node, policy.cluster_id)
    if not bus.is_local:
        made.register = _register(node, policy, bus, made)
    return made


def _register(node: LocalNode, policy: TempoPolicy, bus: NodeMessages, leaders: Leaders) -> LeaderRegister:
    from hocket.bus.nats_messages import NatsMessages
    from hocket.bus.nats_register import NatsRegister

    assert isinstance(bus.messages, NatsMessages)
    register = NatsRegister(bus.messages, node.log.user, policy.cluster_id)
    return LeaderRegister(register, bus, leaders.may_lead, node.environment.physical_ms)


async def run_reverb(node: LocalNode, policy: TempoPolicy, emit: Emit = ignore) -> None:
    """Runs a reverb until it is cancelled."""
    messages = TempoMessages(await node.message_bus(emit), node.log.user)
    async with heard_beats(node, policy, emit) as beats:
        await Reverb(node, messages, beats, emit).run()


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
async def in_tempo(node: LocalNode, options: WorkerOptions) -> AsyncIterator[None]:
    """A worker that is made with these options inside the block keeps to the tempo, and tells others what it runs. The
    setting `tempo` names the file of a policy; the default is the home's own.
    """
    if (policy := tempo_policy(node.runtime.home, options.settings.get("tempo"))) is None:
        yield
        return
    from hocket.extensions.tempo.promises import PromiseWatch, answered_at, may_tell
    from hocket.extensions.tempo.run_pace import EXTENSION, Pacing
    from hocket.extensions.tempo.status_claims import StatusClaims
    from hocket.extensions.tempo.tempo_messages import TempoMessages

    def ready(session: Session) -> dict[str, int]:
        return {kind: session.job_count(JobFilter((Stage.READY,), kind=kind)) for kind in session.ready_kinds()}

    async def answered(thread_id: str, agent_id: str) -> int | None:
        return await node.peek(lambda session: answered_at(session, thread_id, agent_id))

    async def tells(result: PromiseResult, author: int) -> bool:
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
