"""A job in a store: its entry in the roster (see `roster`), and the columns of its row, which are the same in every
store.
"""

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

from hocket.families.jobs.rules import Job, Outcome, State
from hocket.kernel.bundles import Fact, read_facts, schedule_body, with_bundle_signature
from hocket.kernel.clock import pack, unpack
from hocket.kernel.ops import Op
from hocket.kernel.policy import DEFAULT, decode_policy, encode_policy
from hocket.kernel.postcard import Malformed


class Stage(IntEnum):
    """A job's place in the queue: its state, and for a pending job what it waits for."""

    READY = 0
    DELAYED = 1
    BLOCKED = 2
    CLAIMED = 3
    DONE = 4


class JobEntry(NamedTuple):
    """A job in the roster: the fold's result, its place in the queue, and which process of this node holds it. In a
    store that nodes share also the time of the last op about the job, if it is not that of the fold's result.
    """

    job: Job
    stage: Stage
    worker: int | None
    other_last: bytes | None = None


class JobFilter(NamedTuple):
    """Which jobs a list shows: those of these stages (all if none is named), of this outcome, and of the kinds that
    `kind` covers; those that the node `author` has submitted, not before `since_ms`, and before `until_ms`. A page
    begins `beyond` the last job of the page before. `argument` is a path and the value that the payload has there,
    where jobs are found by that path.
    """

    stages: tuple[Stage, ...] = ()
    outcome: Outcome | None = None
    kind: str | None = None
    beyond: bytes | None = None
    newest_first: bool = True
    author: bytes | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    argument: tuple[str, str] | None = None


IsLeft = Callable[[bytes, int], bool]
"""Whether the job with this id and fence is left to others."""

ReadyJob = tuple[JobEntry, bytes | None]


class BundledOp(NamedTuple):
    """An op that came in a bundle, and the bundle's bytes. The op is None if the bundle has no such one."""

    bundle: bytes
    op: Op | None


class ChecksJobs(Protocol):
    """What a store that nodes share asks about jobs: see `RowCheck`."""

    def ready(self, jobs: list[ReadyJob], bundled: Mapping[bytes, BundledOp]) -> list[ReadyJob]:
        """The new jobs that are as their ScheduleJob ops say, and that these ops' authors may submit, and other jobs
        whose ScheduleJob ops are good. A job whose op is not stored yet is kept. `bundled` are the ops that came in
        bundles, by their ids.
        """

    def jobs(self, entries: Sequence[JobEntry]) -> list[JobEntry]:
        """The jobs that are as their ScheduleJob ops say, and held by the authors of their claims, if no later op about
        them counts. For a session that folds nothing.
        """

    def knows_job(self, entry: JobEntry) -> bool:
        """Whether this process has written the job so, or folded it, and no op about it is later."""

    def held_jobs(self, job_ids: Iterable[bytes]) -> list[JobEntry]:
        """Those of the jobs that a node holds and that this process knows. The caller must make sure that nothing about
        them is later: then they are as the entries say, whatever their rows say.
        """

    def outdated(self) -> None:
        """The transaction has failed because something is later. The jobs that it got unread are forgotten."""

    def enter_job(self, entry: JobEntry) -> None:
        """The ops about this job, folded, make it what the entry says."""

    def wrote_jobs(self, entries: Sequence[JobEntry]) -> None:
        """The transaction has written these jobs. They are believed when it is committed."""

    def refuse(self, table: str, row: str, what: str) -> None:
        """Reports a row that the caller has left out."""


JOB_COLUMNS = (
    "id, kind, stage, priority, schedule_op, scheduled, policy, last, outcome, fence, failures, returns, claimer,"
    " claim_op, deadline, ready_at, done, artifacts, error_op, progress, unique_key, worker,"
    " settled, begin_by"
)
MOVED_COLUMNS = "stage, last, outcome, fence, claimer, claim_op, deadline, done, artifacts, worker, begin_by"
# Where these stand among the columns.
SCHEDULE_OP, PRIORITY, SCHEDULED, POLICY, LAST = map(
    JOB_COLUMNS.split(", ").index, ("schedule_op", "priority", "scheduled", "policy", "last")
)
_COUNT = JOB_COLUMNS.count(",") + 1
# The time of the last op about the job of the row.
LAST_OP = "(SELECT hlc FROM ops AS o WHERE o.key = {}.id AND o.settled = 1 ORDER BY hlc DESC LIMIT 1)"
CHECKED_COLUMNS = f"{JOB_COLUMNS}, {LAST_OP.format('jobs')}"
_OF_J = ", ".join(f"j.{column}" for column in JOB_COLUMNS.split(", "))
_SCHEDULE = "ops.seq, ops.place, ops.body"
READY_COLUMNS = f"{_OF_J}, {_SCHEDULE}"
CHECKED_READY_COLUMNS = f"{_OF_J}, {LAST_OP.format('j')}, {_SCHEDULE}"
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


