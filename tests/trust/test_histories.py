"""Dating back buys nothing: an author has one history, one that shows two is found out by everybody who hears both, and
what was decided stands.
"""

from itertools import permutations

import pytest

from hocket.families.jobs.rules import Outcome, State, tick_id, tick_policy
from hocket.kernel.arbitration import Reason
from hocket.kernel.authority import revoke_root
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import content_hash
from hocket.kernel.ops import NO_ID, Op, decode, encode, encode_sequence, read_sequence, sign
from hocket.kernel.policy import Policy, encode_policy
from hocket.kernel.ucan import ROOT, Capability, issue
from hocket.kernel.vocabulary import (
    AcceptWork,
    CancelJob,
    ClaimWork,
    CompleteJob,
    DelegateUcan,
    DesignateCoordinator,
    ReportFork,
    RevokeUcan,
    RouteKind,
    ScheduleJob,
    SetSchedule,
    Telemetry,
    Unknown,
)
from hocket.log import Transaction
from tests.trust.members import DAY_MS, DID, READS, START, USER, WORKER, Forger, Member, job, meet, owner

OPEN = encode_policy(Policy(open=True))


def reader(first: Member, name: str) -> Member:
    return Member(name).enter(first.invite(Forger(name), *ROOT), first.token)


def claim(job_id: bytes, node: int) -> ClaimWork:
    return ClaimWork(job_id, node, 60_000)


def done(job_id: bytes) -> CompleteJob:
    return CompleteJob(job_id, (), (), Telemetry(1))


@pytest.mark.req("LW-43")
@pytest.mark.parametrize("told_first", ["the earlier", "the later"])
def test_nodes_that_hear_two_histories_end_with_one_roster(told_first: str) -> None:
    """One node took a back-dated op, another never saw it, and the two differed for ever."""
    first, forger = owner(), Forger("forger")
    one, two = reader(first, "one"), reader(first, "two")
    meet(first, one, two)
    entering = forger.enter(first.invite(forger), first.token)
    for member in (first, one, two):
        member.receive(entering)
    last = forger.last
    early = forger.say(ScheduleJob(NO_ID, "acme.early", b"", OPEN), START + 100, after=last)
    late = forger.say(ScheduleJob(NO_ID, "acme.late", b"", OPEN), START + 200, after=last)
    heard = (early, late) if told_first == "the earlier" else (late, early)
    one.receive([heard[0]])
    two.receive([heard[1]])
    assert one.reason(heard[0][1]) == two.reason(heard[1][1]) == 0
    found = one.receive([heard[1]], sender=two.node)
    assert found.forked == {forger.node}
    # The proof travels: whoever has heard one of the two knows by it that there is another.
    meet(first, one, two)
    for member in (first, one, two):
        assert member.log.permissions().forks == {forger.node: early[1].timestamp}
        for _, op in (early, late):
            assert member.reason(op) in (None, Reason.FORKED)
            assert member.entry(op.id) is None
        assert member.rebuilt()
    assert one.digest() == two.digest() == first.digest()


@pytest.mark.req("LW-10", "LW-43")
def test_two_ops_with_one_place_are_a_fork() -> None:
    first, forger = owner(), Forger("forger")
    first.receive(forger.enter(first.invite(forger), first.token))
    ops = [forger.say(ScheduleJob(NO_ID, kind, b"", b""), START + 100) for kind in ("a", "b")]
    first.receive([ops[0]])
    assert first.receive([ops[1]]).forked == {forger.node}
    assert [first.reason(op) for _, op in ops] == [Reason.INTEGRITY, Reason.INTEGRITY]


@pytest.mark.req("LW-32", "LW-43")
def test_the_proof_may_come_before_or_after_what_it_voids() -> None:
    first, forger = owner(), Forger("forger")
    entering = forger.enter(first.invite(forger), first.token)
    first.receive(entering)
    last = forger.last
    left = forger.say(ScheduleJob(NO_ID, "acme.left", b"", b""), START + 100, after=last)
    right = forger.say(ScheduleJob(NO_ID, "acme.right", b"", b""), START + 200, after=last)
    on_left = forger.say(CancelJob(left[1].id, ""), START + 300, after=left[1].id)
    proof = sent_by(first, ReportFork(forger.key.public, left[0], right[0]))
    digests = set()
    for order in permutations([left, on_left, proof]):
        witness = reader(first, "witness")
        witness.receive([*first.ops()[:-1], *entering])
        for each in order:
            witness.receive([each])
        witness.receive([left, on_left, proof])
        assert witness.log.permissions().forks == {forger.node: left[1].timestamp}
        digests.add(witness.digest())
        assert witness.rebuilt()
    assert len(digests) == 1


