"""On whose behalf a job runs. A worker's owner decides which commands of other nodes it runs; the node's own jobs need
no such permission. So the author of each job must be known: for a schedule's tick, it is the schedule's author, not the
node that wrote the tick; for a retried job, it is also the author of the last retry, since without that retry the job
would not run.
"""

from msgspec.structs import replace

from hocket.families.jobs import cron
from hocket.families.jobs.rules import Job
from hocket.kernel.arbitration import Reason
from hocket.kernel.clock import unpack
from hocket.kernel.ops import decode
from hocket.kernel.policy import DEFAULT, readable_policy
from hocket.kernel.vocabulary import JOB, AcceptWork, RetryJob, ScheduleJob, Subject, number_of
from hocket.store import OpRow, Session

_RETRY, _ACCEPT = number_of(RetryJob), number_of(AcceptWork)
# Stands for an unknown author. No node has this id: ids are hashes of keys.
NOBODY = -1


def is_own(session: Session, node: int, schedule: bytes) -> bool:
    """Whether the job of this ScheduleJob op runs only on the node's own behalf. A job that the roster does not have
    yet is being submitted.
    """
    op = decode(schedule)
    assert isinstance(op.payload, ScheduleJob)
    entry = session.job(op.payload.job_id)
    policy = readable_policy(op.payload.policy_envelope) or DEFAULT
    if entry is None:
        return op.node_id == node and not policy.schedule_op
    # The op is what its author signed; the row may be anyone's in a store that nodes share.
    job = replace(entry.job, id=op.payload.job_id, policy=policy, scheduled=op.timestamp)
    is_tick = policy.schedule_op is None or cron.is_tick(session, job)
    return bool(is_tick) and authors(session, job, schedule) == {node}


def authors(session: Session, job: Job, schedule: bytes) -> frozenset[int]:
    """The nodes on whose behalf the job runs; `schedule` is the op that scheduled it. The job is a node's own only if
    that node is the only one.
    """
    set_by = job.policy.set_by()
    first = decode(schedule).node_id if set_by is None else _author(session.op(set_by))
    # A new job has no other ops. Where other nodes can change its row, only the ops show whether it is new.
    is_new = job.last == job.scheduled and session.row_check is None
    retried = None if is_new else _last_retry(session, job.id)
    return frozenset({first} if retried is None else {first, retried})


def _last_retry(session: Session, job_id: bytes) -> int | None:
    """The author of the last retry that counts, even if it counts only since the arbiter accepted it."""
    rows = session.ops_about(Subject(JOB, job_id))
    offers = {row.id: row for row in rows if row.variant == _RETRY and row.reason == Reason.OFFERED}
    author = None
    for row in rows:
        if row.reason:
            continue
        if row.variant == _RETRY:
            author = _author(row)
        elif row.variant == _ACCEPT and offers:
            payload = decode(row.body).payload
            assert isinstance(payload, AcceptWork)
            if payload.offer in offers:
                author = _author(offers[payload.offer])
    return author


def _author(row: OpRow | None) -> int:
    return NOBODY if row is None else unpack(row.hlc).node
