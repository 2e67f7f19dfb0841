"""How many of the claims each worker should have got: its weight's part of those that were made while it was ranked,
and whether what it got differs by more than chance. Only the claims of the known workers count: if one of several wins,
each has its weight's part of the chance, whatever others were ranked.
"""

from collections.abc import Iterable, Sequence
from math import sqrt
from typing import NamedTuple

# A count that is this many standard deviations off happens by chance once in about a thousand times.
DEVIATIONS_MAX = 3.29
# Below this many expected claims, counts are too small to tell.
EXPECTED_MIN = 5.0


class RankedSpell(NamedTuple):
    """Since when a worker is ranked, with its weight. Several spells of one name add up."""

    name: str
    weight: float
    since_ms: int


class ClaimPeriod(NamedTuple):
    """The claims in a time. `end_ms` is later than `begin_ms`."""

    begin_ms: int
    end_ms: int
    claims: int


class Expectation(NamedTuple):
    claims: float = 0.0
    variance: float = 0.0

    def is_beyond_chance(self, claims: int) -> bool:
        if self.claims < EXPECTED_MIN:
            return False
        # A count is a whole number: half a claim is no deviation.
        return abs(claims - self.claims) - 0.5 > DEVIATIONS_MAX * sqrt(self.variance)


def expectations(spells: Sequence[RankedSpell], periods: Iterable[ClaimPeriod]) -> dict[str, Expectation]:
    found = {spell.name: Expectation() for spell in spells}
    for begin_ms, end_ms, claims in periods:
        parts: dict[str, float] = {}
        for name, weight, since_ms in spells:
            ranked_ms = end_ms - max(begin_ms, since_ms)
            if ranked_ms > 0:
                parts[name] = parts.get(name, 0.0) + weight * ranked_ms / (end_ms - begin_ms)
        total = sum(parts.values())
        for name, part in parts.items():
            chance, before = part / total, found[name]
            found[name] = Expectation(before.claims + claims * chance, before.variance + claims * chance * (1 - chance))
    return found
