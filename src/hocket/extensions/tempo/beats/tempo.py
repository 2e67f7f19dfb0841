"""Which beat it is. A beat is a function of the time and the tempo alone, so nodes that share both need no messages to
agree. Bars repeat for ever, and no counter of bars exists: a window is named by the time of its downbeat.

The addendum's formula counts beats from 1970. At another tempo it would count other beats, and after a change the bar
would go on anywhere. So a tempo has an anchor, and a change, on a downbeat, moves the anchor there. Only the place of
the anchor within a bar matters; it is kept in that form, so that one frame tells it. Anchor 0 is the plain formula.
"""

from typing import NamedTuple

import msgspec

from hocket.kernel.ops import Beat
from hocket.kernel.policy import BAR_LEN_MAX

BPM_MIN = 1
BPM_MAX = 1_200
BPM_DEFAULT = 15
BAR_LEN_DEFAULT = 8
# How many changes of tempo a timeline remembers.
CHANGES_MAX = 256
_MINUTE_MS = 60_000


class BadTempo(ValueError):
    pass


class Tempo(msgspec.Struct, frozen=True):
    """`anchor_ms` is the time of a downbeat, modulo the bar. Use `make_tempo`, which checks and reduces it."""

    bpm: int
    bar_len: int
    anchor_ms: int = 0

    @property
    def beat_ms(self) -> int:
        return _MINUTE_MS // self.bpm

    @property
    def bar_ms(self) -> int:
        return self.beat_ms * self.bar_len


class Window(NamedTuple):
    """The time between two downbeats, from `start_ms` up to but without `end_ms`."""

    start_ms: int
    end_ms: int


def make_tempo(bpm: int, bar_len: int, downbeat_ms: int = 0) -> Tempo:
    """Raises BadTempo."""
    if not BPM_MIN <= bpm <= BPM_MAX:
        raise BadTempo(f"a tempo has {BPM_MIN} to {BPM_MAX} beats a minute, not {bpm}")
    if not 1 <= bar_len <= BAR_LEN_MAX:
        raise BadTempo(f"a bar has 1 to {BAR_LEN_MAX} beats, not {bar_len}")
    return Tempo(bpm, bar_len, downbeat_ms % (_MINUTE_MS // bpm * bar_len))


def beat_at(tempo: Tempo, at_ms: int) -> Beat:
    number = (at_ms - tempo.anchor_ms) // tempo.beat_ms
    place = number % tempo.bar_len
    epoch_ms = tempo.anchor_ms + number * tempo.beat_ms
    return Beat(1 + place, epoch_ms, epoch_ms - place * tempo.beat_ms)


def delta_beats(target_ms: int, now_ms: int, beat_ms: int) -> int:
    """How many beats the target is ahead, or behind if negative, rounded. A half counts as a whole beat either way."""
    away = abs(target_ms - now_ms)
    beats = (2 * away + beat_ms) // (2 * beat_ms)
    return beats if target_ms >= now_ms else -beats


def next_beat(tempo: Tempo, at_ms: int) -> int:
    """The first start of a beat at that time or after it."""
    return beat_at(tempo, at_ms - 1).epoch_ms + tempo.beat_ms


def next_downbeat(tempo: Tempo, at_ms: int) -> int:
    """The first downbeat at that time or after it."""
    return beat_at(tempo, at_ms - 1).window_ms + tempo.bar_ms


def is_downbeat(tempo: Tempo, at_ms: int) -> bool:
    return (at_ms - tempo.anchor_ms) % tempo.bar_ms == 0


class TempoChange(msgspec.Struct, frozen=True):
    """A tempo and the downbeat from which it is in force."""

    since_ms: int
    tempo: Tempo


def changed(tempo: Tempo, bpm: int, now_ms: int) -> TempoChange:
    """Keeps the bars and changes the tempo, from the next downbeat on."""
    since_ms = next_downbeat(tempo, now_ms)
    return TempoChange(since_ms, make_tempo(bpm, tempo.bar_len, since_ms))


class Timeline(msgspec.Struct, frozen=True):
    """The tempi of the past, the last of which is in force. Time before the first change has its tempo too."""

    changes: tuple[TempoChange, ...]

    def at(self, at_ms: int) -> Tempo:
        return self._change_at(at_ms).tempo

    def window_at(self, at_ms: int) -> Window:
        tempo = self.at(at_ms)
        start_ms = beat_at(tempo, at_ms).window_ms
        return Window(start_ms, start_ms + tempo.bar_ms)

    def with_change(self, change: TempoChange) -> "Timeline":
        """Raises BadTempo if the change is not on a downbeat of both tempi, or not after the last one."""
        last = self.changes[-1]
        if change.since_ms <= last.since_ms:
            raise BadTempo("a tempo changes after the last change")
        if not (is_downbeat(last.tempo, change.since_ms) and is_downbeat(change.tempo, change.since_ms)):
            raise BadTempo("a tempo changes only on a downbeat")
        return Timeline((*self.changes, change)[-CHANGES_MAX:])

    def windows_between(self, earlier_ms: int, later_ms: int) -> int:
        """How many downbeats lie after the first time, up to the second."""
        count, at_ms = 0, earlier_ms
        while at_ms < later_ms:
            tempo, end_ms = self._span_at(at_ms)
            until_ms = later_ms if end_ms is None else min(later_ms, end_ms)
            count += (until_ms - tempo.anchor_ms) // tempo.bar_ms - (at_ms - tempo.anchor_ms) // tempo.bar_ms
            at_ms = until_ms
        return count

    def _change_at(self, at_ms: int) -> TempoChange:
        return next((each for each in reversed(self.changes) if each.since_ms <= at_ms), self.changes[0])

    def _span_at(self, at_ms: int) -> tuple[Tempo, int | None]:
        """The tempo at that time, and when it ends."""
        change = self._change_at(at_ms)
        after = next((each.since_ms for each in self.changes if each.since_ms > max(at_ms, change.since_ms)), None)
        return change.tempo, after


def timeline(tempo: Tempo, since_ms: int = 0) -> Timeline:
    return Timeline((TempoChange(since_ms, tempo),))
