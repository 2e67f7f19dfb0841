"""Costly members in the simulated mesh: whatever they send, the requests of honest agents are answered in time."""

import pytest

from hocket.extensions import sim
from hocket.extensions.sim.costly import RULE
from tests.extensions.sim.bugs import COSTS


def report_of(seed: int) -> sim.Report:
    return sim.run(seed, nodes=2, minutes=0.2, faults=["costly"], jobs=1, coordination=1)


@pytest.mark.req("LW-49")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [pytest.param(seed, marks=() if seed < 2 else pytest.mark.soak) for seed in range(20)])
def test_no_member_delays_an_honest_request_by_more_than_its_share(seed: int) -> None:
    report = report_of(seed)
    assert not report.violations, report
    assert report.settled_s is not None


@pytest.mark.req("LW-49", "VX-04")
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("seed", "minutes", "jobs"),
    [(3, 0.15, 3), *(pytest.param(seed, 0.4, 8, marks=pytest.mark.soak) for seed in (3, 5))],
)
def test_no_member_takes_the_lead_from_an_honest_holder(seed: int, minutes: float, jobs: int) -> None:
    """A member's ops move the arbiter's log ahead of its clock while agents wait for locks that are about to expire."""
    report = sim.run(seed, nodes=3, minutes=minutes, faults=["costly"], jobs=jobs)
    assert not report.violations, report


@pytest.mark.req("LW-49")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("bug", COSTS)
def test_a_planted_mistake_lets_members_delay_others(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    COSTS[bug](monkeypatch)
    assert any(RULE in {each.rule for each in report_of(seed).violations} for seed in range(5))
