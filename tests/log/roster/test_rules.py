"""The rules of a job, one by one, each shown on a short history that a log has taken in."""

import pytest

from hocket.errors import StoreError, Usage
from hocket.families.jobs import claiming, rescue
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.rules import RETURNS_MAX, UNSTARTED, Job, Outcome, State
from hocket.kernel.arbitration import Reason
from hocket.kernel.clock import U32_MAX, Hlc
from hocket.kernel.ids import ulid_text
from hocket.kernel.ops import Op, decode
from hocket.kernel.policy import LEASE_MS_MAX, Policy, covers, encode_policy
from hocket.kernel.vocabulary import (
    CancelJob,
    ClaimWork,
    CompleteJob,
    ExpireWork,
    FailWork,
    PostponeJob,
    PostponeWork,
    ReportProgress,
    RetryJob,
    RouteKind,
    SaveCheckpoint,
    ScheduleJob,
    Telemetry,
    YieldWork,
)
from hocket.log import Log
from hocket.store import JobFilter
from tests.log.roster.world import INTRODUCTIONS, KEYS, NODES, NOW, START, Clock, Script, job_id, new_log, op_id, sent

A, B, C = 0, 1, 2
J = job_id(1)
KIND = "acme.render"
LEASE = 1_000
DONE = CompleteJob(J, (), (), Telemetry(1))


class Story(Script):
    """A script that can be read out: into a fresh log, and back as the job and the ops' reasons."""

    def schedule(
        self, wall: int = 0, job: bytes = J, kind: str = KIND, deps: tuple[bytes, ...] = (), **policy: object
    ) -> Op:
        return self.say(A, wall, ScheduleJob(job, kind, b'{"frame":7}', encode_policy(Policy(**policy))), deps)  # type: ignore[arg-type]

    def claim(self, node: int, wall: int, lease: int = LEASE, cites: Op | None = None, job: bytes = J) -> Op:
        return self.say(node, wall, ClaimWork(job, NODES[node], lease), () if cites is None else (cites.id,))

    def log(self) -> Log:
        log = new_log()
        log.admit(sent([*INTRODUCTIONS, *self.ops]))
        return log

    def job(self, job: bytes = J) -> Job:
        with self.log().store.read() as session:
            entry = session.job(job)
        assert entry is not None
        return entry.job

    def reason(self, op: Op) -> Reason | None:
        with self.log().store.read() as session:
            row = session.op(op.id)
        assert row is not None
        return Reason(row.reason) if row.reason else None


@pytest.fixture
def story() -> Story:
    return Story()


@pytest.mark.req("LW-02")
def test_pending_claimed_completed(story: Story) -> None:
    story.schedule()
    assert story.job().state is State.PENDING
    claim = story.claim(A, 1)
    assert story.job().state is State.CLAIMED
    story.say(A, 2, DONE, (claim.id,))
    assert (story.job().state, story.job().outcome) == (State.COMPLETED, Outcome.SUCCEEDED)


@pytest.mark.req("LW-02")
@pytest.mark.parametrize("back", ["yield", "expire"])
def test_a_job_goes_back_and_can_be_claimed_anew(story: Story, back: str) -> None:
    story.schedule()
    story.claim(A, 1)
    if back == "yield":
        story.say(A, 2, YieldWork(J, NODES[A], "going to sleep"))
    else:
        story.say(B, 2 + LEASE, ExpireWork(J, NODES[A], ""))
    job = story.job()
    assert (job.state, job.claimer, job.deadline, job.claim_op) == (State.PENDING, None, None, None)
    story.claim(B, 3 + LEASE)
    assert (story.job().claimer, story.job().fence) == (NODES[B], 2)


@pytest.mark.req("LW-02")
def test_completed_is_final(story: Story) -> None:
    story.schedule()
    first = story.claim(A, 1)
    story.say(A, 2, DONE, (first.id,))
    before = story.job()
    late = [
        story.claim(B, 3),
        story.claim(A, 4),
        story.say(A, 5, DONE, (first.id,)),
        story.say(A, 6, YieldWork(J, NODES[A], "")),
        story.say(B, 9_000, ExpireWork(J, NODES[A], "")),
        story.say(A, 9_001, FailWork(J, NODES[A], "", "", True)),
        story.say(A, 9_002, CancelJob(J, "")),
        story.say(A, 9_003, ReportProgress(J, NODES[A], b"x")),
        story.say(A, 9_004, SaveCheckpoint(J, NODES[A], b"x")),
    ]
    assert {story.reason(op) for op in late} == {Reason.COMPLETED}
    retry = story.say(A, 9_005, RetryJob(J, ""))
    assert story.reason(retry) is Reason.NOT_FAILED
    after = story.job()
    assert (after.state, after.outcome, after.done, after.fence) == (
        before.state,
        Outcome.SUCCEEDED,
        Hlc(START + 2, 0, NODES[A]),
        1,
    )


