"""What follows from an op that comes late, from a twin, from a delegation: each of these once gave another answer in
another order of arrival.
"""

from collections.abc import Iterable

import pytest

from hocket.kernel.arbitration import Reason
from hocket.kernel.ids import ulid_text
from hocket.kernel.ops import Op
from hocket.kernel.policy import Policy, encode_policy
from hocket.kernel.vocabulary import (
    ClaimWork,
    CompleteJob,
    CreateArtifact,
    ReportProgress,
    RouteKind,
    ScheduleJob,
    SetSchedule,
    Telemetry,
)
from hocket.log import Log
from hocket.log.projection import Projection
from hocket.log.rebuild import rebuild, roster_digest
from tests.effort import orders
from tests.log.roster.world import (
    INTRODUCTIONS,
    KEYS,
    NODES,
    NOW,
    START,
    Script,
    introduction,
    job_id,
    new_log,
    op_id,
    sent,
)

pytestmark = pytest.mark.touches("LW-32", "LW-33")

A, B, C = 0, 1, 2
J = job_id(1)


def shown(log: Log) -> object:
    """All that is derived from the log, so that two logs can be compared."""
    with log.store.read() as session:
        reasons = {row.id: row.reason for row in session.ops_after(0, 100_000)}
        artifacts = {session.artifact(job_id(n)) for n in range(40, 50)}
        schedules = [schedule._replace(last_tick=0) for schedule in session.schedules()]
        nodes = session.nodes()
        after = {job_id(n): sorted(session.dependents(job_id(n))) for n in range(5)}
        return roster_digest(session), session.each_subject(), reasons, artifacts, schedules, nodes, after


def everywhere_the_same(ops: list[Op], before: Iterable[Op] = INTRODUCTIONS) -> Log:
    """In any order, one op at a time and all at once, and a rebuild after each."""
    assert len(ops) <= 5
    seen, order_of = [], []
    for order in orders(ops):
        for batches in ([[op] for op in order], [list(order)]):
            log = new_log()
            log.admit(sent(before))
            for batch in batches:
                log.admit(sent(batch))
            seen.append(shown(log))
            rebuild(log.store, log.permissions_reader, NOW)
            seen.append(shown(log))
            order_of += [order, order]
    for order, other in zip(order_of, seen, strict=True):
        assert other == seen[0], order
    return log


def reason(log: Log, op: Op) -> Reason | int:
    with log.store.read() as session:
        row = session.op(op.id)
    assert row is not None
    return Reason(row.reason) if row.reason else 0


@pytest.mark.req("LW-10", "LW-15", "LW-32", "LW-33")
def test_what_cites_a_twin_is_rejected_whichever_came_first() -> None:
    script = Script()
    one = script.say(A, 1, RouteKind("x", None))
    two = script.say(A, 1, RouteKind("y", None))
    leaning = script.say(B, 2, RouteKind("z", None), (one.id,))
    also = script.say(B, 3, ScheduleJob(J, "k", b"", b""), (two.id,))
    log = everywhere_the_same(script.ops)
    assert reason(log, leaning) == reason(log, also) == Reason.DEPENDENCY_REJECTED


@pytest.mark.req("LW-10", "LW-15", "LW-32", "LW-33")
def test_a_twin_stays_out_when_what_it_cites_arrives() -> None:
    script = Script()
    cited = script.say(B, 1, RouteKind("x", None))
    one = script.say(A, 2, RouteKind("k", NODES[B]), (cited.id,))
    script.say(A, 2, RouteKind("y", None), (cited.id,))
    script.say(C, 3, ScheduleJob(J, "k", b"", b""))
    claim = script.say(C, 4, ClaimWork(J, NODES[C], 1_000))
    log = everywhere_the_same(script.ops)
    assert (reason(log, one), reason(log, claim)) == (Reason.INTEGRITY, 0)


@pytest.mark.req("LW-10", "LW-15", "LW-16", "LW-32", "LW-33")
def test_a_job_that_comes_after_one_whose_schedule_has_a_twin_waits() -> None:
    script = Script()
    earlier = script.say(A, 1, ScheduleJob(J, "k", b"", b""))
    script.say(A, 1, ClaimWork(J, NODES[A], 1_000))
    policy = encode_policy(Policy(after=(ulid_text(J),)))
    later = script.say(B, 2, ScheduleJob(job_id(2), "k", b"", policy))
    log = everywhere_the_same(script.ops)
    assert (reason(log, earlier), reason(log, later)) == (Reason.INTEGRITY, Reason.WAITING)


