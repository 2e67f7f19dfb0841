"""What the adversary found about authors with two histories, and about open jobs: honest nodes agree whatever part of
which history each of them has heard, and nothing is lost that others had done.
"""

import pytest

from hocket.families.jobs import cron
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.rules import Outcome, tick_id, tick_policy
from hocket.kernel.arbitration import Reason
from hocket.kernel.ids import content_hash
from hocket.kernel.ops import NO_ID, Op
from hocket.kernel.policy import Policy, decode_policy, encode_policy
from hocket.kernel.ucan import ROOT, Capability, issue
from hocket.kernel.vocabulary import (
    ClaimWork,
    CompleteJob,
    DelegateUcan,
    DesignateCoordinator,
    ReportFork,
    ScheduleJob,
    SetSchedule,
    Telemetry,
)
from tests.trust.judge import Sight
from tests.trust.members import START, WORKER, Forger, Member, job, meet, owner

OPEN = encode_policy(Policy(open=True))
PASSING = Capability("Registration", "Write", {})


def reader(first: Member, name: str) -> Member:
    return Member(name).enter(first.invite(Forger(name), *ROOT), first.token)


def mesh_of(first: Member, other: Member, forger: Forger) -> None:
    """Everybody knows everybody."""
    meet(first, other)
    entering = forger.enter(first.invite(forger, *WORKER, PASSING), first.token)
    for member in (first, other):
        member.receive(entering)


def shown(member: Member) -> dict[str, object]:
    return Sight(member).state