@pytest.mark.req("LW-03")
def test_a_schedule_carries_id_kind_payload_and_policy(story: Story) -> None:
    payload = bytes(range(256))
    envelope = encode_policy(Policy(priority=3, retries=2))
    made = story.say(A, 0, ScheduleJob(J, KIND, payload, envelope))
    log = story.log()
    with log.store.read() as session:
        row = session.op(made.id)
        entry = session.job(J)
    assert row is not None and entry is not None
    assert decode(row.body).payload == ScheduleJob(J, KIND, payload, envelope)
    assert (entry.job.id, entry.job.kind, entry.job.schedule_op) == (J, KIND, made.id)
    assert (entry.job.policy.priority, entry.job.policy.retries) == (3, 2)


@pytest.mark.req("LW-03")
@pytest.mark.parametrize(
    "envelope", [b"{", b"[]", b'{"priority":"high"}', b'{"color":1}', b'{"retries":-1}', b"\xff", b"{}" * 40_000]
)
def test_a_policy_that_cannot_be_read_makes_no_job(story: Story, envelope: bytes) -> None:
    made = story.say(A, 0, ScheduleJob(J, KIND, b"", envelope))
    assert story.reason(made) is Reason.BAD_POLICY
    with story.log().store.read() as session:
        assert session.job(J) is None


@pytest.mark.req("LW-19")
@pytest.mark.parametrize("kind", ["", "a\nb", "x" * 256, "a\x00"])
def test_a_kind_that_cannot_be_shown_makes_no_job(story: Story, kind: str) -> None:
    assert story.reason(story.schedule(kind=kind)) is Reason.BAD_KIND


@pytest.mark.req("LW-19")
@pytest.mark.parametrize("kind", ["x", "render", "com.acme.render", "Ünï.cødé", "with space", "x" * 255])
def test_a_kind_is_a_free_string(story: Story, kind: str) -> None:
    story.schedule(kind=kind)
    assert story.job().kind == kind


@pytest.mark.req("LW-19")
def test_kinds_are_matched_by_prefix_at_the_dots() -> None:
    log = new_log()
    kinds = ["acme", "acme.render", "acme.render.fast", "acmes", "acme-x", "acm", "zeta"]
    log.run(lambda tx: jobs.submit(tx, [jobs.Draft(kind, b"{}", Policy()) for kind in kinds]))
    log.run(lambda tx: claiming.claim(tx, 1, 0, lambda kind: None))
    with log.store.read() as session:
        below = {e.job.kind for e in session.jobs(JobFilter(kind="acme."), 100)}
        alone = {e.job.kind for e in session.jobs(JobFilter(kind="acme"), 100)}
    assert below == {"acme.render", "acme.render.fast"} and alone == {"acme"}
    assert below == {kind for kind in kinds if covers("acme.", kind)}
    assert alone == {kind for kind in kinds if covers("acme", kind)}


@pytest.mark.req("LW-19")
def test_a_kind_without_a_handler_is_left_alone() -> None:
    log = new_log()
    log.run(lambda tx: jobs.submit(tx, [jobs.Draft(kind, b"{}", Policy()) for kind in ("mine", "strange")]))
    claims = log.run(lambda tx: claiming.claim(tx, 1, 10, lambda kind: 1_000 if kind == "mine" else None))
    assert [claim.job.kind for claim in claims.taken] == ["mine"]
    assert claims.again_at is None


@pytest.mark.req("LW-04")
def test_the_deadline_is_the_claims_wall_plus_its_lease(story: Story) -> None:
    story.schedule()
    story.claim(A, 17, lease=2_345)
    job = story.job()
    assert (job.claimer, job.deadline) == (NODES[A], START + 17 + 2_345)


@pytest.mark.req("LW-04")
@pytest.mark.parametrize(
    ("lease", "good"), [(0, False), (1, True), (LEASE_MS_MAX, True), (LEASE_MS_MAX + 1, False), (2**64 - 1, False)]
)
def test_a_lease_has_bounds(story: Story, lease: int, good: bool) -> None:
    story.schedule()
    assert story.reason(story.claim(A, 1, lease=lease)) is (None if good else Reason.BAD_LEASE)


@pytest.mark.req("LW-04")
def test_nobody_claims_in_anothers_name(story: Story) -> None:
    story.schedule()
    claim = story.say(A, 1, ClaimWork(J, NODES[B], LEASE))
    assert story.reason(claim) is Reason.NOT_CLAIMER


@pytest.mark.req("LW-05")
@pytest.mark.parametrize(
    "payload",
    [
        DONE,
        YieldWork(J, NODES[A], ""),
        YieldWork(J, NODES[B], ""),
        FailWork(J, NODES[A], "", "", True),
        PostponeWork(J, NODES[A], 1_000, ""),
        ReportProgress(J, NODES[A], b""),
        SaveCheckpoint(J, NODES[A], b""),
    ],
)
def test_only_the_claimer_speaks_for_the_claim(story: Story, payload: object) -> None:
    story.schedule()
    claim = story.claim(A, 1)
    before = story.job()
    other = story.say(B, 2, payload, (claim.id,))  # type: ignore[arg-type]
    assert story.reason(other) is Reason.NOT_CLAIMER
    assert (story.job().state, story.job().claimer) == (before.state, NODES[A])


