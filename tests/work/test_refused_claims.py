"""A claim that the arbiter did not accept is shown as refused, and one that it may still accept as offered."""

import pytest

from hocket.kernel.reasons import Reason
from hocket.kernel.vocabulary import ClaimWork, CompleteJob, Telemetry
from hocket.log import Transaction
from hocket.work import claiming, view
from tests.trust.members import Member, meet, owner

OFFERED, REFUSED = Reason.OFFERED.sentence, Reason.NOT_ACCEPTED.sentence


@pytest.fixture
def members() -> tuple[Member, Member]:
    a = owner()
    b = Member("b")
    b.enter(a.invite(b), a.token)
    meet(a, b)
    return a, b


def offer(member: Member, job_id: bytes) -> None:
    member.clock.now += 1
    assert member.log.run(lambda tx: claiming.claim(tx, 1, 1, lambda kind: 60_000, offering=True)).wanted


def shown(member: Member, job_id: bytes, node: int) -> list[str | None]:
    entry = member.entry(job_id)
    assert entry is not None
    with member.log.store.read() as session:
        lines = view.full(session, entry)["ops"]
    return [line["reason"] for line in lines if line["type"] == "ClaimWork" and int(line["author"], 16) == node]


@pytest.mark.req("LW-09", "LW-11")
def test_a_claim_that_came_second(members: tuple[Member, Member]) -> None:
    a, b = members
    job_id = a.submit()
    meet(a, b)
    offer(b, job_id)
    assert shown(b, job_id, b.node) == [OFFERED]
    a.clock.now += 5
    a.say(ClaimWork(job_id, a.node, 60_000))
    meet(a, b)
    assert shown(a, job_id, b.node) == shown(b, job_id, b.node) == [REFUSED]


@pytest.mark.req("LW-09")
def test_a_claim_on_a_job_that_is_over_or_that_was_not_decided_in_time(members: tuple[Member, Member]) -> None:
    a, b = members
    job_id, other = a.submit("acme.x"), a.submit("acme.y")
    meet(a, b)
    hold = a.say(ClaimWork(job_id, a.node, 60_000))
    offer(b, job_id)
    offer(b, other)
    a.say(CompleteJob(job_id, (), (), Telemetry(1)), (hold.id,))
    b.pull(a)
    assert shown(b, job_id, b.node) == [REFUSED] and shown(b, other, b.node) == [OFFERED]

    def tick(tx: Transaction) -> None:
        claiming.claim(tx, 1, 1, lambda kind: None)

    b.clock.now += 3_600_000
    b.submit("acme.z")
    b.log.run(tick)
    assert shown(b, other, b.node) == [REFUSED]
