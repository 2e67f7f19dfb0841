"""The statements about the roster and the queue."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from hocket.kernel.clock import pack
from hocket.store.job_columns import (
    CHECKED_READY_COLUMNS,
    JOB_COLUMNS,
    LAST_OP,
    MOVED_COLUMNS,
    PRIORITY,
    READY_COLUMNS,
    SCHEDULED,
    job_row,
    moved_row,
    ready_jobs,
)
from hocket.store.jobs import IsLeft, JobEntry
from hocket.store.local import OFFERED
from hocket.store.postgres.columns import Bytes, Numbers, Texts, columns
from hocket.store.postgres.statements import PostgresStatements, pages, update_all, upsert_all
from hocket.store.roster import NEXT_READY, READY_KINDS, JobSession
from hocket.store.row_check import RowCheck
from hocket.store.statements import insert

_B, _N, _T = Bytes, Numbers, Texts
_JOB_TYPES = (_B, _T, _N, _N, _B, _B, _B, _B, _N, _N, _N, _N, _B, _B, _N, _N, _B, _B, _B, _B, _T, _N, _N, _N)
_PUT_JOBS = upsert_all("jobs", JOB_COLUMNS, "id", _JOB_TYPES)
_MOVED_TYPES = (_N, _B, _N, _N, _B, _B, _N, _B, _B, _N, _N, _B)
_MOVE_JOBS = update_all("jobs", MOVED_COLUMNS, "id", _MOVED_TYPES)
# Adds the ends that these jobs get, and subtracts those that they had. Each author has rows of its own, so that nobody
# waits for the counts of others.
_COUNT_ENDED = """
    INSERT INTO finished (author, kind, outcome, jobs)
    SELECT ?, kind, outcome, sum(ends) FROM (
        SELECT kind, outcome, 1 AS ends FROM unnest(?::text[], ?::bigint[]) AS new (kind, outcome)
        UNION ALL SELECT kind, outcome, -1 FROM jobs WHERE outcome IS NOT NULL AND id = ANY(?)) AS changed
    GROUP BY kind, outcome HAVING sum(ends) <> 0
    ON CONFLICT (author, kind, outcome) DO UPDATE SET jobs = finished.jobs + excluded.jobs"""
_ADD_ENDED = insert("finished", "author, kind, outcome, jobs") + (
    " ON CONFLICT (author, kind, outcome) DO UPDATE SET jobs = finished.jobs + excluded.jobs"
)
# Leaves out what another transaction has locked.
_PROMOTE = """
    UPDATE jobs SET stage = 0
    WHERE id IN (SELECT id FROM jobs WHERE stage = 1 AND ready_at <= ? FOR UPDATE SKIP LOCKED)"""


# Divides by zero unless all of these jobs are as of these times, and no op about one of them is later. It locks in the
# order in which `jobs_by_id` does.
_AS_OF = f"""
    SELECT 1 / (count(*) = ?)::integer FROM (
        SELECT 1 FROM unnest(?::bytea[], ?::bytea[]) AS known (id, last) JOIN jobs ON jobs.id = known.id
        WHERE jobs.last = known.last AND {LAST_OP.format("jobs")} = known.last
        ORDER BY jobs.id FOR UPDATE OF jobs) AS same"""


class PostgresJobs(PostgresStatements, JobSession):
    row_check: RowCheck | None

    @property
    def _locking(self) -> str:
        return "FOR UPDATE" if self.is_beside else ""

    def job(self, job_id: bytes) -> JobEntry | None:
        return next(iter(self._jobs(f"WHERE id = ? {self._locking}", job_id)), None)

    def jobs_by_id(self, job_ids: Sequence[bytes]) -> list[JobEntry]:
        if not job_ids:
            return []
        found = self._held(job_ids)
        if unknown := [job_id for job_id in job_ids if job_id not in found]:
            rows = self._jobs(f"WHERE id = ANY(?) ORDER BY id {self._locking}", Bytes(unknown))
            found.update((each.job.id, each) for each in rows)
        return [found[job_id] for job_id in job_ids if job_id in found]

    def _held(self, job_ids: Sequence[bytes]) -> dict[bytes, JobEntry]:
        """The jobs among these that this process holds, from its memory. They are locked with the next statement that
        waits, which fails if they are no longer so.
        """
        held = self.row_check.held_jobs(job_ids) if self.row_check is not None and self.is_beside else ()
        found = {each.job.id: each for each in held}
        if found:
            lasts = Bytes([pack(each.job.last) for each in found.values()])
            self._put(_AS_OF, (len(found), Bytes(list(found)), lasts))
        return found

    def put_jobs(self, entries: Sequence[JobEntry]) -> None:
        self._requeue()
        self._count_finished(entries)
        for some in pages(entries):
            self._put(_PUT_JOBS, columns(_JOB_TYPES, map(job_row, some)))

    def move_jobs(self, entries: Sequence[JobEntry]) -> None:
        self._requeue()
        ends = Counter((each.job.kind, int(each.job.outcome)) for each in entries if each.job.outcome is not None)
        self._many(_ADD_ENDED, [(self._author or b"", *end, count) for end, count in ends.items()])
        for some in pages(entries):
            self._put(_MOVE_JOBS, columns(_MOVED_TYPES, map(moved_row, some)))

    def _count_finished(self, entries: Sequence[JobEntry]) -> None:
        """Keeps count of the jobs that have ended, before their rows change."""
        ends = [(each.job.kind, int(each.job.outcome)) for each in entries if each.job.outcome is not None]
        ids = [each.job.id for each in entries]
        self._put_ends([kind for kind, _ in ends], [outcome for _, outcome in ends], ids)

    def _put_ends(self, kinds: list[str], outcomes: list[int], ids: list[bytes]) -> None:
        self._put(_COUNT_ENDED, (self._author or b"", Texts(kinds), Numbers(outcomes), Bytes(ids)))

    def _requeue(self) -> None:
        """The transaction changes the queue."""
        if self._told is not None:
            self._told.next_ready = None

    def _uncount(self, job_id: bytes) -> None:
        self._requeue()
        self._put_ends([], [], [job_id])

    def set_after(self, job_id: bytes, dependencies: Sequence[bytes]) -> None:
        if self._told is not None:
            self._told.has_after = None
        super().set_after(job_id, dependencies)

    def has_after(self) -> bool:
        told = None if self._told is None else self._told.has_after
        return super().has_after() if told is None else told

    def promote(self, now: int) -> None:
        self._requeue()
        self._put(_PROMOTE, (now,))

    def ready_kinds(self) -> list[str]:
        if self._told is None:
            return super().ready_kinds()
        # The caller is about to claim, and asks these next.
        kinds, offered, delayed = self._ask((READY_KINDS, ()), (OFFERED, ()), (NEXT_READY, ()))
        self._told.offered = {job_id for (job_id,) in offered.rows}
        self._told.next_ready = delayed.rows[0]
        return [kind for (kind,) in kinds.rows]

    def _ready(
        self, kind: str, limit: int, after: JobEntry | None, others: str = ""
    ) -> list[tuple[JobEntry, bytes | None]]:
        found: list[tuple[JobEntry, bytes | None]] = []
        place = None if after is None else (after.job.policy.priority, pack(after.job.scheduled))
        while wanted := limit - len(found):
            rows = self._stored_ready(kind, wanted, place, others)
            bundles = {row[-4] - row[-3] - 1: row[-1] for row in rows if row[-1] is not None}
            found += ready_jobs([row[:-1] for row in rows], self.row_check, bundles)
            if len(rows) < wanted:
                break
            place = rows[-1][PRIORITY], rows[-1][SCHEDULED]
        return found

    def _stored_ready(self, kind: str, limit: int, place: tuple[int, bytes] | None, lock: str) -> list[tuple[Any, ...]]:
        """Each ends with the bundle that it came in, or with None if a row before it does."""
        beyond = ""
        values: tuple[object, ...] = ()
        if place is not None:
            beyond = "AND j.priority <= ? AND (j.priority < ? OR j.scheduled > ?)"
            values = (place[0], *place)
        columns = READY_COLUMNS if self.row_check is None else CHECKED_READY_COLUMNS
        return self._rows(
            f"""SELECT ready.*, CASE row_number() OVER (PARTITION BY seq - place ORDER BY priority DESC, scheduled)
                    WHEN 1 THEN (SELECT body FROM ops AS bundle WHERE bundle.seq = ready.seq - ready.place - 1) END
                FROM (SELECT {columns} FROM jobs AS j LEFT JOIN ops ON ops.id = j.schedule_op AND ops.settled = 1
                    WHERE j.stage = 0 AND j.kind = ? {beyond} ORDER BY j.priority DESC, j.scheduled LIMIT ? {lock}
                ) AS ready ORDER BY priority DESC, scheduled""",
            *(kind, *values, limit),
        )

    def take_ready(
        self, kind: str, limit: int, after: JobEntry | None = None, is_left: IsLeft | None = None
    ) -> list[tuple[JobEntry, bytes | None]]:
        self.lock_subjects(())
        lock = "FOR UPDATE OF j SKIP LOCKED" if self.is_beside else ""
        found = rows = self._ready(kind, limit, after, lock)
        self.has_skipped |= self.is_beside and after is None and not rows
        if is_left is not None:
            found = []
            while rows and len(found) < limit:
                found += [row for row in rows if not is_left(row[0].job.id, row[0].job.fence)]
                rows = self._ready(kind, limit, rows[-1][0], lock)
        return found[:limit]

    def next_ready_at(self) -> int | None:
        if self._told is not None and self._told.next_ready is not None:
            return self._told.next_ready[0]
        return super().next_ready_at()