@pytest.mark.req("LW-41")
def test_a_postponed_job_rests_and_spends_nothing(story: Story) -> None:
    story.schedule(retries=0)
    for n in range(RETURNS_MAX + 1):
        claim = story.claim(A, n * 10_000 + 1)
        assert story.reason(claim) is None
        story.say(A, n * 10_000 + 2, PostponeWork(J, NODES[A], 9_000, "not yet"), (claim.id,))
        job = story.job()
        assert (job.state, job.failures, job.returns, job.fence) == (State.PENDING, 0, 0, n + 1)
        assert job.ready_at == START + n * 10_000 + 9_002
        early = story.claim(B, n * 10_000 + 9_001)
        assert story.reason(early) is Reason.TOO_EARLY


@pytest.mark.parametrize("delay_ms", [0, 30 * 24 * 3600 * 1000 + 1])
def test_a_delay_has_bounds(story: Story, delay_ms: int) -> None:
    story.schedule()
    claim = story.claim(A, 1)
    bad = story.say(A, 2, PostponeWork(J, NODES[A], delay_ms, ""), (claim.id,))
    assert story.reason(bad) is Reason.BAD_DELAY
    assert story.job().state is State.CLAIMED


@pytest.mark.req("LW-05")
def test_nobody_speaks_for_a_claim_that_is_not_there(story: Story) -> None:
    early = story.say(A, 0, DONE)
    story.schedule(1)
    pending = story.say(A, 2, DONE)
    assert (story.reason(early), story.reason(pending)) == (Reason.UNKNOWN_JOB, Reason.NOT_CLAIMED)


@pytest.mark.req("LW-06", "LW-07")
@pytest.mark.parametrize(
    ("wall", "reason"), [(1, Reason.LEASE_RUNNING), (LEASE + 1, Reason.LEASE_RUNNING), (LEASE + 2, None)]
)
def test_a_lease_expires_when_the_expirys_own_wall_is_past_the_deadline(
    story: Story, wall: int, reason: Reason | None
) -> None:
    # The log's own wall clock is hours past every one of these deadlines, and is not asked.
    story.schedule()
    story.claim(A, 1)
    assert START + LEASE + 2 < NOW
    expiry = story.say(C, wall, ExpireWork(J, NODES[A], ""))
    assert story.reason(expiry) is reason
    assert story.job().state is (State.CLAIMED if reason else State.PENDING)


@pytest.mark.req("LW-06")
def test_an_expiry_names_the_holder(story: Story) -> None:
    story.schedule()
    story.claim(A, 1)
    wrong = story.say(B, 5_000, ExpireWork(J, NODES[B], ""))
    assert story.reason(wrong) is Reason.NOT_CLAIMER


@pytest.mark.req("LW-06")
def test_several_expiries_change_no_more_than_one(story: Story) -> None:
    story.schedule()
    story.claim(A, 1)
    story.say(A, 5_000, ExpireWork(J, NODES[A], ""))
    once = story.job()
    others = [story.say(node, 5_001, ExpireWork(J, NODES[A], "")) for node in (A, B, C)]
    assert {story.reason(op) for op in others} == {Reason.NOT_CLAIMED}
    job = story.job()
    assert (job.state, job.returns, job.fence, job.ready_at) == (once.state, 1, once.fence, once.ready_at)


@pytest.mark.req("LW-07")
def test_a_slow_nodes_late_expiry_is_measured_by_the_hlc() -> None:
    """The log's wall stands before the deadline; an expiry whose HLC is past it counts all the same."""
    story = Story()
    story.schedule()
    story.claim(A, 1, lease=60_000)
    expiry = story.say(B, 60_002, ExpireWork(J, NODES[A], ""))
    log = new_log(wall=Clock(START + 10))
    log.admit(sent([*INTRODUCTIONS, *story.ops]))
    with log.store.read() as session:
        row = session.op(expiry.id)
        assert row is not None and row.reason == 0
        assert session.overdue(START + 60_001, 10) == []


@pytest.mark.req("LW-08")
@pytest.mark.parametrize("cites", [True, False])
def test_a_fresh_claim_before_the_deadline_renews(story: Story, cites: bool) -> None:
    story.schedule()
    first = story.claim(A, 1)
    again = story.claim(A, 1 + LEASE, lease=500, cites=first if cites else None)
    assert story.reason(again) is None
    job = story.job()
    assert (job.fence, job.claimer, job.claim_op, job.deadline) == (1, NODES[A], first.id, START + 1 + LEASE + 500)
    expiry = story.say(B, LEASE + 502, ExpireWork(J, NODES[A], ""))
    assert story.reason(expiry) is None


