"""Frames that an agent accepts: never two for one beat and none of a deposed leader, whatever comes."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hocket.extensions.tempo.beats import Tempo, changed, is_downbeat, make_tempo
from hocket.extensions.tempo.frame_judge import (
    DegradedTempo,
    FrameRefusal,
    HeardPulse,
    JudgeState,
    degraded_beat,
    judge_frame,
    with_local_beat,
)
from hocket.extensions.tempo.messages import BeatFrame, PulseMessage, make_frame
from hocket.extensions.tempo.policy import TempoPolicy, make_policy, policy_hash
from hocket.kernel.clock import Hlc, wall_text

POLICY = make_policy("one", 60, 4)
TEMPO = POLICY.initial_tempo
NOW = 1_756_865_547_183 // 4000 * 4000  # a downbeat
SKEW = 60_000


def pulse(at_ms: int, fence: int = 1, tempo: Tempo = TEMPO, policy: TempoPolicy = POLICY) -> PulseMessage:
    frame = make_frame(
        policy.cluster_id, tempo, policy.phases, policy_hash(policy, tempo), at_ms, Hlc(at_ms + 7, fence, 0)
    )
    return PulseMessage(frame, fence)


def judge(state: JudgeState, message: PulseMessage, sender: int = 1, now_ms: int = NOW) -> JudgeState | FrameRefusal:
    return judge_frame(POLICY, state, message, sender, now_ms, SKEW)


def accepted(*messages: tuple[PulseMessage, int]) -> JudgeState:
    state = JudgeState()
    for message, sender in messages:
        found = judge(state, message, sender, message.frame.epoch_ms)
        assert isinstance(found, JudgeState), found
        state = found
    return state


@pytest.mark.touches("BB-03")
def test_a_leader_and_its_successor_are_accepted() -> None:
    state = accepted((pulse(NOW), 1), (pulse(NOW + 1000), 1), (pulse(NOW + 2000, 2), 2), (pulse(NOW + 3500, 2), 2))
    assert (state.fence, state.leader) == (2, 2)
    assert judge(state, pulse(NOW + 4000, 1), 1) is FrameRefusal.DEPOSED
    assert judge(state, pulse(NOW + 4000, 2), 3) is FrameRefusal.SECOND_LEADER
    assert judge(state, pulse(NOW + 3000, 2), 2) is FrameRefusal.FROM_THE_PAST
    assert judge(state, pulse(NOW + 3000, 3), 3) is FrameRefusal.FROM_THE_PAST


@pytest.mark.req("BB-05")
@pytest.mark.touches("BB-03")
@pytest.mark.parametrize(
    ("message", "refusal"),
    [
        (pulse(NOW, policy=make_policy("two", 60, 4)), FrameRefusal.WRONG_CLUSTER),
        (pulse(NOW, policy=replace(POLICY, hysteresis_pct=20)), FrameRefusal.FOREIGN_POLICY),
        (replace(pulse(NOW), frame=replace(pulse(NOW).frame, policy_hash="sha256:" + "0" * 64)), "foreign policy"),
        # The hash is good for another anchor, another tempo and another phase only.
        (replace(pulse(NOW), frame=replace(pulse(NOW).frame, beat_index=2, downbeat=False)), "foreign policy"),
        (replace(pulse(NOW), frame=replace(pulse(NOW).frame, tempo_bpm=61)), "foreign policy"),
        (replace(pulse(NOW), frame=replace(pulse(NOW).frame, beat_epoch=wall_text(NOW + 1))), "foreign policy"),
        (replace(pulse(NOW), frame=replace(pulse(NOW).frame, phase="review")), FrameRefusal.INCONSISTENT),
        (replace(pulse(NOW), frame=replace(pulse(NOW).frame, beat_ms=999)), FrameRefusal.INCONSISTENT),
        (replace(pulse(NOW), frame=replace(pulse(NOW).frame, deadline_at=wall_text(NOW))), FrameRefusal.INCONSISTENT),
        (pulse(NOW + SKEW + 1000), FrameRefusal.FROM_THE_FUTURE),
        (pulse(NOW - SKEW - 2000), FrameRefusal.FROM_THE_PAST),
        (pulse(NOW, fence=0), FrameRefusal.LEADERLESS),
        (replace(pulse(NOW), degraded=True), FrameRefusal.LEADERLESS),
    ],
)
def test_a_bad_frame_is_refused(message: PulseMessage, refusal: FrameRefusal) -> None:
    assert isinstance(judge(JudgeState(), pulse(NOW)), JudgeState)
    assert judge(JudgeState(), message) == refusal


def test_a_tempo_beyond_the_limits_is_refused() -> None:
    narrow = replace(POLICY, min_bpm=50, max_bpm=70)
    fast = pulse(NOW, tempo=make_tempo(71, 4, NOW), policy=narrow)
    assert judge_frame(narrow, JudgeState(), fast, 1, NOW, SKEW) is FrameRefusal.FOREIGN_POLICY


@pytest.mark.req("BB-04")
def test_a_tempo_changes_on_a_downbeat_that_the_agent_may_have_missed() -> None:
    state = accepted((pulse(NOW + 1000), 1))
    new = changed(TEMPO, 50, NOW + 1000)
    assert new.since_ms == NOW + 4000
    for beats in range(3):
        at_ms = new.since_ms + beats * new.tempo.beat_ms
        assert isinstance(judge(state, pulse(at_ms, tempo=new.tempo), now_ms=at_ms), JudgeState)
    # The same tempo, begun in mid-bar.
    wrong = make_tempo(50, 4, NOW + 3000)
    assert judge(state, pulse(NOW + 3000, tempo=wrong)) is FrameRefusal.MID_BAR
    assert judge(state, pulse(NOW + 4200, tempo=wrong)) is FrameRefusal.MID_BAR
    # After more than a bar of silence an agent takes what the leader says.
    assert isinstance(judge(state, pulse(NOW + 5400, tempo=wrong)), JudgeState)


def test_an_agent_that_slept_goes_on_with_the_next_frame() -> None:
    state, hours = accepted((pulse(NOW), 1)), 5 * 3_600_000
    assert isinstance(judge(state, pulse(NOW + hours, 9), 7, NOW + hours), JudgeState)
    # A clock that was set back by minutes finds every frame in its future, and accepts none.
    assert judge(state, pulse(NOW + 1000), now_ms=NOW - 300_000) is FrameRefusal.FROM_THE_FUTURE


@pytest.mark.touches("BB-03")
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 1500), st.integers(-3000, 3000)), max_size=40))
def test_no_beat_comes_twice_when_leaders_come_and_go(turns: list[tuple[bool, int, int]]) -> None:
    """Without a leader the agent counts itself, by pulses whose clocks differ."""
    state, local, now_ms, epochs = JudgeState(), DegradedTempo(TEMPO, NOW, 0), 0, []
    for is_led, step_ms, off_ms in turns:
        now_ms += step_ms
        if is_led:
            found = judge(state, pulse(NOW + now_ms), now_ms=NOW + now_ms)
            if not isinstance(found, JudgeState):
                continue
            state = found
        else:
            last_ms = state.last.epoch_ms if state.last else 0
            local = DegradedTempo(TEMPO, local.offset_ms, last_ms)
            local, beat = degraded_beat(local, {2: HeardPulse(NOW + off_ms, now_ms)}, now_ms)
            if beat is None:
                continue
            state = with_local_beat(state, pulse(beat.epoch_ms).frame)
        assert state.last is not None
        epochs.append(state.last.epoch_ms)
    assert all(before + TEMPO.beat_ms <= after for before, after in pairwise(epochs))


BPMS = st.sampled_from((60, 50, 75, 600))
MESSAGES = st.lists(
    st.tuples(
        st.integers(-3000, 20_000),  # when it was made
        st.integers(0, 4),  # its fence
        st.integers(1, 3),  # its sender
        st.builds(make_tempo, BPMS, st.just(4), st.sampled_from((0, NOW, NOW + 700, NOW + 4000))),
        st.integers(0, 3000),  # how late it comes
    ),
    max_size=60,
)


@pytest.mark.req("BB-04")
@pytest.mark.touches("BB-03")
@given(MESSAGES)
def test_never_two_frames_for_one_beat_and_none_of_a_deposed_leader(messages: Any) -> None:
    state, taken = JudgeState(), []
    for at_ms, fence, sender, tempo, late_ms in sorted(messages, key=lambda each: each[0] + each[-1]):
        message = pulse(NOW + at_ms, fence, tempo)
        found = judge(state, message, sender, NOW + at_ms + late_ms)
        if isinstance(found, JudgeState):
            state = found
            taken.append((message.frame, fence, sender))
            assert state == JudgeState(fence, sender, message.frame, POLICY.phases)
    leaders: dict[int, int] = {}
    for _, fence, sender in taken:
        assert leaders.setdefault(fence, sender) == sender
    for (before, old_fence, _), (after, new_fence, _) in pairwise(taken):
        assert before.epoch_ms + before.beat_ms <= after.epoch_ms and old_fence <= new_fence
        assert before.tempo == after.tempo or is_change_on_downbeat(before, after)


def is_change_on_downbeat(before: BeatFrame, after: BeatFrame) -> bool:
    if after.epoch_ms - before.epoch_ms > before.tempo.bar_ms:
        return True
    return any(
        is_downbeat(before.tempo, at) and is_downbeat(after.tempo, at)
        for at in range(before.epoch_ms + 1, after.epoch_ms + 1)
    )


@pytest.mark.touches("BB-03")
@given(st.permutations(range(8)), st.lists(st.integers(0, 7), max_size=8))
def test_repeats_and_disorder_change_nothing_that_was_accepted(order: list[int], repeats: list[int]) -> None:
    state, epochs = JudgeState(), []
    for beat in [*order, *repeats]:
        found = judge(state, pulse(NOW + beat * 1000))
        if isinstance(found, JudgeState):
            state = found
            epochs.append(beat)
    assert epochs == sorted(set(epochs)) and max(order) == epochs[-1]


@pytest.mark.req("BB-04", "BB-23")
def test_phases_are_redistributed_between_bars_only() -> None:
    moved = {"plan": 1, "review": 2, "work": 1}

    def at(at_ms: int, phases: dict[str, int]) -> PulseMessage:
        ordered = {name: phases[name] for name in POLICY.phases if name in phases}
        frame = make_frame("one", TEMPO, ordered, policy_hash(POLICY, TEMPO), at_ms, Hlc(at_ms, 0, 0))
        return PulseMessage(frame, 1, phases=phases)

    before = accepted((pulse(NOW), 1), (pulse(NOW + 1000), 1))
    assert before.phases == POLICY.phases == {"plan": 1, "work": 2, "review": 1}
    assert judge(before, at(NOW + 2000, moved)) is FrameRefusal.MID_BAR
    after = judge(before, at(NOW + 4000, moved), now_ms=NOW + 4000)
    assert isinstance(after, JudgeState) and after.phases == {"plan": 1, "work": 1, "review": 2}
    assert judge(after, pulse(NOW + 6000), now_ms=NOW + 6000) is FrameRefusal.MID_BAR
    for bad in ({"plan": 1, "work": 2}, {"plan": 1, "work": 3, "review": 1}, {"plan": 0, "work": 3, "review": 1}):
        assert judge(before, at(NOW + 4000, bad), now_ms=NOW + 4000) is FrameRefusal.INCONSISTENT
