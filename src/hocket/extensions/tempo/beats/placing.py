"""Where something lies in time by the beat: which beat of which window, and its HLC. What a node writes that has a
tempo carries its beat; for everything else with an HLC the tempo gives it.
"""

from typing import Any

import msgspec

from hocket.extensions.tempo.beats.tempo import Tempo, Timeline, beat_at
from hocket.kernel.clock import Hlc, hlc_text, wall_text
from hocket.kernel.ops import BeatMark, Op


class BeatPlace(msgspec.Struct, frozen=True):
    beat_index: int
    window: str
    hlc: str


def mark_at(timeline: Timeline, wall: int) -> BeatMark:
    """The beat of an op that is written at that time."""
    beat = beat_at(timeline.at(wall), wall)
    return BeatMark(beat.window_ms, beat.index)


def stamp_of(op: Op) -> BeatPlace | None:
    """The stamp that an op bears, and so the message or the artifact that it makes."""
    mark = op.beat
    return None if mark is None else BeatPlace(mark.beat_index, wall_text(mark.window_ms), hlc_text(op.timestamp))


def stamp_json(op: Op) -> dict[str, Any] | None:
    stamp = stamp_of(op)
    return None if stamp is None else msgspec.structs.asdict(stamp)


def place_of(tempo: Tempo, hlc: Hlc) -> BeatPlace:
    """`tempo` is the one in force at that time."""
    beat = beat_at(tempo, hlc.wall)
    return BeatPlace(beat.index, wall_text(beat.window_ms), hlc_text(hlc))
