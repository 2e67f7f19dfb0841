"""A job as the columns of a table, the same in every store."""

from typing import Any

from hocket.kernel.clock import pack, unpack
from hocket.kernel.policy import DEFAULT, decode_policy, encode_policy
from hocket.kernel.roster import Job, Outcome, State
from hocket.store.jobs import JobEntry, Stage

JOB_COLUMNS = (
    "id, kind, stage, priority, schedule_op, scheduled, policy, last, outcome, fence, failures, returns, claimer,"
    " claim_op, deadline, ready_at, done, artifacts, error_op, progress, unique_key, worker,"
    " settled, begin_by"
)
_STAGES = tuple(Stage)
_OUTCOMES = tuple(Outcome)
_STATES = (State.PENDING, State.PENDING, State.PENDING, State.CLAIMED, State.COMPLETED)


def job_row(entry: JobEntry) -> tuple[Any, ...]:
    job = entry.job
    policy = job.policy
    return (
        job.id,
        job.kind,
        int(entry.stage),
        policy.priority,
        job.schedule_op,
        pack(job.scheduled),
        encode_policy(policy),
        pack(job.last),
        job.outcome,
        job.fence,
        job.failures,
        job.returns,
        None if job.claimer is None else job.claimer.to_bytes(8, "big"),
        job.claim_op,
        job.deadline,
        job.ready_at,
        None if job.done is None else pack(job.done),
        b"".join(job.artifacts),
        job.error_op,
        job.progress,
        policy.unique,
        entry.worker,
        int(job.is_settled),
        job.begin_by,
    )


def job_entry(row: tuple[Any, ...]) -> JobEntry:
    (job_id, kind, stage, _, schedule_op, scheduled, policy, last, outcome, fence, failures, returns, claimer,
     claim_op, deadline, ready_at, done, artifacts, error_op, progress, _, worker, settled, begin_by) = row  # fmt: skip
    job = Job(
        job_id,
        kind,
        schedule_op,
        unpack(scheduled),
        decode_policy(policy) if policy else DEFAULT,
        unpack(last),
        _STATES[stage],
        None if outcome is None else _OUTCOMES[outcome],
        fence,
        failures,
        returns,
        None if claimer is None else int.from_bytes(claimer, "big"),
        claim_op,
        deadline,
        ready_at,
        None if done is None else unpack(done),
        tuple(artifacts[i : i + 16] for i in range(0, len(artifacts), 16)) if artifacts else (),
        error_op,
        progress,
        bool(settled),
        begin_by,
    )
    return JobEntry(job, _STAGES[stage], worker)
