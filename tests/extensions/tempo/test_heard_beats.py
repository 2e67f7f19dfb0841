"""The beats that a process hears: which frames it accepts, and how it counts on without a leader."""

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.events import Event
from hocket.extensions.tempo.beats import Tempo, changed, make_tempo
from hocket.extensions.tempo.events import BeatsDegraded, BeatsLed, FrameRefused
from hocket.extensions.tempo.frame_judge import FrameRefusal, Lead
from hocket.extensions.tempo.heard_beats import TOLD_MS, HeardBeats, Leaders, TempoClock, local_frame
from hocket.extensions.tempo.messages import PulseMessage
from hocket.extensions.tempo.policy import make_policy

POLICY = make_policy("one", 60, 4)
TEMPO = POLICY.initial_tempo
NOON_MS = 1_756_865_520_000
SKEW_MS = 5_000
ALICE, BOB, EVE = 1, 2, 3


class Listener:
    """HeardBeats with clocks that a test moves."""

    def __init__(self, leaders: Leaders | None = None) -> None:
        self.monotonic_ms, self.wall_ms = 50_000, NOON_MS
        self.told: list[Event] = []
        clock = TempoClock(lambda: self.monotonic_ms / 1000, lambda: self.wall_ms / 1000)
        self.beats = HeardBeats(POLICY, clock, SKEW_MS, self.told.append, leaders)

    def passes(self, ms: int) -> None:
        self.monotonic_ms += ms
        self.wall_ms += ms
        self.beats.now()

    def hear(self, fence: int, sender: int = ALICE, ahead_ms: int = 0, tempo: Tempo = TEMPO) -> FrameRefusal | None:
        """A frame for now, by the clock of the sender."""
        return self.beats.hear(PulseMessage(local_frame(POLICY, tempo, self.wall_ms + ahead_ms), fence), sender)

    def degraded(self, sender: int, ahead_ms: int) -> None:
        frame = local_frame(POLICY, self.beats.tempo, self.wall_ms + ahead_ms)
        assert self.beats.hear(PulseMessage(frame, 0, True), sender) is FrameRefusal.LEADERLESS


class Lock:
    """The leader's lock as this process has read it, and the members that may lead."""

    def __init__(self, lead: Lead | None) -> None:
        self.lead, self.members = lead, {ALICE, BOB}

    def may_lead(self, node: int) -> bool:
        return node in self.members


FENCE_MAX = 2**53 - 1


@pytest.mark.req("LW-49")
@pytest.mark.touches("BB-03")
def test_a_fence_is_read_from_the_lock_and_not_believed_from_a_message() -> None:
    """A reader, and a member that may lead and does not, say the highest fence that there is."""
    lock = Lock(Lead(1, ALICE))
    heard = Listener(lock)
    assert heard.hear(1) is None
    heard.passes(1_000)
    assert heard.hear(FENCE_MAX, EVE) is FrameRefusal.NOT_A_PULSE
    assert heard.hear(FENCE_MAX, BOB) is FrameRefusal.UNCONFIRMED
    assert heard.hear(1) is None and heard.beats.fence == 1
    heard.passes(1_000)
    assert heard.beats.needs_confirmation(PulseMessage(local_frame(POLICY, TEMPO, heard.wall_ms), 2), BOB)
    assert not heard.beats.needs_confirmation(PulseMessage(local_frame(POLICY, TEMPO, heard.wall_ms), 2), EVE)
    lock.lead = Lead(2, BOB)
    assert heard.hear(2, BOB) is None
    heard.passes(1_000)
    assert heard.hear(1, ALICE) is FrameRefusal.DEPOSED


@pytest.mark.req("LW-49")
def test_a_pulse_that_is_no_longer_a_member_is_forgotten() -> None:
    """Here who leads cannot be read. A member that may lead is believed as long as it is one."""
    lock = Lock(None)
    heard = Listener(lock)
    assert heard.hear(1) is None
    heard.passes(1_000)
    assert heard.hear(FENCE_MAX, BOB, ahead_ms=100) is None
    heard.passes(1_000)
    assert heard.hear(2, ALICE) is FrameRefusal.DEPOSED
    lock.members = {ALICE}
    assert heard.hear(2, ALICE) is None and heard.beats.fence == 2
    # Nor is its clock part of the median.
    heard.passes(1_000)
    heard.degraded(ALICE, 0)
    assert heard.beats.hear(PulseMessage(local_frame(POLICY, TEMPO, heard.wall_ms + 4_000), 0, True), BOB) is not None
    heard.passes(3_000)
    assert heard.beats.now().at_ms == heard.wall_ms


def test_a_leader_that_was_believed_gives_way_to_the_lock() -> None:
    lock = Lock(None)
    heard = Listener(lock)
    assert heard.hear(FENCE_MAX, BOB) is None
    heard.passes(1_000)
    lock.lead = Lead(7, ALICE)
    assert heard.hear(7, ALICE) is None and heard.beats.fence == 7


