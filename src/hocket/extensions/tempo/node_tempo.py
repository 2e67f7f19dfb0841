"""Tempo in a process of a node: the beats that it hears on its bus, a pulse of its own, and a reverb."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from typing import TYPE_CHECKING

from hocket.cancelling import end_tasks
from hocket.errors import StoreError
from hocket.events import Emit, ignore
from hocket.extensions.tempo.beats.messages import BarReport, PulseMessage
from hocket.extensions.tempo.beats.policy import TempoPolicy
from hocket.extensions.tempo.events import PulseStarted
from hocket.extensions.tempo.heard_beats import BeatListener, HeardBeats, Leaders, TempoClock
from hocket.extensions.tempo.leader_check import LeaderCheck
from hocket.extensions.tempo.leader_lock import ArbiterLock, LeaderLock, is_incident
from hocket.extensions.tempo.policy_file import needed_policy, tempo_changed
from hocket.extensions.tempo.pulse import Pulse
from hocket.extensions.tempo.reverb import Reverb
from hocket.extensions.tempo.tempo_messages import TempoMessages, TempoQueue
from hocket.kernel.envelope import LIFE_MS
from hocket.node.local_node import LocalNode
from hocket.node.locks import lock_client
from hocket.node.message_bus import NodeMessages
from hocket.work.supervision import supervising

if TYPE_CHECKING:
    from hocket.extensions.tempo.nats_leader import LeaderRegister


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
    from hocket.extensions.tempo.nats_leader import NatsLeaderLock

    return NatsLeaderLock(_register(node, policy, bus, leaders), name, node.environment.monotonic, emit)


def leader_check(node: LocalNode, policy: TempoPolicy, bus: NodeMessages) -> LeaderCheck:
    """Reads who leads where `leader_lock` keeps it."""
    made = LeaderCheck(node, policy.cluster_id)
    if not bus.is_local:
        made.register = _register(node, policy, bus, made)
    return made


def _register(node: LocalNode, policy: TempoPolicy, bus: NodeMessages, leaders: Leaders) -> "LeaderRegister":
    from hocket.bus.nats_messages import NatsMessages
    from hocket.bus.nats_register import NatsRegister
    from hocket.extensions.tempo.nats_leader import LeaderRegister

    assert isinstance(bus.messages, NatsMessages)
    register = NatsRegister(bus.messages, node.log.user, policy.cluster_id)
    return LeaderRegister(register, bus, leaders.may_lead, node.environment.physical_ms)


async def run_reverb(node: LocalNode, policy: TempoPolicy, emit: Emit = ignore) -> None:
    """Runs a reverb until it is cancelled."""
    messages = TempoMessages(await node.message_bus(emit), node.log.user)
    async with heard_beats(node, policy, emit) as beats:
        await Reverb(node, messages, beats, emit).run()
