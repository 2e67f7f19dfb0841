"""Budgets: when a job must stop."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.extensions.cost.budgets import BeatCaps, over_budget, parse_budget, read_budget, time_cap
from hocket.kernel.policy import MEASURED, Budget, Measured, Policy, decode_policy, encode_policy


@pytest.mark.touches("BB-14")
def test_a_budget_travels_in_the_policy() -> None:
    budget = Budget(7, 2.5, {"cpu_sec": 4.0}, "ucxl://acct/acme")
    policy = decode_policy(encode_policy(Policy(budget=budget)))
    assert policy.budget == budget
    assert encode_policy(Policy()) == b""


@pytest.mark.parametrize(
    "bad",
    [
        *({"max_bu": 0}, {"max_bu": -1}, {"max_cost": 0}, {"max_cost": -1.5}, {"per_beat": {"cpu": 1}}),
        *({"per_beat": {"cpu_sec": 0}}, {"charge_to": ""}, {"charge_to": "a\nb"}, {"charge_to": "x" * 300}),
        *({"max_beats": 3}, {"max_cost": "3"}),
    ],
)
def test_a_bad_budget_is_refused(bad: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(bad, Budget)


DOCUMENTED = b"""
budget:
  max_bu: 12
  phase_caps: { plan: 2, work: 4, review: 1 }
  wait_caps: { help: 2, io: 1 }
  hard_end: bar+3
  charge_to: ucxl://acct/acme
"""


@pytest.mark.req("BB-21")
def test_a_budget_is_the_block_of_the_document() -> None:
    expected = Budget(
        max_bu=12,
        phase_caps={"plan": 2, "work": 4, "review": 1},
        wait_caps={"help": 2, "io": 1},
        hard_end=3,
        charge_to="ucxl://acct/acme",
    )
    assert read_budget(DOCUMENTED) == expected
    assert read_budget(DOCUMENTED.replace(b"budget:\n", b"").replace(b"  ", b"")) == expected, "also without its name"
    assert parse_budget({"hard_end": 3}) == Budget(hard_end=3)


@pytest.mark.parametrize("bad", ["bar", "bar+", "bar+-1", "bar+0", "3", "bar+1.5", "beat+2", "bar+9999999999"])
def test_a_hard_end_is_so_many_bars(bad: str) -> None:
    with pytest.raises(ValueError, match="hard_end"):
        parse_budget({"hard_end": bad})


def test_a_job_stops_when_a_cap_is_passed_and_not_before() -> None:
    budget = Budget(max_bu=3, max_cost=1.0)
    assert over_budget(budget, 3, 1.0) is None
    assert over_budget(budget, 4, 0.0) == "over its budget max_bu: it has used 4 beats, and may use 3"
    assert over_budget(budget, 0, 1.25, "EUR") == "over its budget max_cost: it has cost 1.25 EUR, and may cost 1"
    assert over_budget(Budget(charge_to="a"), 10**9, 1e9) is None


@given(st.integers(1, 1000), st.floats(0.001, 1e6), st.integers(0, 1200), st.integers(10, 10_000), st.floats(0, 100))
def test_a_run_that_ends_in_its_time_is_within_its_budget(
    max_bu: int, max_cost: float, spent: int, beat_ms: int, rate: float
) -> None:
    budget = Budget(max_bu, max_cost)
    beats = round(time_cap(budget, spent, beat_ms, rate)[0] * 1000 / beat_ms)
    assert beats >= 0
    if beats:
        assert over_budget(budget, spent + beats, (spent + beats) * rate * (1 - 1e-6)) is None
        assert over_budget(budget, spent + beats + 1, (spent + beats + 1) * rate * (1 + 1e-6)) is not None


@pytest.mark.touches("BB-14")
@pytest.mark.parametrize(
    ("max_cost", "beat_cost", "beats"),
    [
        (0.3, 0.1, 3),  # 0.3 / 0.1 is 2.9999999999999996
        (4.35, 0.01, 435),  # 434.99999999999994
        (0.35, 0.1, 3),  # a beat that has begun costs a whole one, so only whole ones are allowed
        (0.39999, 0.1, 3),
        (3 - 5e-10, 1.0, 3),  # less than a billionth of a beat is an error of the division
        (3 - 2e-9, 1.0, 2),
        (0.09, 0.1, 0),
    ],
)
def test_a_cap_in_money_allows_the_whole_beats_that_it_pays(max_cost: float, beat_cost: float, beats: int) -> None:
    assert time_cap(Budget(max_cost=max_cost), 0, 4_000, beat_cost)[0] == beats * 4.0
    assert time_cap(Budget(max_cost=max_cost), 1, 4_000, beat_cost)[0] == max(0, beats - 1) * 4.0


def used(cpu_sec: float) -> dict[Measured, float]:
    return {name: cpu_sec if name == "cpu_sec" else 0.0 for name in MEASURED}


@pytest.mark.touches("BB-14")
def test_the_caps_of_a_beat_begin_anew_with_each_beat() -> None:
    caps = BeatCaps({"cpu_sec": 1.0}, 1000)
    assert caps.over(300, used(0.5)) is None
    assert caps.over(900, used(1.0)) is None
    assert caps.over(1100, used(1.9)) is None
    assert caps.over(1900, used(2.5)) == "over its budget per_beat.cpu_sec: it has used 1.5 in one beat, and may use 1"


@given(st.lists(st.tuples(st.integers(1, 400), st.floats(0, 0.2)), max_size=60))
def test_no_beat_uses_more_than_its_cap_unnoticed(steps: list[tuple[int, float]]) -> None:
    caps = BeatCaps({"cpu_sec": 0.3}, 1000)
    wall, total, last_of_before, last = 0, 0.0, 0.0, (0, 0.0)
    for pause, more in steps:
        wall, total = wall + pause, total + more
        if wall // 1000 != last[0] // 1000:
            last_of_before = last[1]
        last = wall, total
        assert (caps.over(wall, used(total)) is not None) == (total - last_of_before > 0.3)
