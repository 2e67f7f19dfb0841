"""Everything with an HLC has its place by the beat."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.extensions.tempo.beats import make_tempo, place_of
from hocket.kernel.clock import Hlc, parse_hlc, parse_wall


@pytest.mark.req("BB-16")
@given(st.integers(1, 1200), st.integers(1, 256), st.integers(0, 2**42), st.integers(0, 9), st.integers(0, 2**40))
def test_an_hlc_lies_in_its_beat_of_its_window(bpm: int, bar: int, wall: int, logical: int, anchor: int) -> None:
    tempo = make_tempo(bpm, bar, anchor)
    hlc = Hlc(wall + tempo.bar_ms, logical, 0)
    place = place_of(tempo, hlc)
    assert parse_hlc(place.hlc, 0) == hlc
    begins = parse_wall(place.window) + (place.beat_index - 1) * tempo.beat_ms
    assert 1 <= place.beat_index <= bar and begins <= hlc.wall < begins + tempo.beat_ms
