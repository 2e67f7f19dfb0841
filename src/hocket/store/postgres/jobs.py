"""The statements about the roster and the queue."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from hocket.kernel.clock import pack
from hocket.kernel.roster import Outcome
from hocket.store.job_columns import (
    CHECKED_COLUMNS,
    CHECKED_READY_COLUMNS,
    JOB_COLUMNS,
    LAST_OP,
    MOVED_COLUMNS,
    PRIORITY,
    READY_COLUMNS,
    SCHEDULED,
    job_entries,
    job_entry,
    job_row,
    moved_row,
    ready_jobs,
)
from hocket.store.jobs import IsLeft, JobEntry, JobFilter, Stage
from hocket.store.local import OFFERED
from hocket.store.postgres.columns import Bytes, Numbers, Texts, columns
from hocket.store.postgres.locks import PostgresLocks
from hocket.store.postgres.statements import pages, update_all, upsert_all
from hocket.store.statements import insert, insert_new, upsert

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
# A delayed job that was claimed before waits for its next run: it failed, was returned, or was postponed.
_RESTING = "stage = 1 AND fence > 0"
# Each kind once, by hopping through the index from kind to kind.
_READY_KINDS = """
    WITH RECURSIVE kinds(kind) AS (
        SELECT min(kind) FROM jobs WHERE stage = 0
        UNION ALL SELECT (SELECT min(jobs.kind) FROM jobs WHERE stage = 0 AND jobs.kind > kinds.kind)
        FROM kinds WHERE kinds.kind IS NOT NULL)
    SELECT kind FROM kinds WHERE kind IS NOT NULL"""


# Leaves out what another transaction has locked.
_PROMOTE = """
    UPDATE jobs SET stage = 0
    WHERE id IN (SELECT id FROM jobs WHERE stage = 1 AND ready_at <= ? FOR UPDATE SKIP LOCKED)"""
_ENDED_BY_KIND = "SELECT kind, outcome, sum(jobs)::bigint FROM finished GROUP BY kind, outcome HAVING sum(jobs) > 0"


# Divides by zero unless all of these jobs are as of these times, and no op about one of them is later. It locks in the
# order in which `jobs_by_id` does.
_AS_OF = f"""
    SELECT 1 / (count(*) = ?)::integer FROM (
        SELECT 1 FROM unnest(?::bytea[], ?::bytea[]) AS known (id, last) JOIN jobs ON jobs.id = known.id
        WHERE jobs.last = known.last AND {LAST_OP.format("jobs")} = known.last
        ORDER BY jobs.id FOR UPDATE OF jobs) AS same"""
_NEXT_READY = "SELECT min(ready_at) FROM jobs WHERE stage = 1"


class PostgresJobs(PostgresLocks):
    has_skipped = False

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

    def drop_job(self, job_id: bytes) -> None:
        self._requeue()
        self._put_ends([], [], [job_id])
        self._put("DELETE FROM jobs WHERE id = ?", (job_id,))
        self._put("DELETE FROM after WHERE job = ?", (job_id,))

    def job_ids(self, low: bytes, high: bytes, limit: int) -> list[bytes]:
        return self._column("SELECT id FROM jobs WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?", low, high, limit)

    def job_ids_ending(self, ending: bytes) -> list[bytes]:
        return self._column("SELECT id FROM jobs WHERE substr(id, 17 - ?) = ?", len(ending), ending)

    def jobs(self, wanted: JobFilter, limit: int) -> list[JobEntry]:
        found = [entry for each in _which(wanted) for entry in self._page(each, wanted, limit)]
        return sorted(found, key=lambda entry: entry.job.id, reverse=wanted.newest_first)[:limit]

    def job_count(self, wanted: JobFilter) -> int:
        if wanted.kind is None:
            sought = wanted.stages or tuple(Stage)
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
        return self._jobs(f"{where} ORDER BY id {'DESC' if wanted.newest_first else 'ASC'} LIMIT ?", *values, limit)

    def each_job(self) -> Iterator[JobEntry]:
        for row in self._pages(f"SELECT {JOB_COLUMNS} FROM jobs WHERE id > ? ORDER BY id LIMIT ?"):
            yield job_entry(row)

    def jobs_of_kinds_since(self, kind: str, hlc: bytes) -> list[bytes]:
        which = "starts_with(kind, ?)" if kind.endswith(".") else "kind = ?"
        return self._column(f"SELECT id FROM jobs WHERE {which} AND last > ?", kind, hlc)

    def jobs_since(self, hlc: bytes) -> list[bytes]:
        return self._column("SELECT id FROM jobs WHERE last > ?", hlc)

    def jobs_by_unique_key(self, key: str) -> list[JobEntry]:
        return self._jobs("WHERE unique_key = ?", key)

    def open_offers(self, reason: int) -> int:
        return int(
            self._one(
                "SELECT count(*) FROM jobs JOIN ops ON ops.key = jobs.id AND ops.settled = 1"
                " AND ops.family = 'job' AND ops.hlc >= jobs.last WHERE jobs.stage <> 4 AND ops.reason = ?",
                int(reason),
            )
        )

    def counts(self) -> dict[tuple[Stage, Outcome | None], int]:
        """Ended jobs are counted when they end, all others by the indexes of their stages."""
        unended = [((stage, None), count) for stage, count in self._unended("stage")]
        rows = self._rows("SELECT outcome, sum(jobs)::bigint FROM finished GROUP BY outcome")
        ended = [((Stage.DONE, Outcome(outcome)), count) for outcome, count in rows]
        return {key: count for key, count in (*unended, *ended) if count}

    def counts_by_kind(self) -> dict[tuple[Stage, Outcome | None, str], int]:
        found: dict[tuple[Stage, Outcome | None, str], int] = {
            (stage, None, kind): count for stage, kind, count in self._unended("stage, kind")
        }
        for kind, outcome, count in self._rows(_ENDED_BY_KIND):
            found[Stage.DONE, Outcome(outcome), kind] = count
        return found

    def _unended(self, columns: str) -> list[tuple[Any, ...]]:
        """One part for each stage, because each stage has an index of its own."""
        stages = [stage for stage in Stage if stage is not Stage.DONE]
        parts = [
            f"SELECT {columns}, count(*) FROM jobs WHERE stage = {int(stage)} GROUP BY {columns}" for stage in stages
        ]
        return [(Stage(row[0]), *row[1:]) for row in self._rows(" UNION ALL ".join(parts))]

    def set_after(self, job_id: bytes, dependencies: Sequence[bytes]) -> None:
        if self._told is not None:
            self._told.has_after = None
        self._many(insert_new("after", "dependency, job"), [(dependency, job_id) for dependency in dependencies])

    def has_after(self) -> bool:
        if self._told is not None and self._told.has_after is not None:
            return self._told.has_after
        return bool(self._one("SELECT EXISTS (SELECT 1 FROM after)"))

    def dependents(self, job_id: bytes) -> list[bytes]:
        return self._column("SELECT job FROM after WHERE dependency = ?", job_id)

    def promote(self, now: int) -> None:
        self._requeue()
        self._put(_PROMOTE, (now,))

    def ready_kinds(self) -> list[str]:
        if self._told is None:
            return self._column(_READY_KINDS)
        # The caller is about to claim, and asks these next.
        kinds, offered, delayed = self._ask((_READY_KINDS, ()), (OFFERED, ()), (_NEXT_READY, ()))
        self._told.offered = {job_id for (job_id,) in offered.rows}
        self._told.next_ready = delayed.rows[0]
        return [kind for (kind,) in kinds.rows]

    def ready(self, kind: str, limit: int, after: JobEntry | None = None) -> list[tuple[JobEntry, bytes | None]]:
        return self._ready(kind, limit, after)

    def _ready(
        self, kind: str, limit: int, after: JobEntry | None, lock: str = ""
    ) -> list[tuple[JobEntry, bytes | None]]:
        found: list[tuple[JobEntry, bytes | None]] = []
        place = None if after is None else (after.job.policy.priority, pack(after.job.scheduled))
        while wanted := limit - len(found):
            rows = self._stored_ready(kind, wanted, place, lock)
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
        found: int | None = self._one("SELECT min(begin_by) FROM jobs WHERE begin_by IS NOT NULL")
        return found

    def blocked(self, limit: int, after: JobEntry | None = None) -> list[JobEntry]:
        seen = ("", b"") if after is None else (after.job.kind, after.job.id)
        return self._jobs("WHERE stage = 2 AND (kind, id) > (?, ?) ORDER BY kind, id LIMIT ?", *seen, limit)

    def next_ready_at(self) -> int | None:
        if self._told is not None and self._told.next_ready is not None:
            return self._told.next_ready[0]
        found: int | None = self._one(_NEXT_READY)
        return found

    def next_deadline(self) -> int | None:
        found: int | None = self._one("SELECT min(deadline) FROM jobs WHERE stage = 3")
        return found

    def busy_kinds(self) -> set[str]:
        others = f"SELECT kind FROM jobs WHERE stage = 3 UNION SELECT kind FROM jobs WHERE {_RESTING}"
        return {*self.ready_kinds(), *self._column(others)}

    def busy(self, kind: str, limit: int) -> list[JobEntry]:
        return self._jobs(f"WHERE kind = ? AND (stage = 0 OR {_RESTING}) LIMIT ?", kind, limit)

    def rate(self, kind: str) -> int:
        return self._one("SELECT due FROM rates WHERE kind = ?", kind) or 0

    def set_rate(self, kind: str, due: int) -> None:
        self._put(upsert("rates", "kind, due", "kind"), (kind, due))

    def _jobs(self, tail: str, *values: Any) -> list[JobEntry]:
        columns = JOB_COLUMNS if self.row_check is None else CHECKED_COLUMNS
        return job_entries(self._rows(f"SELECT {columns} FROM jobs {tail}", *values), self.row_check)


def _which(wanted: JobFilter) -> list[str]:
    """One condition for each stage, because each stage has an index of its own."""
    if wanted.outcome is None:
        return [f"WHERE stage = {int(stage)}" for stage in wanted.stages] or ["WHERE true"]
    if Stage.DONE not in (wanted.stages or tuple(Stage)):
        return []
    rare = "outcome > 0 AND" if wanted.outcome else ""
    return [f"WHERE {rare} outcome = {int(wanted.outcome)}"]


def _of_kind(wanted: str) -> tuple[str, list[Any]]:
    """The condition of `kernel.kinds.covers`, and its values."""
    if wanted.endswith("."):
        return " AND kind > ? AND kind < ?", [wanted, wanted[:-1] + "/"]
    return " AND kind = ?", [wanted]
