"""The caps of a job. A budget travels in the policy envelope. A worker keeps it while the job runs: what the run uses
is measured again and again, priced, and compared with the caps. It looks so often, and stops a run so fast, that a cap
is passed by one beat at most.
"""

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from hocket.extensions.command.execution import Charged, Resources
from hocket.extensions.cost.rate_card import RateCard, ResourceUse, charge, measured, usage_of
from hocket.extensions.tempo.beats import BAR_LEN_DEFAULT, PHASE_NAMES, Tempo, beat_at
from hocket.extensions.tempo.score import WAITS
from hocket.kernel.decoding import convert
from hocket.kernel.policy import MEASURED, Budget, Measured, Score
from hocket.kernel.texts import BEAT_MS_DEFAULT

_HARD_END = r"bar\+([0-9]{1,9})"
# How often a run with a cap is looked at, in beats, and how long it may take to stop; neither longer than this time.
LOOK_BEATS = 0.25
LOOK_MAX_S = 0.25
STOP_BEATS = 0.5


def parse_budget(value: object) -> Budget:
    """From decoded YAML or JSON, with or without the name `budget` around it. A hard end is written like bar+2. Raises
    ValueError.
    """
    if not isinstance(value, Mapping):
        return convert(value, Budget)
    inner = value["budget"] if value.keys() == {"budget"} else value
    members: Any = dict(inner) if isinstance(inner, Mapping) else inner
    if isinstance(members, dict) and isinstance(end := members.get("hard_end"), str):
        if (found := re.fullmatch(_HARD_END, end.strip())) is None:
            raise ValueError(f"hard_end {end!r}; write it like bar+2")
        members["hard_end"] = int(found[1])
    return convert(members, Budget)


def budget_of(value: object) -> Budget:
    """From a budget, from decoded JSON, or from a file. Raises ValueError."""
    if isinstance(value, Budget):
        return value
    return read_budget(value) if isinstance(value, bytes) else parse_budget(value)


def read_budget(text: bytes) -> Budget:
    """From YAML or JSON. Raises ValueError."""
    from hocket.kernel.yaml_subset import read_text  # few budgets are in files

    return parse_budget(read_text(text))


def capped_score(score: Score | None, budget: Budget | None) -> Score | None:
    """The score within the caps of the budget. A job without a score has one phrase of the phases that are capped."""
    if budget is None:
        return score
    if score is None:
        if not budget.phase_caps:
            return None
        caps: dict[str, int] = {str(name): beats for name, beats in budget.phase_caps.items()}
        allowed = {name: caps[name] for name in PHASE_NAMES if name in caps}
        beats = sum(allowed.values())
        score = Score(max(BAR_LEN_DEFAULT, beats), allowed, dict.fromkeys(WAITS, beats), 1)
    phases = {name: min(beats, budget.phase_caps.get(name, beats)) for name, beats in score.phases.items()}  # type: ignore[call-overload]
    waits = {name: min(beats, budget.wait_caps.get(name, beats)) for name, beats in score.wait_budget.items()}  # type: ignore[call-overload]
    return msgspec.structs.replace(score, phases=phases, wait_budget=waits)


def hard_end_ms(tempo: Tempo, budget: Budget | None, submitted_ms: int) -> float:
    """When a job ends that was submitted then, whatever it does."""
    if budget is None or budget.hard_end is None:
        return math.inf
    return beat_at(tempo, submitted_ms).window_ms + budget.hard_end * tempo.bar_ms


def cap_of_waits(budget: Budget | None, kind: str) -> str:
    """How the error of a spent wait begins: with the cap of the budget, if there is one."""
    is_capped = budget is not None and kind in budget.wait_caps
    return f"over its budget wait_caps.{kind}: " if is_capped else ""


def cap_of_phases(budget: Budget | None) -> str:
    """How the error of a phrase that has overrun begins."""
    return "over its budget phase_caps: " if budget is not None and budget.phase_caps else ""


def over_budget(budget: Budget, beats: int, cost: float | None, currency: str = "") -> str | None:
    """Why a job must stop that has used so many beats and cost so much; None if it may go on."""
    if budget.max_bu is not None and beats > budget.max_bu:
        return f"over its budget max_bu: it has used {beats} beats, and may use {budget.max_bu}"
    if budget.max_cost is not None and cost is not None and cost > budget.max_cost:
        return f"over its budget max_cost: it has cost {cost:.6g} {currency}, and may cost {budget.max_cost:g}"
    return None


def time_cap(budget: Budget, spent_beats: int, beat_ms: int, beat_cost: float) -> tuple[float, str]:
    """How many seconds a run may go on by its beats alone, and the error of one that goes on for longer."""
    beats = math.inf if budget.max_bu is None else float(budget.max_bu)
    error = f"over its budget max_bu: it may use {budget.max_bu} beats"
    if budget.max_cost is not None and beat_cost > 0 and (affordable := budget.max_cost / beat_cost) < beats:
        # A cap of a whole number of beats must not lose one to rounding.
        beats = math.floor(affordable + 1e-9)
        error = f"over its budget max_cost: it may cost {budget.max_cost:g}, {beats:g} beats at {beat_cost:g}"
    return max(0.0, beats - spent_beats) * beat_ms / 1000, error


class BeatCaps:
    """Watches what a run uses in each beat. Call `over` with the run's totals as often as they are measured."""

    def __init__(self, caps: Mapping[Measured, float], beat_ms: int) -> None:
        self._caps, self._beat_ms = caps, beat_ms
        self._beat = 0
        self._base = self._last = dict.fromkeys(MEASURED, 0.0)

    def over(self, wall_ms: float, used: Mapping[Measured, float]) -> str | None:
        """Why the run must stop; None if it may go on."""
        beat = int(wall_ms // self._beat_ms)
        if beat != self._beat:
            self._beat, self._base = beat, self._last
        self._last = dict(used)
        for name, cap in self._caps.items():
            if (found := used[name] - self._base[name]) > cap:
                return f"over its budget per_beat.{name}: it has used {found:.6g} in one beat, and may use {cap:g}"
        return None


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
