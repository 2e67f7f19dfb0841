"""The roster: the state of each job according to the ops. `Jobs` holds the rules of this family, which `arbitration`
applies: one job and the next op in HLC order give the new state of the job, or the reason why the op does not count.
The rules read no clock and do not depend on the order of arrival.

    Pending ──ClaimWork──► Claimed ──CompleteJob──► Completed, for good
       ▲                      │
       ├─ Yield, Expire, Fail ┤
       ├─ Postpone ───────────┤
       │                      └─ Fail for the last time, Cancel ──► Completed, failed or cancelled
       └──────────────────────────────── Retry ◄─────────────────────────┘

A pending job starts at the time of the last word about it: of its submit, of the op that returned it to the queue, or
of a PostponeJob. A job that waits for an approval starts at no time: only an ApproveJob of its approver gives it one.
It waits anew after a RetryJob, so an approval holds until the job ends.

While a coordinator is in force it is the arbiter of every job that is not `open`: what others write about such a job is
only an offer, and counts when the arbiter accepts it, at the time of the acceptance. So everything that happens to the
job is one sequence, the arbiter's own, and no late op can change it. An `open` job does not need the arbiter; but once
the arbiter has accepted its completion, that stands, whatever earlier ops arrive.

In a strict mesh only the rules of Likewise v0.1 count. What is Hocket's own there (the policy, and the rests after
returns) refuses no claim and ends no job: `ready_at` is then what Hocket's workers keep to of their own accord.

A schedule belongs to the node that set it, and its ticks run with that node's authority, whichever node writes them. So
a tick must be exactly what the schedule's author asked for: the same job, at one of the schedule's times, while the
schedule was in force. The log reads cron expressions and keeps each name's history.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from hocket.kernel.arbitration import Citing, FoldContext, Reason
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import content_hash, derived_ulid, ulid_ms, ulid_text
from hocket.kernel.ops import Op
from hocket.kernel.policy import (
    DELAY_MS_MAX,
    LEASE_MS_MAX,
    NOT_BEFORE_MS_MAX,
    RETRIES_MAX,
    UNAPPROVED_MS,
    Policy,
    decode_policy,
    encode_policy,
    job_policy,
    readable_policy,
)
from hocket.kernel.retrying import backoff_ms
from hocket.kernel.vocabulary import (
    ApproveJob,
    CancelJob,
    ClaimWork,
    CompleteJob,
    ExpireWork,
    FailWork,
    Payload,
    PostponeJob,
    PostponeWork,
    RefuseJob,
    ReportProgress,
    RetryJob,
    SaveCheckpoint,
    ScheduleJob,
    SetSchedule,
    Subject,
    YieldWork,
)

# A job that was returned or lost this often without completing is failed: it takes its workers down.
RETURNS_MAX = 25
# The first few returns are free; later ones wait, so that a job that kills its workers does so more and more slowly.
RETURNS_FREE = 3
RETURN_REST_MS = 1_000
RETURN_REST_MS_MAX = 60_000
# The reason of a YieldWork by a worker that has not begun the job. It says nothing about the job, so it is no return.
UNSTARTED = "not started by the worker"
KIND_LENGTH_MAX = 255


class State(IntEnum):
    PENDING = 0
    CLAIMED = 1
    COMPLETED = 2


class Outcome(IntEnum):
    SUCCEEDED = 0
    FAILED = 1
    CANCELLED = 2


class Job(msgspec.Struct, frozen=True, gc=False):
    """One job according to the ops up to `last`. Nothing in it leads back to it, so the garbage collector leaves it
    alone.
    """

    id: bytes
    kind: str
    schedule_op: bytes
    scheduled: Hlc
    policy: Policy
    last: Hlc
    state: State = State.PENDING
    outcome: Outcome | None = None
    fence: int = 0
    failures: int = 0
    returns: int = 0
    claimer: int | None = None
    claim_op: bytes | None = None
    deadline: int | None = None
    ready_at: int = 0
    done: Hlc | None = None
    artifacts: tuple[bytes, ...] = ()
    error_op: bytes | None = None
    progress: bytes | None = None
    is_settled: bool = False
    begin_by: int | None = None
    """Until when an approval or a first claim counts; None for a job that was claimed or has no such limit."""

    @property
    def waits_for_approval(self) -> bool:
        return self.ready_at == UNAPPROVED_MS and self.state is State.PENDING


class JobContext(FoldContext, Protocol):
    """What else the fold of one job may ask about the rest of the log."""

    @property
    def is_strict(self) -> bool:
        """Whether the mesh keeps to Likewise v0.1."""

    def tick_refusal(self, op: Op, policy: Policy) -> Reason | None:
        """Why this ScheduleJob, which names a schedule, is not a tick of it, or why its schedule's author had no
        authority.
        """

    def offer_of(self, op_id: bytes) -> bytes | None:
        """The offer that this op accepts, if it is an acceptance."""

    def route(self, kind: str, at: Hlc) -> int | None:
        """The node that the kind is routed to at that moment, if any."""

    def succeeded(self, job_id: bytes) -> Hlc | None:
        """When that job succeeded, if it did."""

    def is_claim(self, op_id: bytes, job_id: bytes) -> bool:
        """Whether that op is a claim on that job, or the acceptance of one."""


Verdict = Job | Reason


class Jobs:
    """The family of jobs."""

    decided = frozenset(
        (
            *(ClaimWork, CompleteJob, YieldWork, ExpireWork, FailWork, PostponeWork),
            *(PostponeJob, ApproveJob, RefuseJob, CancelJob, RetryJob),
        )
    )

    def refusal(self, job: Job | None, op: Op, context: JobContext, citing: Citing) -> Reason | None:
        payload = op.payload
        if type(payload) is ScheduleJob:
            return _schedule_refusal(op, payload, context, citing)
        if job is None:
            return citing() or Reason.UNKNOWN_JOB
        return context.refusal(op, job.kind) or citing()

    def word(self, job: Job | None) -> str:
        return "" if job is None else job.kind

    def is_certain(self, job: Job | None, op: Op) -> bool:
        """A tick is judged by its schedule's author, and an op that is earlier than the job's may belong to another."""
        return job is not None and type(op.payload) is not ScheduleJob and op.timestamp > job.scheduled

    def is_open(self, job: Job | None) -> bool:
        return job is None or job.policy.open is True

    def apply(self, job: Job | None, op: Op, context: JobContext) -> Verdict:
        if job is None:
            assert type(op.payload) is ScheduleJob
            return new_job(op, op.payload, context.is_strict)
        return _RULES[type(op.payload)](job, op, op.payload, context)

    def apply_decided(self, job: Job | None, op: Op, context: JobContext, author: int) -> Verdict:
        assert job is not None
        return _RULES[type(op.payload)](job, op, op.payload, _Decided(context, author))

    def accept_open(self, job: Job, op: Op, offered: Op) -> Verdict:
        """The first completion of an open job that the arbiter has accepted is final."""
        if job.is_settled or not isinstance(offered.payload, CompleteJob):
            return Reason.NOT_ARBITER
        return replace(
            job,
            state=State.COMPLETED,
            outcome=Outcome.SUCCEEDED,
            claimer=offered.node_id,
            done=job.done if job.outcome is Outcome.SUCCEEDED else op.timestamp,
            artifacts=offered.payload.output_artifacts,
            deadline=None,
            last=op.timestamp,
            is_settled=True,
            begin_by=None,
        )

    def seen(self, job: Job, op: Op) -> Job:
        return replace(job, last=op.timestamp)

    def last(self, job: Job) -> Hlc:
        return job.last


class _Decided:
    """For ops that the arbiter has written or accepted: whatever depends on the rest of the log was decided then, in
    the arbiter's own store, and is not asked again when more of the log is known.
    """

    def __init__(self, context: JobContext, node: int) -> None:
        self.is_claim = context.is_claim
        self.offer_of = context.offer_of
        self.is_strict = context.is_strict
        self._node = node

    def is_overtaken(self, at: Hlc) -> bool:
        return False

    def refusal(self, op: Op, word: str) -> Reason | None:
        return None

    def tick_refusal(self, op: Op, policy: Policy) -> Reason | None:
        return None

    def arbiter(self, at: Hlc) -> int | None:
        """The author of the op: it acts with the arbiter's authority."""
        return self._node

    def offered(self, op_id: bytes, subject: Subject) -> Op | None:
        return None

    def route(self, kind: str, at: Hlc) -> int | None:
        return None

    def succeeded(self, job_id: bytes) -> Hlc | None:
        return _LONG_AGO


