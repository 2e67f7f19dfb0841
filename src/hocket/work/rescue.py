"""Returning jobs to the queue whose worker is gone."""

from collections.abc import Callable

from hocket.kernel.ops import decode
from hocket.kernel.reasons import Reason
from hocket.kernel.roster import Job
from hocket.kernel.subjects import JOB, Subject
from hocket.kernel.vocabulary import CompleteJob, ExpireWork, FailWork, PostponeWork, YieldWork, number_of
from hocket.log import Transaction
from hocket.work.jobs import NEVER, author

_ENDS = tuple(number_of(end) for end in (CompleteJob, FailWork, PostponeWork, YieldWork))
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
    if isinstance(author(tx, ExpireWork(job.id, job.claimer, "deadline_passed")), Reason):
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
            author(tx, YieldWork(job.id, tx.node, WORKER_DIED), (job.claim_op,))
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