@pytest.mark.req("LW-08")
def test_a_fresh_claim_after_the_deadline_does_not_renew(story: Story) -> None:
    story.schedule()
    first = story.claim(A, 1)
    late = story.claim(A, 2 + LEASE, cites=first)
    assert story.reason(late) is Reason.LEASE_PASSED
    assert story.job().deadline == START + 1 + LEASE


@pytest.mark.req("LW-09")
def test_the_smaller_hlc_wins(story: Story) -> None:
    story.schedule()
    low, high = (A, B) if NODES[A] < NODES[B] else (B, A)
    loser = story.claim(high, 5)
    winner = story.claim(low, 5)
    assert (story.reason(winner), story.reason(loser)) == (None, Reason.ALREADY_CLAIMED)
    assert story.job().claimer == NODES[low]
    earlier = story.claim(C, 4)
    assert (story.reason(earlier), story.reason(winner)) == (None, Reason.ALREADY_CLAIMED)
    assert (story.job().claimer, story.job().fence) == (NODES[C], 1)


@pytest.mark.req("LW-09")
def test_the_logical_part_decides_before_the_node(story: Story) -> None:
    story.schedule()
    low, high = (A, B) if NODES[A] < NODES[B] else (B, A)
    story.say(low, 5, ClaimWork(J, NODES[low], LEASE), logical=1)
    story.say(high, 5, ClaimWork(J, NODES[high], LEASE), logical=0)
    assert story.job().claimer == NODES[high]


@pytest.mark.req("LW-10")
def test_two_ops_at_one_time_are_both_out_and_it_shows(story: Story) -> None:
    story.schedule()
    one = story.claim(A, 5)
    two = story.say(A, 5, CancelJob(J, ""))
    later = story.claim(B, 6)
    log = story.log()
    assert story.job().claimer == NODES[B]
    with log.store.read() as session:
        assert [Reason(session.op(op.id).reason) for op in (one, two)] == [Reason.INTEGRITY] * 2  # type: ignore[union-attr]
        assert session.op(later.id).reason == 0  # type: ignore[union-attr]
        assert {row.id for row in session.refused_ops(10)} == {one.id, two.id}
        assert session.refusal_counts() == {Reason.INTEGRITY: 2}


@pytest.mark.req("LW-10")
def test_a_third_at_the_same_time_is_out_too(story: Story) -> None:
    story.schedule()
    three = [story.claim(A, 5), story.claim(A, 5), story.claim(A, 5)]
    assert {story.reason(op) for op in three} == {Reason.INTEGRITY}
    assert story.job().state is State.PENDING


@pytest.mark.req("LW-11")
def test_a_loser_is_not_told_to_try_again_and_writes_nothing() -> None:
    log = new_log(key=KEYS[A])
    story = Story()
    story.schedule()
    story.claim(B, 1, lease=60_000_000)
    log.admit(sent([*INTRODUCTIONS, *story.ops]))

    def length() -> int:
        with log.store.read() as session:
            return session.head().seq

    before = length()
    for _ in range(5):
        claims = log.run(lambda tx: claiming.claim(tx, 1, 10, lambda kind: LEASE))
        assert claims == claiming.Claims([], None)
    assert length() == before


@pytest.mark.req("LW-12")
def test_a_route_admits_one_node_until_it_is_cleared(story: Story) -> None:
    story.schedule()
    story.say(A, 1, RouteKind(KIND, NODES[B]))
    refused = story.claim(A, 2)
    taken = story.claim(B, 3)
    assert (story.reason(refused), story.reason(taken)) == (Reason.ROUTED_ELSEWHERE, None)
    story.say(B, 4, YieldWork(J, NODES[B], ""), (taken.id,))
    story.say(A, 5, RouteKind(KIND, None))
    assert story.reason(story.claim(A, 6)) is None


@pytest.mark.req("LW-12", "LW-19")
def test_a_route_of_a_prefix_admits_one_node_to_the_kinds_below_it(story: Story) -> None:
    """A kind's own route goes before, a longer prefix before a shorter one, and clearing one frees the next."""
    story.say(A, 0, ScheduleJob(J, "acme.film.cut", b"", b""))
    story.say(A, 1, RouteKind("acme.", NODES[B]))
    assert story.reason(story.claim(A, 2)) is Reason.ROUTED_ELSEWHERE
    story.say(A, 3, RouteKind("acme.film.", NODES[C]))
    assert story.reason(story.claim(B, 4)) is Reason.ROUTED_ELSEWHERE
    story.say(A, 5, RouteKind("acme.film.cut", NODES[A]))
    assert story.reason(story.claim(C, 6)) is Reason.ROUTED_ELSEWHERE
    story.say(A, 7, RouteKind("acme.film.cut", None))
    story.say(A, 8, RouteKind("acme.film.", None))
    assert story.reason(story.claim(A, 9)) is Reason.ROUTED_ELSEWHERE
    assert story.reason(story.claim(B, 10)) is None