def new_job(op: Op, payload: ScheduleJob, is_strict: bool) -> Verdict:
    """The job that the op schedules, before any other op about it."""
    kind, policy = payload.kind, job_policy(payload.policy_envelope, is_strict)
    if not 0 < len(kind) <= KIND_LENGTH_MAX or not kind.isprintable():
        return Reason.BAD_KIND
    if policy is None:
        return Reason.BAD_POLICY
    return Job(
        id=payload.job_id,
        kind=kind,
        schedule_op=op.id,
        scheduled=op.timestamp,
        policy=policy,
        last=op.timestamp,
        ready_at=_first_start(policy),
        begin_by=None if is_strict else _begin_by(op, policy),
    )


def _first_start(policy: Policy) -> int:
    return policy.not_before or 0 if policy.approval_by is None else UNAPPROVED_MS


def _begin_by(op: Op, policy: Policy) -> int | None:
    limit_ms = policy.ttl_ms if policy.approval_by is None else policy.approval_within_ms
    return None if limit_ms is None else op.timestamp.wall + limit_ms


def _schedule_refusal(op: Op, payload: ScheduleJob, context: JobContext, citing: Citing) -> Reason | None:
    """Why the author may not schedule the job, if so, or what it cites forbids it. A tick belongs to its schedule's
    author, whichever node writes it, so its schedule must be here before it can be judged. But an op of a forked author
    is void before all else, since not every node has it.
    """
    policy = job_policy(payload.policy_envelope, context.is_strict)
    refused = context.refusal(op, payload.kind)
    if policy is None or policy.schedule_op is None or refused is Reason.FORKED:
        return refused or citing()
    return citing() or context.tick_refusal(op, policy)


