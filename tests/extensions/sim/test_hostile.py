"""A hostile member in the simulated mesh: whatever it signs and whatever it answers, honest nodes agree, honest jobs
end, and it does nothing that it was not granted.
"""

from collections.abc import Callable

import pytest

from hocket.extensions import sim
from hocket.extensions.sim import hostile
from hocket.kernel.arbitration import Reason
from tests.trust.plants import any_member_revokes, jobs_have_any_id, links_are_not_checked

ALL = (*sim.HONEST_FAULTS, "hostile")
Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.req("LW-43")
@pytest.mark.parametrize("seed", [pytest.param(seed, marks=() if seed < 2 else pytest.mark.soak) for seed in range(8)])
def test_a_hostile_member_achieves_nothing(seed: int) -> None:
    report = sim.run(seed, nodes=3, minutes=0.25, faults=["hostile"] if seed % 2 else ALL, jobs=6)
    assert not report.violations, report
    assert report.settled_s is not None


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("part", range(20))
def test_a_thousand_seeds_with_a_hostile_member(part: int) -> None:
    for seed in range(part, 1_000, 20):
        report = sim.run(seed, nodes=4, minutes=1, faults=["hostile"] if seed % 2 else ALL)
        assert not report.violations, report


def seen_by_victims(monkeypatch: pytest.MonkeyPatch) -> tuple[set[int], list[object]]:
    """For which reasons the victims refused ops, and the forks that they found; filled when a hostile node ends."""
    reasons: set[int] = set()
    forks: list[object] = []
    plain = hostile.HostileNode.crash

    def crash(self: hostile.HostileNode) -> None:
        for victim in self.victims:
            with victim.store.read() as session:
                reasons.update(session.refusal_counts())
                forks.extend(session.forks())
        plain(self)

    monkeypatch.setattr(hostile.HostileNode, "crash", crash)
    return reasons, forks


def two_faced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its only misdeed is to write other histories."""
    for misdeed in ("_speak", "_squat", "_flood", "_replay", "_widen"):
        monkeypatch.setattr(hostile.HostileNode, misdeed, hostile.HostileNode._fork)


def test_it_is_hostile_indeed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ops reach the logs, and are refused there for many reasons."""
    reasons, _ = seen_by_victims(monkeypatch)
    wanted = {Reason.UNBOUND, Reason.UNAUTHORISED, Reason.OWNER_ONLY, Reason.NOT_ARBITER}
    for seed in (26, 36, 3, 28, 35, *range(40, 80)):  # the first two do
        sim.run(seed, nodes=2, minutes=0.1, faults=["hostile"], jobs=3)
        if reasons >= wanted:
            return
    pytest.fail(f"only for {reasons}")


def test_it_is_found_to_have_two_histories(monkeypatch: pytest.MonkeyPatch) -> None:
    two_faced(monkeypatch)
    _, forks = seen_by_victims(monkeypatch)
    for seed in range(6):
        sim.run(seed, nodes=2, minutes=0.1, faults=["hostile"], jobs=3)
        if forks:
            return
    pytest.fail("no victim found them")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("plant", "nodes", "minutes", "jobs", "first"),
    [(jobs_have_any_id, 2, 0.1, 3, 20), (any_member_revokes, 3, 0.2, 4, 0)],
)
def test_a_planted_mistake_lets_it_through(
    plant: Plant, nodes: int, minutes: float, jobs: int, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first seed finds it, in a small mesh."""
    plant(monkeypatch)
    seeds = range(first, first + 40)
    assert any(sim.run(seed, nodes=nodes, minutes=minutes, faults=["hostile"], jobs=jobs).violations for seed in seeds)


@pytest.mark.timeout(600)
def test_links_that_are_not_checked_let_two_histories_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these seeds finds it. Little else is done, which would only make the runs slower."""
    links_are_not_checked(monkeypatch)
    two_faced(monkeypatch)
    reports = (
        sim.run(seed, nodes=3, minutes=0.35, faults=["hostile"], jobs=2, coordination=0) for seed in (12, 2, 6, 13, 15)
    )
    assert any(violation.rule == "replicas agree" for report in reports for violation in report.violations)


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = (sim.run(3, nodes=3, minutes=0.1, faults=["hostile"], jobs=3) for _ in range(2))
    assert first.digest == second.digest
