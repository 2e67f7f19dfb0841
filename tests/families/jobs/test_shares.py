"""What weights and the time in the ranking promise."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.families.jobs.rendezvous import ClaimPeriod, Expectation, RankedSpell, expectations, rank_weighted


def test_a_worker_that_joins_in_the_middle_is_promised_half() -> None:
    spells = [RankedSpell("old", 1.0, 0), RankedSpell("new", 1.0, 1_000)]
    found = expectations(spells, [ClaimPeriod(0, 1_000, 60), ClaimPeriod(1_000, 2_000, 60)])
    assert (found["old"].claims, found["new"].claims) == (90, 30)
    inside = expectations([RankedSpell("old", 1.0, 0), RankedSpell("new", 1.0, 500)], [ClaimPeriod(0, 1_000, 60)])
    assert (inside["old"].claims, inside["new"].claims) == (pytest.approx(40), pytest.approx(20))


def test_spells_of_one_name_add_up_and_nothing_is_promised_to_nobody() -> None:
    spells = [RankedSpell("a", 1.0, 0), RankedSpell("a", 2.0, 0), RankedSpell("b", 1.0, 0)]
    assert expectations(spells, [ClaimPeriod(0, 1, 4)]) == {"a": Expectation(3.0, 0.75), "b": Expectation(1.0, 0.75)}
    assert expectations(spells, []) == {"a": Expectation(), "b": Expectation()}
    assert expectations([], [ClaimPeriod(0, 1, 4)]) == {}


@given(
    st.lists(st.tuples(st.floats(0.001, 1_000), st.integers(0, 100)), min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(0, 99), st.integers(1, 50), st.integers(0, 1_000)), max_size=8),
)
def test_what_is_promised_adds_up_to_the_claims(workers: list[tuple[float, int]], periods: list[tuple[int, int, int]]):
    spells = [RankedSpell(str(number), *each) for number, each in enumerate(workers)]
    spans = [ClaimPeriod(begin, begin + length, claims) for begin, length, claims in periods]
    somebody = sum(each.claims for each in spans if any(spell.since_ms < each.end_ms for spell in spells))
    found = expectations(spells, spans)
    assert sum(each.claims for each in found.values()) == pytest.approx(somebody)
    assert all(each.variance >= 0 for each in found.values())


@pytest.mark.touches("GR-04", "GR-09")
def test_honest_shares_are_rarely_beyond_chance_and_a_half_share_always_is() -> None:
    """The shares that the ranking itself gives, with weights and without one worker that has left."""
    chance = random.Random(1)
    weights = {"a": 1.0, "b": 2.0, "c": 4.0, "gone": 3.0}
    marks = 0
    for trial in range(40):
        wins = dict.fromkeys(weights, 0)
        for job in range(500):
            wins[rank_weighted(f"{trial}.{job}", chance.randbytes(32), weights)[0]] += 1
        known = [RankedSpell(name, weight, 0) for name, weight in weights.items() if name != "gone"]
        total = sum(wins[each.name] for each in known)
        found = expectations(known, [ClaimPeriod(0, 1, total)])
        marks += sum(found[each.name].is_beyond_chance(wins[each.name]) for each in known)
        assert found["c"].is_beyond_chance(wins["c"] // 2)
    assert marks <= 1
