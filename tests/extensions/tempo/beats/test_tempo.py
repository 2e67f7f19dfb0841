"""Beats: the addendum's formulas, and an anchor that keeps the bar whole when the tempo changes."""

from fractions import Fraction
from math import floor

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hocket.extensions.tempo.beats import (
    BPM_MAX,
    BPM_MIN,
    CHANGES_MAX,
    BadTempo,
    Tempo,
    TempoChange,
    Window,
    beat_at,
    changed,
    delta_beats,
    is_downbeat,
    make_tempo,
    next_beat,
    next_downbeat,
    timeline,
)
from hocket.kernel.ops import Beat
from hocket.kernel.policy import BAR_LEN_MAX

# The addendum's example: 15 beats a minute, bars of 8, and the third beat of a bar.
AT = 1_756_865_547_183
TIMES = st.integers(0, 2**43)
TEMPI = st.builds(make_tempo, st.integers(BPM_MIN, BPM_MAX), st.integers(1, BAR_LEN_MAX), TIMES)


@pytest.mark.req("BB-01")
def test_the_addendums_example() -> None:
    tempo = make_tempo(15, 8)
    assert tempo.beat_ms == 4000 and tempo.bar_ms == 32_000
    beat = beat_at(tempo, AT)
    assert beat.index == 3 and not beat.is_downbeat
    assert beat.epoch_ms == 1_756_865_544_000 == AT // 4000 * 4000
    assert beat.window_ms == beat.epoch_ms - 8000


@pytest.mark.req("BB-01")
@given(st.integers(BPM_MIN, BPM_MAX), st.integers(1, BAR_LEN_MAX), TIMES)
def test_without_an_anchor_the_formulas_are_the_addendums(bpm: int, bar_len: int, at_ms: int) -> None:
    tempo = make_tempo(bpm, bar_len)
    beat = beat_at(tempo, at_ms)
    assert beat.index == 1 + floor(Fraction(at_ms, tempo.beat_ms)) % bar_len
    assert beat.index == 1 + floor(Fraction(at_ms, tempo.beat_ms) % bar_len)
    assert beat.epoch_ms == floor(Fraction(at_ms, tempo.beat_ms)) * tempo.beat_ms
    assert beat.is_downbeat == (beat.index == 1)


@pytest.mark.req("BB-01")
@given(TIMES, TIMES, st.integers(50, 60_000))
def test_delta_beats_is_rounded_and_the_same_both_ways(target: int, now: int, beat_ms: int) -> None:
    found = delta_beats(target, now, beat_ms)
    assert abs(Fraction(target - now, beat_ms) - found) <= Fraction(1, 2)
    assert found == -delta_beats(now, target, beat_ms)


@pytest.mark.req("BB-01")
def test_delta_beats() -> None:
    assert [delta_beats(1000 + away, 1000, 400) for away in (0, 199, 200, 599, 600, -199, -200, -600)] == [
        *(0, 0, 1, 1, 2, 0, -1, -2),
    ]


@pytest.mark.req("BB-05")
def test_the_plain_formula_jumps_in_mid_bar_and_the_anchor_does_not() -> None:
    old = make_tempo(15, 8)
    change = changed(old, 12, AT)
    at = change.since_ms
    assert beat_at(old, at).is_downbeat and at > AT
    # The formula without an anchor, at the new tempo: the bar goes on at beat 2, which began before the change.
    plain = beat_at(make_tempo(12, 8), at)
    assert plain.index == 2 and plain.epoch_ms < at
    # With it, the new bar begins where the old one ends.
    assert beat_at(old, at - 1) == Beat(8, at - 4000, at - 32_000)
    assert beat_at(change.tempo, at) == Beat(1, at, at)
    assert beat_at(change.tempo, at + 5000) == Beat(2, at + 5000, at)


@pytest.mark.req("BB-04", "BB-05")
@given(TEMPI, TIMES, st.lists(st.tuples(st.integers(BPM_MIN, BPM_MAX), st.integers(0, 10**7)), max_size=6))
def test_beats_follow_each_other_through_any_changes(
    tempo: Tempo, start_ms: int, changes: list[tuple[int, int]]
) -> None:
    line, now = timeline(tempo), start_ms
    for bpm, wait_ms in changes:
        change = changed(line.changes[-1].tempo, bpm, now + wait_ms + 1)
        line, now = line.with_change(change), change.since_ms
        before, after = beat_at(line.at(now - 1), now - 1), beat_at(line.at(now), now)
        assert before.index == tempo.bar_len and before.epoch_ms + line.at(now - 1).beat_ms == now
        assert after.is_downbeat and after.epoch_ms == now and line.at(now).bpm == bpm


