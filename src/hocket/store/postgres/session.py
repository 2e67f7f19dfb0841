"""The session of the PostgreSQL store: what a transaction knows, and the statements that differ from those that all
stores share.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from psycopg import errors

from hocket.kernel.clock import pack
from hocket.kernel.vocabulary import Subject
from hocket.store.artifact_rows import COLUMNS, Artifact
from hocket.store.job_rows import (
    JOB_COLUMNS,
    LAST_OP,
    MOVED_COLUMNS,
    IsLeft,
    JobEntry,
    ReadyJob,
    job_row,
    moved_row,
)
from hocket.store.local import MOVED, OFFERED, WorkerRow
from hocket.store.op_rows import Head
from hocket.store.postgres.beginning import Resumed, lock_key
from hocket.store.postgres.connecting import first_line
from hocket.store.postgres.exchange import Bytes, Numbers, Texts, columns, unnested
from hocket.store.postgres.statements import (
    FAMILIES,
    PostgresOps,
    Prefetched,
    pages,
    update_all,
    upsert_all,
)
from hocket.store.roster import NEXT_READY, READY_KINDS
from hocket.store.session import PROJECTIONS, RowCheck, Session
from hocket.store.statements import Row, insert
from hocket.store.subjects import LOCK_QUEUE, STATE

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
# Stands in the head of a moved store, which each write transaction reads first, in place of a rebuild's progress.
IS_MOVED = b"moved"
_ARTIFACT = (Bytes, Bytes, Texts, Bytes, Bytes, Numbers, Numbers, Numbers, Bytes)
_ADD_ARTIFACTS = f"INSERT INTO artifacts ({COLUMNS}) SELECT * FROM {unnested(_ARTIFACT)} ON CONFLICT DO NOTHING"


_POSITION = (
    "SELECT (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END"
    " - '0/0'::pg_lsn)::bigint"
)


class PostgresSession(PostgresOps, Session):
    row_check: RowCheck | None
    note: bytes | None = None
    """What the commit tells the processes that listen."""

    def begun(self, head: Head, known: Prefetched | None = None, has_end: bool = False) -> None:
        """A transaction begins, which has read the head. A write transaction knows more, and may have locked the end of
        the log.
        """
        if not self._is_writer and head.rebuilding == IS_MOVED:
            head = head._replace(rebuilding=None)
        self._head, self._prefetched, self._has_end, self._in_transaction = head, known or Prefetched(), has_end, True

    def resumed(self, resumed: Resumed) -> None:
        """A write transaction begins without a message."""
        self.begun(resumed.head, resumed.known)
        self._waiting += resumed.locks
        self._unchanged, self._unchanged_end = resumed.unchanged, resumed.unchanged_end

    @property
    def resumes(self) -> bool:
        """Whether the transaction has begun without a message."""
        return self._unchanged_end is not None

    def ended(self) -> tuple[Prefetched, bytes | None]:
        """Gives what the transaction knows, and the author that it has locked."""
        known, author = self._prefetched, self._author
        self._head, self._prefetched, self._in_transaction = None, Prefetched(), False
        self._last_added = self._unchanged = self._unchanged_end = None
        self._author, self._has_permissions, self.has_skipped = None, False, False
        self._locked.clear()
        self.note = None
        self._waiting.clear()
        return known, author

    def carry_note(self, note: bytes) -> None:
        self.note = note

    @property
    def last_added(self) -> tuple[int, bytes] | None:
        """The number and the id of the last op that the transaction has added."""
        return self._last_added

    def has_op(self, seq: int, op_id: bytes) -> bool:
        return self._one("SELECT 1 FROM ops WHERE seq = ? AND id = ?", seq, op_id) is not None

    def position(self) -> int:
        """How far the server's write-ahead log is, or how far a replica has replayed it."""
        return int(self._one(_POSITION))

    def drop_projections(self) -> None:
        self._prefetched.forget()
        super().drop_projections()

    def damage(self) -> list[str]:
        """PostgreSQL checks its pages when it reads them, so this reads them all."""
        found = []
        for table in ("head", "meta", "ops", *PROJECTIONS):
            try:
                with self._connection.transaction():  # a savepoint: the view goes on after an error
                    self._sql(f"SELECT count(*) FROM {table}")
            except (errors.DataCorrupted, errors.IndexCorrupted, errors.UndefinedTable) as error:
                found.append(first_line(error))
        return found

    def put_unlogged(self, table: str, rows: Iterable[Row]) -> None:
        self._prefetched.forget()
        super().put_unlogged(table, rows)

    def mark_moved(self, address: str) -> None:
        self.set_meta(MOVED, address.encode())
        self.put_head(self.head()._replace(rebuilding=IS_MOVED))

    def moved_to(self) -> str | None:
        """Where a write transaction finds its store moved to, if it was."""
        if self.head().rebuilding != IS_MOVED:
            return None
        return (self.meta(MOVED) or b"another store").decode()

    @property
    def _is_writing(self) -> bool:
        return self._is_writer and self._in_transaction

    def _try_lock(self, subject: Subject) -> bool:
        if subject not in self._locked:
            key = lock_key(self._schema, subject.family.encode(), subject.key)
            if not self._one("SELECT pg_try_advisory_xact_lock(?)", key):
                return False
            self._locked.add(subject)
        return True

    def subject_state(self, subject: Subject) -> bytes | None:
        state, latest = self._known_state(subject)
        check = self.row_check
        return state if check is None or subject.family == LOCK_QUEUE else check.state(subject, state, latest)

    def _known_state(self, subject: Subject) -> tuple[bytes | None, bytes | None]:
        """The state, and the time of the latest op about the subject."""
        known = self._prefetched if subject.family in FAMILIES else Prefetched()
        known.asked.add(subject)
        if subject not in known.subjects:
            ((state, latest),) = self._rows(f"SELECT {STATE}", *subject, *subject)
            known.subjects[subject] = state, latest
        return known.subjects[subject]

    def _changes(self, subject: Subject, state: bytes | None, last: bytes = b"") -> None:
        self._prefetched.subjects.pop(subject, None)
        super()._changes(subject, state, last)

    def set_route(self, kind: str, hlc: bytes, node: bytes | None) -> None:
        self._prefetched.has_routes = None
        super().set_route(kind, hlc, node)

    def drop_route(self, kind: str, hlc: bytes) -> None:
        self._prefetched.has_routes = None
        super().drop_route(kind, hlc)

    def has_routes(self) -> bool:
        known = self._prefetched.has_routes
        return super().has_routes() if known is None else known

    def put_worker(self, worker: WorkerRow) -> int:
        self._prefetched.worker = None
        return super().put_worker(worker)

    def drop_worker(self, number: int) -> None:
        self._prefetched.worker = None
        super().drop_worker(number)

    def has_worker(self, number: int) -> bool:
        known = self._prefetched
        if known.worker is None or known.worker[0] != number:
            known.worker = number, super().has_worker(number)
        return known.worker[1]

    def put_offer(self, op_id: bytes, job_id: bytes, worker: int) -> None:
        self._prefetched.offered = None
        super().put_offer(op_id, job_id, worker)

    def drop_offer(self, op_id: bytes) -> None:
        self._prefetched.offered = None
        super().drop_offer(op_id)

    def drop_offers_of(self, worker: int) -> None:
        self._prefetched.offered = None
        super().drop_offers_of(worker)

    def offered_jobs(self) -> set[bytes]:
        known = self._prefetched.offered
        return super().offered_jobs() if known is None else known

    def _put_artifacts(self, artifacts: Sequence[Artifact]) -> None:
        for some in pages(artifacts):
            self._put(_ADD_ARTIFACTS, columns(_ARTIFACT, some))

    def touch_presence(self, times: Mapping[bytes, Sequence[int]]) -> None:
        self._many(
            "UPDATE presence SET heard = ?1, seen = ?2 WHERE node = ?3 AND heard < ?1",
            [(heard, seen, node) for node, (heard, *seen) in times.items()],
        )

    def _stored_numbers(self, numbers: Sequence[int]) -> Any:
        return list(numbers)

    def _numbers(self, stored: Any) -> tuple[int, ...]:
        return tuple(stored)

    # The roster and the queue.

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
        self._prefetched.next_ready = None
        self._count_finished(entries)
        for some in pages(entries):
            self._put(_PUT_JOBS, columns(_JOB_TYPES, map(job_row, some)))

    def move_jobs(self, entries: Sequence[JobEntry]) -> None:
        self._prefetched.next_ready = None
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

    def _uncount(self, job_id: bytes) -> None:
        self._prefetched.next_ready = None
        self._put_ends([], [], [job_id])

    def set_after(self, job_id: bytes, dependencies: Sequence[bytes]) -> None:
        self._prefetched.has_after = None
        super().set_after(job_id, dependencies)

    def has_after(self) -> bool:
        known = self._prefetched.has_after
        return super().has_after() if known is None else known

    def promote(self, now: int) -> None:
        self._prefetched.next_ready = None
        self._put(_PROMOTE, (now,))

    def ready_kinds(self) -> list[str]:
        if not self._is_writer:
            return super().ready_kinds()
        # The caller is about to claim, and asks these next.
        kinds, offered, delayed = self._ask((READY_KINDS, ()), (OFFERED, ()), (NEXT_READY, ()))
        self._prefetched.offered = {job_id for (job_id,) in offered.rows}
        self._prefetched.next_ready = delayed.rows[0]
        return [kind for (kind,) in kinds.rows]

    def _with_bundles(self, sql: str, values: Sequence[Any]) -> tuple[list[Row], Mapping[int, bytes]]:
        """Each row comes with the bundle that it came in, or with None if a row before it does."""
        rows = self._rows(
            f"""SELECT ready.*, CASE row_number() OVER (PARTITION BY seq - place ORDER BY priority DESC, scheduled)
                    WHEN 1 THEN (SELECT body FROM ops AS bundle WHERE bundle.seq = ready.seq - ready.place - 1) END
                FROM ({sql}) AS ready ORDER BY priority DESC, scheduled""",
            *values,
        )
        return [row[:-1] for row in rows], {row[-4] - row[-3] - 1: row[-1] for row in rows if row[-1] is not None}

    def take_ready(
        self, kind: str, limit: int, after: JobEntry | None = None, is_left: IsLeft | None = None
    ) -> list[ReadyJob]:
        self.lock_subjects(())
        lock = "FOR UPDATE OF j SKIP LOCKED" if self.is_beside else ""
        found = rows = self._ready(kind, limit, after, lock=lock)
        self.has_skipped |= self.is_beside and after is None and not rows
        if is_left is not None:
            found = []
            while rows and len(found) < limit:
                found += [row for row in rows if not is_left(row[0].job.id, row[0].job.fence)]
                rows = self._ready(kind, limit, rows[-1][0], lock=lock)
        return found[:limit]

    def next_ready_at(self) -> int | None:
        known = self._prefetched.next_ready
        return super().next_ready_at() if known is None else known[0]
