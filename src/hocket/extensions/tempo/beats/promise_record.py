"""How far the promises of an agent can be trusted: what it kept, what was late and what it broke. Each counts less with
time, so an agent that had a bad day is trusted again. The order in which results arrive does not matter.
"""

import math

import msgspec

from hocket.extensions.tempo.beats.messages import PromiseOutcome
from hocket.families.jobs.rendezvous import WEIGHT_MIN

# After this time a promise counts half.
HALF_LIFE_MS = 24 * 3600 * 1000
# A late answer is worth this part of a kept promise.
LATE_WORTH = 0.5


class PromiseRecord(msgspec.Struct, frozen=True):
    """Counts as of `at_ms`, the time of the newest result."""

    kept: float = 0.0
    late: float = 0.0
    broken: float = 0.0
    at_ms: int = 0

    def after(self, outcome: PromiseOutcome, at_ms: int) -> "PromiseRecord":
        newest = max(self.at_ms, at_ms)
        before, added = _decay(newest - self.at_ms), _decay(newest - at_ms)
        return PromiseRecord(
            self.kept * before + added * (outcome is PromiseOutcome.KEPT),
            self.late * before + added * (outcome is PromiseOutcome.LATE),
            self.broken * before + added * (outcome is PromiseOutcome.BROKEN),
            newest,
        )

    def reliability(self, now_ms: int) -> float:
        """From 0 to 1. An agent without a record has 1, and every agent comes back to that with time."""
        decay = _decay(now_ms - self.at_ms)
        good = decay * (self.kept + LATE_WORTH * self.late)
        return (good + 1) / (decay * (self.kept + self.late + self.broken) + 1)


def weighed(weight: float, reliability: float) -> float:
    """The weight, in rendezvous, of a worker whose promises can be trusted that far."""
    return max(WEIGHT_MIN, weight * reliability)


def _decay(age_ms: int) -> float:
    return math.pow(0.5, max(0, age_ms) / HALF_LIFE_MS)
