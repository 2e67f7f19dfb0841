"""The roster, and the queue that workers take jobs from."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from hocket.families.jobs.rules import Outcome
from hocket.kernel.clock import pack
from hocket.kernel.policy import UNAPPROVED_MS
from hocket.store.job_pages import JobPageSession, of_stages
from hocket.store.job_rows import (
    CHECKED_COLUMNS,
    CHECKED_READY_COLUMNS,
    JOB_COLUMNS,
    PRIORITY,
    READY_COLUMNS,
    SCHEDULED,
    ChecksJobs,
    IsLeft,
    JobEntry,
    ReadyJob,
    Stage,
    job_entries,
    job_entry,
    ready_jobs,
)
from hocket.store.statements import Dialect, Row, insert_new, upsert

# A delayed job that was claimed before waits for its next run: it failed, was returned, or was postponed.
_RESTING = f"stage = 1 AND fence > 0 AND ready_at < {UNAPPROVED_MS}"
# Each kind once, by hopping through the index from kind to kind.
READY_KINDS = """
    WITH RECURSIVE kinds(kind) AS (
        SELECT min(kind) FROM jobs WHERE stage = 0
        UNION ALL SELECT (SELECT min(jobs.kind) FROM jobs WHERE stage = 0 AND jobs.kind > kinds.kind)
        FROM kinds WHERE kinds.kind IS NOT NULL)
    SELECT kind FROM kinds WHERE kind IS NOT NULL"""
NEXT_READY = "SELECT min(ready_at) FROM jobs WHERE stage = 1"
_OTHER_BUSY_KINDS = f"SELECT kind FROM jobs WHERE stage = 3 UNION SELECT kind FROM jobs WHERE {_RESTING}"
# The order of the tables keeps SQLite from reading every op.
_OPEN_OFFERS = """
    SELECT count(*) FROM (SELECT id, last FROM jobs {}) AS unended CROSS JOIN ops WHERE ops.key = unended.id
    AND ops.settled = 1 AND ops.family = 'job' AND ops.hlc >= unended.last AND ops.reason = ?"""
_ENDED = "SELECT outcome, CAST(sum(jobs) AS BIGINT) FROM finished GROUP BY outcome"
_ENDED_BY_KIND = """
    SELECT kind, outcome, CAST(sum(jobs) AS BIGINT) FROM finished GROUP BY kind, outcome HAVING sum(jobs) > 0"""
_SET_AFTER = insert_new("after", "dependency, job")
_PUT_ARGUMENT = insert_new("arguments", "job, path, value")
_SET_RATE = upsert("rates", "kind, due", "kind")


@cache
def _unended(dialect: Dialect) -> tuple[str, str]:
    """Counts jobs that have not ended, by stage; and by stage and kind."""
    stages = {int(stage): where for stage, where in of_stages(dialect).items() if stage is not Stage.DONE}
    by_stage = [f"SELECT {stage}, count(*) FROM jobs {where}" for stage, where in stages.items()]
    by_kind = [f"SELECT {stage}, kind, count(*) FROM jobs {where} GROUP BY kind" for stage, where in stages.items()]
    return " UNION ALL ".join(by_stage), " UNION ALL ".join(by_kind)


class JobSession(JobPageSession):
    row_check: ChecksJobs | None

    @abstractmethod
    def job(self, job_id: bytes) -> JobEntry | None: ...

    @abstractmethod
    def jobs_by_id(self, job_ids: Sequence[bytes]) -> list[JobEntry]: ...

    @abstractmethod
    def put_jobs(self, entries: Sequence[JobEntry]) -> None: ...

    @abstractmethod
    def move_jobs(self, entries: Sequence[JobEntry]) -> None:
        """Puts entries of stored jobs that had not ended, and of which only what a claim or a completion changes has
        changed.
        """

    def drop_job(self, job_id: bytes) -> None:
        self._uncount(job_id)
        self._put("DELETE FROM jobs WHERE id = ?", (job_id,))
        self._put("DELETE FROM after WHERE job = ?", (job_id,))
        self._put("DELETE FROM arguments WHERE job = ?", (job_id,))

    @abstractmethod
    def _uncount(self, job_id: bytes) -> None:
        """The job, which may have ended, is about to be dropped."""

    def job_ids(self, low: bytes, high: bytes, limit: int) -> list[bytes]:
        return self._column("SELECT id FROM jobs WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?", low, high, limit)

    def job_ids_ending(self, ending: bytes) -> list[bytes]:
        """The ids that end with these bytes. It reads every job."""
        return self._column("SELECT id FROM jobs WHERE substr(id, ?) = ?", 17 - len(ending), ending)

    def each_job(self) -> Iterator[JobEntry]:
        for row in self._pages(f"SELECT {JOB_COLUMNS} FROM jobs WHERE id > ? ORDER BY id LIMIT ?"):
            yield job_entry(row)

    def jobs_of_kinds_since(self, kind: str, hlc: bytes) -> list[bytes]:
        """The jobs of a kind, or of all kinds below a prefix that ends with a dot, with an op after that time."""
        if not kind.endswith("."):
            return self._column("SELECT id FROM jobs WHERE kind = ? AND last > ?", kind, hlc)
        return self._column("SELECT id FROM jobs WHERE substr(kind, 1, ?) = ? AND last > ?", len(kind), kind, hlc)

    def jobs_since(self, hlc: bytes) -> list[bytes]:
        return self._column("SELECT id FROM jobs WHERE last > ?", hlc)

    def jobs_by_unique_key(self, key: str) -> list[JobEntry]:
        return self._jobs("WHERE unique_key = ?", key)

    def open_offers(self, reason: int) -> int:
        """How many of the latest ops about unfinished jobs do not count for this reason."""
        if self._one("SELECT 1 FROM ops WHERE reason <> 0 AND reason = ? LIMIT 1", int(reason)) is None:
            return 0
        stages = [where for stage, where in of_stages(self.dialect).items() if stage is not Stage.DONE]
        return sum(int(self._one(_OPEN_OFFERS.format(where), int(reason))) for where in stages)

    def counts(self) -> dict[tuple[Stage, Outcome | None], int]:
        """How many jobs there are of each stage, and outcome if they have one. Ended jobs are counted when they end, so
        the cost does not grow with them.
        """
        unended = [((Stage(stage), None), count) for stage, count in self._rows(_unended(self.dialect)[0])]
        ended = [((Stage.DONE, Outcome(outcome)), count) for outcome, count in self._rows(_ENDED)]
        return {key: count for key, count in (*unended, *ended) if count}

    def counts_by_kind(self) -> dict[tuple[Stage, Outcome | None, str], int]:
        """Counts jobs by stage, outcome and kind. The cost grows with the kinds and the unfinished jobs."""
        counts: dict[tuple[Stage, Outcome | None, str], int] = {
            (Stage(stage), None, kind): count for stage, kind, count in self._rows(_unended(self.dialect)[1])
        }
        for kind, outcome, count in self._rows(_ENDED_BY_KIND):
            counts[Stage.DONE, Outcome(outcome), kind] = count
        return counts

    def set_after(self, job_id: bytes, dependencies: Sequence[bytes]) -> None:
        self._many(_SET_AFTER, [(dependency, job_id) for dependency in dependencies])

    def put_arguments(self, job_id: bytes, arguments: Sequence[tuple[str, str]]) -> None:
        """The job is found by these paths and values."""
        self._many(_PUT_ARGUMENT, [(job_id, *each) for each in arguments])

    def has_argument(self, path: str) -> bool:
        """Whether any job is found by this path."""
        return self._one("SELECT 1 FROM arguments WHERE path = ? LIMIT 1", path) is not None

    def has_after(self) -> bool:
        return bool(self._one("SELECT EXISTS (SELECT 1 FROM after)"))

    def dependents(self, job_id: bytes) -> list[bytes]:
        return self._column("SELECT job FROM after WHERE dependency = ?", job_id)

    # The queue.

    @abstractmethod
    def promote(self, now: int) -> None:
        """Makes delayed jobs ready whose time has come."""

    def ready_kinds(self) -> list[str]:
        return self._column(READY_KINDS)

    def ready(self, kind: str, limit: int, after: JobEntry | None = None) -> list[ReadyJob]:
        """The most urgent jobs of a kind, each with its ScheduleJob op (None if that is not stored yet)."""
        return self._ready(kind, limit, after)

    def _ready(self, kind: str, limit: int, after: JobEntry | None, where: str = "", lock: str = "") -> list[ReadyJob]:
        """See `ready`. `where` and `lock` are parts of the statement."""
        jobs: list[ReadyJob] = []
        place = None if after is None else (after.job.policy.priority, pack(after.job.scheduled))
        columns = READY_COLUMNS if self.row_check is None else CHECKED_READY_COLUMNS
        while wanted := limit - len(jobs):
            beyond, values = "", []
            if place is not None:
                beyond, values = "AND j.priority <= ? AND (j.priority < ? OR j.scheduled > ?)", [place[0], *place]
            rows, bundles = self._with_bundles(
                f"SELECT {columns} FROM jobs AS j LEFT JOIN ops ON ops.id = j.schedule_op AND ops.settled = 1"
                f" WHERE j.stage = 0 AND j.kind = ? {beyond} {where}"
                f" ORDER BY j.priority DESC, j.scheduled LIMIT ? {lock}",
                (kind, *values, wanted),
            )
            jobs += ready_jobs(rows, self.row_check, bundles)
            if len(rows) < wanted:
                break
            place = rows[-1][PRIORITY], rows[-1][SCHEDULED]
        return jobs

    @abstractmethod
    def _with_bundles(self, sql: str, values: Sequence[Any]) -> tuple[list[Row], Mapping[int, bytes]]:
        """Rows that end with the ScheduleJob op, and the bundles that these came in."""

    @abstractmethod
    def take_ready(
        self, kind: str, limit: int, after: JobEntry | None = None, is_left: IsLeft | None = None
    ) -> list[ReadyJob]:
        """Locks and returns the most urgent jobs of a kind. Leaves out jobs that another transaction has locked, and
        jobs that the caller has left to others: of these it reads no more than id and fence.
        """

    has_skipped = False
    """Whether `take_ready` found no job of a kind, perhaps because other transactions have locked all."""

    def claimed_count(self, kind: str) -> int:
        return int(self._one("SELECT count(*) FROM jobs WHERE stage = 3 AND kind = ?", kind))

    def holds(self, worker: int) -> bool:
        """Whether a worker of the node that uses the store holds a job."""
        return self._one("SELECT 1 FROM jobs WHERE stage = 3 AND worker = ? LIMIT 1", worker) is not None

    def claimed(self) -> list[JobEntry]:
        return self._jobs("WHERE stage = 3")

    def take_claimed(self, node: bytes) -> list[JobEntry]:
        """The jobs that a node holds, locked: leaves out those that another transaction has locked."""
        self.lock_subjects(())
        return self._jobs("WHERE stage = 3 AND claimer = ?", node)

    def overdue(self, now: int, limit: int) -> list[JobEntry]:
        """Claimed jobs past their deadline."""
        return self._jobs("WHERE stage = 3 AND deadline < ? LIMIT ?", now, limit)

    def take_overdue(self, now: int, limit: int) -> list[JobEntry]:
        """Locks and returns claimed jobs past their deadline; leaves out jobs that another transaction has locked."""
        self.lock_subjects(())
        return self.overdue(now, limit)

    def take_unbegun(self, now: int, limit: int) -> list[JobEntry]:
        """Jobs that no worker has claimed and whose time for a first claim is over, locked in the same way."""
        self.lock_subjects(())
        return self._jobs("WHERE begin_by < ? ORDER BY begin_by LIMIT ?", now, limit)

    def next_begin_by(self) -> int | None:
        """When the time for a first claim ends next."""
        earliest: int | None = self._one("SELECT min(begin_by) FROM jobs WHERE begin_by IS NOT NULL")
        return earliest

    def blocked(self, limit: int, after: JobEntry | None = None) -> list[JobEntry]:
        """Jobs that wait for others, in an order that pages can follow."""
        where = f"{of_stages(self.dialect)[Stage.BLOCKED]} AND (kind, id) > (?, ?) ORDER BY kind, id LIMIT ?"
        seen = ("", b"") if after is None else (after.job.kind, after.job.id)
        return self._jobs(where, *seen, limit)

    def next_ready_at(self) -> int | None:
        earliest: int | None = self._one(NEXT_READY)
        return earliest

    def next_deadline(self) -> int | None:
        earliest: int | None = self._one("SELECT min(deadline) FROM jobs WHERE stage = 3")
        return earliest

    def busy_kinds(self) -> set[str]:
        """The kinds with a job that can start, is running, or waits for its next try."""
        return {*self.ready_kinds(), *self._column(_OTHER_BUSY_KINDS)}

    def busy(self, kind: str, limit: int) -> list[JobEntry]:
        """Jobs of a kind that can start, or wait for their next try."""
        return self._jobs(f"WHERE kind = ? AND (stage = 0 OR {_RESTING}) LIMIT ?", kind, limit)

    def rate(self, kind: str) -> int:
        return self._one("SELECT due FROM rates WHERE kind = ?", kind) or 0

    def set_rate(self, kind: str, due: int) -> None:
        self._put(_SET_RATE, (kind, due))

    def _jobs(self, tail: str, *values: Any) -> list[JobEntry]:
        columns = JOB_COLUMNS if self.row_check is None else CHECKED_COLUMNS
        return job_entries(self._rows(f"SELECT {columns} FROM jobs {tail}", *values), self.row_check)