@pytest.mark.req("LW-16", "LW-32", "LW-33")
def test_an_op_about_no_job_that_cites_a_later_one_is_rejected_in_every_order() -> None:
    script = Script()
    early = script.say(A, 1, RouteKind("x", None), (op_id(50),))
    waiting = script.say(B, 2, RouteKind("y", None), (op_id(51),), number=50)
    log = everywhere_the_same(script.ops)
    assert (reason(log, early), reason(log, waiting)) == (Reason.DEPENDENCY_CYCLE, Reason.WAITING)


@pytest.mark.req("LW-16", "LW-32", "LW-33")
def test_a_schedule_cannot_cite_the_claim_on_its_own_job() -> None:
    script = Script()
    circular = script.say(A, 1, ScheduleJob(J, "k", b"1", b""), (op_id(50),))
    script.say(A, 2, ScheduleJob(J, "k", b"2", b""))
    script.say(B, 3, ClaimWork(J, NODES[B], 1_000), number=50)
    log = everywhere_the_same(script.ops)
    assert reason(log, circular) == Reason.DEPENDENCY_CYCLE


def set_schedule(cron: str, name: str = "nightly") -> SetSchedule:
    return SetSchedule(name, cron, "UTC", "k", b"{}", b"")


@pytest.mark.req("LW-32", "LW-33")
def test_a_schedule_outlives_the_collision_of_its_successor() -> None:
    script = Script()
    script.say(A, 1, set_schedule("0 1 * * *"))
    script.say(A, 2, set_schedule("0 2 * * *"))
    script.say(A, 2, RouteKind("x", None))
    script.say(A, 3, set_schedule("0 3 * * *", "other"))
    log = everywhere_the_same(script.ops)
    with log.store.read() as session:
        assert {schedule.name: schedule.cron for schedule in session.schedules()} == {
            "nightly": "0 1 * * *",
            "other": "0 3 * * *",
        }


def artifact(number: int, kind: str) -> CreateArtifact:
    return CreateArtifact(job_id(40 + number), kind, None, (), bytes(32), b"", None, None, 0, None)


@pytest.mark.req("LW-32", "LW-33")
def test_the_earliest_of_two_artifacts_with_one_id_stands() -> None:
    script = Script()
    first = script.say(A, 1, artifact(0, "first"))
    script.say(B, 2, artifact(0, "second"))
    log = everywhere_the_same(script.ops)
    with log.store.read() as session:
        assert session.artifact(job_id(40)).op_id == first.id  # type: ignore[union-attr]
    # And when the first one turns out to have a twin, the other does.
    script.say(A, 1, RouteKind("x", None))
    log = everywhere_the_same(script.ops)
    with log.store.read() as session:
        assert session.artifact(job_id(40)).type == "second"  # type: ignore[union-attr]


@pytest.mark.req("LW-32", "LW-33")
def test_an_earlier_schedule_voids_what_the_later_one_comes_after() -> None:
    script = Script()
    before, other = job_id(2), job_id(3)
    script.say(A, 0, ScheduleJob(other, "k", b"", b""))
    script.say(A, 1, ScheduleJob(before, "k", b"", b""))
    script.say(A, 2, ScheduleJob(J, "k", b"", encode_policy(Policy(after=(ulid_text(other),)))))
    script.say(A, 3, ScheduleJob(J, "k", b"", encode_policy(Policy(after=(ulid_text(before),)))))
    log = everywhere_the_same(script.ops)
    with log.store.read() as session:
        assert (session.dependents(before), session.dependents(other)) == ([], [J])


