"""Where something lies in time by the beat: which beat of which window, and its HLC. Ops, messages and artifacts have
an HLC, and the tempo gives the rest, so none of them has to carry a beat.
"""

import msgspec

from hocket.kernel.beats.tempo import Tempo, beat_at
from hocket.kernel.clock import Hlc, hlc_text, wall_text


class BeatPlace(msgspec.Struct, frozen=True):
    beat_index: int
    window: str
    hlc: str


def place_of(tempo: Tempo, hlc: Hlc) -> BeatPlace:
    """`tempo` is the one in force at that time."""
    beat = beat_at(tempo, hlc.wall)
    return BeatPlace(beat.index, wall_text(beat.window_ms), hlc_text(hlc))
