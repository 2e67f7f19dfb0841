"""Beats without a leader. A beat is a function of the time, so the median of the pulses that are heard is the median of
how far their clocks are from ours. If none is heard, the last known distance stays, and the local monotonic clock
counts on. The tempo is frozen: nothing that is heard changes it.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from hocket.extensions.tempo.beats.tempo import Tempo, beat_at
from hocket.kernel.ops import Beat

# Without a frame for so many beats, there is no leader.
LEADERLESS_BEATS = 2
# A pulse that was not heard for so many bars does not count.
HEARD_BARS = 2


class HeardPulse(NamedTuple):
    """A message of a pulse: the time that it told, minus the local monotonic time at which it came."""

    offset_ms: int
    heard_ms: int


class DegradedTempo(msgspec.Struct, frozen=True):
    """`tempo` is that of the last accepted frame, `epoch_ms` the last beat, and `offset_ms` the cluster's time minus
    the local monotonic clock.
    """

    tempo: Tempo
    offset_ms: int
    epoch_ms: int


def is_leaderless(tempo: Tempo, last_frame_ms: int, now_ms: int) -> bool:
    """Both times are of the local monotonic clock."""
    return now_ms - last_frame_ms > LEADERLESS_BEATS * tempo.beat_ms


def degraded_beat(
    state: DegradedTempo, heard: Mapping[int, HeardPulse], now_ms: int
) -> tuple[DegradedTempo, Beat | None]:
    """The beat that has begun since the last one, or None. `heard` has the last message of each pulse, and `now_ms` is
    the local monotonic time. No beat comes twice: if the median falls, beats wait for it.
    """
    tempo = state.tempo
    fresh = [each.offset_ms for each in heard.values() if now_ms - each.heard_ms <= HEARD_BARS * tempo.bar_ms]
    offset_ms = median(fresh) if fresh else state.offset_ms
    beat = beat_at(tempo, now_ms + offset_ms)
    if beat.epoch_ms <= state.epoch_ms:
        return DegradedTempo(tempo, offset_ms, state.epoch_ms), None
    return DegradedTempo(tempo, offset_ms, beat.epoch_ms), beat


def median(values: Iterable[int]) -> int:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) // 2
