"""The statements about the roster and the queue."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import apsw

from hocket.kernel.clock import pack
from hocket.kernel.roster import Outcome
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
    job_entry,
    job_row,
    moved_row,
    ready_jobs,
)
from hocket.store.jobs import IsLeft, JobEntry, JobFilter, Stage
from hocket.store.sqlite.locks import SqliteLocks

CLAIMED_REMEMBERED = 4_096

_COLUMNS = JOB_COLUMNS.split(", ")
# Not REPLACE: the row stays in its place.
_PUT_JOB = (
    f"INSERT INTO jobs ({JOB_COLUMNS}) VALUES ({', '.join('?' * len(_COLUMNS))}) ON CONFLICT (id) DO UPDATE SET "
    + ", ".join(f"{column} = excluded.{column}" for column in _COLUMNS[1:])
)
_MOVE_JOB = f"UPDATE jobs SET {' = ?, '.join(MOVED_COLUMNS.split(', '))} = ? WHERE id = ?"
_END = "SELECT kind, outcome FROM jobs WHERE id = ? AND outcome IS NOT NULL"
_ADD_ENDED = (
    "INSERT INTO finished (kind, outcome, jobs) VALUES (?, ?, ?)"
    " ON CONFLICT (kind, outcome) DO UPDATE SET jobs = jobs + excluded.jobs"
)
_OF_STAGE = {
    Stage.READY: "INDEXED BY jobs_ready WHERE stage = 0",
    Stage.DELAYED: "INDEXED BY jobs_delayed WHERE stage = 1",
    Stage.BLOCKED: "INDEXED BY jobs_blocked WHERE stage = 2",
    Stage.CLAIMED: "INDEXED BY jobs_claimed WHERE stage = 3",
    Stage.DONE: "WHERE stage = 4",
}

# A delayed job that was claimed before waits for its next run: it failed, was returned, or was postponed.
_RESTING = "stage = 1 AND fence > 0"
_STAGES = tuple(Stage)


class SqliteJobs(SqliteLocks):
    def job(self, job_id: bytes) -> JobEntry | None:
        if self._head_seen and job_id in self._claimed:
            return self._claimed[job_id]
        return next(iter(self._jobs("WHERE id = ?", job_id)), None)

    def jobs_by_id(self, job_ids: Sequence[bytes]) -> list[JobEntry]:
        claimed = self._claimed if self._head_seen else {}
        known = [claimed[job_id] for job_id in job_ids if job_id in claimed]
        sought = [(job_id,) for job_id in job_ids if job_id not in claimed]
        rows = self._many(f"SELECT {self._columns} FROM jobs WHERE id = ?", sought)
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

    def drop_job(self, job_id: bytes) -> None:
        self._claimed.pop(job_id, None)
        self._unended.discard(job_id)
        self._add_finished({tuple(row): -1 for row in self._rows(_END, job_id)})
        self._sql("DELETE FROM jobs WHERE id = ?", (job_id,))
        self._sql("DELETE FROM after WHERE job = ?", (job_id,))

    def job_ids(self, low: bytes, high: bytes, limit: int) -> list[bytes]:
        rows = self._sql("SELECT id FROM jobs WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?", (low, high, limit))
        return [row[0] for row in rows]

    def job_ids_ending(self, ending: bytes) -> list[bytes]:
        return [row[0] for row in self._sql("SELECT id FROM jobs WHERE substr(id, ?) = ?", (-len(ending), ending))]

    def jobs(self, wanted: JobFilter, limit: int) -> list[JobEntry]:
        found = [entry for each in _which(wanted) for entry in self._page(each, wanted, limit)]
        return sorted(found, key=lambda entry: entry.job.id, reverse=wanted.newest_first)[:limit]

    def job_count(self, wanted: JobFilter) -> int:
        if wanted.kind is None:
            sought = wanted.stages or _STAGES
            counts = self.counts().items()
            return sum(n for (stage, end), n in counts if stage in sought and wanted.outcome in (None, end))
        kind, values = _of_kind(wanted.kind)
        return sum(self._one(f"SELECT count(*) FROM jobs {each}{kind}", *values) for each in _which(wanted))

    def _page(self, where: str, wanted: JobFilter, limit: int) -> list[JobEntry]:
        values: list[Any] = []
        if wanted.kind is not None:
            of_kind, values = _of_kind(wanted.kind)
            where += of_kind
        if wanted.beyond is not None:
            where += " AND id < ?" if wanted.newest_first else " AND id > ?"
            values.append(wanted.beyond)
        order = "DESC" if wanted.newest_first else "ASC"
        return self._jobs(f"{where} ORDER BY id {order} LIMIT ?", *values, limit)

    def each_job(self) -> Iterator[JobEntry]:
        for row in self._pages(f"SELECT {JOB_COLUMNS} FROM jobs WHERE id > ? ORDER BY id LIMIT ?"):
            yield job_entry(row)

    def jobs_of_kinds_since(self, kind: str, hlc: bytes) -> list[bytes]:
        if not kind.endswith("."):
            return [row[0] for row in self._sql("SELECT id FROM jobs WHERE kind = ? AND last > ?", (kind, hlc))]
        sql = "SELECT id FROM jobs WHERE substr(kind, 1, ?) = ? AND last > ?"
        return [row[0] for row in self._sql(sql, (len(kind), kind, hlc))]

    def jobs_since(self, hlc: bytes) -> list[bytes]:
        return [row[0] for row in self._sql("SELECT id FROM jobs WHERE last > ?", (hlc,))]

    def jobs_by_unique_key(self, key: str) -> list[JobEntry]:
        return self._jobs("WHERE unique_key = ?", key)

    def open_offers(self, reason: int) -> int:
        return int(
            self._one(
                "SELECT count(*) FROM jobs CROSS JOIN ops ON ops.key = jobs.id AND ops.settled = 1"
                " AND ops.family = 'job' AND ops.hlc >= jobs.last WHERE jobs.stage != ? AND ops.reason = ?",
                int(Stage.DONE),
                reason,
            )
        )

    def counts(self) -> dict[tuple[Stage, Outcome | None], int]:
        """Ended jobs are counted when they end, all others by the index of their stage."""
        stages = [stage for stage in Stage if stage is not Stage.DONE]
        unended = [((stage, None), self._one(f"SELECT count(*) FROM jobs {_OF_STAGE[stage]}")) for stage in stages]
        rows = self._rows("SELECT outcome, sum(jobs) FROM finished GROUP BY outcome")
        ended = [((Stage.DONE, Outcome(outcome)), count) for outcome, count in rows]
        return {key: count for key, count in (*unended, *ended) if count}

    def counts_by_kind(self) -> dict[tuple[Stage, Outcome | None, str], int]:
        found: dict[tuple[Stage, Outcome | None, str], int] = {}
        for stage in Stage:
            if stage is not Stage.DONE:
                rows = self._rows(f"SELECT kind, count(*) FROM jobs {_OF_STAGE[stage]} GROUP BY kind")
                found |= {(stage, None, kind): count for kind, count in rows}
        for kind, outcome, count in self._rows("SELECT kind, outcome, jobs FROM finished WHERE jobs > 0"):
            found[Stage.DONE, Outcome(outcome), kind] = count
        return found

    def set_after(self, job_id: bytes, dependencies: Sequence[bytes]) -> None:
        self._many("INSERT OR IGNORE INTO after VALUES (?, ?)", [(dependency, job_id) for dependency in dependencies])

    def has_after(self) -> bool:
        return bool(self._one("SELECT EXISTS (SELECT 1 FROM after)"))

    def dependents(self, job_id: bytes) -> list[bytes]:
        return [row[0] for row in self._sql("SELECT job FROM after WHERE dependency = ?", (job_id,))]

    def promote(self, now: int) -> None:
        self._sql("UPDATE jobs SET stage = 0 WHERE stage = 1 AND ready_at <= ?", (now,))

    def ready_kinds(self) -> list[str]:
        """Each kind once, by hopping through the index from kind to kind."""
        return [
            row[0]
            for row in self._sql(
                """WITH RECURSIVE kinds(kind) AS (
                       SELECT min(kind) FROM jobs WHERE stage = 0
                       UNION ALL SELECT (SELECT min(kind) FROM jobs WHERE stage = 0 AND kind > kinds.kind)
                       FROM kinds WHERE kinds.kind IS NOT NULL)
                   SELECT kind FROM kinds WHERE kind IS NOT NULL"""
            )
        ]

    def ready(self, kind: str, limit: int, after: JobEntry | None = None) -> list[tuple[JobEntry, bytes | None]]:
        return self._ready(kind, limit, after)

    def _ready(
        self, kind: str, limit: int, after: JobEntry | None, among: str = ""
    ) -> list[tuple[JobEntry, bytes | None]]:
        found: list[tuple[JobEntry, bytes | None]] = []
        place = None if after is None else (after.job.policy.priority, pack(after.job.scheduled))
        while wanted := limit - len(found):
            rows = self._stored_ready(kind, wanted, place, among)
            found += ready_jobs(rows, self.row_check, self._bundles(bundles_of(rows)))
            if len(rows) < wanted:
                break
            place = rows[-1][PRIORITY], rows[-1][SCHEDULED]
        return found

    def _stored_ready(
        self, kind: str, limit: int, place: tuple[int, bytes] | None, among: str
    ) -> list[tuple[Any, ...]]:
        beyond = ""
        values: tuple[object, ...] = ()
        if place is not None:
            beyond = "AND j.priority <= ? AND (j.priority < ? OR j.scheduled > ?)"
            values = (place[0], *place)
        columns = READY_COLUMNS if self.row_check is None else CHECKED_READY_COLUMNS
        rows = self._sql(
            f"""SELECT {columns} FROM jobs AS j LEFT JOIN ops ON ops.id = j.schedule_op AND ops.settled = 1
                WHERE j.stage = 0 AND j.kind = ? {beyond} {among} ORDER BY j.priority DESC, j.scheduled LIMIT ?""",
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

    def claimed_count(self, kind: str) -> int:
        return int(self._one("SELECT count(*) FROM jobs WHERE stage = 3 AND kind = ?", kind))

    def claimed(self) -> list[JobEntry]:
        return self._jobs("WHERE stage = 3")

    def take_claimed(self, node: bytes) -> list[JobEntry]:
        self.lock_subjects(())
        return self._jobs("WHERE stage = 3 AND claimer = ?", node)

    def overdue(self, now: int, limit: int) -> list[JobEntry]:
        return self._jobs("WHERE stage = 3 AND deadline < ? LIMIT ?", now, limit)

    def take_overdue(self, now: int, limit: int) -> list[JobEntry]:
        self.lock_subjects(())
        return self.overdue(now, limit)

    def take_unbegun(self, now: int, limit: int) -> list[JobEntry]:
        self.lock_subjects(())
        return self._jobs("WHERE begin_by < ? ORDER BY begin_by LIMIT ?", now, limit)

    def next_begin_by(self) -> int | None:
        return self._one("SELECT min(begin_by) FROM jobs WHERE begin_by IS NOT NULL")  # type: ignore[no-any-return]

    def blocked(self, limit: int, after: JobEntry | None = None) -> list[JobEntry]:
        where = f"{_OF_STAGE[Stage.BLOCKED]} AND (kind, id) > (?, ?) ORDER BY kind, id LIMIT ?"
        seen = ("", b"") if after is None else (after.job.kind, after.job.id)
        return self._jobs(where, *seen, limit)

    def next_ready_at(self) -> int | None:
        return self._one("SELECT min(ready_at) FROM jobs WHERE stage = 1")  # type: ignore[no-any-return]

    def next_deadline(self) -> int | None:
        return self._one("SELECT min(deadline) FROM jobs WHERE stage = 3")  # type: ignore[no-any-return]

    def busy_kinds(self) -> set[str]:
        claimed = self._sql("SELECT DISTINCT kind FROM jobs WHERE stage = 3")
        resting = f"SELECT DISTINCT kind FROM jobs WHERE {_RESTING}"
        return {*self.ready_kinds(), *(row[0] for row in claimed), *(row[0] for row in self._sql(resting))}

    def busy(self, kind: str, limit: int) -> list[JobEntry]:
        return self._jobs(f"WHERE kind = ? AND (stage = 0 OR {_RESTING}) LIMIT ?", kind, limit)

    def rate(self, kind: str) -> int:
        return self._one("SELECT due FROM rates WHERE kind = ?", kind) or 0

    def set_rate(self, kind: str, due: int) -> None:
        self._sql("REPLACE INTO rates VALUES (?, ?)", (kind, due))

    @property
    def _columns(self) -> str:
        return JOB_COLUMNS if self.row_check is None else CHECKED_COLUMNS

    def _jobs(self, tail: str, *values: Any) -> list[JobEntry]:
        return job_entries(self._sql(f"SELECT {self._columns} FROM jobs {tail}", values), self.row_check)


def _which(wanted: JobFilter) -> list[str]:
    """Uses the index of each stage, or of the rare outcomes, so that a list does not read finished jobs in vain."""
    if wanted.outcome is None:
        return [_OF_STAGE[stage] for stage in wanted.stages] or ["WHERE 1"]
    if Stage.DONE not in (wanted.stages or _STAGES):
        return []
    rare = "INDEXED BY jobs_failed WHERE outcome > 0 AND" if wanted.outcome else "WHERE"
    return [f"{rare} outcome = {int(wanted.outcome)}"]


def _of_kind(wanted: str) -> tuple[str, list[Any]]:
    """The condition of `kernel.kinds.covers`, and its values."""
    if wanted.endswith("."):
        return " AND kind > ? AND kind < ?", [wanted, wanted[:-1] + "/"]
    return " AND kind = ?", [wanted]