def _schedule_again(job: Job, op: Op, payload: ScheduleJob, context: JobContext) -> Verdict:
    return Reason.DUPLICATE_JOB


def _claim(job: Job, op: Op, payload: ClaimWork, context: JobContext) -> Verdict:
    if job.state is State.COMPLETED:
        return Reason.COMPLETED
    if payload.claimer != op.node_id:
        return Reason.NOT_CLAIMER
    if not 0 < payload.lease_duration_ms <= LEASE_MS_MAX:
        return Reason.BAD_LEASE
    if job.state is State.CLAIMED:
        return _renew(job, op, payload, context)
    # A renewal of a claim that has ended meanwhile is not a new claim: its author would not know the new fence.
    refused = _stale(job, op, context) or _routed_elsewhere(job, op, context)
    if refused is not None:
        return refused
    if not context.is_strict and (refused := _against_policy(job, op, context)) is not None:
        return refused
    return _claimed(job, payload, op.id, op.timestamp)


def _claimed(job: Job, payload: ClaimWork, claim_op: bytes, at: Hlc) -> Job:
    return replace(
        job,
        state=State.CLAIMED,
        fence=job.fence + 1,
        claimer=payload.claimer,
        claim_op=claim_op,
        deadline=at.wall + payload.lease_duration_ms,
        last=at,
        begin_by=None,
    )


