"""Where something lies in time by the beat: which beat of which window, and its HLC. What a node writes that has a
tempo carries its beat; for everything else with an HLC the tempo gives it.
"""

from hocket.extensions.tempo.beats.tempo import Tempo, Timeline, beat_at
from hocket.kernel.clock import Hlc, hlc_text, wall_text
from hocket.kernel.ops import BeatMark, BeatPlace


def mark_at(timeline: Timeline, wall: int) -> BeatMark:
    """The beat of an op that is written at that time."""
    beat = beat_at(timeline.at(wall), wall)
    return BeatMark(beat.window_ms, beat.index)


def place_of(tempo: Tempo, hlc: Hlc) -> BeatPlace:
    """`tempo` is the one in force at that time."""
    beat = beat_at(tempo, hlc.wall)
    return BeatPlace(beat.index, wall_text(beat.window_ms), hlc_text(hlc))
