"""Keeps the budget of a job while it runs. A handler's only cost is its time, so its budget is a time. What a command
uses is measured while it runs, and priced each time.
"""

import math

from hocket.kernel.budgets import BeatCaps, Budget, over_budget, seconds_left
from hocket.kernel.execution import Charged, Resources
from hocket.kernel.rate_card import BEAT_MS_DEFAULT, RateCard, ResourceUse, beats_used, charge, measured, usage_of
from hocket.work.jobs import Claim


def time_left(claim: Claim, rates: RateCard | None) -> float:
    """How many seconds a handler may run by the budget of its job."""
    budget = claim.job.policy.budget
    if budget is None:
        return math.inf
    beat_ms, beat_cost = BEAT_MS_DEFAULT, 0.0
    if rates is not None:
        beat_ms, beat_cost = rates.beat_ms, rates.beat_rate(claim.job.kind)
    return seconds_left(budget, beats_used(claim.spent_ms, beat_ms), beat_ms, beat_cost)


def beats_cost(ran_s: float, rates: RateCard, kind: str) -> float:
    """What a handler cost that ran so long."""
    return charge(ResourceUse(beats_used(ran_s * 1000, rates.beat_ms)), rates, kind).total


class BudgetGuard:
    """For one run of a command. `spent_beats` and `spent_cost` are those of the job's earlier runs."""

    def __init__(
        self,
        kind: str,
        budget: Budget | None,
        rates: RateCard | None,
        spent_beats: int = 0,
        spent_cost: float = 0.0,
    ) -> None:
        self._kind, self._budget, self._rates = kind, budget or Budget(), rates
        self._spent_beats, self._spent_cost = spent_beats, spent_cost
        self._beat_ms = BEAT_MS_DEFAULT if rates is None else rates.beat_ms
        self._beat_caps = BeatCaps(self._budget.per_beat, self._beat_ms)

    @property
    def watches(self) -> bool:
        """Whether the run has a cap."""
        return self._budget.caps

    def over(self, used: Resources) -> str | None:
        """Why the run must stop that has used this so far; None if it may go on."""
        usage, cost = usage_of(used, self._beat_ms), self._cost(used)
        beats = self._spent_beats + usage.beats
        currency = "" if self._rates is None else self._rates.currency
        return over_budget(self._budget, beats, self._spent_cost + cost, currency) or self._beat_caps.over(
            used.wall_s * 1000, measured(usage, cost)
        )

    def charged(self, used: Resources, over: str) -> Charged | None:
        """What the run cost, for its proof; None without a rate card."""
        if self._rates is None:
            return None
        cost = charge(usage_of(used, self._beat_ms), self._rates, self._kind)
        return Charged(cost.total, cost.currency, self._rates.hash, over)

    def _cost(self, used: Resources) -> float:
        return 0.0 if self._rates is None else charge(usage_of(used, self._beat_ms), self._rates, self._kind).total
