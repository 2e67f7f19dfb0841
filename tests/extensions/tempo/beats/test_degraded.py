"""Beats without a leader: the median of the pulses heard, the local clock without any, and a tempo that stays."""

from itertools import pairwise
from statistics import median as second_opinion
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.extensions.tempo.beats import beat_at, make_tempo
from hocket.extensions.tempo.frame_judge import (
    HEARD_BARS,
    DegradedTempo,
    HeardPulse,
    degraded_beat,
    is_leaderless,
    median,
)

TEMPO = make_tempo(60, 4, 700)
OFFSET = 1_756_865_547_183
OFFSETS = st.integers(-5000, 5000).map(lambda off: OFFSET + off)


@given(st.lists(st.integers(-(10**12), 10**12), min_size=1))
def test_the_median(values: list[int]) -> None:
    assert abs(median(values) - second_opinion(values)) < 1


@pytest.mark.touches("BB-03")
@given(st.lists(OFFSETS, min_size=1, max_size=9), st.lists(st.integers(-(10**13), 10**13), max_size=8), st.randoms())
def test_a_minority_of_wrong_clocks_does_not_move_the_beat(honest: list[int], wrong: list[int], random: Any) -> None:
    offsets = honest + wrong[: len(honest) - 1]
    random.shuffle(offsets)
    heard = {sender: HeardPulse(offset, 0) for sender, offset in enumerate(offsets)}
    state, _ = degraded_beat(DegradedTempo(TEMPO, 0, 0), heard, 100)
    assert min(honest) <= state.offset_ms <= max(honest)


@pytest.mark.touches("BB-03")
@given(st.integers(0, 10**6), st.lists(st.integers(0, 3000), max_size=50))
def test_without_pulses_the_local_clock_counts_on(start_ms: int, steps: list[int]) -> None:
    state = DegradedTempo(TEMPO, OFFSET, beat_at(TEMPO, OFFSET + start_ms).epoch_ms)
    now_ms = start_ms
    for step_ms in steps:
        now_ms += step_ms
        state, beat = degraded_beat(state, {}, now_ms)
        assert state.offset_ms == OFFSET and state.tempo == TEMPO
        assert beat is None or beat == beat_at(TEMPO, OFFSET + now_ms)
        assert state.epoch_ms == beat_at(TEMPO, OFFSET + now_ms).epoch_ms


@pytest.mark.touches("BB-03")
@given(st.lists(st.tuples(st.integers(0, 2000), st.dictionaries(st.integers(1, 5), OFFSETS, max_size=5)), max_size=60))
def test_no_beat_comes_twice_and_the_tempo_is_frozen(turns: Any) -> None:
    state, now_ms, heard = DegradedTempo(TEMPO, OFFSET, 0), 0, {}
    epochs = []
    for step_ms, told in turns:
        now_ms += step_ms
        heard |= {sender: HeardPulse(offset, now_ms) for sender, offset in told.items()}
        state, beat = degraded_beat(state, heard, now_ms)
        assert state.tempo == TEMPO
        if beat is not None:
            assert beat_at(TEMPO, beat.epoch_ms) == beat
            epochs.append(beat.epoch_ms)
    assert all(after - before >= TEMPO.beat_ms for before, after in pairwise(epochs))


@pytest.mark.touches("BB-03")
def test_pulses_that_fell_silent_do_not_count() -> None:
    heard = {1: HeardPulse(OFFSET + 500, 0), 2: HeardPulse(OFFSET - 500, 9000)}
    fresh_ms = HEARD_BARS * TEMPO.bar_ms
    state = DegradedTempo(TEMPO, OFFSET, 0)
    assert degraded_beat(state, heard, fresh_ms)[0].offset_ms == OFFSET
    assert degraded_beat(state, heard, fresh_ms + 1)[0].offset_ms == OFFSET - 500
    state, _ = degraded_beat(state, heard, fresh_ms + 1)
    assert degraded_beat(state, heard, 99_000)[0].offset_ms == OFFSET - 500


@pytest.mark.touches("BB-03")
def test_two_silent_beats_mean_no_leader() -> None:
    assert not is_leaderless(TEMPO, 0, 2000) and is_leaderless(TEMPO, 0, 2001)
