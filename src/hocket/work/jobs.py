"""What a node can do with jobs, each as a request that runs inside one transaction of the log: submit, claim, renew,
finish, fail, hand back, expire, cancel, retry. This module decides what spans jobs (unique keys, limits, order of the
queue), because only the transaction sees all of them at once; the roster decides what concerns one job alone.
"""

import heapq
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from msgspec.structs import replace

from hocket.errors import Conflict, NotAuthorised, Usage
from hocket.kernel.availability import allows
from hocket.kernel.ids import content_hash, ulid_text
from hocket.kernel.kinds import with_defaults
from hocket.kernel.ops import NO_ID, Op, decode
from hocket.kernel.policy import DEFAULT, Policy, Rate, encode_policy
from hocket.kernel.reasons import UNAUTHORISED, Reason
from hocket.kernel.roster import Job, Outcome, State
from hocket.kernel.subjects import JOB, Subject, subject_of
from hocket.kernel.vocabulary import (
    AcceptOffer,
    AcceptWork,
    CancelJob,
    ClaimWork,
    CompleteJob,
    ExpireWork,
    FailWork,
    Payload,
    PostponeWork,
    ReportProgress,
    RetryJob,
    SaveCheckpoint,
    ScheduleJob,
    Telemetry,
    YieldWork,
    number_of,
)
from hocket.log import SETTLE_STEP, Transaction
from hocket.store import JobEntry
from hocket.work.run_outputs import NOTHING, Content, WrittenOutputs, creation

KIND = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
KIND_LENGTH_MAX = 255
PAYLOAD_BYTES_MAX = 1024 * 1024
RESULT_BYTES_MAX = 1024 * 1024
RESULT_TYPE = "hocket.result"
NEVER = 2**62
# Within this, the node's clock counts as right.
CLOCK_AHEAD_MS = 1_000
# How many unsuitable jobs a claim skips at most.
LOOKED_AT_MAX = 5_000
_ENDS = tuple(number_of(end) for end in (CompleteJob, FailWork, PostponeWork, YieldWork))


class Draft(NamedTuple):
    """A job to submit. `payload` is JSON; `job_id` is set only if every submitter must use the same id. `said` are the
    members of the policy that the submitter has chosen, even if they have Hocket's default; the kind decides the
    others.
    """

    kind: str
    payload: bytes
    policy: Policy
    job_id: bytes | None = None
    said: frozenset[str] = frozenset()


class Submitted(NamedTuple):
    """`created` is False if a job with the unique key, or with the id, already existed."""

    job_id: bytes
    created: bool


class Claim(NamedTuple):
    """A claimed job. `schedule` is the encoded op that carries the payload."""

    job: Job
    schedule: bytes


class Offer(NamedTuple):
    """An op about a job that counts if the arbiter, another node, accepts it."""

    op_id: bytes
    job_id: bytes


class OfferedClaim(NamedTuple):
    """A claim that is offered to the arbiter. `schedule` is the encoded op that carries the payload; `lease_ms` is the
    requested lease.
    """

    offer: Offer
    schedule: bytes
    lease_ms: int


class Claims(NamedTuple):
    """The claimed jobs, the offered claims, and when to try again: None to wait for a hint."""

    taken: list[Claim]
    again_at: int | None
    wanted: list[OfferedClaim] = []  # noqa: RUF012


class Held(NamedTuple):
    """A job, and the claim that holds it."""

    job_id: bytes
    claim_op: bytes


# The result of an op about a job: the job after it, the reason why it was not written, or an offer to the arbiter.
Result = Job | Reason | Offer


def check_kind(kind: str) -> str:
    if len(kind) > KIND_LENGTH_MAX or not KIND.fullmatch(kind):
        raise Usage(
            f"illegal kind {kind!r}; use letters, digits, '-' and '_' in parts joined by dots, like acme.render,"
            f" at most {KIND_LENGTH_MAX} characters"
        )
    return kind


def submit(tx: Transaction, drafts: Sequence[Draft]) -> list[Submitted]:
    """Submits all of them or, if one is refused, none."""
    return [_submit(tx, draft) for draft in drafts]


