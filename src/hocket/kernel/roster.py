"""The roster: what the ops say about each job. `apply` takes one job and the next op in HLC order and gives the
job as it is afterwards, or the reason why the op does not count. It reads no clock and knows nothing of
arrival: whoever keeps the log feeds it in HLC order and, when an op comes late, feeds it the whole job again.

    Pending ──ClaimWork──► Claimed ──CompleteJob──► Completed, for good
       ▲                      │
       ├─ Yield, Expire, Fail ┤
       │                      └─ Fail for the last time, Cancel ──► Completed, failed or cancelled
       └──────────────────────────────── Retry ◄─────────────────────────┘

While a coordinator is in force it is the arbiter of every job that is not `open`: what others write about such a job
is only an offer, and counts when the arbiter accepts it, at the time of the acceptance. So all that happens to the job
is one sequence, the arbiter's own, and nothing that arrives late can change it. An `open` job goes on without the
arbiter; but once the arbiter has accepted its completion, that stands, whatever comes to light of earlier times.
"""

from collections.abc import Callable, Iterable
from enum import IntEnum
from functools import partial
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from hocket.kernel.backoff import backoff_ms
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import content_hash
from hocket.kernel.ops import Op
from hocket.kernel.policy import LEASE_MS_MAX, RETRIES_MAX, Policy, decode_policy
from hocket.kernel.reasons import UNAUTHORISED, Reason
from hocket.kernel.vocabulary import (
    AcceptWork,
    CancelJob,
    ClaimWork,
    CompleteJob,
    ExpireWork,
    FailWork,
    ReportProgress,
    RetryJob,
    ScheduleJob,
    YieldWork,
)

# A job that was handed back or lost this often without an end is failed: it takes its workers down.
RETURNS_MAX = 25
# The first few returns are free; later ones rest, so that a job that kills its workers does so ever more slowly.
RETURNS_FREE = 3
RETURN_REST_MS = 1_000
RETURN_REST_MS_MAX = 60_000
KIND_LENGTH_MAX = 255


class State(IntEnum):
    PENDING = 0
    CLAIMED = 1
    COMPLETED = 2


class Outcome(IntEnum):
    SUCCEEDED = 0
    FAILED = 1
    CANCELLED = 2


class Job(msgspec.Struct, frozen=True):
    """One job as the ops up to `last` make it."""

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


class FoldContext(Protocol):
    """What the fold of one job may ask about the rest of the log, always as of the op's own HLC."""

    def refusal(self, op: Op, kind: str) -> Reason | None:
        """Why the author had no authority to write this op about a job of this kind, if so."""

    def tick_refusal(self, op: Op, policy: Policy) -> Reason | None:
        """Why this ScheduleJob, which names a schedule, is no tick of it, or its schedule's author had no authority."""

    def arbiter(self, at: Hlc) -> int | None:
        """The node that decides about jobs which are not open, if any."""

    def is_overtaken(self, at: Hlc) -> bool:
        """Whether a successor was designated who did not know of what the arbiter decided at that time."""

    def offered(self, op_id: bytes, job_id: bytes) -> Op | None:
        """That op, if it is about that job."""

    def offer_of(self, op_id: bytes) -> bytes | None:
        """The offer that this op accepts, if it is an acceptance."""

    def route(self, kind: str, at: Hlc) -> int | None:
        """The node that the kind is routed to at that moment, if any."""

    def succeeded(self, job_id: bytes) -> Hlc | None:
        """When that job succeeded, if it did."""

    def is_claim(self, op_id: bytes, job_id: bytes) -> bool:
        """Whether that op is a claim on that job, or the acceptance of one."""


Verdict = Job | Reason


