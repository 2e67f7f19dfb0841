"""All statements of the PostgreSQL store in one session."""

from collections.abc import Iterable, Iterator
from typing import Any

from psycopg import errors

from hocket.store.ops import Head
from hocket.store.postgres.artifacts import PostgresArtifacts
from hocket.store.postgres.beginning import Resumed
from hocket.store.postgres.faults import first_line
from hocket.store.postgres.intake import PostgresIntake
from hocket.store.postgres.jobs import PostgresJobs
from hocket.store.postgres.local import PostgresLocal
from hocket.store.postgres.lock_requests import PostgresLockRequests
from hocket.store.postgres.messages import PostgresMessages
from hocket.store.postgres.ops import PostgresOps
from hocket.store.postgres.peers import PostgresPeers
from hocket.store.postgres.presence import PostgresPresence
from hocket.store.postgres.registers import PostgresRegisters
from hocket.store.postgres.rows import PostgresRows
from hocket.store.postgres.statements import insert
from hocket.store.postgres.subjects import PostgresSubjects
from hocket.store.postgres.tokens import PostgresTokens
from hocket.store.postgres.told import Told
from hocket.store.unlogged import KEPT, MOVED

# Stands in the head of a moved store, which each write transaction reads first, in place of a rebuild's progress.
IS_MOVED = b"moved"
_PROJECTIONS = (
    *("jobs", "finished", "subjects", "after", "cites", "nodes", "routes", "schedules", "artifacts"),
    *("evictions", "delegations", "revocations", "coordinators", "forks", "written"),
    *("messages", "deliveries", "group_cursors"),
)


class PostgresSession(
    PostgresOps,
    PostgresIntake,
    PostgresJobs,
    PostgresSubjects,
    PostgresRows,
    PostgresMessages,
    PostgresRegisters,
    PostgresArtifacts,
    PostgresPeers,
    PostgresPresence,
    PostgresLocal,
    PostgresTokens,
    PostgresLockRequests,
):
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
        return self._one("SELECT 1 FROM ops WHERE seq = %s AND id = %s", seq, op_id) is not None

    def drop_projections(self) -> None:
        if self._told is not None:
            self._told.forget()
        # Not TRUNCATE: readers would wait for it, and see empty tables in an older view.
        for table in _PROJECTIONS:
            self._put(f"DELETE FROM {table}")

    def damage(self) -> list[str]:
        """PostgreSQL checks its pages when it reads them, so this reads them all."""
        found = []
        for table in ("head", "meta", "ops", *_PROJECTIONS):
            try:
                with self._connection.transaction():  # a savepoint: the view goes on after an error
                    self._sql(f"SELECT count(*) FROM {table}")
            except (errors.DataCorrupted, errors.IndexCorrupted, errors.UndefinedTable) as error:
                found.append(first_line(error))
        return found

    def unlogged(self, table: str) -> Iterator[tuple[Any, ...]]:
        yield from self._rows(f"SELECT {KEPT[table].columns} FROM {table} ORDER BY {KEPT[table].order}")

    def put_unlogged(self, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
        if self._told is not None:
            self._told.forget()
        self._put(f"DELETE FROM {table}")
        self._many(insert(table, KEPT[table].columns), list(rows))

    def mark_moved(self, address: str) -> None:
        self.set_meta(MOVED, address.encode())
        self.put_head(self.head()._replace(rebuilding=IS_MOVED))

    def moved_to(self) -> str | None:
        """Where a write transaction finds its store moved to, if it was."""
        if self.head().rebuilding != IS_MOVED:
            return None
        return (self.meta(MOVED) or b"another store").decode()
