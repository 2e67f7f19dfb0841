"""The statements about the roster and the queue."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import apsw

from hocket.kernel.clock import pack
from hocket.store.job_columns import (
    CHECKED_COLUMNS,
    CHECKED_READY_COLUMNS,
    JOB_COLUMNS,
    MOVED_COLUMNS,
    PRIORITY,
    READY_COLUMNS,
    SCHEDULED,
    bundles_of,
    job_entries,
    job_row,
    moved_row,
    ready_jobs,
)
from hocket.store.jobs import IsLeft, JobEntry, Stage
from hocket.store.roster import JobSession
from hocket.store.row_check import RowCheck
from hocket.store.sqlite.ops import SqliteOps

CLAIMED_REMEMBERED = 4_096

_COLUMNS = JOB_COLUMNS.split(", ")
# Not REPLACE: the row stays in its place.
_PUT_JOB = (
    f"INSERT INTO jobs ({JOB_COLUMNS}) VALUES ({', '.join('?' * len(_COLUMNS))}) ON CONFLICT (id) DO UPDATE SET "
    + ", ".join(f"{column} = excluded.{column}" for column in _COLUMNS[1:])
)
_MOVE_JOB = f"UPDATE jobs SET {' = ?, '.join(MOVED_COLUMNS.split(', '))} = ? WHERE id = ?"
_JOB, _CHECKED_JOB = (f"SELECT {columns} FROM jobs WHERE id = ?" for columns in (JOB_COLUMNS, CHECKED_COLUMNS))
_END = "SELECT kind, outcome FROM jobs WHERE id = ? AND outcome IS NOT NULL"
_ADD_ENDED = (
    "INSERT INTO finished (kind, outcome, jobs) VALUES (?, ?, ?)"
    " ON CONFLICT (kind, outcome) DO UPDATE SET jobs = jobs + excluded.jobs"
)


class SqliteJobs(SqliteOps, JobSession):
    row_check: RowCheck | None

    def job(self, job_id: bytes) -> JobEntry | None:
        if self._head_seen and job_id in self._claimed:
            return self._claimed[job_id]
        return next(iter(self._jobs("WHERE id = ?", job_id)), None)

    def jobs_by_id(self, job_ids: Sequence[bytes]) -> list[JobEntry]:
        claimed = self._claimed if self._head_seen else {}
        known = [claimed[job_id] for job_id in job_ids if job_id in claimed]
        sought = [(job_id,) for job_id in job_ids if job_id not in claimed]
        rows = self._many(_CHECKED_JOB if self.row_check else _JOB, sought)
        return known + job_entries(rows, self.row_check)

    def put_jobs(self, entries: Sequence[JobEntry]) -> None:
        self._count_finished(entries)
        self._many(_PUT_JOB, [job_row(entry) for entry in entries])
        self._remember_claimed(entries)

    def move_jobs(self, entries: Sequence[JobEntry]) -> None:
        self._count_finished(entries)
        self._many(_MOVE_JOB, [moved_row(entry) for entry in entries])
        self._remember_claimed(entries)

    def _remember_claimed(self, entries: Sequence[JobEntry]) -> None:
        for entry in entries if self._is_writer else ():
            if entry.stage is Stage.CLAIMED and len(self._claimed) < CLAIMED_REMEMBERED:
                self._claimed[entry.job.id] = entry
            else:
                self._claimed.pop(entry.job.id, None)

    def _count_finished(self, entries: Sequence[JobEntry]) -> None:
        """Keeps count of the jobs that have ended: adds the new ends, subtracts the old ones."""
        unended, claimed = self._unended, self._claimed if self._head_seen else {}
        unsure = [(job_id,) for entry in entries if (job_id := entry.job.id) not in unended and job_id not in claimed]
        ended = [entry.job for entry in entries if entry.job.outcome is not None]
        added = Counter([(job.kind, int(job.outcome or 0)) for job in ended])
        added.subtract([tuple(row) for row in self._many(_END, unsure)])
        self._add_finished(added)
        unended.update([entry.job.id for entry in entries])
        unended.difference_update([job.id for job in ended])

    def _add_finished(self, added: Mapping[tuple[str, int], int]) -> None:
        for end, count in added.items():
            if count:
                self._sql(_ADD_ENDED, (*end, count))

    def _uncount(self, job_id: bytes) -> None:
        self._claimed.pop(job_id, None)
        self._unended.discard(job_id)
        self._add_finished({tuple(row): -1 for row in self._rows(_END, job_id)})

    def promote(self, now: int) -> None:
        self._sql("UPDATE jobs SET stage = 0 WHERE stage = 1 AND ready_at <= ?", (now,))

    def _ready(
        self, kind: str, limit: int, after: JobEntry | None, others: str = ""
    ) -> list[tuple[JobEntry, bytes | None]]:
        found: list[tuple[JobEntry, bytes | None]] = []
        place = None if after is None else (after.job.policy.priority, pack(after.job.scheduled))
        while wanted := limit - len(found):
            rows = self._stored_ready(kind, wanted, place, others)
            found += ready_jobs(rows, self.row_check, self._bundles(bundles_of(rows)))
            if len(rows) < wanted:
                break
            place = rows[-1][PRIORITY], rows[-1][SCHEDULED]
        return found

    def _stored_ready(
        self, kind: str, limit: int, place: tuple[int, bytes] | None, others: str
    ) -> list[tuple[Any, ...]]:
        beyond = ""
        values: tuple[object, ...] = ()
        if place is not None:
            beyond = "AND j.priority <= ? AND (j.priority < ? OR j.scheduled > ?)"
            values = (place[0], *place)
        columns = READY_COLUMNS if self.row_check is None else CHECKED_READY_COLUMNS
        rows = self._sql(
            f"""SELECT {columns} FROM jobs AS j LEFT JOIN ops ON ops.id = j.schedule_op AND ops.settled = 1
                WHERE j.stage = 0 AND j.kind = ? {beyond} {others} ORDER BY j.priority DESC, j.scheduled LIMIT ?""",
            (kind, *values, limit),
        )
        return list(rows)

    def take_ready(
        self, kind: str, limit: int, after: JobEntry | None = None, is_left: IsLeft | None = None
    ) -> list[tuple[JobEntry, bytes | None]]:
        self.lock_subjects(())
        found = self._ready(kind, limit, after) if is_left is None else self._not_left(kind, limit, after, is_left)
        self._unended.update(entry.job.id for entry, _ in found)
        return found

    def _not_left(
        self, kind: str, limit: int, after: JobEntry | None, is_left: IsLeft
    ) -> list[tuple[JobEntry, bytes | None]]:
        """Ready jobs without those that the caller leaves to others. SQLite calls it for each row that it passes."""
        if self._is_left is None:
            # Once: each registration makes SQLite prepare every statement again.
            assert isinstance(self._connection, apsw.Connection)
            self._connection.create_scalar_function("is_left", lambda *job: self._is_left and self._is_left(*job), 2)
        self._is_left = is_left
        return self._ready(kind, limit, after, "AND NOT is_left(j.id, j.fence)")