def sent_by(member: Member, payload: ReportFork) -> tuple[bytes, Op]:
    op = member.say(payload)
    return next((body, each) for body, each in member.ops() if each.id == op.id)


@pytest.mark.req("LW-43")
@pytest.mark.parametrize("trouble", ["no fork", "another's op", "a changed byte", "one op twice"])
def test_nobody_is_accused_without_proof(trouble: str) -> None:
    first, forger, victim = owner(), Forger("forger"), Forger("victim")
    first.receive(forger.enter(first.invite(forger), first.token))
    first.receive(victim.enter(first.invite(victim), first.token))
    one = victim.say(ScheduleJob(NO_ID, "a", b"", b""), START + 10)
    two = victim.say(ScheduleJob(NO_ID, "b", b"", b""), START + 20)
    forged = forger.say(ScheduleJob(NO_ID, "b", b"", b""), START + 20)
    left, right = {
        "no fork": (one[0], two[0]),
        "another's op": (one[0], forged[0]),
        "a changed byte": (one[0], one[0][:-1] + bytes([one[0][-1] ^ 1])),
        "one op twice": (one[0], one[0]),
    }[trouble]
    accusation = forger.say(ReportFork(victim.key.public, left, right), START + 30)
    assert first.receive([accusation]).refused == {Reason.MALFORMED: 1}
    assert first.log.permissions().forks == {}


@pytest.mark.req("LW-43")
def test_an_op_that_follows_nothing_waits_for_what_it_follows() -> None:
    first = owner()
    second = reader(first, "second")
    first.pull(second)
    ops = [forged(second, n) for n in range(3)]
    assert first.receive([ops[2]]).refused == {Reason.UNLINKED: 1}
    assert first.receive([ops[2]]).curable.keys() == {second.node}
    assert first.receive(ops).appended == 3
    assert first.log.permissions().forks == {}


def forged(member: Member, n: int) -> tuple[bytes, Op]:
    op = member.say(ScheduleJob(NO_ID, f"acme.{n}", b"", b""))
    return next((body, each) for body, each in member.ops() if each.id == op.id)


@pytest.mark.req("LW-43", "LW-22")
def test_a_node_that_lost_the_end_of_its_log_gets_it_back_and_goes_on() -> None:
    first = owner()
    second = reader(first, "second")
    backup = second.ops()
    lost = second.say(ScheduleJob(NO_ID, "acme.lost", b"", b""))
    first.pull(second)
    restored = Member("second")
    restored.token = second.token
    restored.receive(backup)
    restored.receive(first.ops())
    assert restored.reason(lost) == 0
    fresh = restored.say(ScheduleJob(NO_ID, "acme.fresh", b"", b""))
    assert first.pull(restored).forked == frozenset()
    assert first.reason(fresh) == 0


@pytest.mark.req("LW-43")
def test_a_replaced_coordinator_rewrites_nothing() -> None:
    """It wrote under an earlier date about a job that its successor had completed."""
    first, old = owner(), Forger("old")
    second, worker = reader(first, "second"), Forger("worker")
    entering = [
        *old.enter(first.invite(old, *ROOT), first.token),
        *worker.enter(first.invite(worker), first.token),
    ]
    meet(first, second)
    first.receive(entering)
    first.clock.now = START + 1_000
    first.say(DesignateCoordinator(old.node))
    job_id = first.submit("pay.salary")
    first.clock.now = START + 2_000
    first.say(DesignateCoordinator(second.node), about=old.node)
    meet(first, second)
    held = second.say(claim(job_id, second.node))
    second.say(done(job_id), (held.id,))
    meet(first, second)
    before = first.entry(job_id)
    assert before is not None and before.job.outcome is Outcome.SUCCEEDED
    offer = worker.say(claim(job_id, worker.node), START + 1_200)
    taken = old.say(AcceptWork(job_id, offer[1].id), START + 1_300)
    own = old.say(CancelJob(job_id, "no"), START + 1_400)
    for member in (first, second):
        member.receive([offer, taken, own])
        assert [member.reason(op) for _, op in (taken, own)] == [Reason.NOT_ARBITER, Reason.NOT_ARBITER]
        assert member.entry(job_id) == before
        assert member.rebuilt()