@pytest.mark.req("LW-49")
def test_a_frame_that_is_ahead_by_more_than_a_beat_and_the_measured_skew_is_refused() -> None:
    heard = Listener()
    assert heard.hear(1, ahead_ms=1_500) is None, "nothing was measured before"
    heard.passes(1_000)
    assert heard.hear(2, BOB, ahead_ms=4_000) is FrameRefusal.FROM_THE_FUTURE
    assert heard.hear(1, ahead_ms=1_500) is None
    # What it says is measured: after the old leader has been silent for two bars, the new one sets the time.
    for _ in range(9):
        heard.passes(1_000)
        refusal = heard.hear(2, BOB, ahead_ms=4_000)
    assert refusal is None and heard.beats.now().at_ms == heard.wall_ms + 4_000


def test_alone_a_process_counts_by_its_own_clock() -> None:
    heard = Listener()
    heard.passes(2_500)
    now = heard.beats.now()
    assert now.is_degraded and (now.beat.index, now.beat.epoch_ms) == (3, NOON_MS + 2_000)


@pytest.mark.req("BB-03")
def test_the_leader_sets_the_time() -> None:
    heard = Listener()
    assert heard.hear(1, ahead_ms=300) is None
    now = heard.beats.now()
    assert not now.is_degraded and now.at_ms == NOON_MS + 300
    heard.passes(1_000)
    assert heard.hear(1, ahead_ms=300) is None
    assert heard.beats.now().at_ms == NOON_MS + 1_300
    assert heard.told == [BeatsLed("one", heard.told[0].leader, 1)]  # type: ignore[attr-defined]


def test_a_late_frame_hardly_moves_the_time() -> None:
    heard = Listener()
    assert heard.hear(1) is None
    heard.passes(1_400)
    assert heard.hear(1, ahead_ms=-350) is None  # sent at 1,050 and 350 ms on its way
    heard.passes(100)
    assert heard.beats.now().at_ms == NOON_MS + 1_490


@pytest.mark.req("BB-03")
def test_one_frame_for_a_beat_and_none_of_a_deposed_leader() -> None:
    heard = Listener()
    assert heard.hear(1) is None
    assert heard.hear(1) is FrameRefusal.FROM_THE_PAST
    assert heard.hear(2, BOB) is FrameRefusal.FROM_THE_PAST
    heard.passes(1_000)
    assert heard.hear(2, BOB) is None
    heard.passes(1_000)
    assert heard.hear(1, ALICE) is FrameRefusal.DEPOSED
    assert heard.hear(2, EVE) is FrameRefusal.SECOND_LEADER
    assert heard.hear(2, BOB) is None
    assert heard.beats.refusals == {
        FrameRefusal.FROM_THE_PAST: 2,
        FrameRefusal.DEPOSED: 1,
        FrameRefusal.SECOND_LEADER: 1,
    }


@pytest.mark.touches("BB-03")
def test_frames_of_others_change_nothing() -> None:
    heard = Listener()
    assert heard.hear(1) is None
    before = heard.beats.now()
    foreign, other = make_policy("two", 60, 4), make_policy("one", 61, 4)
    for policy, expected in ((foreign, FrameRefusal.WRONG_CLUSTER), (other, FrameRefusal.FOREIGN_POLICY)):
        frame = local_frame(policy, policy.initial_tempo, NOON_MS + 2_000)
        assert heard.beats.hear(PulseMessage(frame, 9), EVE) is expected
    assert heard.hear(9, EVE, ahead_ms=60_000) is FrameRefusal.FROM_THE_FUTURE
    assert heard.hear(9, EVE, ahead_ms=-60_000) is FrameRefusal.FROM_THE_PAST
    assert heard.beats.now() == before and heard.beats.fence == 1
    # Without a leader, neither a foreign policy nor a clock that is far off is part of the median.
    heard.passes(3_000)
    for policy, ahead_ms in ((other, 2_000), (POLICY, 60_000), (POLICY, -60_000)):
        frame = local_frame(policy, policy.initial_tempo, heard.wall_ms + ahead_ms)
        assert heard.beats.hear(PulseMessage(frame, 0, True), EVE) is FrameRefusal.LEADERLESS
    assert heard.beats.now().at_ms == heard.wall_ms


@pytest.mark.req("BB-03")
def test_without_a_leader_the_median_of_the_pulses_counts_and_the_tempo_stays() -> None:
    heard = Listener()
    change = changed(TEMPO, 50, NOON_MS)
    assert heard.hear(1, tempo=change.tempo) is None
    heard.passes(2 * change.tempo.beat_ms)
    assert not heard.beats.now().is_degraded
    heard.passes(1)
    assert heard.beats.now().is_degraded
    assert [type(each) for each in heard.told] == [BeatsLed, BeatsDegraded]
    for sender, ahead_ms in ((ALICE, 100), (BOB, 250), (EVE, 3_000)):
        heard.degraded(sender, ahead_ms)
    heard.passes(5_000)
    now = heard.beats.now()
    assert now.at_ms == heard.wall_ms + 250 and now.tempo == change.tempo


