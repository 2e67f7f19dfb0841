"""Jobs in a strict v0.1 mesh: a failure is a yield, and nothing that needs an op of Hocket's own can be done."""

from collections.abc import Callable
from typing import Any

import pytest

from hocket.errors import Usage
from hocket.families.jobs import claiming, cron, view
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.postponing import StartTime, postpone_pending
from hocket.families.jobs.rules import RETURNS_MAX, State
from hocket.kernel.arbitration import Reason
from hocket.kernel.mesh_rules import STRICT
from hocket.kernel.policy import Policy
from hocket.kernel.ucan import ROOT, issue
from hocket.kernel.vocabulary import DesignateCoordinator, discriminant
from hocket.log import Transaction
from tests.trust.members import START, USER, Member, key


@pytest.fixture
def member() -> Member:
    made = Member("strict", STRICT).enter(issue(USER, key("strict").public, ROOT, START // 1000 - 10, None))
    made.say(DesignateCoordinator(made.node))
    return made


def held(member: Member) -> jobs.Held:
    member.clock.now += 120_000
    (claim,) = member.log.run(lambda tx: claiming.claim(tx, 1, 1, lambda kind: 1_000)).taken
    assert claim.job.claim_op is not None
    return jobs.Held(claim.job.id, claim.job.claim_op)


@pytest.mark.req("LW-46", "LW-02")
@pytest.mark.parametrize("retry", [True, False])
def test_a_failure_is_a_yield_however_often(member: Member, retry: bool) -> None:
    job_id = member.submit(retries=3)
    for _ in range(RETURNS_MAX + 1):
        hold = held(member)
        member.log.run(lambda tx: jobs.fail(tx, hold, "it broke", "Traceback", retry))  # noqa: B023
        entry = member.entry(job_id)
        assert entry is not None and entry.job.state is State.PENDING and entry.job.failures == 0
    with member.log.store.read() as session:
        entry = session.job(job_id)
        assert entry is not None
        shown = view.full(session, entry)
    assert [line["detail"] for line in shown["ops"] if line["type"] == "YieldWork"] == ["it broke"] * (RETURNS_MAX + 1)
    assert {line["type"] for line in shown["ops"]} == {"ScheduleJob", "ClaimWork", "YieldWork"}
    assert member.rebuilt()


@pytest.mark.req("LW-46")
def test_a_postponement_is_a_yield_without_a_delay(member: Member) -> None:
    job_id = member.submit()
    hold = held(member)
    member.log.run(lambda tx: jobs.postpone(tx, hold, 3_600_000, "not yet"))
    entry = member.entry(job_id)
    assert entry is not None and (entry.job.state, entry.job.returns) == (State.PENDING, 1)
    assert entry.job.ready_at <= member.clock.now
    assert member.rebuilt()


@pytest.mark.req("LW-46")
def test_what_comes_after_a_failed_job_waits(member: Member) -> None:
    """Nothing can be said in Likewise v0.1 that would call it off."""
    first = member.submit()
    after = member.log.run(
        lambda tx: jobs.submit(tx, [jobs.Draft("acme.y", b"{}", jobs.Policy(after=(view.ulid_text(first),)))])
    )[0].job_id
    for _ in range(RETURNS_MAX):
        hold = held(member)
        member.log.run(lambda tx: jobs.hand_back(tx, hold, "lost"))  # noqa: B023
    entry = member.entry(after)
    assert entry is not None and entry.job.state is State.PENDING
    assert max(discriminant(op.payload) for _, op in member.ops()) < 1024


PLAN = cron.NewSchedule("nightly", "0 2 * * *", "UTC", jobs.Draft("acme.x", b"{}", jobs.Policy()))
WISHES: dict[str, tuple[Callable[[Transaction, bytes], Any], str]] = {
    "cancel": (lambda tx, job_id: jobs.cancel(tx, job_id, "?"), "let it run"),
    "retry": (lambda tx, job_id: jobs.retry(tx, job_id, "?"), "submit it again"),
    "postpone": (lambda tx, job_id: postpone_pending(tx, job_id, StartTime(), "?"), "no op that postpones"),
    "cron": (lambda tx, job_id: cron.add(tx, PLAN), "the system's cron"),
}


@pytest.mark.req("LW-46")
@pytest.mark.parametrize("wish", WISHES)
def test_what_cannot_be_done_is_told_with_what_to_do(member: Member, wish: str) -> None:
    job_id = member.submit()
    act, advice = WISHES[wish]
    before = len(member.ops())
    with pytest.raises(Usage, match="strict mesh") as raised:
        member.log.run(lambda tx: act(tx, job_id))
    assert advice in str(raised.value)
    assert len(member.ops()) == before


@pytest.mark.req("LW-46")
def test_progress_is_not_written(member: Member) -> None:
    member.submit()
    hold = held(member)
    before = len(member.ops())
    assert member.log.run(lambda tx: jobs.report(tx, hold, b"1")) is Reason.STRICT
    assert len(member.ops()) == before


@pytest.mark.touches("LW-46")
def test_a_job_cannot_have_a_ttl(member: Member) -> None:
    draft = jobs.Draft("k", b"{}", Policy(ttl_ms=1_000))
    with pytest.raises(Usage, match="cannot have a ttl: this is a strict mesh"):
        member.log.run(lambda tx: jobs.submit(tx, [draft]))
