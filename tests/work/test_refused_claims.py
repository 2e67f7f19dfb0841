"""A refused claim is shown as refused, with the reason, and one that the coordinator may still accept as offered."""

import pytest

from hocket.api.ops import op_lines
from hocket.families.jobs import claiming, view
from hocket.kernel.arbitration import Reason
from hocket.kernel.ids import ulid_text
from hocket.kernel.vocabulary import CancelJob, ClaimWork, CompleteJob, Telemetry
from hocket.log import Transaction
from tests.trust.members import Member, meet, owner

OFFERED = Reason.OFFERED.sentence
SECOND = "refused: the coordinator accepted another claim"
OVER = "refused: the job has ended"
LATE = "refused: the coordinator did not accept it in time"


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
        of_the_log = [each for each in op_lines(session, session.last_ops(1_000)) if each.job_id == ulid_text(job_id)]
        told = {each.id: each.reason for each in of_the_log}
        assert told == {line["id"]: line["reason"] for line in lines}  # `hocket log` says what `hocket show` says
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
    assert shown(a, job_id, b.node) == shown(b, job_id, b.node) == [SECOND]


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
    assert shown(b, job_id, b.node) == [SECOND] and shown(b, other, b.node) == [OFFERED]

    def tick(tx: Transaction) -> None:
        claiming.claim(tx, 1, 1, lambda kind: None)

    b.clock.now += 3_600_000
    b.submit("acme.z")
    b.log.run(tick)
    assert shown(b, other, b.node) == [LATE]


@pytest.mark.touches("LW-09")
def test_a_claim_on_a_job_that_was_cancelled(members: tuple[Member, Member]) -> None:
    a, b = members
    job_id = a.submit()
    meet(a, b)
    offer(b, job_id)
    a.clock.now += 5
    a.say(CancelJob(job_id, "no longer needed"))
    b.pull(a)
    assert shown(b, job_id, b.node) == [OVER]


@pytest.mark.touches("LW-39")
def test_an_accepted_claim_says_so(members: tuple[Member, Member]) -> None:
    a, b = members
    job_id = a.submit()
    meet(a, b)
    offer(b, job_id)
    meet(a, b)
    assert shown(a, job_id, b.node) == shown(b, job_id, b.node) == [view.ACCEPTED]