@pytest.mark.req("BB-03")
def test_a_new_leader_is_heard_after_beats_without_one() -> None:
    heard = Listener()
    assert heard.hear(1) is None
    heard.passes(2_600)
    assert heard.beats.now().is_degraded
    heard.passes(500)
    # The beat that runs is counted here already; its first frame still counts.
    assert heard.hear(2, BOB, ahead_ms=-1_000) is FrameRefusal.FROM_THE_PAST
    assert heard.hear(2, BOB) is None
    assert heard.hear(2, BOB) is FrameRefusal.FROM_THE_PAST
    assert not heard.beats.now().is_degraded


@pytest.mark.req("BB-04")
@pytest.mark.req("BB-05")
def test_another_tempo_counts_from_a_downbeat_on_and_is_on_the_timeline() -> None:
    heard = Listener()
    assert heard.hear(1) is None
    heard.passes(1_000)
    change = changed(TEMPO, 30, heard.wall_ms)
    heard.passes(1_000)
    assert heard.hear(1, tempo=change.tempo) is FrameRefusal.MID_BAR
    heard.passes(2_000)
    assert heard.hear(1, tempo=change.tempo) is None
    assert heard.beats.now().beat.index == 1 and heard.beats.now().tempo == change.tempo
    assert heard.beats.timeline.at(NOON_MS) == TEMPO
    assert heard.beats.timeline.at(change.since_ms) == change.tempo


def test_after_a_bar_without_a_leader_any_tempo_of_the_policy_is_accepted() -> None:
    heard = Listener()
    assert heard.hear(1) is None
    other = make_tempo(45, 4, NOON_MS + 777)
    for _ in range(3):
        heard.passes(1_000)
        assert heard.hear(2, BOB, tempo=other) is not None
    heard.passes(2_000)
    assert heard.hear(2, BOB, tempo=other) is None and heard.beats.tempo == other


def test_a_process_that_has_just_begun_accepts_the_tempo_in_force() -> None:
    heard = Listener()
    heard.passes(10_000)
    other = make_tempo(45, 4, NOON_MS + 777)
    assert heard.hear(7, tempo=other) is None and heard.beats.tempo == other


def test_refusals_of_one_kind_are_told_once_a_minute() -> None:
    heard = Listener()
    assert heard.hear(5) is None
    for _ in range(10):
        heard.passes(1_000)
        assert heard.hear(5) is None
        assert heard.hear(4, BOB) is FrameRefusal.DEPOSED
    told = [each.count for each in heard.told if isinstance(each, FrameRefused)]
    assert told == [1]
    for _ in range(TOLD_MS // 1_000):
        heard.passes(1_000)
        assert heard.hear(5) is None
    assert heard.hear(4, BOB) is FrameRefusal.DEPOSED
    assert [each.count for each in heard.told if isinstance(each, FrameRefused)] == [1, 10]


@pytest.mark.req("BB-03")
def test_a_beat_has_one_frame_also_if_the_leader_comes_back_after_a_bar_with_its_clock_set_back() -> None:
    heard = Listener()
    assert heard.hear(1, ahead_ms=4_000) is None
    for passed in (340, 916, 916, 916):
        heard.passes(passed)
        heard.degraded(ALICE, 0)
    heard.passes(913)
    assert heard.hear(1) is FrameRefusal.FROM_THE_PAST
    heard.passes(1_000)
    assert heard.hear(1) is None


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2_500),  # time that passes
            st.sampled_from([ALICE, BOB, EVE]),
            st.integers(0, 4),  # fence; 0 is a pulse without a leader
            st.integers(-4_000, 4_000),  # how far the sender's clock is ahead
        ),
        max_size=40,
    )
)
@settings(max_examples=200)
def test_beats_only_go_forward_whatever_is_heard(moves: list[tuple[int, int, int, int]]) -> None:
    heard, accepted, fences = Listener(), [], []
    at_ms = 0
    for passed, sender, fence, ahead_ms in moves:
        heard.passes(passed)
        if heard.hear(fence, sender, ahead_ms) is None:
            accepted.append(heard.beats.epoch_ms)
            fences.append(heard.beats.fence)
        now = heard.beats.now()
        assert now.at_ms >= at_ms
        at_ms = now.at_ms
    assert all(later - earlier >= TEMPO.beat_ms for earlier, later in pairwise(accepted))
    assert fences == sorted(fences)


def test_the_next_beat_comes_on_time_or_with_an_earlier_frame() -> None:
    policy = make_policy("one", 600, 4)

    async def test() -> None:
        loop = asyncio.get_running_loop()
        began_s, began_ms = loop.time(), 1_756_865_520_050
        clock = TempoClock(loop.time, lambda: loop.time() - began_s + began_ms / 1000)
        beats = HeardBeats(policy, clock, SKEW_MS)
        first = await beats.next_beat()
        assert first.beat.epoch_ms == began_ms + 50
        waiting = asyncio.create_task(beats.next_beat())
        await asyncio.sleep(0)
        frame = local_frame(policy, policy.initial_tempo, clock.now_ms() + 1_000)
        assert beats.hear(PulseMessage(frame, 1), ALICE) is None
        assert (await waiting).beat.epoch_ms >= began_ms + 1_050

    asyncio.run(test())