def plain_claim(job: Job, payload: ClaimWork, author: int, claim_op: bytes, at: Hlc) -> Job | None:
    """The job with a claim of this author that cites nothing, and that the arbiter has written or accepted, as
    `apply_decided` gives it. None if the claim might be refused, or is more than the first one on a ready job.
    """
    is_plain = job.state is State.PENDING and job.ready_at <= at.wall and job.begin_by is None and not job.policy.open
    is_good = payload.claimer == author and 0 < payload.lease_duration_ms <= LEASE_MS_MAX
    return _claimed(job, payload, claim_op, at) if is_plain and is_good else None


def _against_policy(job: Job, op: Op, context: JobContext) -> Reason | None:
    """Why the job may not be claimed yet, or no longer."""
    if op.timestamp.wall < job.ready_at:
        return Reason.NOT_APPROVED if job.waits_for_approval else Reason.TOO_EARLY
    if job.begin_by is not None and op.timestamp.wall > job.begin_by:
        return Reason.TTL_PASSED
    for dependency in job.policy.dependencies() if job.policy.after else ():
        succeeded = context.succeeded(dependency)
        if succeeded is None or succeeded > op.timestamp:
            return Reason.AFTER_UNMET
    return None


def _renew(job: Job, op: Op, payload: ClaimWork, context: JobContext) -> Verdict:
    """The holder's new claim keeps the fence and moves the deadline; any other node's comes too late."""
    if payload.claimer != job.claimer:
        return Reason.ALREADY_CLAIMED
    refused = _stale(job, op, context) or _routed_elsewhere(job, op, context)
    if refused is not None:
        return refused
    assert job.deadline is not None
    # The arbiter uses its machine's own clock, since ops of others may move the log's clock far ahead.
    is_decided = not job.policy.open and context.arbiter(op.timestamp) == op.node_id
    if op.timestamp.wall > job.deadline and not is_decided:
        return Reason.LEASE_PASSED
    return replace(job, deadline=op.timestamp.wall + payload.lease_duration_ms, last=op.timestamp)


def _routed_elsewhere(job: Job, op: Op, context: JobContext) -> Reason | None:
    routed = context.route(job.kind, op.timestamp)
    return None if routed is None or routed == op.node_id else Reason.ROUTED_ELSEWHERE


def _stale(job: Job, op: Op, context: JobContext) -> Reason | None:
    """An op about a claim cites it. One that cites only other claims on the job speaks for an older hold, perhaps of
    another process of the same node; one that cites no claim at all comes from software that identifies claims by their
    node.
    """
    cited = op.cited
    if not cited or job.claim_op in cited:
        return None
    if job.claim_op is not None and context.offer_of(job.claim_op) in cited:
        return None  # its author knows the claim as the op that it offered
    if any(context.is_claim(dep, job.id) for dep in cited):
        return Reason.STALE_CLAIM
    return None


def _held(job: Job, op: Op, claimer: int, context: JobContext) -> Reason | None:
    """Why the author may not act for the claim in force, if so."""
    if job.state is State.COMPLETED:
        return Reason.COMPLETED
    if job.state is State.PENDING:
        return Reason.NOT_CLAIMED
    if op.node_id != job.claimer or claimer != job.claimer:
        return Reason.NOT_CLAIMER
    return _stale(job, op, context)


def _complete(job: Job, op: Op, payload: CompleteJob, context: JobContext) -> Verdict:
    refused = _held(job, op, op.node_id, context)
    return _completed(job, payload, op.timestamp) if refused is None else refused


def _completed(job: Job, payload: CompleteJob, at: Hlc) -> Job:
    return replace(
        job,
        state=State.COMPLETED,
        outcome=Outcome.SUCCEEDED,
        done=at,
        artifacts=payload.output_artifacts,
        deadline=None,
        last=at,
    )


def plain_completion(job: Job, payload: CompleteJob, author: int, cited: tuple[bytes, ...], at: Hlc) -> Job | None:
    """The job with a completion by this author that the arbiter has written or accepted, as `apply_decided` gives it.
    None if the completion might be refused, or cites more than the claim in force.
    """
    is_plain = job.state is State.CLAIMED and cited == (job.claim_op,)
    return _completed(job, payload, at) if is_plain and job.claimer == author else None


