"""Pulses on one event loop with virtual time: one leads, another takes over, and without a lock all send degraded
beats.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from hocket.errors import Unreachable
from hocket.events import Event
from hocket.extensions.sim.loop import run as run_virtually
from hocket.extensions.tempo.events import (
    BeatSent,
    PulseFollows,
    PulseLeads,
    PulseLockFailed,
    ReportRefused,
    TempoChanged,
)
from hocket.extensions.tempo.heard_beats import HeardBeats, TempoClock, local_frame
from hocket.extensions.tempo.messages import BarReport, PulseMessage
from hocket.extensions.tempo.policy import TempoPolicy, make_policy, read_policy
from hocket.extensions.tempo.pulse import Pulse
from hocket.families.locks.requests import LockHeld, LockLost
from hocket.kernel.clock import Hlc, hlc_text, wall_text
from hocket.kernel.ids import node_text

POLICY = make_policy("one", 600, 4)
SKEW_MS = 5_000
PATIENCE_S = 60.0


class OneLock:
    """A lock as an arbiter keeps it, for all pulses of a test."""

    def __init__(self) -> None:
        self.fence, self.ends_at = 0, 0.0
        self.is_away = False
        self.grants = 0

    async def acquire(self, ttl_ms: int, above: int) -> int:
        self._check()
        if self._now() <= self.ends_at:
            raise LockHeld("another pulse leads")
        self.fence, self.ends_at = self.fence + 1, self._now() + ttl_ms / 1000
        self.grants += 1
        return self.fence

    async def renew(self, fence: int, ttl_ms: int) -> None:
        self._check()
        if fence != self.fence or self._now() > self.ends_at:
            raise LockLost("the lock is lost")
        self.ends_at = self._now() + ttl_ms / 1000

    async def release(self, fence: int) -> None:
        if fence == self.fence:
            self.ends_at = 0.0

    def _check(self) -> None:
        if self.is_away:
            raise Unreachable("the arbiter does not answer")

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


class Cluster:
    """Pulses that hear each other, and one agent. `wall_s` moves the time of day of all."""

    def __init__(self, policy: TempoPolicy = POLICY) -> None:
        self.policy, self.lock, self.wall_s = policy, OneLock(), 0.0
        self.accepted: list[PulseMessage] = []
        self.sent: list[PulseMessage] = []
        self.told: list[Event] = []
        self.pulses: list[Pulse] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.heard: list[HeardBeats] = []
        self.agent = self._beats()

    def _beats(self) -> HeardBeats:
        loop = asyncio.get_running_loop()
        clock = TempoClock(loop.time, lambda: loop.time() + 1_756_865_520 + self.wall_s)
        beats = HeardBeats(self.policy, clock, SKEW_MS)
        self.heard.append(beats)
        return beats

    def start(self) -> None:
        node = len(self.pulses) + 1

        async def publish(message: PulseMessage) -> None:
            self.sent.append(message)
            for beats in self.heard:
                refusal = beats.hear(message, node)
                if beats is self.agent and refusal is None:
                    self.accepted.append(message)

        pulse = Pulse(self._beats(), self.lock, publish, self.told.append)
        self.pulses.append(pulse)
        self.tasks.append(asyncio.create_task(pulse.run()))

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await asyncio.sleep(0.005)

    def leader(self) -> Pulse | None:
        return next((each for each in self.pulses if each.fence), None)

    async def stop(self, pulse: Pulse) -> None:
        task = self.tasks[self.pulses.index(pulse)]
        task.cancel()
        await asyncio.wait([task])

    def of(self, kind: type[Event]) -> list[Event]:
        return [each for each in self.told if isinstance(each, kind)]


@asynccontextmanager
async def cluster(pulses: int, policy: TempoPolicy = POLICY) -> AsyncIterator[Cluster]:
    made = Cluster(policy)
    for _ in range(pulses):
        made.start()
    try:
        yield made
    finally:
        for each in made.pulses:
            await made.stop(each)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    run_virtually(test())


@pytest.mark.req("BB-03")
def test_one_pulse_leads_and_sends_every_beat_once() -> None:
    async def test() -> None:
        async with cluster(3) as found:
            await found.until(lambda: len(found.accepted) >= 8)
            epochs = [each.frame.epoch_ms for each in found.accepted]
            assert epochs == list(range(epochs[0], epochs[-1] + 1, 100))
            assert len(found.of(PulseLeads)) == 1 and {each.fence for each in found.sent} == {1}
            sent = [each for each in found.told if isinstance(each, BeatSent)]
            assert all(each.late_s >= 0 and not each.is_degraded for each in sent)

    run(test)


@pytest.mark.req("BB-03")
def test_a_follower_goes_on_where_the_leader_stopped() -> None:
    async def test() -> None:
        async with cluster(2) as found:
            await found.until(lambda: len(found.accepted) >= 2)
            first = found.leader()
            assert first is not None
            await found.stop(first)
            last_ms = found.accepted[-1].frame.epoch_ms
            await found.until(lambda: found.accepted[-1].fence == 2)
            taken_over = next(each for each in found.accepted if each.fence == 2)
            assert taken_over.frame.epoch_ms - last_ms <= 2 * 100
            assert not any(each.degraded for each in found.sent)

    run(test)


@pytest.mark.req("BB-03")
def test_without_a_lock_all_send_degraded_beats_at_the_same_tempo_and_then_one_leads_again() -> None:
    async def test() -> None:
        async with cluster(2) as found:
            await found.until(lambda: len(found.accepted) >= 2)
            found.lock.is_away = True
            await found.until(lambda: found.leader() is None)
            count = len(found.accepted)
            await found.until(lambda: sum(each.degraded for each in found.sent) >= 6)
            degraded = [each for each in found.sent if each.degraded]
            assert {each.fence for each in degraded} == {0}
            assert {each.frame.tempo for each in degraded} == {POLICY.initial_tempo}
            assert found.agent.now().is_degraded and len(found.accepted) == count
            assert found.of(PulseLockFailed) and len(found.of(PulseFollows)) == 1
            found.lock.is_away = False
            await found.until(lambda: len(found.accepted) > count)
            assert found.accepted[-1].fence == 2

    run(test)


def test_a_leader_whose_clock_is_set_back_by_minutes_makes_way() -> None:
    async def test() -> None:
        async with cluster(1) as found:
            await found.until(lambda: len(found.accepted) >= 2)
            found.wall_s -= 180
            await found.until(lambda: bool(found.of(PulseFollows)))
            assert "set back" in str(found.of(PulseFollows)[0])
            epochs = [each.frame.epoch_ms for each in found.accepted]
            assert epochs == sorted(set(epochs))

    run(test)


def test_a_leader_that_slept_checks_its_lock_before_it_sends() -> None:
    async def test() -> None:
        async with cluster(1) as found:
            await found.until(lambda: len(found.accepted) >= 2)
            count = len(found.sent)
            found.wall_s += 3_600  # the monotonic clock stood still
            leader = found.pulses[0]
            assert leader.fence == 0
            await found.until(lambda: len(found.sent) > count)
            assert all(each.fence != 1 for each in found.sent[count:])

    run(test)


@pytest.mark.req("LW-49")
def test_pulses_that_lose_the_lead_at_once_rest() -> None:
    """Here messages are believed, so one of a liar ends all leadership, and each grant is worth nothing."""

    async def test() -> None:
        async with cluster(3) as found:
            await found.until(lambda: len(found.accepted) >= 2)
            frame = local_frame(POLICY, POLICY.initial_tempo, found.agent.clock.now_ms() + 100)
            for beats in found.heard:
                beats.hear(PulseMessage(frame, 2**53 - 1), 99)
            await found.until(lambda: found.leader() is None)
            before, beats = found.lock.grants, 200
            await asyncio.sleep(beats * 0.1)
            assert found.lock.grants - before <= beats / 4

    run(test)


def report(window_ms: int, queue: int, cluster_id: str = "one") -> BarReport:
    return BarReport(
        cluster_id=cluster_id,
        window=wall_text(window_ms),
        tempo_bpm=600,
        bar_len_beats=4,
        agents=1,
        tasks=10,
        states={},
        overruns=0,
        kept_promises=0,
        late_promises=0,
        broken_promises=0,
        queue_depth=queue,
        utilisation=1.0,
        suggested_tempo_bpm=600,
        truncated=False,
        hlc=hlc_text(Hlc(window_ms, 0, 0)),
    )


BAR_MS = 400
ADAPTIVE = read_policy(b"{cluster_id: one, initial_bpm: 600, bar_len_beats: 4, adaptation: {enable: true}}")


@pytest.mark.req("BB-11")
@pytest.mark.parametrize(
    ("policy", "is_incident", "expected"), [(ADAPTIVE, False, 601), (ADAPTIVE, True, 600), (POLICY, False, 600)]
)
def test_the_leader_adapts_the_tempo_on_a_downbeat(policy: TempoPolicy, is_incident: bool, expected: int) -> None:
    async def test() -> None:
        async with cluster(2, policy) as found:
            await found.until(lambda: len(found.accepted) >= 2)
            found.wall_s += 0.9  # slewed: the beats go on
            leader = found.leader()
            assert leader is not None
            # A leader leaves the tempo of its predecessor alone for a minute.
            now_ms = leader._clock.now_ms()
            leader.hear_report(report(now_ms - BAR_MS, 1_000), 1, is_incident=is_incident)
            assert not found.of(TempoChanged)
            leader._control = type(leader._control)()
            for each in found.pulses:
                each.hear_report(report(now_ms + 1, 1_000, "two"), 1, is_incident=is_incident)
                each.hear_report(report(now_ms, 1_000), 1, is_incident=is_incident)
                each.hear_report(report(now_ms, 1_000), 1, is_incident=is_incident)
            count = len(found.accepted)
            await found.until(lambda: len(found.accepted) >= count + 6)
            assert found.accepted[-1].frame.tempo_bpm == expected == found.agent.tempo.bpm
            changes = [each for each in found.accepted if each.frame.tempo_bpm == 601]
            assert not changes or changes[0].frame.downbeat
            assert len(found.of(TempoChanged)) == (expected == 601)

    run(test)


@pytest.mark.req("BB-11")
def test_several_reports_of_one_window_count_once() -> None:
    async def test() -> None:
        async with cluster(1, ADAPTIVE) as found:
            await found.until(lambda: found.leader() is not None)
            leader = found.pulses[0]
            now_ms = leader._clock.now_ms()
            leader.hear_report(report(now_ms - BAR_MS, 1_000), 1, is_incident=False)
            once = leader._control.integral
            for window_ms in (now_ms - BAR_MS, now_ms - BAR_MS - 1):
                leader.hear_report(report(window_ms, 1_000), 1, is_incident=False)
            assert leader._control.integral == once > 0
            leader.hear_report(report(now_ms, 1_000), 1, is_incident=False)
            assert leader._control.integral > once

    run(test)


@pytest.mark.req("BB-11", "LW-49")
def test_a_node_that_may_lead_moves_the_tempo_by_one_report_a_bar() -> None:
    async def test() -> None:
        async with cluster(1, ADAPTIVE) as found:
            await found.until(lambda: found.leader() is not None)
            leader = found.pulses[0]
            now_ms = leader._clock.now_ms()
            # Windows of the future would count before those of other nodes, and take their places.
            for window_ms in (now_ms + 10 * BAR_MS, now_ms + 3_600_000):
                leader.hear_report(report(window_ms, 1_000), 1, is_incident=False)
            assert leader._control.integral == 0
            leader.hear_report(report(now_ms - BAR_MS, 1_000), 1, is_incident=False)
            once = leader._control.integral
            assert once > 0
            for early_ms in range(1, 100):
                leader.hear_report(report(now_ms - BAR_MS + early_ms, 1_000), 1, is_incident=False)
            assert leader._control.integral == once

    run(test)


@pytest.mark.req("BB-11", "LW-49")
def test_the_tempo_follows_no_report_of_a_node_that_may_not_lead() -> None:
    class OnlyFirst:
        lead = None

        def may_lead(self, node: int) -> bool:
            return node == 1

    async def test() -> None:
        async with cluster(1, ADAPTIVE) as found:
            await found.until(lambda: found.leader() is not None)
            leader = found.pulses[0]
            leader._beats.leaders = OnlyFirst()
            now_ms = leader._clock.now_ms()
            for node in (2, 3, 2):
                leader.hear_report(report(now_ms - BAR_MS, 1_000), node, is_incident=False)
            assert leader._control.integral == 0
            assert [each.node for each in found.of(ReportRefused)] == [node_text(2)]
            leader.hear_report(report(now_ms - BAR_MS, 1_000), 1, is_incident=False)
            assert leader._control.integral > 0

    run(test)


@pytest.mark.req("BB-11", "BB-23")
@pytest.mark.parametrize("is_incident", [False, True])
def test_the_leader_redistributes_phases_on_a_downbeat(is_incident: bool) -> None:
    async def test() -> None:
        async with cluster(2, ADAPTIVE) as found:
            await found.until(lambda: len(found.accepted) >= 2)
            found.wall_s += 0.9
            leader = found.leader()
            assert leader is not None
            leader._control = type(leader._control)()
            # As many jobs as it can do, so the tempo stays; but reviews take too long.
            told = replace(
                report(leader._clock.now_ms(), 0), utilisation=0.9, tasks=10, overruns_by_phase={"review": 9}
            )
            leader.hear_report(told, 1, is_incident=is_incident)
            count = len(found.accepted)
            await found.until(lambda: len(found.accepted) >= count + 6)
            moved = [each for each in found.accepted if each.phases is not None]
            if is_incident:
                assert not moved and found.agent.phases == ADAPTIVE.phases
                return
            assert moved[0].frame.downbeat and moved[0].phases == {"plan": 1, "work": 1, "review": 2}
            assert found.agent.phases == moved[0].phases and found.agent.now().phases == moved[0].phases

    run(test)