@pytest.mark.req("LW-43")
def test_what_the_successor_knew_of_its_predecessor_stands_even_if_that_one_has_two_histories() -> None:
    first, old = owner(), Forger("old")
    first.receive(old.enter(first.invite(old, *ROOT), first.token))
    first.clock.now = START + 1_000
    first.say(DesignateCoordinator(old.node))
    job_id = first.submit("pay.salary")
    fork_point = old.last
    held = old.say(claim(job_id, old.node), START + 1_100)
    ended = old.say(done(job_id), START + 1_200, deps=(held[1].id,))
    first.receive([held, ended])
    first.clock.now = START + 2_000
    first.say(DesignateCoordinator(first.node), about=old.node)
    before = first.entry(job_id)
    assert before is not None and before.job.outcome is Outcome.SUCCEEDED
    other = old.say(CancelJob(job_id, "no"), START + 1_050, after=fork_point)
    assert first.receive([other]).forked == {old.node}
    assert [first.reason(op) for _, op in (held, ended, other)] == [0, 0, Reason.FORKED]
    assert first.entry(job_id) == before
    assert first.rebuilt() and first.entry(job_id) == before


@pytest.mark.req("LW-43", "LW-26")
def test_an_expired_grant_is_not_used_again_by_dating_back() -> None:
    first, forger = owner(), Forger("forger")
    ends = START // 1000 + 60
    entering = forger.enter(first.invite(forger, *WORKER, ends=ends), first.token)
    first.receive(entering)
    member = reader(first, "member")
    meet(first, member)
    late = forger.say(ScheduleJob(NO_ID, "acme.x", b"{}", b""), START + 30_000)
    first.clock.now = ends * 1000 + DAY_MS + 1_000
    admission = first.receive([late], sender=member.node)
    assert (admission.appended, admission.held) == (0, 1)
    assert first.reason(late[1]) is None
    with first.log.store.read() as session:
        assert [each.id for each in session.late_ops()] == [late[1].id]
    # The owner decides.
    assert first.log.decide_late(forger.node, accept=True) == 1
    assert first.reason(late[1]) == 0
    with first.log.store.read() as session:
        assert session.late_ops() == []
    # What the owner hands on was decided.
    member.clock.now = first.clock.now
    assert member.receive([late], sender=first.node).appended == 1


@pytest.mark.req("LW-43", "LW-26")
@pytest.mark.parametrize("lasting", [None, "pay.", "acme.", ""])
def test_an_expired_grant_is_not_used_for_a_job_that_is_not_here_yet(lasting: str | None) -> None:
    """The kind was not known, so no grant seemed to matter; and when the job came, the earlier claim counted."""
    first, forger = owner(), Forger("forger")
    ends = START // 1000 + 60
    granted = job("Claim", "acme."), *READS
    entering = forger.enter(first.invite(forger, *granted, ends=ends), first.token)
    if lasting is not None:
        token = first.invite(forger, job("Claim", lasting))
        entering.append(forger.say(DelegateUcan(content_hash(token), token), START + 1))
    first.receive(entering)
    member = reader(first, "member")
    meet(first, member)
    member.clock.now = START + 20_000
    unheard = member.submit("acme.x", open=True)
    early = forger.say(claim(unheard, forger.node), START + 30_000)
    first.clock.now = member.clock.now = ends * 1000 + DAY_MS + 1_000
    admission = first.receive([early], sender=forger.node)
    # A grant that lasts, and surely covers the kind whatever it is, makes no op late.
    is_covered = lasting in ("acme.", "")
    assert (admission.appended, admission.held) == ((1, 0) if is_covered else (0, 1))
    first.pull(member)
    found = first.entry(unheard)
    assert found is not None and found.job.claimer == (forger.node if is_covered else None)