def plain_acceptance(job: Job, offered: Op, acceptance: bytes, at: Hlc) -> Job | None:
    """The job with an offer that the arbiter accepts, as `apply_decided` gives it. None if the offer might be refused,
    or is not plain.
    """
    payload = offered.payload
    if type(payload) is ClaimWork:
        return None if offered.cited else plain_claim(job, payload, offered.node_id, acceptance, at)
    if type(payload) is CompleteJob and not job.policy.open:
        return plain_completion(job, payload, offered.node_id, offered.cited, at)
    return None


def _yield(job: Job, op: Op, payload: YieldWork, context: JobContext) -> Verdict:
    refused = _held(job, op, payload.claimer, context)
    if refused is not None:
        return refused
    return _pending(job, op, job.ready_at) if payload.reason == UNSTARTED else _returned(job, op, context)


def _expire(job: Job, op: Op, payload: ExpireWork, context: JobContext) -> Verdict:
    if job.state is State.COMPLETED:
        return Reason.COMPLETED
    if job.state is State.PENDING:
        return Reason.NOT_CLAIMED
    if payload.expired_claimer != job.claimer:
        return Reason.NOT_CLAIMER
    assert job.deadline is not None
    if op.timestamp.wall <= job.deadline:
        return Reason.LEASE_RUNNING
    return _returned(job, op, context)


def _returned(job: Job, op: Op, context: JobContext) -> Job:
    returns = job.returns + 1
    if returns >= RETURNS_MAX and not context.is_strict:
        return _failed(replace(job, returns=returns), op)
    rest = 0
    if returns > RETURNS_FREE:
        rest = backoff_ms(returns - RETURNS_FREE, RETURN_REST_MS, RETURN_REST_MS_MAX)
    return _pending(replace(job, returns=returns), op, op.timestamp.wall + rest if rest else job.ready_at)


def _fail(job: Job, op: Op, payload: FailWork, context: JobContext) -> Verdict:
    refused = _held(job, op, payload.claimer, context)
    if refused is not None:
        return refused
    failures = job.failures + 1
    allowed = RETRIES_MAX if job.policy.retries is None else job.policy.retries
    counted = replace(job, failures=failures, error_op=op.id)
    if not payload.retry or failures > allowed:
        return _failed(counted, op)
    return _pending(counted, op, op.timestamp.wall + retry_rest_ms(failures, job.policy, op.id))


def retry_rest_ms(failures: int, policy: Policy, fail_op: bytes) -> int:
    """How long a job rests after a failed try. The jitter comes from the op that reports the failure, so that every
    replica adds the same.
    """
    jitter = int.from_bytes(content_hash(fail_op)[:2], "big")
    return backoff_ms(failures, policy.backoff_ms, policy.backoff_max_ms, jitter)


def _postpone(job: Job, op: Op, payload: PostponeWork, context: JobContext) -> Verdict:
    refused = _held(job, op, payload.claimer, context)
    if refused is not None:
        return refused
    if not 0 < payload.delay_ms <= DELAY_MS_MAX:
        return Reason.BAD_DELAY
    return _pending(job, op, op.timestamp.wall + payload.delay_ms)


def _postpone_pending(job: Job, op: Op, payload: PostponeJob, context: JobContext) -> Verdict:
    """The time for a first claim begins anew when the job may start."""
    if job.state is State.COMPLETED:
        return Reason.COMPLETED
    if job.state is State.CLAIMED:
        return Reason.ALREADY_CLAIMED
    if job.waits_for_approval:
        return Reason.NOT_APPROVED
    if payload.until_ms > NOT_BEFORE_MS_MAX:
        return Reason.BAD_DELAY
    begins = job.begin_by is not None
    return _started(job, op, payload.until_ms, job.policy.ttl_ms if begins else None)


