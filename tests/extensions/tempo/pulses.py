"""Three pulses in processes of their own, of which the leader is killed and paused again and again, and one agent that
listens to them meanwhile.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path

from hocket.bus.envelope import LIFE_MS
from hocket.extensions.tempo.beats import Tempo
from hocket.extensions.tempo.frame_judge import FrameRefusal
from hocket.extensions.tempo.heard_beats import BeatListener, HeardBeats, TempoClock
from hocket.extensions.tempo.leader_lock import LeaderCheck
from hocket.extensions.tempo.messages import PulseMessage
from hocket.extensions.tempo.node_tempo import leader_check
from hocket.extensions.tempo.policy import TempoPolicy
from hocket.extensions.tempo.policy_file import tempo_policy
from hocket.extensions.tempo.tempo_messages import TempoMessages
from hocket.node.node import Node
from tests.scenarios.machines import Machine, Process

PATIENCE_S = 60.0
LEADS, FOLLOWS, READY = "this pulse leads", "no longer leads", "this pulse listens"
# A store that nobody writes into answers within this time.
FREE_S = 0.2


class Agent:
    """What one agent has heard."""

    def __init__(self, policy: TempoPolicy, clock: TempoClock, leaders: LeaderCheck) -> None:
        self.accepted: list[PulseMessage] = []
        self.refused: list[FrameRefusal] = []
        self.degraded_tempi: set[Tempo] = set()
        self.beats = RecordedBeats(self, policy, clock, leaders)
        self.listener = BeatListener(self.beats, leaders)

    async def until(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.accepted) < count:
                await self.beats.changed.wait()
                await asyncio.sleep(0)

    def check(self) -> None:
        epochs = [each.frame.epoch_ms for each in self.accepted]
        fences = [each.fence for each in self.accepted]
        tempo = self.beats.policy.initial_tempo
        assert len({*epochs}) == len(epochs) and epochs == sorted(epochs), (
            "two frames for one beat, or one that goes back"
        )
        assert fences == sorted(fences), "a frame of a deposed leader"
        gaps = [(later - earlier) // tempo.beat_ms for earlier, later in pairwise(epochs)]
        assert max(gaps) <= 2, f"beats between accepted frames: {gaps}"
        assert {each.frame.tempo for each in self.accepted} | self.degraded_tempi == {tempo}


class RecordedBeats(HeardBeats):
    def __init__(self, agent: Agent, policy: TempoPolicy, clock: TempoClock, leaders: LeaderCheck) -> None:
        super().__init__(policy, clock, LIFE_MS, leaders=leaders)
        self._agent = agent

    def hear(self, message: PulseMessage, sender: int, came_ms: int | None = None) -> FrameRefusal | None:
        refusal = super().hear(message, sender, came_ms)
        if refusal is None:
            self._agent.accepted.append(message)
        else:
            self._agent.refused.append(refusal)
        if message.degraded:
            self._agent.degraded_tempi.add(message.frame.tempo)
        return refusal


class Pulses:
    """`homes` are the machines on which pulses run, one each; the same machine may be there three times."""

    def __init__(self, homes: list[Machine], policy: Path) -> None:
        self._homes, self._policy = homes, policy
        self.processes = [self._start(home) for home in homes]
        self.kills = self.pauses = 0

    def _start(self, home: Machine) -> Process:
        return home.start("pulse", "--policy", self._policy, "-v")

    async def ready(self) -> None:
        """Waits until a leader has a follower."""
        async with asyncio.timeout(PATIENCE_S):
            while sum(READY in each.err.read_text() for each in self.processes) < 2:
                assert all(each.is_alive for each in self.processes), [each.notices for each in self.processes]
                await asyncio.sleep(0.02)

    async def leader(self) -> int:
        """The place of the leader."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for place, process in enumerate(self.processes):
                    said = [line for line in process.notices if LEADS in line or FOLLOWS in line]
                    if said and LEADS in said[-1] and process.is_alive:
                        return place
                await asyncio.sleep(0.01)

    async def disturb(self, pause_s: float, is_free: Callable[[], Awaitable[bool]]) -> None:
        """Kills the leader, or pauses it for a while."""
        await self.ready()
        place = await self.leader()
        leader = self.processes[place]
        if self.kills <= self.pauses:
            leader.kill()
            self.kills += 1
            self.processes[place] = self._start(self._homes[place])
            return
        leader.popen.send_signal(signal.SIGSTOP)
        # Not while it writes: then nobody else can write, and this would be a test of the store.
        while not await is_free():
            leader.popen.send_signal(signal.SIGCONT)
            await asyncio.sleep(0.01)
            leader.popen.send_signal(signal.SIGSTOP)
        self.pauses += 1
        await asyncio.sleep(pause_s)
        leader.popen.send_signal(signal.SIGCONT)


async def three_pulses(node: Node, homes: list[Machine], policy: Path, beats: int) -> tuple[Agent, Pulses]:
    """Disturbs three pulses for so many beats, and returns what an agent of this node heard."""
    found = tempo_policy(node.runtime.home, policy)
    assert found is not None
    clock = TempoClock(node.environment.monotonic, lambda: node.environment.physical_ms() / 1000)
    bus = await node.message_bus()
    leaders = leader_check(node, found, bus)
    await leaders.refresh()
    agent = Agent(found, clock, leaders)
    messages = TempoMessages(bus, node.log.user)

    async def is_free() -> bool:
        """Whether others can write into the store."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FREE_S):
                await asyncio.shield(node.run(lambda tx: None))
                return True
        return False

    with closing(await messages.subscribe(PulseMessage, found.cluster_id)) as queue:
        listening = asyncio.create_task(agent.listener.run(queue))
        pulses = Pulses(homes, policy)
        await agent.until(2)
        while len(agent.accepted) < beats or not pulses.pauses:
            await pulses.disturb(3.5 * found.initial_tempo.beat_ms / 1000, is_free)
            await agent.until(len(agent.accepted) + 2)
        assert not listening.done()
        listening.cancel()
        await asyncio.wait([listening])
    return agent, pulses
