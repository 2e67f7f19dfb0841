"""The session of the PostgreSQL store: what a write transaction is told when it begins, and the statements that differ
from those that all stores share.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from psycopg import errors

from hocket.kernel.vocabulary import Subject
from hocket.store.artifacts import COLUMNS, Artifact
from hocket.store.local import MOVED, WorkerRow
from hocket.store.ops import Head
from hocket.store.postgres.beginning import Resumed, lock_key
from hocket.store.postgres.columns import Bytes, Numbers, Texts, columns, unnested
from hocket.store.postgres.faults import first_line
from hocket.store.postgres.jobs import PostgresJobs
from hocket.store.postgres.ops import PostgresOps
from hocket.store.postgres.statements import pages
from hocket.store.postgres.told import FAMILIES, Told
from hocket.store.row_check import RowCheck
from hocket.store.session import PROJECTIONS, Session
from hocket.store.statements import Row
from hocket.store.subjects import LOCK_QUEUE, STATE

# Stands in the head of a moved store, which each write transaction reads first, in place of a rebuild's progress.
IS_MOVED = b"moved"
_ARTIFACT = (Bytes, Bytes, Texts, Bytes, Bytes, Numbers, Numbers, Numbers, Bytes)
_ADD_ARTIFACTS = f"INSERT INTO artifacts ({COLUMNS}) SELECT * FROM {unnested(_ARTIFACT)} ON CONFLICT DO NOTHING"


class PostgresSession(PostgresOps, PostgresJobs, Session):
    row_check: RowCheck | None
    note: bytes | None = None
    """What the commit tells the processes that listen."""

    def begun(self, head: Head, told: Told | None = None, has_end: bool = False) -> None:
        """A transaction begins, which has read the head. A write transaction was told more, and may have locked the end
        of the log.
        """
        if not self._is_writer and head.rebuilding == IS_MOVED:
            head = head._replace(rebuilding=None)
        self._head, self._told, self._has_end, self._in_transaction = head, told, has_end, True

    def resumed(self, resumed: Resumed) -> None:
        """A write transaction begins without a message."""
        self.begun(resumed.head, resumed.told)
        self._waiting += resumed.locks
        self._unchanged, self._unchanged_end = resumed.unchanged, resumed.unchanged_end

    @property
    def resumes(self) -> bool:
        """Whether the transaction has begun without a message."""
        return self._unchanged_end is not None

    def ended(self) -> tuple[Told, bytes | None] | None:
        """Gives what a write transaction was told, and the author that it has locked."""
        told, author = self._told, self._author
        self._head, self._told, self._in_transaction = None, None, False
        self._last_added = self._unchanged = self._unchanged_end = None
        self._author, self._has_permissions, self.has_skipped = None, False, False
        self._locked.clear()
        self.note = None
        self._waiting.clear()
        return None if told is None else (told, author)

    def carry_note(self, note: bytes) -> None:
        self.note = note

    @property
    def last_added(self) -> tuple[int, bytes] | None:
        """The number and the id of the last op that the transaction has added."""
        return self._last_added

    def has_op(self, seq: int, op_id: bytes) -> bool:
        return self._one("SELECT 1 FROM ops WHERE seq = ? AND id = ?", seq, op_id) is not None

    def drop_projections(self) -> None:
        if self._told is not None:
            self._told.forget()
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
        if self._told is not None:
            self._told.forget()
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
        state, latest = self._told_state(subject)
        check = self.row_check
        return state if check is None or subject.family == LOCK_QUEUE else check.state(subject, state, latest)

    def _told_state(self, subject: Subject) -> tuple[bytes | None, bytes | None]:
        """The state, and the time of the latest op about the subject."""
        told = self._told if subject.family in FAMILIES else None
        if told is not None:
            told.asked.add(subject)
            if subject in told.subjects:
                return told.subjects[subject]
        ((state, latest),) = self._rows(f"SELECT {STATE}", *subject, *subject)
        if told is not None:
            told.subjects[subject] = state, latest
        return state, latest

    def _changes(self, subject: Subject, state: bytes | None, last: bytes = b"") -> None:
        if self._told is not None:
            self._told.subjects.pop(subject, None)
        super()._changes(subject, state, last)

    def set_route(self, kind: str, hlc: bytes, node: bytes | None) -> None:
        self._change_routes()
        super().set_route(kind, hlc, node)

    def drop_route(self, kind: str, hlc: bytes) -> None:
        self._change_routes()
        super().drop_route(kind, hlc)

    def _change_routes(self) -> None:
        if self._told is not None:
            self._told.has_routes = None

    def has_routes(self) -> bool:
        told = None if self._told is None else self._told.has_routes
        return super().has_routes() if told is None else told

    def put_worker(self, worker: WorkerRow) -> int:
        self._change_workers()
        return super().put_worker(worker)

    def drop_worker(self, number: int) -> None:
        self._change_workers()
        super().drop_worker(number)

    def _change_workers(self) -> None:
        if self._told is not None:
            self._told.worker = None

    def has_worker(self, number: int) -> bool:
        told = self._told
        if told is None:
            return super().has_worker(number)
        if told.worker is None or told.worker[0] != number:
            told.worker = number, super().has_worker(number)
        return told.worker[1]

    def put_offer(self, op_id: bytes, job_id: bytes, worker: int) -> None:
        self._change_offers()
        super().put_offer(op_id, job_id, worker)

    def drop_offer(self, op_id: bytes) -> None:
        self._change_offers()
        super().drop_offer(op_id)

    def drop_offers_of(self, worker: int) -> None:
        self._change_offers()
        super().drop_offers_of(worker)

    def _change_offers(self) -> None:
        if self._told is not None:
            self._told.offered = None

    def offered_jobs(self) -> set[bytes]:
        told = None if self._told is None else self._told.offered
        return super().offered_jobs() if told is None else told

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
