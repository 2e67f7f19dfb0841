"""Keeps the budget of a job while it runs: what the run uses is measured again and again, priced, and compared with the
caps. It looks so often, and stops a run so fast, that a cap is passed by one beat at most.
"""

import math
from typing import NamedTuple

from hocket.extensions.command.execution import Charged, Resources
from hocket.extensions.cost.budgets import BeatCaps, over_budget, time_cap
from hocket.extensions.cost.rate_card import RateCard, ResourceUse, charge, measured, usage_of
from hocket.kernel.policy import Budget
from hocket.kernel.texts import BEAT_MS_DEFAULT

# How often a run with a cap is looked at, in beats, and how long it may take to stop; neither longer than this time.
LOOK_BEATS = 0.25
LOOK_MAX_S = 0.25
STOP_BEATS = 0.5


class Spent(NamedTuple):
    beats: int
    cost: float


def beat_in_force(beat_ms: int | None, rates: RateCard | None) -> int:
    """One beat of the cluster's tempo; without a tempo, that of the rate card."""
    return beat_ms or (BEAT_MS_DEFAULT if rates is None else rates.beat_ms)


class BudgetGuard:
    """For one run. `beat_ms` is the beat at its start, and `spent` what the earlier runs of the job used."""

    def __init__(
        self, kind: str, budget: Budget | None, rates: RateCard | None, beat_ms: int, spent: Spent | None = None
    ) -> None:
        self._kind, self._budget, self._rates, self.beat_ms = kind, budget or Budget(), rates, beat_ms
        self._spent = spent or Spent(0, 0.0)
        self._beat_caps = BeatCaps(self._budget.per_beat, beat_ms)
        self.look_s = min(LOOK_MAX_S, beat_ms / 1000 * LOOK_BEATS)
        self.stop_s = beat_ms / 1000 * STOP_BEATS

    @property
    def watches(self) -> bool:
        """Whether the run has a cap."""
        return self._budget.caps

    @property
    def measures(self) -> bool:
        """Whether the run has a cap on something else than its time."""
        return bool(self._budget.per_beat) or self._budget.max_cost is not None

    def time_cap(self) -> tuple[float, str]:
        """How many seconds the run may take by its beats alone, and the error of one that takes longer."""
        if not self.watches:
            return math.inf, ""
        beat_cost = 0.0 if self._rates is None else self._rates.beat_rate(self._kind)
        return time_cap(self._budget, self._spent.beats, self.beat_ms, beat_cost)

    def over(self, used: Resources) -> str | None:
        """Why a command must stop that has used this so far; None if it may go on."""
        return self.over_use(usage_of(used, self.beat_ms), used.wall_s * 1000)

    def over_use(self, usage: ResourceUse, wall_ms: float) -> str | None:
        cost = self.cost(usage) or 0.0
        currency = "" if self._rates is None else self._rates.currency
        beats = self._spent.beats + usage.beats
        return over_budget(self._budget, beats, self._spent.cost + cost, currency) or self._beat_caps.over(
            wall_ms, measured(usage, cost)
        )

    def charged(self, used: Resources, over: str) -> Charged | None:
        """What a command cost, for its proof; None without a rate card."""
        if self._rates is None:
            return None
        cost = charge(usage_of(used, self.beat_ms), self._rates, self._kind)
        return Charged(cost.total, cost.currency, self._rates.hash, over)

    def cost(self, usage: ResourceUse) -> float | None:
        """Of what the card prices; None without a card."""
        return None if self._rates is None else charge(usage, self._rates, self._kind).total