@pytest.mark.req("LW-12")
def test_a_renewal_is_a_claim_and_minds_the_route(story: Story) -> None:
    story.schedule()
    first = story.claim(A, 1)
    story.say(C, 2, RouteKind(KIND, NODES[B]))
    assert story.reason(story.claim(A, 3, cites=first)) is Reason.ROUTED_ELSEWHERE
    done = story.say(A, 4, DONE, (first.id,))
    assert story.reason(done) is None


@pytest.mark.req("LW-15")
def test_an_op_waits_for_what_it_cites_and_then_counts_by_itself(story: Story) -> None:
    story.schedule()
    story.claim(A, 1)
    cited = story.say(B, 2, RouteKind("other", None))
    done = story.say(A, 3, DONE, (cited.id,))
    log = new_log()
    log.admit(sent([*INTRODUCTIONS, *(op for op in story.ops if op is not cited)]))
    with log.store.read() as session:
        assert session.op(done.id).reason == Reason.WAITING  # type: ignore[union-attr]
        assert session.job(J).job.state is State.CLAIMED  # type: ignore[union-attr]
    admission = log.admit(sent([cited]))
    assert admission.appended == 1
    with log.store.read() as session:
        assert session.op(done.id).reason == 0  # type: ignore[union-attr]
        assert session.job(J).job.outcome is Outcome.SUCCEEDED  # type: ignore[union-attr]


@pytest.mark.req("LW-15")
def test_waiting_is_passed_on_along_a_chain(story: Story) -> None:
    chain = [story.say(A, 1, RouteKind("k0", None))]
    for number in range(1, 6):
        chain.append(story.say(A, 1 + number, RouteKind(f"k{number}", None), (chain[-1].id,)))
    log = new_log()
    log.admit(sent([*INTRODUCTIONS, *chain[1:]]))
    with log.store.read() as session:
        assert {session.op(op.id).reason for op in chain[1:]} == {Reason.WAITING}  # type: ignore[union-attr]
    log.admit(sent(chain[:1]))
    with log.store.read() as session:
        assert {session.op(op.id).reason for op in chain} == {0}  # type: ignore[union-attr]


@pytest.mark.req("LW-15")
def test_what_cites_a_rejected_op_is_rejected(story: Story) -> None:
    story.schedule()
    story.claim(A, 1)
    lost = story.claim(B, 2)
    leaning = story.say(B, 3, RouteKind("k", None), (lost.id,))
    assert story.reason(leaning) is Reason.DEPENDENCY_REJECTED


@pytest.mark.req("LW-16")
def test_a_circle_of_citations_is_rejected(story: Story) -> None:
    story.schedule()
    story.claim(A, 1)
    first = story.say(A, 2, YieldWork(J, NODES[A], ""), (op_id(77),))
    second = story.say(A, 3, DONE, (first.id,), number=77)
    itself = story.say(A, 4, DONE, (op_id(78),), number=78)
    assert story.reason(first) is Reason.DEPENDENCY_CYCLE
    assert story.reason(second) is Reason.DEPENDENCY_REJECTED
    assert story.reason(itself) is Reason.DEPENDENCY_CYCLE
    assert story.job().state is State.CLAIMED


@pytest.mark.req("LW-16", "LW-41")
def test_a_submit_can_only_come_after_jobs_that_are_there() -> None:
    log = new_log()
    with pytest.raises(Usage):
        log.run(lambda tx: jobs.submit(tx, [jobs.Draft(KIND, b"{}", Policy(after=(ulid_text(J),)), J)]))
    with log.store.read() as session:
        assert session.head().seq == 0


@pytest.mark.req("LW-17")
def test_the_roster_answers_its_three_questions() -> None:
    story = Story()
    ready, routed, held, late, done, other = (job_id(n) for n in range(10, 16))
    for number, job in enumerate((ready, routed, held, late, done)):
        story.schedule(number, job, kind="routed" if job == routed else KIND)
    story.schedule(6, other, kind="another")
    story.say(A, 7, RouteKind("routed", NODES[B]))
    story.claim(A, 10, lease=100_000_000, job=held)
    story.claim(A, 10, lease=20, job=late)
    log = new_log(key=KEYS[A])
    story.say(B, 11, ClaimWork(done, NODES[B], LEASE))
    story.say(B, 12, CompleteJob(done, (), (), Telemetry(1)))
    # A second op of one node at one time would be out; these stand a logical tick apart.
    ops = [op if op.payload != ClaimWork(late, NODES[A], 20) else _moved(op, 1) for op in story.ops]
    log.admit(sent([*INTRODUCTIONS, *ops]))

    def ask(tx: object) -> None:
        session = tx.session  # type: ignore[attr-defined]
        states = {job: session.job(job).job.state for job in (ready, held, late, done)}
        assert states == {
            ready: State.PENDING,
            held: State.CLAIMED,
            late: State.CLAIMED,
            done: State.COMPLETED,
        }
        assert session.job(job_id(99)) is None
        assert [entry.job.id for entry, _ in session.ready(KIND, 10)] == [ready]
        assert [entry.job.id for entry, _ in session.ready("routed", 10)] == [routed]
        assert tx.admits(KIND) and not tx.admits("routed")  # type: ignore[attr-defined]
        assert [entry.job.id for entry in session.overdue(START + 31, 10)] == [late]
        assert session.overdue(START + 30, 10) == []

    log.run(ask)
    taken = log.run(lambda tx: claiming.claim(tx, 1, 10, lambda kind: LEASE if kind in (KIND, "routed") else None))
    assert [claim.job.id for claim in taken.taken] == [ready]