def _started(job: Job, op: Op, start_ms: int, ttl_ms: int | None) -> Job:
    """The pending job with another start."""
    ready_at = max(start_ms, op.timestamp.wall)
    return replace(job, ready_at=ready_at, begin_by=None if ttl_ms is None else ready_at + ttl_ms, last=op.timestamp)


def _approve(job: Job, op: Op, payload: ApproveJob, context: JobContext) -> Verdict:
    refused = _no_answer(job, op, payload.agent)
    return refused or _started(job, op, job.policy.not_before or 0, job.policy.ttl_ms)


def _refuse(job: Job, op: Op, payload: RefuseJob, context: JobContext) -> Verdict:
    return _no_answer(job, op, payload.agent) or _cancelled(job, op)


def _no_answer(job: Job, op: Op, agent: str) -> Reason | None:
    """Why an answer of that agent about the job's approval does not count, if so."""
    if job.state is State.COMPLETED:
        return Reason.COMPLETED
    if not job.waits_for_approval:
        return Reason.NO_APPROVAL
    approver, node = job.policy.approver()
    if agent != approver or node not in (None, op.node_id):
        return Reason.NOT_APPROVER
    is_late = job.begin_by is not None and op.timestamp.wall > job.begin_by
    return Reason.APPROVAL_LATE if is_late else None


def _pending(job: Job, op: Op, ready_at: int) -> Job:
    return replace(
        job,
        state=State.PENDING,
        claimer=None,
        claim_op=None,
        deadline=None,
        ready_at=ready_at,
        progress=None,
        last=op.timestamp,
    )


def _failed(job: Job, op: Op) -> Job:
    return replace(
        job, state=State.COMPLETED, outcome=Outcome.FAILED, done=op.timestamp, deadline=None, last=op.timestamp
    )


def _cancel(job: Job, op: Op, payload: CancelJob, context: JobContext) -> Verdict:
    if job.state is State.COMPLETED:
        return Reason.COMPLETED
    return _cancelled(job, op)


def _cancelled(job: Job, op: Op) -> Job:
    return replace(
        job,
        state=State.COMPLETED,
        outcome=Outcome.CANCELLED,
        done=op.timestamp,
        deadline=None,
        error_op=op.id,
        last=op.timestamp,
        begin_by=None,
    )


def _retry(job: Job, op: Op, payload: RetryJob, context: JobContext) -> Verdict:
    """A completion is final. A job that never completed, because it failed for good or was cancelled, may be
    retried.
    """
    if job.state is not State.COMPLETED or job.outcome is Outcome.SUCCEEDED:
        return Reason.NOT_FAILED
    fresh = replace(job, outcome=None, done=None, failures=0, returns=0, begin_by=_begin_by(op, job.policy))
    return _pending(fresh, op, 0 if job.policy.approval_by is None else UNAPPROVED_MS)


def _progress(job: Job, op: Op, payload: ReportProgress, context: JobContext) -> Verdict:
    refused = _held(job, op, payload.claimer, context)
    return refused if refused is not None else replace(job, progress=payload.note, last=op.timestamp)


def _checkpoint(job: Job, op: Op, payload: SaveCheckpoint, context: JobContext) -> Verdict:
    """The state stays in the op: only a worker that runs the job again needs it."""
    refused = _held(job, op, payload.claimer, context)
    return refused if refused is not None else replace(job, last=op.timestamp)


_LONG_AGO = Hlc(0, 0, 0)
_RULES: dict[type, Callable[[Job, Op, Any, JobContext], Verdict]] = {
    ScheduleJob: _schedule_again,
    ClaimWork: _claim,
    CompleteJob: _complete,
    YieldWork: _yield,
    ExpireWork: _expire,
    FailWork: _fail,
    PostponeWork: _postpone,
    PostponeJob: _postpone_pending,
    ApproveJob: _approve,
    RefuseJob: _refuse,
    CancelJob: _cancel,
    RetryJob: _retry,
    ReportProgress: _progress,
    SaveCheckpoint: _checkpoint,
}

JOBS = Jobs()