def apply(job: Job | None, op: Op, context: FoldContext, citing: Callable[[], Reason | None]) -> Verdict:
    """The job after this op, or why the op does not count. `citing` says why it does not for the sake of what it cites,
    if so; that is asked only when its author may write it.
    """
    payload = op.payload
    if job is None:
        if type(payload) is not ScheduleJob:
            return citing() or Reason.UNKNOWN_JOB
        policy = _policy(payload)
        return _schedule_refusal(op, payload, policy, context, citing) or _schedule(op, payload, policy)
    if type(payload) is ScheduleJob:
        refused = _schedule_refusal(op, payload, _policy(payload), context, citing)
    else:
        refused = context.refusal(op, job.kind) or citing()
    if refused is not None:
        return refused
    if type(payload) in _DECIDED and not job.policy.open:
        arbiter = context.arbiter(op.timestamp)
        if arbiter == op.node_id:
            if context.is_overtaken(op.timestamp):
                return Reason.NOT_ARBITER
            context = _Decided(context, op.node_id)
        elif arbiter is not None:
            return Reason.OFFERED
    return _RULES[type(payload)](job, op, payload, context)


def _accept(job: Job, op: Op, payload: AcceptWork, context: FoldContext) -> Verdict:
    """The arbiter's acceptance puts the offered op in force, under the acceptance's own id and time. It helps only what
    its author was allowed to offer; that the author has lost its delegation or its word since is no matter.
    """
    if context.arbiter(op.timestamp) != op.node_id or context.is_overtaken(op.timestamp):
        return Reason.NOT_ARBITER
    offered = context.offered(payload.offer, job.id)
    if offered is None or type(offered.payload) not in _DECIDED:
        return Reason.NOT_ARBITER
    refused = context.refusal(offered, job.kind)
    if refused not in (None, Reason.REVOKED, Reason.FORKED):
        return refused
    if job.policy.open:
        return _settle(job, op, offered)
    accepted = replace(offered, id=op.id, timestamp=op.timestamp)
    return _RULES[type(offered.payload)](job, accepted, offered.payload, _Decided(context, offered.node_id))


def _settle(job: Job, op: Op, offered: Op) -> Verdict:
    """The first completion of an open job that the arbiter has accepted is the job's for good."""
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
    )


class _Decided:
    """For what the arbiter has written or accepted: what hangs on the rest of the log was decided then, in its own
    store, and is not asked again when more of the log is known.
    """

    def __init__(self, context: FoldContext, node: int) -> None:
        self.is_claim = context.is_claim
        self.offer_of = context.offer_of
        self._node = node

    def is_overtaken(self, at: Hlc) -> bool:
        return False

    def refusal(self, op: Op, kind: str) -> Reason | None:
        return None

    def tick_refusal(self, op: Op, policy: Policy) -> Reason | None:
        return None

    def arbiter(self, at: Hlc) -> int | None:
        """The node whose op it was: it speaks with the arbiter's word."""
        return self._node

    def offered(self, op_id: bytes, job_id: bytes) -> Op | None:
        return None

    def route(self, kind: str, at: Hlc) -> int | None:
        return None

    def succeeded(self, job_id: bytes) -> Hlc | None:
        return _LONG_AGO


def _schedule(op: Op, payload: ScheduleJob, policy: Policy | None) -> Verdict:
    kind = payload.kind
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
        ready_at=policy.not_before or 0,
    )


def _schedule_refusal(
    op: Op, payload: ScheduleJob, policy: Policy | None, context: FoldContext, citing: Callable[[], Reason | None]
) -> Reason | None:
    """Why the author may not schedule the job, if so, or what it cites stands against it. A tick is its schedule's
    author's, whoever writes it down, so its schedule must be here before it can be judged.
    """
    if policy is None or policy.schedule_op is None:
        return context.refusal(op, payload.kind) or citing()
    return citing() or context.tick_refusal(op, policy)


def _policy(payload: ScheduleJob) -> Policy | None:
    """None when it cannot be read."""
    try:
        return decode_policy(payload.policy_envelope)
    except ValueError:
        return None


def _schedule_again(job: Job, op: Op, payload: ScheduleJob, context: FoldContext) -> Verdict:
    return Reason.DUPLICATE_JOB