def _moved(op: Op, logical: int) -> Op:
    return Op(op.id, op.timestamp._replace(logical=logical), op.node_id, op.causal_deps, op.payload)


@pytest.mark.req("LW-37")
def test_the_fence_counts_first_claims_in_hlc_order(story: Story) -> None:
    story.schedule()
    wall = 1
    for fence in range(1, 6):
        node = fence % 3
        claim = story.claim(node, wall)
        story.claim(node, wall + 1, cites=claim)
        assert story.job().fence == fence
        story.say(node, wall + 2, YieldWork(J, NODES[node], ""), (claim.id,))
        wall += 100_000
    # A claim that comes to light late moves every fence behind it.
    story.ops.insert(0, story.ops[-1])
    story.claim(C, wall)
    assert story.job().fence == 6


@pytest.mark.req("LW-37")
@pytest.mark.parametrize("late", ["complete", "yield", "fail", "renew", "report", "checkpoint"])
def test_what_cites_an_older_claim_of_the_same_node_is_rejected(story: Story, late: str) -> None:
    story.schedule()
    old = story.claim(A, 1)
    story.say(B, 2_000, ExpireWork(J, NODES[A], ""))
    new = story.claim(A, 2_001)
    payload = {
        "complete": DONE,
        "yield": YieldWork(J, NODES[A], ""),
        "fail": FailWork(J, NODES[A], "", "", True),
        "renew": ClaimWork(J, NODES[A], 9_999),
        "report": ReportProgress(J, NODES[A], b"old"),
        "checkpoint": SaveCheckpoint(J, NODES[A], b"old"),
    }[late]
    op = story.say(A, 2_002, payload, (old.id,))
    assert story.reason(op) is Reason.STALE_CLAIM
    job = story.job()
    assert (job.state, job.claim_op, job.fence, job.deadline, job.progress) == (
        State.CLAIMED,
        new.id,
        2,
        START + 2_001 + LEASE,
        None,
    )
    done = story.say(A, 2_003, DONE, (new.id,))
    assert story.reason(done) is None


@pytest.mark.req("LW-37")
def test_a_renewal_of_a_hold_that_has_ended_is_no_new_hold(story: Story) -> None:
    story.schedule()
    old = story.claim(A, 1)
    story.say(B, 2_000, ExpireWork(J, NODES[A], ""))
    renewal = story.claim(A, 2_001, cites=old)
    assert story.reason(renewal) is Reason.STALE_CLAIM
    assert (story.job().state, story.job().fence) == (State.PENDING, 1)


@pytest.mark.req("LW-37")
def test_a_claim_on_another_job_is_not_an_older_claim_on_this_one(story: Story) -> None:
    other = job_id(2)
    story.schedule()
    story.schedule(1, other)
    claim = story.claim(A, 2)
    elsewhere = story.claim(A, 3, job=other)
    done = story.say(A, 4, DONE, (elsewhere.id,))
    assert claim.id != elsewhere.id
    assert story.reason(done) is None


@pytest.mark.req("LW-37")
def test_handlers_get_the_fence_of_their_claim() -> None:
    log = new_log(wall=(clock := Clock()))
    log.run(lambda tx: jobs.submit(tx, [jobs.Draft(KIND, b"{}", Policy())]))
    fences = []
    for _ in range(3):
        claim = log.run(lambda tx: claiming.claim(tx, 1, 1, lambda kind: LEASE)).taken[0]
        fences.append(claim.job.fence)
        clock.now += LEASE + 1
        assert log.run(lambda tx: rescue.expire(tx, 10)) == 1
        held = jobs.Held(claim.job.id, claim.job.claim_op or b"")
        assert log.run(lambda tx, held=held: jobs.complete(tx, held, None, 1)) is Reason.STALE_CLAIM
    assert fences == [1, 2, 3]


@pytest.mark.req("LW-41")
def test_not_before(story: Story) -> None:
    story.schedule(not_before=START + 500)
    assert story.reason(story.claim(A, 499)) is Reason.TOO_EARLY
    assert story.reason(story.claim(A, 500)) is None


