"""Simulated fleets whose workers talk over the bus: what goes wrong in the network goes wrong with messages too, and a
hostile member may say anything.
"""

from collections import Counter
from contextlib import nullcontext

import pytest

from hocket.bus.envelope import Drop
from hocket.extensions import sim
from hocket.extensions.sim import hostile, load, world
from hocket.work.claim_order import HeardClaims

pytestmark = pytest.mark.touches("GR-05")

BAD = ("partition", "loss", "skew", "hostile")


def test_nodes_hear_each_other_over_the_bus_and_a_bad_network_loses_messages() -> None:
    good = sim.run(3, nodes=3, minutes=0.15, faults=(), jobs=4)
    assert not good.violations, good
    assert good.bus["jobs"].published >= good.jobs and good.bus["jobs"].bytes > 0 and good.bus["presence"].published > 3
    assert all(topic.arrived == topic.sent for topic in good.bus.values())
    for seed in (4, 5, 3):  # the first does
        bad = sim.run(seed, nodes=3, minutes=0.15, faults=("partition", "loss"), jobs=4)
        assert not bad.violations, bad
        if any(topic.arrived < topic.sent for topic in bad.bus.values()):
            return
    pytest.fail("no message was lost")


def test_a_larger_fleet_says_no_more_about_a_job() -> None:
    """The submitter and the coordinator announce it, and the winner claims it. The others are silent."""
    for nodes in (3, 9):
        report = sim.run(11, nodes=nodes, minutes=0.2, faults=(), jobs=12, coordination=0, ranked=True)
        assert not report.violations and report.runs == report.jobs == 12, report
        assert report.bus["jobs"].published <= 2 * report.jobs
        assert report.bus["claims"].published <= 1.25 * report.jobs


def test_a_node_that_offers_a_claim_does_not_announce_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here each job goes to the first that asks, and all ask."""
    ranked = load.ranked
    monkeypatch.setattr(load, "ranked", lambda all: [each._replace(lease_ms=2_000) for each in ranked(all)])
    report = sim.run(11, nodes=6, minutes=0.2, faults=(), jobs=12, coordination=0, ranked=True)
    assert not report.violations and report.bus["jobs"].published <= 2 * report.jobs, report
    assert "claims" not in report.bus


def test_a_run_is_the_same_if_nothing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    first = sim.run(5, nodes=3, minutes=0.1, jobs=4)
    monkeypatch.setattr(world, "remembered", nullcontext)
    assert sim.run(5, nodes=3, minutes=0.1, jobs=4).digest == first.digest


# A hostile member.


def test_a_fleet_with_a_hostile_member_breaks_no_rule() -> None:
    report = sim.run(11, nodes=8, minutes=0.2, faults=BAD, jobs=8, coordination=0)
    assert not report.violations and report.settled_s is not None, report
    assert report.bus["hostile"].published > 0


def test_hostile_messages_are_dropped_for_their_reasons_and_jobs_by_rank_end(monkeypatch: pytest.MonkeyPatch) -> None:
    drops: Counter[Drop] = Counter()
    plain = hostile.HostileNode.crash

    def crash(self: hostile.HostileNode) -> None:
        for victim in self.victims:
            assert victim.up is not None and victim.up.messages is not None
            drops.update(victim.up.messages.counts)
        plain(self)

    monkeypatch.setattr(hostile.HostileNode, "crash", crash)
    report = sim.run(4, nodes=4, minutes=0.4, faults=["hostile"], jobs=10, coordination=0, ranked=True)
    assert not report.violations and report.settled_s is not None, report
    assert drops.keys() >= {Drop.MALFORMED, Drop.UNSIGNED, Drop.FOREIGN, Drop.STALE, Drop.REPLAYED}
    assert report.bus["hostile"].published > 10 * report.jobs
    # Every job ran once: its claims without a run, and its weight, cost time only.
    assert report.runs == report.jobs and report.overlaps == 0


def test_a_planted_mistake_lets_its_claims_hold_jobs_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    def for_ever(self: HeardClaims, job_id: bytes, fence: int, worker: str, timeout_ms: int) -> int:
        said = self._said.get((job_id, fence))
        return 2**62 if said is not None and said.claims else 0

    monkeypatch.setattr(HeardClaims, "claimed_until", for_ever)
    seeds = (2, 0, 1, 3, 4, 5, 6, 7)  # the first finds it
    reports = (sim.run(seed, nodes=3, minutes=0.2, faults=["hostile"], jobs=8, coordination=0) for seed in seeds)
    assert any(violation.rule == "every job ends" for report in reports for violation in report.violations)


@pytest.mark.soak
@pytest.mark.timeout(7_200)
def test_two_hundred_nodes_with_hostile_members_break_no_rule() -> None:
    report = sim.run(11, nodes=200, minutes=0.2, faults=BAD, jobs=10, coordination=0)
    assert not report.violations and report.settled_s is not None, report
    assert report.bus["hostile"].published > 0
