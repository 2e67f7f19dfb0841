"""A job as the columns of a table, the same in every store."""

import struct
from collections.abc import Iterable
from typing import Any

from hocket.kernel.clock import pack, unpack
from hocket.kernel.policy import DEFAULT, decode_policy, encode_policy
from hocket.kernel.roster import Job, Outcome, State
from hocket.store.jobs import JobEntry, Stage
from hocket.store.row_check import ReadyJob, RowCheck

JOB_COLUMNS = (
    "id, kind, stage, priority, schedule_op, scheduled, policy, last, outcome, fence, failures, returns, claimer,"
    " claim_op, deadline, ready_at, done, artifacts, error_op, progress, unique_key, worker,"
    " settled, begin_by"
)
# Where these stand among the columns.
PRIORITY, SCHEDULED, LAST = (JOB_COLUMNS.split(", ").index(name) for name in ("priority", "scheduled", "last"))
_COUNT = JOB_COLUMNS.count(",") + 1
# The time of the last op about the job of the row.
_LAST_OP = "(SELECT hlc FROM ops AS o WHERE o.key = {}.id AND o.settled = 1 ORDER BY hlc DESC LIMIT 1)"
CHECKED_COLUMNS = f"{JOB_COLUMNS}, {_LAST_OP.format('jobs')}"
_OF_J = ", ".join(f"j.{column}" for column in JOB_COLUMNS.split(", "))
READY_COLUMNS = f"{_OF_J}, ops.body"
CHECKED_READY_COLUMNS = f"{_OF_J}, {_LAST_OP.format('j')}, ops.body"
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


def job_entries(rows: Iterable[tuple[Any, ...]], check: RowCheck | None) -> list[JobEntry]:
    """The jobs of these rows. In a store that nodes share, the rows have the `CHECKED_COLUMNS`, and one that cannot be
    read is left out and reported.
    """
    if check is None:
        return [job_entry(row) for row in rows]
    return [entry for row in rows if (entry := _readable(row, check)) is not None]


def ready_jobs(rows: Iterable[tuple[Any, ...]], check: RowCheck | None) -> list[ReadyJob]:
    """The jobs of rows that end with the bytes of the ScheduleJob op. `check` leaves out those that are not so."""
    if check is None:
        return [(job_entry(row[:_COUNT]), row[-1]) for row in rows]
    found = [(entry, row[-1]) for row in rows if (entry := _readable(row, check)) is not None]
    return check.ready(found) if found else []


def _readable(row: tuple[Any, ...], check: RowCheck) -> JobEntry | None:
    try:
        entry, last = job_entry(row[:_COUNT]), row[_COUNT]
        return entry if last == row[LAST] else entry._replace(other_last=last or b"")
    except (ValueError, IndexError, TypeError, struct.error) as error:
        check.refuse("jobs", bytes(row[0]).hex(), f"its row cannot be read: {error}")
        return None