@given(TEMPI, TIMES, st.integers(0, 10**8))
def test_a_frame_tells_the_anchor(tempo: Tempo, at_ms: int, bars: int) -> None:
    window_ms = beat_at(tempo, at_ms).window_ms
    assert make_tempo(tempo.bpm, tempo.bar_len, window_ms) == tempo
    assert make_tempo(tempo.bpm, tempo.bar_len, window_ms + bars * tempo.bar_ms) == tempo


@given(TEMPI, TIMES)
def test_the_next_beat_and_downbeat(tempo: Tempo, at_ms: int) -> None:
    beat, downbeat = next_beat(tempo, at_ms), next_downbeat(tempo, at_ms)
    assert at_ms <= beat < at_ms + tempo.beat_ms and beat_at(tempo, beat).epoch_ms == beat
    assert at_ms <= downbeat < at_ms + tempo.bar_ms and is_downbeat(tempo, downbeat)
    assert beat_at(tempo, downbeat).is_downbeat and next_downbeat(tempo, downbeat) == downbeat


@given(TEMPI, TIMES)
def test_a_window_lies_between_two_downbeats(tempo: Tempo, at_ms: int) -> None:
    window = timeline(tempo).window_at(at_ms)
    assert window.start_ms <= at_ms < window.end_ms and window.end_ms - window.start_ms == tempo.bar_ms
    assert is_downbeat(tempo, window.start_ms) and is_downbeat(tempo, window.end_ms)


def test_windows_are_counted_across_a_change() -> None:
    old = make_tempo(60, 4)
    line = timeline(old).with_change(TempoChange(8000, make_tempo(30, 4, 8000)))
    assert [line.windows_between(0, each) for each in (0, 3999, 4000, 8000, 15_999, 16_000)] == [0, 0, 1, 2, 2, 3]
    assert line.windows_between(4000, 4000) == line.windows_between(16_000, 0) == 0
    assert line.window_at(7999) == Window(4000, 8000) and line.window_at(8000) == Window(8000, 16_000)


@given(TEMPI, TIMES, st.integers(1, 10**9), st.integers(BPM_MIN, BPM_MAX))
def test_windows_are_counted_as_they_are_walked(tempo: Tempo, at_ms: int, wait_ms: int, bpm: int) -> None:
    line = timeline(tempo)
    line = line.with_change(changed(tempo, bpm, at_ms + wait_ms))
    last_ms = line.changes[-1].since_ms + 3 * line.changes[-1].tempo.bar_ms
    assume((last_ms - at_ms) // min(tempo.bar_ms, line.changes[-1].tempo.bar_ms) < 2000)
    walked, here = 0, line.window_at(at_ms)
    while here.end_ms <= last_ms:
        walked, here = walked + 1, line.window_at(here.end_ms)
    assert line.windows_between(at_ms, last_ms) == walked


@pytest.mark.req("BB-04")
def test_a_tempo_changes_on_a_downbeat_only() -> None:
    line = timeline(make_tempo(60, 4))
    for since_ms, downbeat_ms in ((8000, 9000), (9000, 9000), (0, 0), (-4000, -4000)):
        with pytest.raises(BadTempo):
            line.with_change(TempoChange(since_ms, make_tempo(30, 4, downbeat_ms)))


def test_a_timeline_is_bounded() -> None:
    line = timeline(make_tempo(60, 4))
    for turn in range(CHANGES_MAX + 5):
        line = line.with_change(changed(line.changes[-1].tempo, 60 + turn % 2, line.changes[-1].since_ms + 1))
    assert len(line.changes) == CHANGES_MAX


@pytest.mark.parametrize(("bpm", "bar_len"), [(0, 8), (-15, 8), (10**6, 8), (1201, 8), (15, 0), (15, 257)])
def test_a_tempo_beyond_the_bounds_is_refused(bpm: int, bar_len: int) -> None:
    with pytest.raises(BadTempo, match="beats"):
        make_tempo(bpm, bar_len)