@pytest.mark.req("LW-12", "LW-32", "LW-33")
def test_a_late_route_refolds_the_jobs_of_its_kind_only() -> None:
    script = Script()
    script.say(A, 1, RouteKind("k", NODES[B]))
    script.say(A, 2, ScheduleJob(J, "k", b"", b""))
    script.say(A, 3, ScheduleJob(job_id(2), "other", b"", b""))
    refused = script.say(C, 4, ClaimWork(J, NODES[C], 1_000))
    taken = script.say(C, 5, ClaimWork(job_id(2), NODES[C], 1_000))
    log = everywhere_the_same(script.ops)
    assert (reason(log, refused), reason(log, taken)) == (Reason.ROUTED_ELSEWHERE, 0)


@pytest.mark.req("LW-19", "LW-32", "LW-33")
def test_a_late_route_of_a_prefix_refolds_the_jobs_below_it_only() -> None:
    script = Script()
    script.say(A, 1, RouteKind("acme.", NODES[B]))
    script.say(A, 2, ScheduleJob(J, "acme.film.cut", b"", b""))
    script.say(A, 3, ScheduleJob(job_id(2), "acmes.film", b"", b""))
    refused = script.say(C, 4, ClaimWork(J, NODES[C], 1_000))
    taken = script.say(C, 5, ClaimWork(job_id(2), NODES[C], 1_000))
    log = everywhere_the_same(script.ops)
    assert (reason(log, refused), reason(log, taken)) == (Reason.ROUTED_ELSEWHERE, 0)


@pytest.mark.req("LW-15", "LW-41")
def test_a_success_travels_through_every_job_that_comes_after() -> None:
    """A late success lets a claim count, whose completion lets the next claim count, and so on to the end."""
    script = Script()
    count = 12
    for number in range(count):
        after = (ulid_text(job_id(100 + number - 1)),) if number else ()
        script.say(A, number, ScheduleJob(job_id(100 + number), "k", b"", encode_policy(Policy(after=after))))
    missing = None
    for number in range(count):
        claim = script.say(B, 1_000 + 10 * number, ClaimWork(job_id(100 + number), NODES[B], 1_000))
        done = CompleteJob(job_id(100 + number), (), (), Telemetry(1))
        done_op = script.say(B, 1_001 + 10 * number, done, (claim.id,))
        missing = missing or done_op
    assert missing is not None
    log, straight = new_log(), new_log()
    straight.admit(sent([*INTRODUCTIONS, *script.ops]))
    log.admit(sent([*INTRODUCTIONS, *(op for op in script.ops if op is not missing)]))
    with log.store.read() as session:
        assert sum(entry.job.outcome is not None for entry in session.each_job()) == 0
    log.admit(sent([missing]))
    with log.store.read() as session, straight.store.read() as other:
        assert all(entry.job.outcome is not None for entry in session.each_job())
        assert roster_digest(session) == roster_digest(other)


@pytest.mark.req("LW-17", "LW-41")
def test_a_job_is_ready_when_the_one_before_it_succeeds_in_the_very_same_batch() -> None:
    script = Script()
    script.say(A, 1, ScheduleJob(J, "k", b"", b""))
    # Something else ends first, when no job comes after any other yet.
    script.say(B, 1, ScheduleJob(job_id(9), "k", b"", b""))
    script.say(B, 2, ClaimWork(job_id(9), NODES[B], 1_000))
    script.say(B, 3, CompleteJob(job_id(9), (), (), Telemetry(1)))
    script.say(A, 4, ScheduleJob(job_id(2), "k", b"", encode_policy(Policy(after=(ulid_text(J),)))))
    script.say(A, 5, ClaimWork(J, NODES[A], 1_000))
    script.say(A, 6, CompleteJob(J, (), (), Telemetry(1)))
    log = new_log()
    log.admit(sent([*INTRODUCTIONS, *script.ops]))
    with log.store.read() as session:
        assert [entry.job.id for entry, _ in session.ready("k", 9)] == [job_id(2)]


@pytest.mark.req("LW-15")
def test_a_very_long_chain_of_citations_is_followed_to_its_end() -> None:
    """Longer than the interpreter's stack: each job's schedule cites the one before, and the first comes last."""
    script = Script()
    previous: tuple[bytes, ...] = ()
    for number in range(1_500):
        previous = (script.say(A, number, ScheduleJob(job_id(1_000 + number), "k", b"", b""), previous).id,)
    log = new_log()
    log.admit(sent([*INTRODUCTIONS, *script.ops[1:]]))
    with log.store.read() as session:
        assert session.refusal_counts() == {Reason.WAITING: 1_499}
    log.admit(sent(script.ops[:1]))
    with log.store.read() as session:
        assert session.refusal_counts() == {}
        assert sum(1 for _ in session.each_job()) == 1_500