def _claim(job: Job, op: Op, payload: ClaimWork, context: FoldContext) -> Verdict:
    if job.state is State.COMPLETED:
        return Reason.COMPLETED
    if payload.claimer != op.node_id:
        return Reason.NOT_CLAIMER
    if not 0 < payload.lease_duration_ms <= LEASE_MS_MAX:
        return Reason.BAD_LEASE
    wall = op.timestamp.wall
    if job.state is State.CLAIMED:
        return _renew(job, op, payload, context)
    # A renewal of a hold that has ended meanwhile is no new hold: its author would not know of the new fence.
    refused = _stale(job, op, context) or _routed_elsewhere(job, op, context)
    if refused is not None:
        return refused
    if wall < job.ready_at:
        return Reason.TOO_EARLY
    if job.policy.after:
        for dependency in job.policy.dependencies():
            succeeded = context.succeeded(dependency)
            if succeeded is None or succeeded > op.timestamp:
                return Reason.AFTER_UNMET
    return replace(
        job,
        state=State.CLAIMED,
        fence=job.fence + 1,
        claimer=payload.claimer,
        claim_op=op.id,
        deadline=wall + payload.lease_duration_ms,
        last=op.timestamp,
    )


def _renew(job: Job, op: Op, payload: ClaimWork, context: FoldContext) -> Verdict:
    """A holder's fresh claim keeps the fence and moves the deadline; anybody else's comes too late."""
    if payload.claimer != job.claimer:
        return Reason.ALREADY_CLAIMED
    refused = _stale(job, op, context) or _routed_elsewhere(job, op, context)
    if refused is not None:
        return refused
    assert job.deadline is not None
    # The arbiter goes by its machine's own clock, since what it hears from others may move the log's far ahead.
    is_decided = not job.policy.open and context.arbiter(op.timestamp) == op.node_id
    if op.timestamp.wall > job.deadline and not is_decided:
        return Reason.LEASE_PASSED
    return replace(job, deadline=op.timestamp.wall + payload.lease_duration_ms, last=op.timestamp)


def _routed_elsewhere(job: Job, op: Op, context: FoldContext) -> Reason | None:
    routed = context.route(job.kind, op.timestamp)
    return None if routed is None or routed == op.node_id else Reason.ROUTED_ELSEWHERE


def _stale(job: Job, op: Op, context: FoldContext) -> Reason | None:
    """An op about a claim cites it. One that cites only other claims on the job speaks for an older hold, perhaps
    of another process of the same node; one that cites no claim at all comes from software that knows claims by
    their node.
    """
    if job.claim_op in op.cited:
        return None
    if op.cited and job.claim_op is not None and context.offer_of(job.claim_op) in op.cited:
        return None  # its author knows the claim by the op that it offered
    if any(context.is_claim(dep, job.id) for dep in op.cited):
        return Reason.STALE_CLAIM
    return None


def _held(job: Job, op: Op, claimer: int, context: FoldContext) -> Reason | None:
    """Why the author may not speak for the claim in force, if so."""
    if job.state is State.COMPLETED:
        return Reason.COMPLETED
    if job.state is State.PENDING:
        return Reason.NOT_CLAIMED
    if op.node_id != job.claimer or claimer != job.claimer:
        return Reason.NOT_CLAIMER
    return _stale(job, op, context)


def _complete(job: Job, op: Op, payload: CompleteJob, context: FoldContext) -> Verdict:
    refused = _held(job, op, op.node_id, context)
    if refused is not None:
        return refused
    return replace(
        job,
        state=State.COMPLETED,
        outcome=Outcome.SUCCEEDED,
        done=op.timestamp,
        artifacts=payload.output_artifacts,
        deadline=None,
        last=op.timestamp,
    )


def _yield(job: Job, op: Op, payload: YieldWork, context: FoldContext) -> Verdict:
    refused = _held(job, op, payload.claimer, context)
    return refused if refused is not None else _returned(job, op)


def _expire(job: Job, op: Op, payload: ExpireWork, context: FoldContext) -> Verdict:
    if job.state is State.COMPLETED:
        return Reason.COMPLETED
    if job.state is State.PENDING:
        return Reason.NOT_CLAIMED
    if payload.expired_claimer != job.claimer:
        return Reason.NOT_CLAIMER
    assert job.deadline is not None
    if op.timestamp.wall <= job.deadline:
        return Reason.LEASE_RUNNING
    return _returned(job, op)