@pytest.mark.req("LW-41")
def test_retries_with_backoff_and_then_the_end(story: Story) -> None:
    story.schedule(retries=2, backoff_ms=1_000, backoff_max_ms=1_600)
    wall, rests = 1, []
    for failures in (1, 2, 3):
        claim = story.claim(A, wall)
        failed = story.say(A, wall + 1, FailWork(J, NODES[A], "boom", "Traceback", True), (claim.id,))
        job = story.job()
        assert (story.reason(failed), job.failures, job.error_op) == (None, failures, failed.id)
        rests.append(job.ready_at - START - wall - 1)
        wall = job.ready_at - START
    assert 1_000 <= rests[0] < 1_500
    assert rests[1] == 1_600
    assert (job.state, job.outcome) == (State.COMPLETED, Outcome.FAILED)
    story.say(B, 900_000, RetryJob(J, "again"))
    job = story.job()
    assert (job.state, job.outcome, job.failures, job.fence, job.ready_at) == (State.PENDING, None, 0, 3, 0)


@pytest.mark.req("LW-41")
def test_the_jitter_is_the_same_for_everybody_and_differs_from_op_to_op() -> None:
    rests = set()
    for number in range(20):
        story = Story()
        story.schedule(backoff_ms=100_000)
        claim = story.claim(A, 1)
        story.say(A, 2, FailWork(J, NODES[A], "", "", True), (claim.id,), number=500 + number)
        assert story.job() == story.job()
        rests.add(story.job().ready_at - START - 2)
    assert len(rests) > 15 and min(rests) >= 100_000 and max(rests) < 150_000


@pytest.mark.req("LW-41")
def test_a_failure_that_forbids_a_retry_is_the_end(story: Story) -> None:
    story.schedule(retries=5)
    story.claim(A, 1)
    story.say(A, 2, FailWork(J, NODES[A], "", "", False))
    assert story.job().outcome is Outcome.FAILED


@pytest.mark.req("LW-41")
def test_a_job_that_kills_its_workers_rests_ever_longer_and_fails_at_last(story: Story) -> None:
    story.schedule()
    wall = 1
    rests = []
    for returns in range(1, RETURNS_MAX + 1):
        claim = story.claim(A, wall)
        story.say(A, wall + 1, YieldWork(J, NODES[A], ""), (claim.id,))
        if returns in (1, 3, 4, 5, 6, 12, RETURNS_MAX - 1, RETURNS_MAX):
            job = story.job()
            assert job.returns == returns
            rests.append(max(0, job.ready_at - START - wall - 1))
        wall += 100_000
    assert rests[:-1] == [0, 0, 1_000, 2_000, 4_000, 60_000, 60_000]
    assert (job.outcome, job.fence) == (Outcome.FAILED, RETURNS_MAX)


@pytest.mark.req("LW-41")
def test_a_job_that_its_workers_did_not_start_is_neither_failed_nor_delayed_for_it(story: Story) -> None:
    story.schedule()
    for returns in range(RETURNS_MAX + 1):
        claim = story.claim(A, returns * 10 + 1)
        story.say(A, returns * 10 + 2, YieldWork(J, NODES[A], UNSTARTED), (claim.id,))
    job = story.job()
    assert (job.state, job.returns, job.ready_at, job.fence) == (State.PENDING, 0, 0, RETURNS_MAX + 1)


@pytest.mark.req("LW-41")
def test_cancel_of_a_pending_and_of_a_running_job(story: Story) -> None:
    story.schedule()
    story.say(B, 1, CancelJob(J, "not wanted"))
    assert story.job().outcome is Outcome.CANCELLED
    story.say(B, 2, RetryJob(J, ""))
    claim = story.claim(A, 3)
    story.say(B, 4, CancelJob(J, ""))
    late = story.say(A, 5, DONE, (claim.id,))
    assert story.reason(late) is Reason.COMPLETED
    assert (story.job().outcome, story.job().deadline) == (Outcome.CANCELLED, None)


@pytest.mark.req("LW-41")
def test_a_job_begins_only_after_the_success_of_those_before(story: Story) -> None:
    before = job_id(2)
    story.schedule(0, before)
    story.schedule(1, after=(ulid_text(before),))
    early = story.claim(B, 2)
    hold = story.claim(A, 3, job=before)
    story.say(A, 4, CompleteJob(before, (), (), Telemetry(1)), (hold.id,))
    assert story.reason(early) is Reason.AFTER_UNMET
    assert story.reason(story.claim(B, 5)) is None
    # An earlier success that comes to light late lets the early claim count.
    story.ops.remove(hold)
    again = story.claim(C, 1, job=before)
    story.say(C, 1, CompleteJob(before, (), (), Telemetry(1)), (again.id,), logical=1)
    assert story.reason(early) is None


