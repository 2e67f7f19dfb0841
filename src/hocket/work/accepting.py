"""The arbiter's part: it decides on the offers of other nodes."""

from collections.abc import Sequence

from hocket.kernel.availability import allows
from hocket.kernel.coordination_payloads import LeaveQueue
from hocket.kernel.ops import Op
from hocket.kernel.reasons import Reason
from hocket.kernel.roster import Job, State
from hocket.kernel.subjects import JOB, subject_of
from hocket.kernel.vocabulary import AcceptOffer, AcceptWork, ClaimWork, ExpireWork
from hocket.log import Transaction
from hocket.log.request_deadlines import is_given_up
from hocket.work.claiming import turn
from hocket.work.jobs import author, stamp


def accept(tx: Transaction, offers: Sequence[Op]) -> int:
    """The arbiter's part: decides on other nodes' offers, in the order of the offers' own times. It decides here and
    now what spans jobs and what depends on the rest of the log; the fold does not check that again. It also accepts
    completions of open jobs, which need no acceptance: then they stand, whatever arrives later. Returns how many it
    accepted.
    """
    withdrawn = {(op.node_id, op.payload.waiting) for op in offers if isinstance(op.payload, LeaveQueue)}
    return sum(
        _accept(tx, op) if tx.is_offer(op) else stamp(tx, op)
        for op in sorted(offers, key=lambda op: op.timestamp)
        if (op.node_id, op.id) not in withdrawn
    )


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
    return not isinstance(author(tx, AcceptWork(job_id, op.id)), Reason)


def _may_start(tx: Transaction, op: Op, payload: ClaimWork, job: Job) -> bool:
    """Whether a claim from another node would be useful if accepted, and would break no limit."""
    if is_given_up(op, payload.lease_duration_ms, tx.physical, tx.now):
        return False
    if any(tx.projection.jobs.succeeded(dependency) is None for dependency in job.policy.dependencies()):
        return False
    return turn(tx, job) <= tx.now