NAME_LENGTH_MAX = 128
CRON_LENGTH_MAX = 256
_TICK = b"hocket.tick"
# Whether, for a cron expression and a timezone, this can be the newest tick at that time.
Ticks = Callable[[str, str, int, int], bool]


def tick_id(schedule_op: bytes, tick_ms: int) -> bytes:
    """The id of the job of one tick: every node derives the same one, and no other job has it."""
    return derived_ulid(tick_ms, _TICK, schedule_op)


def is_tick(payload: Payload) -> bool:
    """Whether this schedules the job of a tick, or says so."""
    policy = readable_policy(payload.policy_envelope) if isinstance(payload, ScheduleJob) else None
    return policy is not None and policy.schedule_op is not None


def tick_policy(policy: Policy, name: str, schedule_op: bytes) -> Policy:
    """The policy of a tick's job: the schedule's, with the schedule named."""
    return msgspec.structs.replace(policy, schedule=name, schedule_op=ulid_text(schedule_op))


def change_fault(op: Op, before: Op | None, may_schedule: Callable[[str], bool]) -> Reason | None:
    """Why this SetSchedule or ClearSchedule does not count, if so. `before` is the last op about the name that counts;
    `may_schedule` tells whether the op's author may schedule jobs of a kind at the op's time. A schedule can be changed
    by the node that set it, or by one that could have set it.
    """
    if isinstance(op.payload, SetSchedule) and (fault := _set_fault(op.payload)):
        return fault
    if before is None or not isinstance(before.payload, SetSchedule) or before.node_id == op.node_id:
        return None
    return None if may_schedule(before.payload.kind) else Reason.OTHERS_SCHEDULE


def _set_fault(payload: SetSchedule) -> Reason | None:
    """A schedule must be able to make jobs. Its ticks are identified by their times, so it has no unique key; and jobs
    in an `after` would have to be retried before every tick.
    """
    if not 0 < len(payload.name) <= NAME_LENGTH_MAX or not payload.name.isprintable():
        return Reason.BAD_SCHEDULE
    if len(payload.cron) > CRON_LENGTH_MAX:
        return Reason.BAD_SCHEDULE
    if not 0 < len(payload.kind) <= KIND_LENGTH_MAX or not payload.kind.isprintable():
        return Reason.BAD_KIND
    policy = readable_policy(payload.policy_envelope)
    if (
        policy is None
        or policy.after
        or any(each is not None for each in (policy.unique, policy.schedule, policy.schedule_op))
    ):
        return Reason.BAD_POLICY
    return None


def tick_fault(op: Op, schedule: Op | None, ended: Hlc | None, is_newest: Ticks) -> Reason | None:
    """NOT_A_TICK unless this ScheduleJob is a tick of that schedule: the op cites it, has its content, and has the id
    of a tick that fell after the schedule was set and not after it `ended`. It must be the newest tick at the op's
    time, so that no node can make up all the ticks that were missed. A tick at the very millisecond at which another
    schedule takes the name belongs to the old one, since the new one's come after it.
    """
    payload = op.payload
    assert isinstance(payload, ScheduleJob)
    if schedule is None or schedule.id not in op.cited or not isinstance(schedule.payload, SetSchedule):
        return Reason.NOT_A_TICK
    asked = schedule.payload
    tick = ulid_ms(payload.job_id)
    is_ours = (
        payload.job_id == tick_id(schedule.id, tick)
        and (payload.kind, payload.payload) == (asked.kind, asked.payload)
        and payload.policy_envelope == _tick_envelope(asked.policy_envelope, asked.name, schedule.id)
        and schedule.timestamp.wall < tick <= op.timestamp.wall
        and (ended is None or tick <= ended.wall)
        and is_newest(asked.cron, asked.timezone, tick, op.timestamp.wall)
    )
    return None if is_ours else Reason.NOT_A_TICK


def _tick_envelope(envelope: bytes, name: str, schedule_op: bytes) -> bytes:
    return encode_policy(tick_policy(decode_policy(envelope), name, schedule_op))
