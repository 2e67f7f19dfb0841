"""Buckets with rates of their own: nobody draws more than flows in, and nobody waits in vain."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.mesh.quotas import DebtBuckets, Draw

BURST_S = 10.0
# Quarters are exact, so that the sums below are.
STEPS = st.lists(st.tuples(st.integers(0, 80).map(lambda n: n / 4), st.integers(1, 400)), min_size=1, max_size=60)


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.req("LW-45")
@given(st.integers(1, 16).map(lambda n: n / 2), STEPS)
def test_no_more_is_drawn_than_flows_in(rate: float, steps: list[tuple[float, int]]) -> None:
    """In any stretch of time: what flows in meanwhile, a full bucket, and the one draw that left it in debt."""
    time = Time()
    flows = DebtBuckets(BURST_S, time)
    given_at: list[tuple[float, int]] = []
    for pause, cost in steps:
        time.now += pause
        if flows.take([Draw("a", rate, cost)]):
            given_at.append((time.now, cost))
    for first in range(len(given_at)):
        for last in range(first, len(given_at)):
            part = given_at[first : last + 1]
            flowed = rate * (part[-1][0] - part[0][0])
            assert sum(cost for _, cost in part) <= flowed + rate * BURST_S + max(cost for _, cost in part)


@given(st.integers(1, 16).map(lambda n: n / 2), STEPS)
def test_whoever_waits_as_long_as_it_is_told_gets_it(rate: float, steps: list[tuple[float, int]]) -> None:
    time = Time()
    flows = DebtBuckets(BURST_S, time)
    for pause, cost in steps:
        time.now += pause
        draw = Draw("a", rate, cost)
        wait = flows.wait(draw)
        assert wait <= BURST_S + max(cost for _, cost in steps) / rate
        is_given = flows.take([draw])
        assert is_given == (wait == 0)
        if not is_given:
            time.now += wait
            assert flows.take([draw]) or flows.wait(draw) < 1e-9


@given(STEPS)
def test_several_buckets_are_drawn_from_together_or_not_at_all(steps: list[tuple[float, int]]) -> None:
    time = Time()
    both, alone = DebtBuckets(BURST_S, time), DebtBuckets(BURST_S, time)
    for pause, cost in steps:
        time.now += pause
        wide, narrow = Draw("wide", 50.0, cost), Draw("narrow", 1.0, cost)
        if both.take([wide, narrow]):
            assert alone.take([narrow])
        else:
            # Nothing was taken from the wide one, as little as from one that nobody asked.
            assert alone.wait(narrow) > 0 or both.wait(wide) > 0
        assert both.wait(narrow._replace(cost=0)) == alone.wait(narrow._replace(cost=0))


def test_a_bucket_into_which_nothing_flows_gives_nothing() -> None:
    assert not DebtBuckets(BURST_S, Time()).take([Draw("a", 0, 1)])


def test_what_was_used_already_is_charged_for() -> None:
    time = Time()
    flows = DebtBuckets(BURST_S, time)
    flows.charge(Draw("a", 1, 30))
    assert flows.wait(Draw("a", 1, 1)) == 21
    time.now += 21
    assert flows.take([Draw("a", 1, 1)])