def _returned(job: Job, op: Op) -> Job:
    returns = job.returns + 1
    if returns >= RETURNS_MAX:
        return _failed(replace(job, returns=returns), op)
    rest = 0
    if returns > RETURNS_FREE:
        rest = backoff_ms(returns - RETURNS_FREE, RETURN_REST_MS, RETURN_REST_MS_MAX)
    return _pending(replace(job, returns=returns), op, op.timestamp.wall + rest if rest else job.ready_at)


def _fail(job: Job, op: Op, payload: FailWork, context: FoldContext) -> Verdict:
    refused = _held(job, op, payload.claimer, context)
    if refused is not None:
        return refused
    failures = job.failures + 1
    allowed = RETRIES_MAX if job.policy.retries is None else job.policy.retries
    counted = replace(job, failures=failures, error_op=op.id)
    if not payload.retry or failures > allowed:
        return _failed(counted, op)
    # The jitter comes from the op that reports the failure, so that every replica adds the same.
    jitter = int.from_bytes(content_hash(op.id)[:2], "big")
    rest = backoff_ms(failures, job.policy.backoff_ms, job.policy.backoff_max_ms, jitter)
    return _pending(counted, op, op.timestamp.wall + rest)


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


def _cancel(job: Job, op: Op, payload: CancelJob, context: FoldContext) -> Verdict:
    if job.state is State.COMPLETED:
        return Reason.COMPLETED
    return replace(
        job,
        state=State.COMPLETED,
        outcome=Outcome.CANCELLED,
        done=op.timestamp,
        deadline=None,
        error_op=op.id,
        last=op.timestamp,
    )


def _retry(job: Job, op: Op, payload: RetryJob, context: FoldContext) -> Verdict:
    """A completion is final. What never completed, because it failed for good or was called off, may be tried
    anew.
    """
    if job.state is not State.COMPLETED or job.outcome is Outcome.SUCCEEDED:
        return Reason.NOT_FAILED
    fresh = replace(job, outcome=None, done=None, failures=0, returns=0)
    return _pending(fresh, op, 0)


def _progress(job: Job, op: Op, payload: ReportProgress, context: FoldContext) -> Verdict:
    refused = _held(job, op, payload.claimer, context)
    return refused if refused is not None else replace(job, progress=payload.note, last=op.timestamp)


_LONG_AGO = Hlc(0, 0, 0)
_DECIDED = frozenset((ClaimWork, CompleteJob, YieldWork, ExpireWork, FailWork, CancelJob, RetryJob))
_RULES: dict[type, Callable[[Job, Op, Any, FoldContext], Verdict]] = {
    ScheduleJob: _schedule_again,
    ClaimWork: _claim,
    CompleteJob: _complete,
    YieldWork: _yield,
    ExpireWork: _expire,
    FailWork: _fail,
    CancelJob: _cancel,
    RetryJob: _retry,
    ReportProgress: _progress,
    AcceptWork: _accept,
}


# When each op was written and its reason, 0 if it counts.
Standings = dict[bytes, tuple[Hlc, int]]


def fold(
    ops: Iterable[Op],
    context: FoldContext,
    dependencies: Callable[[Op, Standings], Reason | None],
    standings: Standings,
) -> Job | None:
    """A whole job from all its ops, in any order. `standings` holds the ops that are out of the question, and at the
    end all of them. `dependencies` says why an op does not count for the sake of what it cites, if so.
    """
    job: Job | None = None
    for op in sorted(ops, key=lambda op: op.timestamp):
        if op.id in standings:
            continue
        verdict = apply(job, op, context, partial(dependencies, op, standings))
        if isinstance(verdict, Reason):
            standings[op.id] = (op.timestamp, int(verdict))
            if verdict not in UNAUTHORISED:
                job = seen(job, op)
        else:
            standings[op.id] = (op.timestamp, 0)
            job = verdict
    return job


def seen(job: Job | None, op: Op) -> Job | None:
    """A job after an op that does not count: `last` moves on all the same, since an op between the two, should it come
    late, could make it count. What its author may not write does not get so far: only the permissions could make that
    count, and then the job is folded anew.
    """
    return None if job is None else replace(job, last=op.timestamp)
