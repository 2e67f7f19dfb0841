"""What a program on a node asks about the beat. `extensions.tempo` has two answers: beats that are heard from pulses,
and local ones, which follow from the policy and a clock alone.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple, Protocol

from hocket.extensions.tempo.beats.phases import Phases, PhaseSpan, phase_at
from hocket.extensions.tempo.beats.policy import TempoPolicy
from hocket.extensions.tempo.beats.tempo import Tempo, Timeline, beat_at, timeline
from hocket.kernel.ops import Beat


class BeatNow(NamedTuple):
    """The beat at one moment. `at_ms` is the cluster's time. Degraded means that no leader was heard of late."""

    at_ms: int
    tempo: Tempo
    beat: Beat
    phases: Phases
    is_degraded: bool

    @property
    def phase(self) -> PhaseSpan:
        return phase_at(self.phases, self.tempo.bar_len, self.beat.index)

    @property
    def next_ms(self) -> int:
        """When the next beat begins."""
        return self.beat.epoch_ms + self.tempo.beat_ms


class BeatSource(Protocol):
    @property
    def policy(self) -> TempoPolicy: ...

    @property
    def timeline(self) -> Timeline:
        """The tempi so far, as far as this node knows them."""
        ...

    def now(self) -> BeatNow: ...

    async def next_beat(self) -> BeatNow:
        """Waits for the start of the next beat. Beats that begin while nobody waits are left out."""
        ...


class LocalBeats:
    """Beats of a node that hears no pulse: the policy's first tempo by the given clock, in milliseconds since 1970."""

    def __init__(self, policy: TempoPolicy, clock_ms: Callable[[], int]) -> None:
        self.policy, self._clock_ms = policy, clock_ms
        self.timeline = timeline(policy.initial_tempo)

    def now(self) -> BeatNow:
        return beat_now(self.policy, self.policy.initial_tempo, self._clock_ms(), is_degraded=True)

    async def next_beat(self) -> BeatNow:
        before = self.now()
        while (now := self.now()).beat.epoch_ms <= before.beat.epoch_ms:
            await asyncio.sleep((now.next_ms - now.at_ms) / 1000)
        return now


def beat_now(
    policy: TempoPolicy, tempo: Tempo, at_ms: int, *, is_degraded: bool, phases: Phases | None = None
) -> BeatNow:
    return BeatNow(at_ms, tempo, beat_at(tempo, at_ms), phases or policy.phases, is_degraded)
