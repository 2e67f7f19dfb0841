"""Workers of several nodes that want the same jobs: each job has one node that tries first, for a moment."""

from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from hocket.families.jobs.candidates import Candidates, worker_id
from hocket.families.jobs.rules import Job
from hocket.kernel.clock import Hlc
from hocket.kernel.policy import DEFAULT
from hocket.work.claim_order import CONTESTED_MS, LEFT_MAX, LEFT_MS, ContestedClaims

NODES = (1, 2, 3)
JOB = Job(bytes(16), "test.kind", bytes(16), Hlc(1, 0, 1), DEFAULT, Hlc(1, 0, 1))


class View(NamedTuple):
    node: int
    now: int
    session: Any = None

    @property
    def physical(self) -> int:
        return self.now

    def signed(self, op: bytes) -> bytes:
        raise AssertionError


class StubMembers:
    def __init__(self, *nodes: int) -> None:
        self.nodes = nodes

    def refresh(self, session: Any, now_ms: int) -> None:
        pass

    def candidates(self, kind: str, announced_ms: int, needs: tuple[str, ...]) -> Candidates:
        return Candidates(kind, 0, {worker_id(node, f"w{number}"): 1.0 for node in self.nodes for number in range(2)})


def job(number: int) -> Job:
    return replace(JOB, id=number.to_bytes(16, "big"))


def claims_of(*nodes: int) -> ContestedClaims:
    return ContestedClaims(StubMembers(*nodes))  # type: ignore[arg-type]


@pytest.mark.req("LW-39")
def test_after_a_lost_claim_each_job_has_one_node_that_tries_first() -> None:
    claims = {node: claims_of(*NODES) for node in NODES}
    jobs = [job(number) for number in range(300)]
    assert all(claims[node].may_claim_at(View(node, 10), each) == 10 for node in NODES for each in jobs)
    for each in claims.values():
        each.lost()
    at = {each.id: [claims[node].may_claim_at(View(node, 10), each) for node in NODES] for each in jobs}
    assert all(sorted(times) == [10, 10 + LEFT_MS, 10 + LEFT_MS] for times in at.values())
    shares = [sum(times[place] == 10 for times in at.values()) for place in range(len(NODES))]
    assert min(shares) > 60
    # The moment does not begin again with each look, and then it is over for all.
    later = {each.id: [claims[node].may_claim_at(View(node, 500), each) for node in NODES] for each in jobs}
    assert all(sorted(times) == [500, 10 + LEFT_MS, 10 + LEFT_MS] for times in later.values())
    after = 10 + CONTESTED_MS
    assert all(claims[node].may_claim_at(View(node, after), each) == after for node in NODES for each in jobs)


def test_a_node_that_knows_no_other_or_is_not_known_itself_leaves_nothing() -> None:
    for known in ((1,), (2, 3), ()):
        claims = claims_of(*known)
        claims.lost()
        assert {claims.may_claim_at(View(1, 10), job(number)) for number in range(50)} == {10}


def test_only_so_many_jobs_are_remembered() -> None:
    claims = claims_of(1, 2)
    claims.lost()
    for number in range(3 * LEFT_MAX):
        claims.may_claim_at(View(1, 10), job(number))
    assert 0 < len(claims._left) <= LEFT_MAX