def moved_row(entry: JobEntry) -> tuple[Any, ...]:
    """The columns that a claim or a completion changes, and the id."""
    job = entry.job
    return (
        int(entry.stage),
        pack(job.last),
        job.outcome,
        job.fence,
        None if job.claimer is None else job.claimer.to_bytes(8, "big"),
        job.claim_op,
        job.deadline,
        None if job.done is None else pack(job.done),
        b"".join(job.artifacts),
        entry.worker,
        job.begin_by,
        job.id,
    )


def job_entry(row: tuple[Any, ...]) -> JobEntry:
    (job_id, kind, stage, _, schedule_op, scheduled, policy, last, outcome, fence, failures, returns, claimer,
     claim_op, deadline, ready_at, done, artifacts, error_op, progress, _, worker, settled, begin_by) = row  # fmt: skip
    job = Job(
        job_id,
        kind,
        schedule_op,
        submitted := unpack(scheduled),
        decode_policy(policy) if policy else DEFAULT,
        submitted if last == scheduled else unpack(last),
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


def job_entries(rows: Iterable[tuple[Any, ...]], check: ChecksJobs | None) -> list[JobEntry]:
    """The jobs of these rows. In a store that nodes share, the rows have the `CHECKED_COLUMNS`, and one that cannot be
    read is left out and reported.
    """
    if check is None:
        return [job_entry(row) for row in rows]
    return [entry for row in rows if (entry := _readable(row, check)) is not None]


def bundles_of(rows: Sequence[tuple[Any, ...]]) -> list[int]:
    """The numbers of the bundles that the jobs came in. The rows end with the ScheduleJob op."""
    return sorted({row[-3] - row[-2] - 1 for row in rows if row[-2] is not None})


def ready_jobs(
    rows: Sequence[tuple[Any, ...]], check: ChecksJobs | None, bundles: Mapping[int, bytes]
) -> list[ReadyJob]:
    """The jobs of rows that end with the ScheduleJob op. `check` leaves out those that are not so. Workers rank
    themselves by the signature, so a fact about a ranked job has that of its bundle.
    """

    if check is not None:
        return _checked_ready_jobs(rows, check, bundles)

    def schedule(row: tuple[Any, ...]) -> bytes | None:
        seq, place, body = row[-3:]
        if place is None:
            return body  # type: ignore[no-any-return]
        bundle = bundles.get(seq - place - 1, b"")
        fact = _schedule_body(bundle, place, row[SCHEDULE_OP])
        is_ranked = row[POLICY] and decode_policy(row[POLICY]).is_ranked
        return with_bundle_signature(fact, bundle) if is_ranked else fact

    return [(job_entry(row[:_COUNT]), schedule(row)) for row in rows]


def _checked_ready_jobs(
    rows: Sequence[tuple[Any, ...]], check: ChecksJobs, bundles: Mapping[int, bytes]
) -> list[ReadyJob]:
    """The ids of ScheduleJobs are not believed, so bundles are taken apart, each once."""
    facts = {seq: _facts(bundle) for seq, bundle in bundles.items()}
    jobs: list[ReadyJob] = []
    came_in: dict[bytes, BundledOp] = {}
    for row in rows:
        if (entry := _readable(row, check)) is None:
            continue
        seq, place, body = row[-3:]
        if place is not None:
            bundle, of_bundle = bundles.get(seq - place - 1, b""), facts.get(seq - place - 1, ())
            op, body = of_bundle[place] if 0 <= place < len(of_bundle) else (None, b"")
            came_in[entry.job.schedule_op] = BundledOp(bundle, op)
            if entry.job.policy.is_ranked:
                body = with_bundle_signature(body, bundle)
        jobs.append((entry, body))
    return check.ready(jobs, came_in) if jobs else []


def _facts(bundle: bytes) -> tuple[Fact, ...]:
    try:
        return read_facts(bundle)
    except Malformed:
        return ()


def _schedule_body(bundle: bytes, place: int, job_op: bytes) -> bytes:
    try:
        return schedule_body(bundle, place, job_op)
    except (Malformed, IndexError):
        return b""


def _readable(row: tuple[Any, ...], check: ChecksJobs) -> JobEntry | None:
    try:
        entry, last = job_entry(row[:_COUNT]), row[_COUNT]
        return entry if last == row[LAST] else entry._replace(other_last=last or b"")
    except (ValueError, IndexError, TypeError, struct.error) as error:
        check.refuse("jobs", bytes(row[0]).hex(), f"its row cannot be read: {error}")
        return None