@pytest.mark.req("LW-22")
def test_a_time_with_a_spent_counter_is_heard_and_stops_only_the_writing() -> None:
    log = new_log(key=KEYS[A], wall=(clock := Clock(START)))
    ahead = Story()
    ahead.say(B, 50, ScheduleJob(J, KIND, b"", b""), logical=U32_MAX)
    after = ahead.say(C, 60, RouteKind("k", None))
    assert log.admit(sent([*INTRODUCTIONS, ahead.ops[0]])).appended == 4
    draft = [jobs.Draft(KIND, b"{}", Policy(priority=1))]
    with pytest.raises(StoreError):
        log.run(lambda tx: jobs.submit(tx, draft))
    assert log.admit(sent([after])).appended == 1
    clock.now = START + 61
    assert log.run(lambda tx: jobs.submit(tx, draft))[0].created


@pytest.mark.touches("LW-02")
def test_a_first_claim_after_the_ttl_does_not_count(story: Story) -> None:
    story.schedule(ttl_ms=1_000)
    assert story.job().begin_by == START + 1_000
    late = story.claim(A, 1_001)
    assert story.reason(late) is Reason.TTL_PASSED and story.job().state is State.PENDING
    in_time = story.claim(B, 1_000)
    assert story.reason(in_time) is None, "whatever came first: the time of the op decides"
    assert story.job().begin_by is None


def test_a_job_that_was_begun_in_time_may_begin_again_later(story: Story) -> None:
    story.schedule(ttl_ms=1_000)
    claim = story.claim(A, 1)
    story.say(A, 2, YieldWork(J, NODES[A], "going to sleep"), (claim.id,))
    assert story.reason(story.claim(B, 5_000)) is None


def test_a_retry_gives_the_whole_ttl_again(story: Story) -> None:
    story.schedule(ttl_ms=1_000)
    story.say(A, 2_000, CancelJob(J, "too late"))
    assert story.job().begin_by is None
    story.say(A, 3_000, RetryJob(J, "again"))
    assert story.job().begin_by == START + 4_000
    assert story.reason(story.claim(A, 4_001)) is Reason.TTL_PASSED
    assert story.reason(story.claim(B, 4_000)) is None


@pytest.mark.req("LW-41")
def test_a_pending_job_starts_when_the_last_word_says(story: Story) -> None:
    story.schedule(not_before=START + 100)
    story.say(B, 1, PostponeJob(J, START + 5_000, "later"))
    assert story.reason(story.claim(A, 4_999)) is Reason.TOO_EARLY
    story.say(C, 4_999, PostponeJob(J, START + 2_000, "a time that has passed means now"))
    assert story.job().ready_at == START + 4_999
    assert story.reason(story.claim(A, 5_000)) is None


@pytest.mark.req("LW-41")
def test_the_next_try_of_a_job_is_moved(story: Story) -> None:
    story.schedule(backoff_ms=60_000)
    claim = story.claim(A, 1)
    story.say(A, 2, FailWork(J, NODES[A], "no disk", "", True), (claim.id,))
    story.say(B, 3, PostponeJob(J, 0, "there is one now"))
    assert (story.job().ready_at, story.job().failures) == (START + 3, 1)
    again = story.claim(B, 4)
    assert story.reason(again) is None and story.job().fence == 2
    story.say(B, 5, FailWork(J, NODES[B], "", "", True), (again.id,))
    assert story.job().ready_at > START + 60_000, "the next failure rests as ever"


@pytest.mark.req("LW-41")
def test_a_job_that_runs_or_has_ended_is_not_moved(story: Story) -> None:
    unknown = story.say(B, 0, PostponeJob(job_id(7), 0, ""))
    story.schedule(1)
    claim = story.claim(A, 2)
    held = story.say(B, 3, PostponeJob(J, START + 9_000, ""))
    story.say(A, 4, DONE, (claim.id,))
    ended = story.say(B, 5, PostponeJob(J, START + 9_000, ""))
    assert story.reason(unknown) is Reason.UNKNOWN_JOB
    assert story.reason(held) is Reason.ALREADY_CLAIMED and story.reason(ended) is Reason.COMPLETED
    assert story.job().outcome is Outcome.SUCCEEDED


def test_a_start_beyond_what_numbers_hold_is_refused(story: Story) -> None:
    story.schedule()
    assert story.reason(story.say(B, 1, PostponeJob(J, 2**53 + 1, ""))) is Reason.BAD_DELAY
    assert story.reason(story.say(B, 2, PostponeJob(J, 2**53, ""))) is None
    assert story.job().ready_at == 2**53


def test_the_ttl_counts_from_the_new_start(story: Story) -> None:
    story.schedule(ttl_ms=1_000)
    story.say(B, 1, PostponeJob(J, START + 5_000, ""))
    assert story.job().begin_by == START + 6_000
    assert story.reason(story.claim(A, 6_001)) is Reason.TTL_PASSED
    claim = story.claim(A, 6_000)
    story.say(A, 6_001, YieldWork(J, NODES[A], ""), (claim.id,))
    story.say(B, 6_002, PostponeJob(J, START + 7_000, ""))
    assert story.job().begin_by is None, "a job that was begun has no such limit"
