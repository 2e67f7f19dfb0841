"""Which beat it is, which phase of the bar, and which time an address means. A beat is a function of the time and the
tempo alone, so nodes that share both need no messages to agree. Bars repeat for ever, and no counter of bars exists: a
window is named by the time of its downbeat.

The addendum's formula counts beats from 1970. At another tempo it would count other beats, and after a change the bar
would go on anywhere. So a tempo has an anchor, and a change, on a downbeat, moves the anchor there. Only the place of
the anchor within a bar matters; it is kept in that form, so that one frame tells it. Anchor 0 is the plain formula.

Phases are laid out from the downbeat on; beats that are left over at the end of the bar are rest. What a node writes
that has a tempo carries its beat; for everything else with an HLC the tempo gives it.

UCXL addresses have the addendum's suffixes, like `ucxl://proj:any/*/task/ingest;beats=^^4;phase=work`. `^^4` is four
beats from now, `~~4` four beats ago. A phase means the beats of that phase, in the bar where the beat lies.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from hocket.kernel.clock import Hlc, hlc_text, wall_text
from hocket.kernel.ops import Beat, BeatMark, BeatPlace
from hocket.kernel.policy import BAR_LEN_MAX

BEATS_MAX = 1_000_000
BPM_MIN = 1
BPM_MAX = 1_200
BPM_DEFAULT = 15
BAR_LEN_DEFAULT = 8
# How many changes of tempo a timeline remembers.
CHANGES_MAX = 256
_MINUTE_MS = 60_000
REST = "rest"
PHASE_NAMES = ("plan", "work", "review")
# In a list of phases, work counts twice: with bars of 8 beats that is the document's 2, 4 and 2.
_WEIGHTS = {"work": 2}
Phases = Mapping[str, int]
ADDRESS_CHARS_MAX = 2_048
_SCHEME = "ucxl://"
_BEATS = re.compile(r"(\^\^|~~)([0-9]{1,9})")
# The suffix of older programs, `;bar=1287#beat=8`.
_OLD_BAR = re.compile("[0-9]{1,20}(?:#beat=[0-9]{1,20})?")
_FORM = "write ucxl://NAME/PATH, and after it ;beats=^^N, ;beats=~~N or ;phase=plan, work or review"


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


def mark_at(timeline: Timeline, wall: int) -> BeatMark:
    """The beat of an op that is written at that time."""
    beat = beat_at(timeline.at(wall), wall)
    return BeatMark(beat.window_ms, beat.index)


def place_of(tempo: Tempo, hlc: Hlc) -> BeatPlace:
    """`tempo` is the one in force at that time."""
    beat = beat_at(tempo, hlc.wall)
    return BeatPlace(beat.index, wall_text(beat.window_ms), hlc_text(hlc))


"""How many beats each phase has, in their order."""


class PhaseSpan(NamedTuple):
    """A phase and its beats, counted from 0: from `first` up to but without `end`."""

    name: str
    first: int
    end: int


def spans(phases: Phases, bar_len: int) -> list[PhaseSpan]:
    found, first = [], 0
    for name, beats in phases.items():
        if beats:
            found.append(PhaseSpan(name, first, first + beats))
        first += beats
    return found + ([PhaseSpan(REST, first, bar_len)] if first < bar_len else [])


def phase_at(phases: Phases, bar_len: int, beat_index: int) -> PhaseSpan:
    return next(span for span in spans(phases, bar_len) if span.first < beat_index <= span.end)


def fitted(phases: Phases, bar_len: int) -> dict[str, int]:
    """Fits phases into a bar of this length: as they are if they fit, else shortened in proportion."""
    if sum(phases.values()) <= bar_len:
        return dict(phases)
    return _shared_out(phases, bar_len)


def phases_of_names(names: Sequence[str], bar_len: int) -> dict[str, int]:
    """A whole bar for phases without numbers."""
    return _shared_out({name: _WEIGHTS.get(name, 1) for name in names}, bar_len)


def _shared_out(parts: Phases, bar_len: int) -> dict[str, int]:
    whole, before, edge, found = sum(parts.values()), 0, 0, {}
    for name, part in parts.items():
        before += part
        after = (2 * before * bar_len + whole) // (2 * whole)
        found[name], edge = after - edge, after
    return found


def redistributed(phases: Phases, policy_phases: Phases) -> dict[str, int] | None:
    """These phases in their order, if they share out the same beats as the policy's among the same phases; else
    None.
    """
    if phases.keys() != policy_phases.keys() or sum(phases.values()) != sum(policy_phases.values()):
        return None
    if any((phases[name] > 0) != (beats > 0) or phases[name] < 0 for name, beats in policy_phases.items()):
        return None
    return {name: phases[name] for name in policy_phases}


def hold_end(tempo: Tempo, phases: Phases, beats: int, now_ms: int) -> int:
    """When a hold of so many beats ends that is taken or renewed now: after those beats, at the start of a beat, or
    before that where a phase or the bar ends. It lasts at least one beat, so that a holder that renews on each beat
    keeps it, and a hold taken just before a boundary is not over at once.
    """
    return min(next_beat(tempo, now_ms + beats * tempo.beat_ms), next_boundary(tempo, phases, now_ms + tempo.beat_ms))


def next_boundary(tempo: Tempo, phases: Phases, at_ms: int) -> int:
    """The first end of a phase or a bar at that time or after it."""
    beat = beat_at(tempo, at_ms - 1)
    end = phase_at(phases, tempo.bar_len, beat.index).end
    return beat.window_ms + end * tempo.beat_ms


class BadAddress(ValueError):
    pass


class UcxlAddress(msgspec.Struct, frozen=True):
    """`beats` is how many beats ahead, or behind if negative; None if the address does not say. `path` begins with a
    slash, unless it is empty.
    """

    authority: str
    path: str
    beats: int | None = None
    phase: str = ""


def parse_ucxl(text: str) -> UcxlAddress:
    """Raises BadAddress. An old suffix with a bar is accepted and ignored."""
    if len(text) > ADDRESS_CHARS_MAX:
        raise BadAddress(f"the address has more than {ADDRESS_CHARS_MAX} characters")
    if not text.startswith(_SCHEME) or not text.isprintable() or " " in text:
        raise BadAddress(f"{text!r} is not a UCXL address; {_FORM}")
    place, *suffixes = text.removeprefix(_SCHEME).split(";")
    authority, slash, path = place.partition("/")
    if not authority:
        raise BadAddress(f"{text!r} has no name after ucxl://; {_FORM}")
    found: dict[str, str] = {}
    for each in suffixes:
        name, _, value = each.partition("=")
        if name in found:
            raise BadAddress(f"the suffix {name!r} is repeated; write it once")
        if not _is_suffix(name, value):
            raise BadAddress(f"{';' + each!r} is not a suffix; {_FORM}")
        found[name] = value
    return UcxlAddress(authority, slash + path, _beats(found.get("beats")), found.get("phase", ""))


def ucxl_text(address: UcxlAddress) -> str:
    beats, phase = "", f";phase={address.phase}" if address.phase else ""
    if address.beats is not None:
        beats = f";beats={'~~' if address.beats < 0 else '^^'}{abs(address.beats)}"
    return f"{_SCHEME}{address.authority}{address.path}{beats}{phase}"


class ResolvedAddress(NamedTuple):
    """The time that an address means, from `from_ms` up to but without `until_ms`."""

    from_ms: int
    until_ms: int
    beat_index: int
    window_ms: int
    phase: str


def resolve_ucxl(address: UcxlAddress, tempo: Tempo, phases: Phases, now_ms: int) -> ResolvedAddress:
    """As if the tempo had never changed and never will. Raises BadAddress."""
    beat = beat_at(tempo, beat_at(tempo, now_ms).epoch_ms + (address.beats or 0) * tempo.beat_ms)
    if beat.window_ms < 0:
        raise BadAddress(f"{ucxl_text(address)} is before 1970")
    if not address.phase:
        phase = phase_at(phases, tempo.bar_len, beat.index).name
        return ResolvedAddress(beat.epoch_ms, beat.epoch_ms + tempo.beat_ms, beat.index, beat.window_ms, phase)
    for span in spans(phases, tempo.bar_len):
        if span.name == address.phase:
            first_ms, end_ms = (beat.window_ms + place * tempo.beat_ms for place in (span.first, span.end))
            return ResolvedAddress(first_ms, end_ms, span.first + 1, beat.window_ms, span.name)
    raise BadAddress(f"a bar of {tempo.bar_len} beats has no phase {address.phase}")


def _is_suffix(name: str, value: str) -> bool:
    match name:
        case "beats":
            return (found := _BEATS.fullmatch(value)) is not None and int(found[2]) <= BEATS_MAX
        case "phase":
            return value in PHASE_NAMES
        case "bar":
            return _OLD_BAR.fullmatch(value) is not None
    return False


def _beats(value: str | None) -> int | None:
    if value is None:
        return None
    return int(value[2:]) if value.startswith("^^") else -int(value[2:])
