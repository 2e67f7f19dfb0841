"""Phases of a bar, and holds in beats."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.extensions.tempo.beats import (
    BPM_MAX,
    BPM_MIN,
    REST,
    PhaseSpan,
    Tempo,
    beat_at,
    fitted,
    hold_end,
    is_downbeat,
    make_tempo,
    next_boundary,
    phase_at,
    phases_of_names,
    spans,
)
from hocket.kernel.texts import BeatsLong, parse_length

PHASES = {"plan": 2, "work": 4, "review": 2}
NAMES = ("plan", "work", "review", "publish")
TIMES = st.integers(0, 2**43)
TEMPI = st.builds(make_tempo, st.integers(BPM_MIN, BPM_MAX), st.integers(1, 64), TIMES)
LAID_OUT = st.dictionaries(st.sampled_from(NAMES), st.integers(1, 40), min_size=1)


@pytest.mark.req("BB-01")
def test_the_documents_score() -> None:
    named = [phase_at(PHASES, 8, index).name for index in range(1, 9)]
    assert named == ["plan"] * 2 + ["work"] * 4 + ["review"] * 2
    assert phase_at(PHASES, 8, 3) == PhaseSpan("work", 2, 6)
    assert phase_at(PHASES, 10, 9) == phase_at(PHASES, 10, 10) == PhaseSpan(REST, 8, 10)


def test_phases_without_numbers_share_the_bar() -> None:
    assert phases_of_names(("plan", "work", "review"), 8) == PHASES
    assert phases_of_names(("plan", "work", "review"), 4) == {"plan": 1, "work": 2, "review": 1}
    assert phases_of_names(("plan", "work", "review"), 1) == {"plan": 0, "work": 1, "review": 0}
    assert phases_of_names(("a", "b"), 8) == {"a": 4, "b": 4}


@given(LAID_OUT, st.integers(1, 64))
def test_fitted_phases_never_exceed_the_bar_and_cover_each_beat_once(phases: dict[str, int], bar_len: int) -> None:
    found = fitted(phases, bar_len)
    assert list(found) == list(phases) and sum(found.values()) == min(bar_len, sum(phases.values()))
    assert all(0 <= found[name] <= phases[name] for name in phases)
    beats = [beat for span in spans(found, bar_len) for beat in range(span.first, span.end)]
    assert beats == list(range(bar_len))


@pytest.mark.touches("BB-09")
@given(TEMPI, LAID_OUT, st.integers(1, 1000), TIMES)
def test_a_hold_in_beats_ends_at_a_boundary_or_after_its_beats(
    tempo: Tempo, phases: dict[str, int], beats: int, now_ms: int
) -> None:
    phases = fitted(phases, tempo.bar_len)
    end_ms = hold_end(tempo, phases, beats, now_ms)
    assert now_ms + tempo.beat_ms <= end_ms < now_ms + (beats + 1) * tempo.beat_ms
    assert beat_at(tempo, end_ms).epoch_ms == end_ms
    # No boundary lies between: only one less than a beat away is passed over.
    for beat_ms in range(end_ms - tempo.beat_ms, now_ms + tempo.beat_ms - 1, -tempo.beat_ms):
        is_inside = beat_at(tempo, beat_ms).index - 1 not in {span.first for span in spans(phases, tempo.bar_len)}
        assert is_inside and not is_downbeat(tempo, beat_ms)


@pytest.mark.touches("BB-09")
@given(TEMPI, LAID_OUT, st.integers(1, 20), TIMES, st.lists(st.floats(0.01, 1), min_size=1, max_size=20))
def test_a_holder_that_renews_on_each_beat_keeps_its_hold(
    tempo: Tempo, phases: dict[str, int], beats: int, now_ms: int, waits: list[float]
) -> None:
    phases = fitted(phases, tempo.bar_len)
    end_ms = hold_end(tempo, phases, beats, now_ms)
    for part in waits:
        now_ms += int(part * tempo.beat_ms)
        assert now_ms <= end_ms
        renewed_ms = hold_end(tempo, phases, beats, now_ms)
        assert renewed_ms >= end_ms
        end_ms = renewed_ms


@pytest.mark.touches("BB-09")
def test_holds_in_the_documents_bar() -> None:
    tempo = make_tempo(60, 8)
    ends = {at: hold_end(tempo, PHASES, 4, at) for at in (0, 1000, 1001, 2000, 3500, 5001, 7000)}
    assert ends == {0: 2000, 1000: 2000, 1001: 6000, 2000: 6000, 3500: 6000, 5001: 8000, 7000: 8000}
    # Without phases only the bar ends it.
    assert hold_end(tempo, {}, 4, 2000) == 6000 and hold_end(tempo, {}, 100, 2000) == 8000
    assert next_boundary(tempo, {}, 8000) == 8000


@pytest.mark.touches("BB-09")
def test_lengths_in_beats_and_in_time() -> None:
    assert parse_length("4b") == BeatsLong(4) and parse_length(" 12B ") == BeatsLong(12)
    assert parse_length("30s") == 30_000 and parse_length(5) == 5000 and parse_length("1h30m") == 5_400_000
    for bad in ("0b", "-1b", "1.5b", "b", "4 b", "4bb", "100001b", "9" * 40 + "b", "4b30s", ""):
        with pytest.raises(ValueError, match=r"not a (length|duration)"):
            parse_length(bad)