def _submit(tx: Transaction, draft: Draft) -> Submitted:
    tx.check_outbox()
    policy = with_defaults(draft.policy, draft.said, tx.projection.defaults(draft.kind))
    if draft.job_id is not None and tx.projection.jobs.entry(draft.job_id) is not None:
        return Submitted(draft.job_id, created=False)
    if policy.unique is not None:
        holder = _unique_holder(tx, draft.kind, policy)
        if holder is not None:
            return Submitted(holder, created=False)
    deps = tuple(_dependency(tx, job_id).schedule_op for job_id in policy.dependencies()) if policy.after else ()
    policy = _in_node_time(tx, policy)
    schedule = ScheduleJob(draft.job_id or NO_ID, draft.kind, draft.payload, encode_policy(policy))
    op = tx.author(schedule, deps)
    if op in UNAUTHORISED:
        raise NotAuthorised(f"this node may not submit {draft.kind} jobs: {op.sentence}")
    if isinstance(op, Reason):
        raise Usage(f"this {draft.kind} job cannot be submitted: {op.sentence}")
    return Submitted(draft.job_id or op.id, created=True)


def _in_node_time(tx: Transaction, policy: Policy) -> Policy:
    """A job waits until a time of the real day, but the node's clock decides when that is. While that clock is ahead it
    runs at half speed, until the real time has caught up.
    """
    if policy.not_before is None or tx.now - tx.physical <= CLOCK_AHEAD_MS:
        return policy
    left = max(0, policy.not_before - tx.physical)
    return replace(policy, not_before=max(policy.not_before, tx.now + left // 2))


def _unique_holder(tx: Transaction, kind: str, policy: Policy) -> bytes | None:
    assert policy.unique is not None
    tx.session.lock_subjects((Subject("unique key", policy.unique.encode()),))
    tx.projection.flush()
    for entry in tx.session.jobs_by_unique_key(policy.unique):
        job = entry.job
        recent = policy.unique_for_ms is not None and job.scheduled.wall + policy.unique_for_ms > tx.now
        if job.kind == kind and (job.state is not State.COMPLETED or recent):
            return job.id
    return None


def _dependency(tx: Transaction, job_id: bytes) -> Job:
    entry = tx.projection.jobs.entry(job_id)
    if entry is None:
        raise Usage(f"no job {ulid_text(job_id)} to come after")
    if entry.job.outcome in (Outcome.FAILED, Outcome.CANCELLED):
        raise Conflict(
            f"job {ulid_text(job_id)} has {'failed' if entry.job.outcome is Outcome.FAILED else 'been cancelled'};"
            " nothing can come after it until it is retried"
        )
    return entry.job


def claim(
    tx: Transaction,
    worker: int,
    limit: int,
    lease_of: Callable[[str], int | None],
    offering: bool = False,
    wants: Callable[[Job, bytes], bool] = lambda job, schedule: True,
) -> Claims:
    """Claims up to `limit` jobs, the most urgent first, of the kinds for which `lease_of` returns a lease. Takes only
    jobs that the claimer `wants`, by the job and the op that carries the payload. Skips jobs that another node
    arbitrates unless `offering`; then it offers claims on them.
    """
    tx.settle(SETTLE_STEP)
    tx.projection.flush()
    tx.session.promote(tx.now)
    leases = {kind: lease_of(kind) for kind in tx.session.ready_kinds()}
    kinds = [kind for kind, lease in leases.items() if limit and lease is not None and tx.admits(kind)]
    # Jobs with a claim that waits for the arbiter stay ready; later claims skip them.
    offered = tx.session.offered_jobs() if kinds else set()
    taken: list[Claim] = []
    wanted: list[OfferedClaim] = []
    turns: list[int] = []
    roster = tx.projection.jobs
    claims_all = tx.decides(DEFAULT) or (offering and not tx.is_uninformed)
    for entry, schedule in _by_urgency(tx, kinds, limit + len(offered)):
        job = roster.know(entry).job
        if job.id in offered or not (claims_all or job.policy.open):
            continue
        body = schedule or tx.body(job.schedule_op)
        if not wants(job, body):
            continue
        turn = _turn(tx, job)
        if turn > tx.now:
            turns.append(turn)
            continue
        lease_ms = job.policy.lease_ms or leases[job.kind]
        assert lease_ms is not None
        op = tx.author(ClaimWork(job.id, tx.node, lease_ms))
        if isinstance(op, Reason):
            continue
        if tx.is_offer(op):
            tx.session.put_offer(op.id, job.id, worker)
            wanted.append(OfferedClaim(Offer(op.id, job.id), body, lease_ms))
        else:
            taken.append(Claim(roster.assign(job.id, worker), body))
        if len(taken) + len(wanted) == limit:
            return Claims(taken, tx.now, wanted)
    again = [*turns, tx.session.next_ready_at(), tx.now if tx.unsettled else None]
    return Claims(taken, _earliest(again), wanted)


def take(tx: Transaction, draft: Draft, worker: int, lease_ms: int) -> Claim:
    """Submits a job that is decided outside the log, and claims it at once, for the log."""
    assert draft.policy.open
    job_id = _submit(tx, draft).job_id
    _must(tx.author(ClaimWork(job_id, tx.node, lease_ms)), job_id)
    job = tx.projection.jobs.assign(job_id, worker)
    return Claim(job, tx.body(job.schedule_op))


def _by_urgency(tx: Transaction, kinds: list[str], page: int) -> Iterator[tuple[JobEntry, bytes | None]]:
    """The ready jobs of those kinds, each with its ScheduleJob op, up to a limit. Reads page by page, since the first
    jobs may be for other workers.
    """

    def of(kind: str) -> Iterator[tuple[JobEntry, bytes | None]]:
        last: JobEntry | None = None
        while rows := tx.session.take_ready(kind, page, last):
            yield from rows
            if len(rows) < page:
                return
            last = rows[-1][0]

    urgency = lambda row: (-row[0].job.policy.priority, row[0].job.scheduled)  # noqa: E731
    return islice(heapq.merge(*map(of, kinds), key=urgency), page + LOOKED_AT_MAX)


def _earliest(times: list[int | None]) -> int | None:
    return min((each for each in times if each is not None and each < NEVER), default=None)


def _turn(tx: Transaction, job: Job) -> int:
    """When the limits that this job states, or else those of its kind, leave room for one more: now, or later."""
    defaults = tx.projection.defaults(job.kind)
    concurrency, rate = job.policy.concurrency or defaults.concurrency, job.policy.rate or defaults.rate
    if concurrency is not None or rate is not None:
        tx.session.lock_subjects((Subject("limit", job.kind.encode()),))
    if concurrency is not None:
        tx.projection.flush()
        if tx.session.claimed_count(job.kind) >= concurrency:
            return NEVER
    return tx.now if rate is None else _next_turn(tx, job.kind, rate)


def _next_turn(tx: Transaction, kind: str, rate: Rate) -> int:
    """Takes the turn if it is now."""
    turn, due = turn_at(tx.session.rate(kind), tx.now, rate)
    if turn <= tx.now:
        tx.session.set_rate(kind, due)
    return turn


def turn_at(used_until: int, now_ms: int, rate: Rate) -> tuple[int, int]:
    """Evenly spaced turns, with room for a burst of `count` after a rest: `used_until` is when the turns taken so far
    are used up, in microseconds. Returns when the next turn is, and until when the turns are used up with it.
    """
    spacing = rate.per_ms * 1000 // rate.count
    now = now_ms * 1000
    due = max(used_until, now)
    early = due - now - (rate.per_ms * 1000 - spacing)
    return (now_ms + 1 + early // 1000 if early > 0 else now_ms), due + spacing


def renew(tx: Transaction, held: Held, lease_ms: int) -> Result:
    entry = tx.projection.jobs.entry(held.job_id)
    if entry is not None and _has_run_out(tx, entry.job):
        return Reason.LEASE_PASSED
    return _speak(tx, held, ClaimWork(held.job_id, tx.node, lease_ms))


def _has_run_out(tx: Transaction, job: Job) -> bool:
    """Whether this node is the arbiter of the job, and its machine's own clock has passed the deadline."""
    if job.policy.open or job.deadline is None or tx.projection.arbiter(tx.latest) != tx.node:
        return False
    return tx.physical > job.deadline


def complete(
    tx: Transaction, held: Held, result: bytes | None, duration_ms: int, made: WrittenOutputs = NOTHING
) -> Result:
    """Completes a job. A result goes on the log as an artifact, before the completion that names it. Besides the claim,
    the completion cites only records of model calls: it must also count on nodes that may not read artifacts.
    """
    artifacts = made.snapshots + made.artifacts
    if result is not None:
        stale = stale_claim(tx, held)
        if stale is not None:
            return stale
        content = Content(content_hash(result), len(result), result, None)
        payload = creation(NO_ID, RESULT_TYPE, held.job_id, (), content, None)
        written = tx.author(payload, made.records)
        if isinstance(written, Reason):
            return fail(tx, held, f"its result would not count: {written.sentence}", "", retry=False)
        artifacts = (*artifacts, written.id)
    completion = CompleteJob(held.job_id, made.claims, artifacts, Telemetry(duration_ms, None, None, None))
    return _speak(tx, held, completion, made.records)


def fail(tx: Transaction, held: Held, error: str, traceback: str, retry: bool) -> Result:
    """In a strict mesh a failure is a yield: Likewise v0.1 has no other op for it. The job is then retried as often as
    one that was handed back.
    """
    if tx.is_strict:
        return hand_back(tx, held, error)
    return _speak(tx, held, FailWork(held.job_id, tx.node, error, traceback, retry))


def hand_back(tx: Transaction, held: Held, reason: str) -> Result:
    return _speak(tx, held, YieldWork(held.job_id, tx.node, reason))


def postpone(tx: Transaction, held: Held, delay_ms: int, reason: str) -> Result:
    """In a strict mesh this is a yield without a delay: Likewise v0.1 has no other op for it."""
    if tx.is_strict:
        return hand_back(tx, held, reason)
    return _speak(tx, held, PostponeWork(held.job_id, tx.node, delay_ms, reason))


def report(tx: Transaction, held: Held, note: bytes) -> Result:
    return _speak(tx, held, ReportProgress(held.job_id, tx.node, note))


def checkpoint(tx: Transaction, held: Held, state: bytes) -> Result:
    return _speak(tx, held, SaveCheckpoint(held.job_id, tx.node, state))


WORKER_DIED = "its worker process died"
# Called with each job that goes back to the queue because its worker is gone, and the reason.
Rescued = Callable[[Job, str], None]


def _untold(job: Job, reason: str) -> None:
    pass


def expire(tx: Transaction, limit: int, rescued: Rescued = _untold) -> int:
    """Returns claimed jobs past their deadline to the queue, whichever node holds them. The arbiter waits until its own
    machine's clock has passed the deadline: by then the holder, which counts on its own clock, has stopped.
    """
    overdue = tx.session.take_overdue(tx.now, limit)
    return sum(_expire(tx, tx.projection.jobs.know(entry).job, rescued) for entry in overdue)


def expire_one(tx: Transaction, job_id: bytes, rescued: Rescued = _untold) -> bool:
    """The same for one job."""
    entry = tx.projection.jobs.entry(job_id)
    return entry is not None and (entry.job.deadline or NEVER) < tx.now and _expire(tx, entry.job, rescued)


def _expire(tx: Transaction, job: Job, rescued: Rescued) -> bool:
    if job.claimer is None or job.deadline is None or not tx.decides(job.policy):
        return False
    if not job.policy.open and tx.physical <= job.deadline:
        return False
    if isinstance(_author(tx, ExpireWork(job.id, job.claimer, "deadline_passed")), Reason):
        return False
    rescued(job, "its lease ran out")
    return True


def reclaim(tx: Transaction, dead: set[int], rescued: Rescued = _untold) -> int:
    """Returns the jobs of dead processes of this node to the queue, whatever their lease. `dead` are the workers of
    this node that were found dead; a worker that has registered since is not among them. Returns how many there were,
    without those that this node has offered to return before and on which the arbiter has not decided yet.
    """
    node = tx.node.to_bytes(8, "big")
    alive = {worker.number for worker in tx.session.workers(node)} - dead
    lost = [entry for entry in tx.session.take_claimed(node) if entry.worker not in alive]
    returned = 0
    for entry in lost:
        job = tx.projection.jobs.know(entry).job
        assert job.claim_op is not None
        if not _end_is_offered(tx, job):
            returned += 1
            _author(tx, YieldWork(job.id, tx.node, WORKER_DIED), (job.claim_op,))
            rescued(job, WORKER_DIED)
    for number in dead:
        tx.session.drop_worker(number)
        tx.session.drop_offers_of(number)
    return returned


def _end_is_offered(tx: Transaction, job: Job) -> bool:
    """Whether an earlier offer to end this hold still waits for the arbiter."""
    offered = [
        row
        for row in tx.session.ops_about(Subject(JOB, job.id))
        if row.reason == Reason.OFFERED and row.variant in _ENDS
    ]
    return any(job.claim_op in decode(row.body).cited for row in offered)


def cancel(tx: Transaction, job_id: bytes, reason: str) -> Job | Offer:
    """Raises Usage in a strict mesh."""
    if tx.is_strict:
        raise Usage(
            f"job {ulid_text(job_id)} cannot be cancelled: this is a strict mesh, and Likewise v0.1 has no op that"
            " cancels a job; let it run, or stop the workers of its kind"
        )
    op = _author(tx, CancelJob(job_id, reason))
    if op is Reason.COMPLETED:
        raise Conflict(f"job {ulid_text(job_id)} is completed already; there is nothing to cancel")
    return _said(tx, _must(op, job_id), job_id)


def call_off(tx: Transaction, job_id: bytes, reason: str) -> Job | Offer:
    """Cancels a job whose result is no longer needed. In a strict mesh it stays as it is."""
    return _job(tx, job_id) if tx.is_strict else cancel(tx, job_id, reason)


def retry(tx: Transaction, job_id: bytes, reason: str) -> Job | Offer:
    """Raises Usage in a strict mesh."""
    if tx.is_strict:
        raise Usage(
            f"job {ulid_text(job_id)} cannot be retried: this is a strict mesh, and Likewise v0.1 has no op that"
            " retries a job; submit it again"
        )
    entry = tx.projection.jobs.entry(job_id)
    for dependency in entry.job.policy.dependencies() if entry is not None else ():
        _dependency(tx, dependency)
    op = _author(tx, RetryJob(job_id, reason))
    if op is Reason.NOT_FAILED:
        job = _job(tx, job_id)
        state = "has succeeded" if job.outcome is Outcome.SUCCEEDED else f"is {job.state.name.lower()}"
        raise Conflict(f"job {ulid_text(job_id)} {state}; only a failed or cancelled job can be retried")
    return _said(tx, _must(op, job_id), job_id)


def accept(tx: Transaction, offers: Sequence[Op]) -> int:
    """The arbiter's part: decides on other nodes' offers, in the order of the offers' own times. It decides here and
    now what spans jobs and what depends on the rest of the log; the fold does not check that again. It also accepts
    completions of open jobs, which need no acceptance: then they stand, whatever arrives later. Returns how many it
    accepted.
    """
    return sum(
        _accept(tx, op) if tx.is_offer(op) else _stamp(tx, op) for op in sorted(offers, key=lambda op: op.timestamp)
    )


def _stamp(tx: Transaction, op: Op) -> bool:
    """Accepts the completion of an open job."""
    payload = op.payload
    if not isinstance(payload, CompleteJob):
        return False
    entry = tx.projection.jobs.entry(payload.job_id)
    if entry is None or not entry.job.policy.open or entry.job.is_settled or not tx.counts(op):
        return False
    if tx.projection.arbiter(tx.latest) != tx.node:
        return False
    return not isinstance(tx.author(AcceptWork(payload.job_id, op.id)), Reason)


def _accept(tx: Transaction, op: Op) -> bool:
    payload = op.payload
    if isinstance(payload, ExpireWork) or tx.projection.arbiter(tx.latest) != tx.node:
        return False  # the arbiter expires by its own clock
    subject = subject_of(payload)
    assert subject is not None
    availability = tx.projection.availability(op.node_id)
    if subject.family != JOB:
        if not allows(availability, payload, is_held=False):
            return False
        return not isinstance(tx.author(AcceptOffer(subject.family, subject.key, op.id)), Reason)
    job_id = subject.key
    entry = tx.projection.jobs.entry(job_id)
    if entry is None:
        return False
    job = entry.job
    if not allows(availability, payload, is_held=job.claimer == op.node_id):
        return False
    if isinstance(payload, ClaimWork) and tx.projection.jobs.route(job.kind, tx.latest) not in (None, op.node_id):
        return False  # a first claim as well as a renewal
    if isinstance(payload, ClaimWork) and job.state is State.PENDING and not _may_start(tx, op, payload, job):
        return False
    return not isinstance(_author(tx, AcceptWork(job_id, op.id)), Reason)


def _may_start(tx: Transaction, op: Op, payload: ClaimWork, job: Job) -> bool:
    """Whether a claim from another node would be useful if accepted, and would break no limit. If its lease would
    already be over, its claimer is gone.
    """
    if op.timestamp.wall + payload.lease_duration_ms < tx.now:
        return False
    if any(tx.projection.jobs.succeeded(dependency) is None for dependency in job.policy.dependencies()):
        return False
    return _turn(tx, job) <= tx.now


def _speak(tx: Transaction, held: Held, payload: Payload, deps: tuple[bytes, ...] = ()) -> Result:
    """Writes an op about a claim. The op cites the claim, and is not written if that claim no longer holds."""
    stale = stale_claim(tx, held)
    if stale is not None:
        return stale
    op = _author(tx, payload, (held.claim_op, *deps))
    if isinstance(op, Reason):
        return op
    # The arbiter's own completion of an open job also stands, even if an earlier claim arrives later.
    _stamp(tx, op)
    return _said(tx, op, held.job_id)


def _said(tx: Transaction, op: Op, job_id: bytes) -> Job | Offer:
    return Offer(op.id, job_id) if tx.is_offer(op) else _job(tx, job_id)


def stale_claim(tx: Transaction, held: Held) -> Reason | None:
    """Why the claim no longer holds; None while it does."""
    entry = tx.projection.jobs.entry(held.job_id)
    if entry is None:
        return Reason.UNKNOWN_JOB
    if entry.job.state is State.COMPLETED:
        return Reason.COMPLETED
    return None if entry.job.claim_op == held.claim_op else Reason.STALE_CLAIM


def _author(tx: Transaction, payload: Payload, deps: tuple[bytes, ...] = ()) -> Op | Reason:
    """Writes an op about a job. If the job thereby fails or is cancelled, cancels the jobs that come after it: no job
    waits for ever.
    """
    op = tx.author(payload, deps)
    if not isinstance(op, Reason):
        _call_off(tx, payload.job_id)  # type: ignore[union-attr]
    return op


def _call_off(tx: Transaction, job_id: bytes) -> None:
    waiting = [job_id]
    while waiting:
        job = _job(tx, waiting.pop())
        if job.outcome not in (Outcome.FAILED, Outcome.CANCELLED):
            continue
        verb = "failed" if job.outcome is Outcome.FAILED else "was cancelled"
        for dependent in tx.session.dependents(job.id):
            if not isinstance(
                tx.author(CancelJob(dependent, f"job {ulid_text(job.id)}, which it comes after, {verb}")), Reason
            ):
                waiting.append(dependent)


def _job(tx: Transaction, job_id: bytes) -> Job:
    entry = tx.projection.jobs.entry(job_id)
    assert entry is not None
    return entry.job


def _must(op: Op | Reason, job_id: bytes) -> Op:
    """For ops that can only be refused because the request itself was wrong."""
    job = f"job {ulid_text(job_id)}"
    if op in (Reason.UNAUTHORISED, Reason.REVOKED):
        raise NotAuthorised(f"this node may not do that to {job}: {op.sentence}")
    if isinstance(op, Reason):
        raise Usage(f"{job}: {op.sentence}")
    return op