@pytest.mark.req("LW-15")
def test_a_job_that_many_of_its_ops_wait_in_is_folded_again_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a late claim on a job with long progress would cost the square of it."""
    script = Script()
    script.say(A, 0, ScheduleJob(J, "k", b"", b""))
    claim = script.say(A, 1, ClaimWork(J, NODES[A], 100_000))
    for number in range(300):
        script.say(A, 2 + number, ReportProgress(J, NODES[A], b"x"), (claim.id,))
    log = new_log()
    log.admit(sent([*INTRODUCTIONS, *(op for op in script.ops if op is not claim)]))
    refolds = []
    plain = Projection.refold
    monkeypatch.setattr(
        Projection, "refold", lambda self, job, permissions: (refolds.append(job), plain(self, job, permissions))
    )
    log.admit(sent([claim]))
    with log.store.read() as session:
        assert session.refusal_counts() == {}
    assert 1 <= len(refolds) <= 3


@pytest.mark.req("LW-23")
@pytest.mark.parametrize("trouble", ["waits", "has a twin"])
def test_a_nodes_key_does_not_hang_on_the_fate_of_its_delegation(trouble: str) -> None:
    script = Script()
    first = introduction(KEYS[A], wall=START)
    if trouble == "waits":
        first = Op(first.id, first.timestamp, first.node_id, (op_id(99),), first.payload)
    else:
        twin = Op(op_id(98), first.timestamp, first.node_id, (), RouteKind("x", None))
    script.say(A, 5, ScheduleJob(J, "k", b"", b""))
    log = new_log()
    log.admit(sent([first]))
    if trouble == "has a twin":
        log.admit(sent([twin]))
    before = shown(log)
    rebuild(log.store, log.permissions_reader, NOW)
    assert shown(log) == before
    assert log.admit(sent(script.ops)).appended == 1


@pytest.mark.req("LW-32")
def test_own_and_foreign_ops_in_one_transaction_see_each_other() -> None:
    """An op of one's own is on the roster already when a late op makes its job be folded again."""
    log = new_log(key=KEYS[A])
    log.admit(sent(INTRODUCTIONS))
    script = Script()
    late = script.say(B, 1, ScheduleJob(J, "k", b"late", b""))

    def request(tx: object) -> None:
        tx.author(ScheduleJob(J, "k", b"own", encode_policy(Policy(priority=1))))  # type: ignore[attr-defined]
        ((raw, op),) = sent([late])
        tx.admit(op, raw)  # type: ignore[attr-defined]
        tx.projection.settle()  # type: ignore[attr-defined]

    log.run(request)
    with log.store.read() as session:
        entry = session.job(J)
        assert entry is not None and entry.job.schedule_op == late.id
    before = shown(log)
    rebuild(log.store, log.permissions_reader, NOW)
    assert shown(log) == before


@pytest.mark.req("LW-16", "LW-32", "LW-33")
def test_jobs_that_come_after_each_other_are_refused_whatever_comes_first() -> None:
    """Without citing each other's ops, as other software might write them."""
    script = Script()
    other, third = job_id(2), job_id(3)
    first = script.say(A, 1, ScheduleJob(J, "k", b"", encode_policy(Policy(after=(ulid_text(other),)))))
    second = script.say(A, 2, ScheduleJob(other, "k", b"", encode_policy(Policy(after=(ulid_text(J),)))))
    itself = script.say(A, 3, ScheduleJob(third, "k", b"", encode_policy(Policy(after=(ulid_text(third),)))))
    log = everywhere_the_same(script.ops)
    with log.store.read() as session:
        reasons = {row.id: row.reason for row in session.last_ops(10)}
        assert (session.job(J), session.job(other), session.job(third)) == (None, None, None)
    assert reasons[first.id] == reasons[itself.id] == Reason.DEPENDENCY_CYCLE
    assert reasons[second.id] == Reason.DEPENDENCY_REJECTED