@pytest.mark.req("LW-43", "LW-26")
def test_an_expired_member_makes_no_ticks_by_dating_back() -> None:
    first, forger = owner(), Forger("forger")
    ends = START // 1000 + 3_600
    first.receive(forger.enter(first.invite(forger, *READS, ends=ends), first.token))
    schedule = first.say(SetSchedule("nightly", "* * * * *", "UTC", "pay.x", b"{}", b""))
    tick = (START // 60_000 + 1) * 60_000
    policy = encode_policy(tick_policy(Policy(), "nightly", schedule.id))
    made = ScheduleJob(tick_id(schedule.id, tick), "pay.x", b"{}", policy)
    early = forger.say(made, tick + 1, deps=(schedule.id,))
    first.clock.now = ends * 1000 + DAY_MS + 1_000
    admission = first.receive([early], sender=forger.node)
    assert (admission.appended, admission.held) == (0, 1)
    assert first.entry(made.job_id) is None


@pytest.mark.req("LW-43", "LW-27")
def test_a_revoked_owner_does_not_undo_its_revocation() -> None:
    """It revoked its revoker, and thereby un-revoked itself, with one op dated in between."""
    first, other = owner(), Forger("other")
    token = issue(USER, other.key.public, ROOT, START // 1000 - 10, None)
    first.receive(other.enter(token))
    first.clock.now = START + 1_000
    # No owner's node revokes another's delegation by the user; the user's key does.
    assert first.log.run(lambda tx: tx.author(RevokeUcan(content_hash(token)))) is Reason.UNAUTHORISED
    revocation = first.say(revoke_root(USER, content_hash(token)), about=other.node)
    back = other.say(RevokeUcan(content_hash(first.token)), START + 500)
    first.receive([back])
    assert first.reason(revocation) == 0
    assert first.reason(back[1]) in (Reason.UNAUTHORISED, Reason.REVOKED)
    assert first.log.authority().is_owner(first.node, first.clock.now)
    assert not first.log.authority().is_owner(other.node, first.clock.now)


@pytest.mark.req("LW-43", "LW-27")
def test_only_the_users_key_revokes_what_it_issued() -> None:
    first, forger = owner(), Forger("forger")
    first.receive(forger.enter(first.invite(forger, *ROOT), first.token))
    evil = forger.say(revoke_root(forger.key, content_hash(first.token)), START + 10)
    assert first.receive([evil]).refused == {Reason.BAD_SIGNATURE: 1}
    assert first.log.authority().is_owner(first.node, first.clock.now)
    assert first.log.user == DID


@pytest.mark.req("LW-27", "LW-43")
def test_a_delegation_is_revoked_by_its_issuer_or_one_above() -> None:
    first = owner()
    passing = Capability("Registration", "Write", {})
    middle = Member("middle")
    middle.enter(first.invite(middle, *WORKER, passing), first.token)
    below, beside = Forger("below"), Forger("beside")
    token = middle.invite(below, job("Claim"))
    meet(first, middle)
    first.receive(below.enter(token, middle.token, first.token))
    first.receive(beside.enter(first.invite(beside, *WORKER, passing), first.token))
    cid = content_hash(token)
    for number, forger in enumerate((beside, below)):
        evil = forger.say(RevokeUcan(cid), START + 100 + number)
        first.receive([evil])
        assert first.reason(evil[1]) == Reason.UNAUTHORISED
    assert first.log.authority().standing(below.node, first.clock.now).value == "active"
    first.say(RevokeUcan(cid))
    assert first.log.authority().standing(below.node, first.clock.now).value == "revoked"


@pytest.mark.req("LW-43", "LW-39")
def test_an_accepted_completion_of_an_open_job_stands() -> None:
    """A claim dated back displaces the holder of an open job, but not after the arbiter has accepted the completion."""
    first, worker, forger = owner(), Forger("worker"), Forger("forger")
    first.receive(worker.enter(first.invite(worker), first.token))
    first.receive(forger.enter(first.invite(forger), first.token))
    job_id = first.submit("acme.x", open=True)
    held = worker.say(claim(job_id, worker.node), first.clock.now + 100)
    ended = worker.say(done(job_id), first.clock.now + 200, deps=(held[1].id,))
    first.clock.now += 300
    first.receive([held, ended])
    before = first.entry(job_id)
    assert before is not None and before.job.is_settled
    evil = forger.say(claim(job_id, forger.node), held[1].timestamp.wall - 50)
    cancelled = forger.say(CancelJob(job_id, ""), held[1].timestamp.wall + 50)
    first.receive([evil, cancelled])
    after = first.entry(job_id)
    assert after is not None
    assert (after.job.state, after.job.outcome, after.job.claimer) == (
        State.COMPLETED,
        Outcome.SUCCEEDED,
        worker.node,
    )
    assert first.rebuilt()


@pytest.mark.req("LW-39")
def test_the_arbiters_word_helps_only_what_its_author_could_offer() -> None:
    first, arbiter = owner(), Forger("arbiter")
    first.receive(arbiter.enter(first.invite(arbiter, *ROOT), first.token))
    weak = Forger("weak")
    first.receive(weak.enter(first.invite(weak, job("Claim", "acme.")), first.token))
    first.clock.now = START + 1_000
    job_id = first.submit("pay.salary")
    first.say(DesignateCoordinator(arbiter.node))
    offer = weak.say(claim(job_id, weak.node), START + 1_100)
    word = arbiter.say(AcceptWork(job_id, offer[1].id), START + 1_200)
    first.receive([offer, word])
    assert first.reason(word[1]) == Reason.DEPENDENCY_REJECTED
    entry = first.entry(job_id)
    assert entry is not None and entry.job.state is State.PENDING


@pytest.mark.req("LW-15")
def test_a_job_may_cite_the_completion_that_the_arbiter_accepted() -> None:
    """Likewise's own example of a chain of jobs; and a completion may cite its ClaimWork."""
    first, worker = owner(), Forger("worker")
    first.receive(worker.enter(first.invite(worker), first.token))
    job_id = first.submit("acme.x")
    held = worker.say(claim(job_id, worker.node), first.clock.now + 10)
    first.clock.now += 20
    first.receive([held])
    ended = worker.say(done(job_id), first.clock.now + 10, deps=(held[1].id,))
    # The worker does not wait for the acceptance of its completion before it schedules what comes next.
    following = worker.say(ScheduleJob(NO_ID, "acme.next", b"", b""), first.clock.now + 11, deps=(ended[1].id,))
    first.clock.now += 20
    first.receive([ended, following])
    entry = first.entry(job_id)
    assert entry is not None and entry.job.outcome is Outcome.SUCCEEDED
    assert first.reason(following[1]) == 0
    assert first.entry(following[1].id) is not None
    assert first.rebuilt()


@pytest.mark.req("LW-08", "LW-37")
def test_a_renewal_of_v0_1_cites_nothing_and_is_accepted() -> None:
    first, worker = owner(), Forger("worker")
    first.receive(worker.enter(first.invite(worker), first.token))
    job_id = first.submit("acme.x")
    first.receive([worker.say(claim(job_id, worker.node), first.clock.now + 10)])
    first.clock.now += 5_000
    before = first.entry(job_id)
    first.receive([worker.say(claim(job_id, worker.node), first.clock.now)])
    after = first.entry(job_id)
    assert before is not None and after is not None
    assert after.job.deadline > before.job.deadline  # type: ignore[operator]
    assert (after.job.fence, after.job.claim_op) == (1, before.job.claim_op)


@pytest.mark.req("LW-12")
def test_routes_bind_renewals_and_the_coordinator_itself() -> None:
    first, worker = owner(), Forger("worker")
    first.receive(worker.enter(first.invite(worker), first.token))
    job_id = first.submit("acme.x")
    held = worker.say(claim(job_id, worker.node), first.clock.now + 10)
    first.clock.now += 20
    first.receive([held])
    before = first.entry(job_id)
    first.say(RouteKind("acme.x", 7))
    renewal = worker.say(claim(job_id, worker.node), first.clock.now + 10, deps=(held[1].id,))
    first.clock.now += 20
    first.receive([renewal])
    after = first.entry(job_id)
    assert before is not None and after is not None and after.job.deadline == before.job.deadline
    mine = first.submit("acme.x")

    def try_it(tx: Transaction) -> Op | Reason:
        return tx.author(claim(mine, tx.node))

    assert first.log.run(try_it) is Reason.ROUTED_ELSEWHERE


@pytest.mark.req("LW-45", "LW-26")
def test_what_a_member_may_not_write_makes_nobody_fold_a_job_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """One op dated ahead, and thousands that were refused, each folded the job again inside the write transaction."""
    from hocket.log.projection import Projection

    first, forger = owner(), Forger("forger")
    first.receive(forger.enter(first.invite(forger, Capability("Ops", "Read", {})), first.token))
    job_id = first.submit("acme.x")
    held = first.say(claim(job_id, first.node))
    before = first.entry(job_id)
    refolds: list[bytes] = []
    plain = Projection.refold
    monkeypatch.setattr(
        Projection, "refold", lambda self, job, permissions: (refolds.append(job), plain(self, job, permissions))
    )
    evil = [forger.say(CancelJob(job_id, ""), START + 200_000 + n) for n in range(50)]
    first.clock.now = START + 250_000
    for each in evil:
        first.receive([each])
    assert {first.reason(op) for _, op in evil} == {Reason.UNAUTHORISED}
    assert first.entry(job_id) == before
    first.say(done(job_id), (held.id,))
    assert refolds == []
    assert first.rebuilt()


@pytest.mark.req("LW-32")
def test_a_batch_of_late_ops_folds_a_job_again_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from hocket.log.projection import Projection

    first, worker = owner(), Forger("worker")
    first.receive(worker.enter(first.invite(worker), first.token))
    job_id = first.submit("acme.x", open=True)
    late = [worker.say(CancelJob(job_id, ""), first.clock.now + n) for n in range(1, 40)]
    first.clock.now += 1_000
    first.say(CancelJob(job_id, "first of all"))
    refolds: list[bytes] = []
    plain = Projection.refold
    monkeypatch.setattr(
        Projection, "refold", lambda self, job, permissions: (refolds.append(job), plain(self, job, permissions))
    )
    first.receive(late)
    assert refolds == [("job", job_id)]


@pytest.mark.req("LW-22")
def test_an_op_signed_by_another_is_no_history() -> None:
    first, forger = owner(), Forger("forger")
    first.receive(forger.enter(first.invite(forger), first.token))
    _, op = first.ops()[-1]
    stolen = sign(op, forger.key)
    assert first.receive([(encode(stolen), stolen)])[:2] == (0, 1)
    assert first.log.permissions().forks == {}
    assert Hlc(0, 0, 0) < op.timestamp


@pytest.mark.req("LW-34", "LW-46")
def test_an_op_of_a_newer_program_is_kept_and_does_nothing() -> None:
    """Its variant is unknown here, so it counts for nothing; but it is its author's, and the next op follows it."""
    first, newer = owner(), Forger("newer")
    first.receive(newer.enter(first.invite(newer), first.token))
    one = newer.say(ScheduleJob(NO_ID, "acme.one", b"{}", b""), START + 10)
    strange = newer.say(Unknown(16_383, b"from the future"), START + 20)
    three = newer.say(ScheduleJob(NO_ID, "acme.three", b"{}", b""), START + 30)
    first.receive([one])
    assert first.receive([three]).refused == {Reason.UNLINKED: 1}
    # Somebody else's word that there was an op is nothing.
    forged = strange[0][:-1] + bytes([strange[0][-1] ^ 1])
    assert first.receive([(forged, decode(forged))]).refused == {Reason.BAD_SIGNATURE: 1}
    assert first.receive([three]).refused == {Reason.UNLINKED: 1}
    # It hides nothing that comes behind it.
    assert [op for _, op in read_sequence(encode_sequence([strange[0], three[0]]))] == [strange[1], three[1]]
    assert first.receive([strange, three]).appended == 2
    assert (first.reason(strange[1]), first.reason(three[1])) == (Reason.UNKNOWN_VARIANT, 0)
    assert first.rebuilt()


@pytest.mark.req("LW-43")
def test_two_histories_are_found_though_one_is_of_a_newer_program() -> None:
    first, newer = owner(), Forger("newer")
    first.receive(newer.enter(first.invite(newer), first.token))
    before = newer.last
    strange = newer.say(Unknown(16_383, b"from the future"), START + 20)
    other = newer.say(ScheduleJob(NO_ID, "acme.one", b"{}", b""), START + 30, after=before)
    first.receive([strange])
    assert first.receive([other]).forked == {newer.node}
    assert newer.node in first.log.permissions().forks


@pytest.mark.req("LW-31")
def test_a_schedule_that_was_refused_leaves_no_trace() -> None:
    """The row of an op that was never written was asked about when an earlier schedule of that name came late."""
    first, second = owner(), Member("second")
    second.enter(first.invite(second, job("Schedule", "acme."), *READS), first.token)
    meet(first, second)
    first.say(SetSchedule("nightly", "* * * * *", "UTC", "pay.x", b"{}", b""))
    late = first.say(SetSchedule("nightly", "* * * * *", "UTC", "pay.y", b"{}", b""))
    second.clock.now = first.clock.now + 1_000
    second.receive([sent for sent in first.ops() if sent[1].id != late.id])
    refused = SetSchedule("nightly", "* * * * *", "UTC", "acme.x", b"{}", b"")
    assert second.log.run(lambda tx: tx.author(refused)) is Reason.OTHERS_SCHEDULE
    assert second.receive(first.ops()).appended == 1
    with second.log.store.read() as session:
        assert [each.op for each in session.schedules()] == [late.id]
