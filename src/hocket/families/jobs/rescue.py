"""Returning jobs to the queue whose worker is gone, and ending those that no worker began in time or that wait for a
job that did not succeed.
"""

from collections.abc import Callable, Sequence

from hocket.families.jobs.requests import NEVER, author, call_off_dependents
from hocket.families.jobs.rules import Job, Outcome
from hocket.kernel.arbitration import Reason
from hocket.kernel.ops import decode
from hocket.kernel.texts import counted
from hocket.kernel.vocabulary import (
    JOB,
    CancelJob,
    CompleteJob,
    ExpireWork,
    FailWork,
    PostponeWork,
    RetryJob,
    Subject,
    YieldWork,
    number_of,
)
from hocket.log import Transaction
from hocket.store import JobEntry, Session

_ENDS = tuple(number_of(end) for end in (CompleteJob, FailWork, PostponeWork, YieldWork))
# How long other nodes wait for the submitter of an open job to end it.
OTHERS_MS = 60_000
WORKER_DIED = "its worker process died"
# After so many worker processes of this node died or were lost with a job, the job runs alone: it may be the cause.
DEATHS_ALONE = 2
_DEATHS = tuple(number_of(op) for op in (YieldWork, ExpireWork, RetryJob))
# Called with each job that goes back to the queue because its worker is gone, and the reason.
Rescued = Callable[[Job, str], None]


def _untold(job: Job, reason: str) -> None:
    pass


def expire(tx: Transaction, limit: int, rescued: Rescued = _untold) -> int:
    """Returns claimed jobs past their deadline to the queue, whichever node holds them. The arbiter waits until its own
    machine's clock has passed the deadline: by then the holder, which counts on its own clock, has stopped.
    """
    overdue = tx.projection.jobs.sound(tx.session.take_overdue(tx.now, limit))
    known = filter(None, map(tx.projection.jobs.know, overdue))
    return sum(_expire(tx, entry.job, rescued) for entry in known)


def expire_one(tx: Transaction, job_id: bytes, rescued: Rescued = _untold) -> bool:
    """Returns one claimed job past its deadline to the queue."""
    entry = tx.projection.jobs.entry(job_id)
    return entry is not None and (entry.job.deadline or NEVER) < tx.now and _expire(tx, entry.job, rescued)


def _expire(tx: Transaction, job: Job, rescued: Rescued) -> bool:
    if job.claimer is None or job.deadline is None or not tx.decides(job.policy):
        return False
    if not job.policy.open and tx.physical <= job.deadline:
        return False
    if isinstance(author(tx, ExpireWork(job.id, job.claimer, "deadline_passed")), Reason):
        return False
    rescued(job, "its lease ran out")
    return True


def end_unbegun(tx: Transaction, limit: int) -> int:
    """Cancels jobs that were not approved, or that no worker has claimed, in the time that their submitters gave. The
    arbiter does it; for an open job its submitter's node does, and any other node if that one does not.
    """
    unbegun = tx.projection.jobs.sound(tx.session.take_unbegun(min(tx.now, tx.physical), limit))
    known = filter(None, map(tx.projection.jobs.know, unbegun))
    return sum(_end_unbegun(tx, entry.job) for entry in known)


def _end_unbegun(tx: Transaction, job: Job) -> bool:
    policy = job.policy
    limit_ms = policy.approval_within_ms if job.waits_for_approval else policy.ttl_ms
    if job.begin_by is None or limit_ms is None or not _may_end(tx, job, job.begin_by) or tx.is_strict:
        return False
    missing = f"{policy.approval_by} did not approve it" if job.waits_for_approval else "no worker began it"
    reason = f"{missing} within {counted(limit_ms / 1000, 'second')}"
    return not isinstance(author(tx, CancelJob(job.id, reason)), Reason)


def lost_dependency(session: Session, entry: JobEntry) -> bytes | None:
    """The job that a blocked one waits for in vain: it failed or was cancelled. The node that ended it cancels those
    that come after it, but it may not have known this one, and this one's submitter may not have known of the end.
    """
    for job_id in entry.job.policy.dependencies():
        dependency = session.job(job_id)
        if dependency is not None and dependency.job.outcome in (Outcome.FAILED, Outcome.CANCELLED):
            return job_id
    return None


def end_hopeless(tx: Transaction, entries: Sequence[JobEntry]) -> None:
    """Cancels those of the given blocked jobs that wait in vain. Who does it is as in `end_unbegun`."""
    for entry in entries:
        lost = lost_dependency(tx.session, entry)
        if lost is not None and _may_end(tx, entry.job, entry.job.scheduled.wall):
            call_off_dependents(tx, lost)


def _may_end(tx: Transaction, job: Job, since_ms: int) -> bool:
    """Whether this node ends a job for which there is no use since then. An open job is first left to its submitter."""
    is_left = job.policy.open and job.scheduled.node != tx.node and tx.now <= since_ms + OTHERS_MS
    return tx.decides(job.policy) and not is_left


def reclaim(tx: Transaction, dead: set[int], rescued: Rescued = _untold) -> int:
    """Returns the jobs of dead processes of this node to the queue, whatever their lease. `dead` are the workers of
    this node that were found dead; a worker that has registered since is not among them. Returns how many there were,
    without those that this node has offered to return before and on which the arbiter has not decided yet.
    """
    node = tx.node.to_bytes(8, "big")
    alive = {worker.number for worker in tx.session.workers(node)} - dead
    lost = tx.projection.jobs.sound([each for each in tx.session.take_claimed(node) if each.worker not in alive])
    returned = 0
    for entry in filter(None, map(tx.projection.jobs.know, lost)):
        job = entry.job
        assert job.claim_op is not None
        if not _end_is_offered(tx, job):
            returned += 1
            author(tx, YieldWork(job.id, tx.node, WORKER_DIED), (job.claim_op,))
            rescued(job, WORKER_DIED)
    for number in dead:
        tx.session.drop_worker(number)
        tx.session.drop_offers_of(number)
    return returned


def deaths(session: Session, job: Job, node: int) -> int:
    """How many worker processes of this node died or were lost while they held the job, since it was last retried by
    hand. Only this node's own workers count: another node must not make a job take a whole worker here.
    """
    if job.returns < DEATHS_ALONE:
        return 0
    rows = session.ops_about(Subject(JOB, job.id))
    ops = [decode(row.body) for row in rows if row.variant in _DEATHS and row.reason in (0, Reason.OFFERED)]
    count = 0
    for op in sorted(ops, key=lambda op: op.timestamp):
        payload = op.payload
        if isinstance(payload, RetryJob):
            count = 0
        elif isinstance(payload, YieldWork):
            count += op.node_id == node and payload.reason == WORKER_DIED
        else:
            count += isinstance(payload, ExpireWork) and payload.expired_claimer == node
    return count


def _end_is_offered(tx: Transaction, job: Job) -> bool:
    """Whether an earlier offer to end this hold still waits for the arbiter."""
    offered = [
        row
        for row in tx.session.ops_about(Subject(JOB, job.id))
        if row.reason == Reason.OFFERED and row.variant in _ENDS
    ]
    return any(job.claim_op in decode(row.body).cited for row in offered)