def puppet(forger: Forger, parent: bytes) -> DelegateUcan:
    token = issue(forger.key, Forger("puppet").key.public, [job("Claim")], START // 1000 - 10, None, [parent])
    return DelegateUcan(content_hash(token), token)


@pytest.mark.req("LW-26", "LW-43")
@pytest.mark.parametrize("apart_ms", [0, 50])
def test_a_delegation_in_one_of_two_histories_is_no_law(apart_ms: int) -> None:
    """One node knew of a member of which the other never heard."""
    first, forger = owner(), Forger("forger")
    second = reader(first, "second")
    mesh_of(first, second, forger)
    token = first.log.authority().held(forger.node)[0].cid
    last = forger.last
    left = forger.say(puppet(forger, token), START + 100, after=last)
    right = forger.say(ScheduleJob(NO_ID, "acme.x", b"", OPEN), START + 100 + apart_ms, after=last)
    second.receive([left])
    first.receive([right])
    # Each hears of the other's proof, but of neither's op.
    assert second.receive([right]).forked == {forger.node}
    proof = [(body, op) for body, op in second.ops() if op.node_id == second.node]
    assert first.receive(proof).forked == {forger.node}
    assert not first.receive(proof).forked
    assert Forger("puppet").node not in {d.node for d in first.log.permissions().delegations}
    assert shown(first) == shown(second)
    assert first.rebuilt() and second.rebuilt()


@pytest.mark.req("LW-26", "LW-43")
def test_what_a_forked_author_delegates_changes_no_law_and_leaves_no_stale_one() -> None:
    first, forger = owner(), Forger("forger")
    second = reader(first, "second")
    mesh_of(first, second, forger)
    token = first.log.authority().held(forger.node)[0].cid
    last = forger.last
    for n in range(2):
        first.receive([forger.say(ScheduleJob(NO_ID, f"acme.{n}", b"", OPEN), START + 100 + n, after=last)])
    assert first.log.permissions().forks.keys() == {forger.node}
    before = shown(first)["members"]
    first.receive([forger.say(puppet(forger, token), START + 200)])
    assert shown(first)["members"] == before
    fresh = Member("owner")
    fresh.receive(first.ops())
    assert shown(fresh)["members"] == before


@pytest.mark.req("LW-43")
def test_an_earlier_fork_is_found_after_a_later_one() -> None:
    """An op from before a known fork was taken in unlinked, counted at one node and never reached the others."""
    first, forger = owner(), Forger("forger")
    second = reader(first, "second")
    mesh_of(first, second, forger)
    start = forger.last
    _, middle = early = forger.say(ScheduleJob(NO_ID, "acme.a", b"", OPEN), START + 100)
    two = [forger.say(ScheduleJob(NO_ID, f"acme.{n}", b"", OPEN), START + 200 + n, after=middle.id) for n in range(2)]
    for member in (first, second):
        member.receive([early, *two])
    assert first.log.permissions().forks[forger.node].wall == START + 200
    earlier = forger.say(ScheduleJob(NO_ID, "acme.b", b"", OPEN), START + 50, after=start)
    assert first.receive([earlier]).forked == {forger.node}
    assert first.log.permissions().forks[forger.node].wall == START + 50
    assert first.reason(earlier[1]) == Reason.FORKED
    meet(first, second)
    assert shown(first) == shown(second)


@pytest.mark.req("LW-31", "LW-43")
def test_a_tick_whose_maker_has_two_histories_is_made_again() -> None:
    first, forger = owner(), Forger("forger")
    second = reader(first, "second")
    mesh_of(first, second, forger)
    schedule = first.say(SetSchedule("nightly", "* * * * *", "UTC", "pay.x", b"{}", b""))
    tick = (START // 60_000 + 1) * 60_000
    policy = tick_policy(decode_policy(b""), "nightly", schedule.id)
    made = ScheduleJob(tick_id(schedule.id, tick), "pay.x", b"{}", encode_policy(policy))
    last = forger.last
    first.clock.now = tick + 1_000
    first.receive([forger.say(made, tick + 5, deps=(schedule.id,), after=last)])
    assert first.entry(made.job_id) is not None
    assert first.log.run(cron.make_due) == 0
    first.receive([forger.say(ScheduleJob(NO_ID, "acme.x", b"", OPEN), tick + 1, after=last)])
    assert first.entry(made.job_id) is None
    assert first.log.run(cron.make_due) == 1
    entry = first.entry(made.job_id)
    assert entry is not None and entry.job.kind == "pay.x"
    before = shown(first)
    assert first.rebuilt() and shown(first) == before


@pytest.mark.req("LW-32", "LW-43")
@pytest.mark.parametrize("is_known", [True, False])
def test_a_false_tick_of_a_forked_author_moves_nothing(is_known: bool) -> None:
    """It was found to be no tick, or to wait for its schedule, before anybody asked for its author."""
    first, forger = owner(), Forger("forger")
    second = reader(first, "second")
    mesh_of(first, second, forger)
    schedule = first.say(SetSchedule("nightly", "* * * * *", "UTC", "pay.x", b"{}", b""))
    tick = (START // 60_000 + 1) * 60_000
    first.clock.now = second.clock.now = tick + 1_000
    assert first.log.run(cron.make_due) == 1
    last = forger.last
    two = [forger.say(ScheduleJob(NO_ID, f"acme.{n}", b"", OPEN), START + 100, after=last) for n in range(2)]
    first.receive(two)
    meet(first, second)
    named = schedule.id if is_known else first.token[:16]
    policy = tick_policy(decode_policy(b""), "nightly", named)
    false = ScheduleJob(tick_id(schedule.id, tick), "pay.x", b'"evil"', encode_policy(policy))
    second.receive([forger.say(false, tick + 2_000, deps=(named,))])
    assert shown(second) == shown(first)


@pytest.mark.req("LW-32", "LW-43")
@pytest.mark.parametrize("batch", [1, 1_000])
def test_who_hears_of_the_pinned_history_last_counts_it_too(batch: int) -> None:
    first, old = owner(), Forger("old")
    first.receive(old.enter(first.invite(old, *ROOT), first.token))
    first.clock.now = START + 1_000
    first.say(DesignateCoordinator(old.node))
    job_id = first.submit("pay.salary")
    fork_point = old.last
    held = old.say(ClaimWork(job_id, old.node, 60_000), START + 1_100)
    ended = old.say(CompleteJob(job_id, (), (), Telemetry(1)), START + 1_200, deps=(held[1].id,))
    first.receive([held, ended])
    first.clock.now = START + 2_000
    first.say(DesignateCoordinator(first.node), about=old.node)
    first.receive([old.say(ScheduleJob(NO_ID, "acme.x", b"", OPEN), START + 1_050, after=fork_point)])
    late = reader(first, "late")
    late.clock.now = first.clock.now
    ops = sorted(
        first.ops(), key=lambda sent: (sent[1].node_id == old.node and len(sent[1].causal_deps) > 0, sent[1].timestamp)
    )
    introductions = [(body, op) for body, op in ops if isinstance(op.payload, DelegateUcan)]
    rest = [(body, op) for body, op in ops if not isinstance(op.payload, DelegateUcan)]
    late.receive(introductions)
    for start in range(0, len(rest), batch):
        late.receive(rest[start : start + batch])
    late.receive(ops)
    first.receive(late.ops())
    entry = late.entry(job_id)
    assert entry is not None and entry.job.outcome is Outcome.SUCCEEDED
    assert shown(late) == shown(first)


@pytest.mark.req("LW-32", "LW-43")
def test_a_second_op_with_the_time_of_a_pinned_one_takes_nothing_back() -> None:
    """A replaced coordinator showed another op with the time of its claim: the job was not completed any more, but only
    at those who had heard of that op.
    """
    first, old = owner(), Forger("old")
    second = reader(first, "second")
    mesh_of(first, second, old)
    first.clock.now = START + 1_000
    first.say(DesignateCoordinator(old.node))
    job_id = first.submit("acme.x")
    held = old.say(ClaimWork(job_id, old.node, 60_000), START + 1_100)
    ended = old.say(CompleteJob(job_id, (), (), Telemetry(1)), START + 1_200, deps=(held[1].id,))
    first.receive([held, ended])
    first.clock.now = second.clock.now = START + 2_000
    first.say(DesignateCoordinator(first.node), about=old.node)
    second.pull(first)
    twin = old.say(ScheduleJob(NO_ID, "acme.x", b"", OPEN), START + 1_100)
    assert first.receive([twin]).forked == {old.node}
    second.receive([(body, op) for body, op in first.ops() if op.node_id == first.node])
    late = reader(first, "late")
    late.clock.now = START + 2_000
    late.pull(first)
    for member in (first, second, late):
        entry = member.entry(job_id)
        assert entry is not None and entry.job.outcome is Outcome.SUCCEEDED
        before = shown(member)
        assert member.rebuilt() and shown(member) == before


@pytest.mark.req("LW-32", "LW-43")
def test_a_node_that_heard_the_other_history_asks_for_the_pinned_one() -> None:
    """Its frontier was beyond the pinned ops, so nobody sent them."""
    first, old = owner(), Forger("old")
    second = reader(first, "second")
    mesh_of(first, second, old)
    first.clock.now = second.clock.now = START + 1_000
    first.say(DesignateCoordinator(old.node))
    job_id = first.submit("acme.x")
    second.pull(first)
    fork_point = old.last
    held = old.say(ClaimWork(job_id, old.node, 60_000), START + 1_100)
    ended = old.say(CompleteJob(job_id, (), (), Telemetry(1)), START + 1_200, deps=(held[1].id,))
    first.receive([held, ended])
    first.clock.now = second.clock.now = START + 2_000
    first.say(DesignateCoordinator(first.node), about=old.node)
    other = old.say(ScheduleJob(NO_ID, "acme.y", b"", OPEN), START + 1_300, after=fork_point)
    second.receive([other])
    assert first.receive([other]).forked == {old.node}
    proof = [(body, op) for body, op in first.ops() if op.node_id == first.node]
    assert second.receive(proof).unlinked == {old.node}
    assert second.receive([ended]).unlinked == {old.node}
    assert second.receive([held]).unlinked == frozenset()
    assert shown(second) == shown(first)
    assert second.receive(first.ops()).unlinked == frozenset()


@pytest.mark.req("LW-32", "LW-43")
def test_a_node_that_heard_the_other_history_asks_for_what_was_accepted() -> None:
    """The arbiter's word waited for ever for the op that it accepts."""
    first, forger = owner(), Forger("forger")
    second = reader(first, "second")
    mesh_of(first, second, forger)
    job_id = first.submit("acme.x")
    second.pull(first)
    fork_point = forger.last
    offer = forger.say(ClaimWork(job_id, forger.node, 60_000), START + 100)
    first.receive([offer])
    other = forger.say(ScheduleJob(NO_ID, "acme.y", b"", OPEN), START + 200, after=fork_point)
    second.receive([other])
    assert second.receive([(body, op) for body, op in first.ops() if op.node_id == first.node]).unlinked == frozenset()
    assert first.receive([other]).forked == {forger.node}
    proof = [(body, op) for body, op in first.ops() if isinstance(op.payload, ReportFork)]
    assert second.receive(proof).unlinked == {forger.node}
    assert second.receive(proof).unlinked == {forger.node}
    assert second.receive([offer]).unlinked == frozenset()
    entry = second.entry(job_id)
    assert entry is not None and entry.job.claimer == forger.node
    assert shown(second) == shown(first)


@pytest.mark.req("LW-32", "LW-43")
@pytest.mark.parametrize("finder", [0, 1])
def test_histories_that_end_at_the_same_time_are_void_from_where_they_part(finder: int) -> None:
    """The last ops prove a fork, but what one node had heard before its last op counted there, and only there."""
    first, forger = owner(), Forger("forger")
    second = reader(first, "second")
    mesh_of(first, second, forger)
    fork_point = forger.last
    short = forger.say(ScheduleJob(NO_ID, "acme.x", b"", OPEN), START + 120, after=fork_point)
    long = [forger.say(ScheduleJob(NO_ID, "acme.y", b"", OPEN), START + 100 + n) for n in (0, 10, 20)]
    first.receive([short])
    second.receive(long)
    one, two = ((first, second), (second, first))[finder]
    found = one.receive([(short, long[-1])[one is first]])
    assert found.forked == {forger.node}
    if one is first:
        assert found.unlinked == {forger.node}
        assert one.receive(long).unlinked == frozenset()
    two.receive([(body, op) for body, op in one.ops() if isinstance(op.payload, ReportFork)])
    for member in (first, second):
        assert member.log.permissions().forks[forger.node].wall == START + 100
    assert shown(first) == shown(second)


@pytest.mark.req("LW-32", "LW-43")
def test_a_proof_is_not_taken_back_by_a_second_op_with_its_time() -> None:
    first, forger, teller = owner(), Forger("forger"), Forger("teller")
    second = reader(first, "second")
    mesh_of(first, second, forger)
    entering = teller.enter(first.invite(teller, *WORKER), first.token)
    for member in (first, second):
        member.receive(entering)
    last = forger.last
    left, right = (
        forger.say(ScheduleJob(NO_ID, kind, b"", OPEN), START + 100, after=last)[0] for kind in ("acme.a", "acme.b")
    )
    proof = teller.say(ReportFork(forger.key.public, left, right), START + 200)
    twin = teller.say(ScheduleJob(NO_ID, "acme.x", b"", OPEN), START + 200)
    first.receive([proof, twin])
    second.receive([proof])
    second.receive([(body, op) for body, op in first.ops() if op.node_id == first.node])
    for member in (first, second):
        assert member.log.permissions().forks.keys() == {forger.node, teller.node}
        assert shown(member) == shown(first)
        before = shown(member)
        assert member.rebuilt() and shown(member) == before


@pytest.mark.req("LW-39", "LW-43")
def test_a_completion_of_the_coordinators_own_stands() -> None:
    """A claim on an open job that came late displaced the coordinator, which had completed the job."""
    first = owner()
    second = reader(first, "second")
    meet(first, second)
    job_id = first.submit("acme.x", open=True)
    second.pull(first)
    second.say(ClaimWork(job_id, second.node, 60_000))
    first.clock.now += 1_000
    held = first.say(ClaimWork(job_id, first.node, 60_000))

    def complete(tx: jobs.Transaction) -> jobs.Result:
        return jobs.complete(tx, jobs.Held(job_id, held.id), None, 1)

    first.log.run(complete)
    first.pull(second)
    entry = first.entry(job_id)
    assert entry is not None and entry.job.outcome is Outcome.SUCCEEDED and entry.job.claimer == first.node
    meet(first, second)
    assert shown(first) == shown(second)
    assert isinstance(held, Op)
