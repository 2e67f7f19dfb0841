"""Which beats of a bar belong to which phase, and when a hold that is counted in beats ends. Phases are laid out from
the downbeat on; beats that are left over at the end of the bar are rest.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hocket.extensions.tempo.beats.tempo import Tempo, beat_at, next_beat

REST = "rest"
PHASE_NAMES = ("plan", "work", "review")
# In a list of phases, work counts twice: with bars of 8 beats that is the document's 2, 4 and 2.
_WEIGHTS = {"work": 2}

Phases = Mapping[str, int]
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
