"""The session of the SQLite store: how SQLite runs statements, on one connection; the statements that differ from those
that all stores share; and what a write session remembers from one transaction to the next.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import Any, Protocol

import apsw

from hocket.errors import StoreError
from hocket.kernel.vocabulary import Subject
from hocket.store.job_rows import (
    CHECKED_COLUMNS,
    JOB_COLUMNS,
    MOVED_COLUMNS,
    IsLeft,
    JobEntry,
    ReadyJob,
    Stage,
    bundles_of,
    job_entries,
    job_row,
    moved_row,
)
from hocket.store.local import MOVED
from hocket.store.op_rows import OP_COLUMNS, EndSeal, Head, NewOp, OpRow, SealedOp
from hocket.store.session import RowCheck, Session
from hocket.store.statements import MAC_TABLES, SQLITE, Row, RowMacs

# How the error of a trigger begins that refuses a write to a moved store. The address follows.
MOVED_TO = "this store was moved to "
# How many states a writer remembers, and how large each may be.
STATES_REMEMBERED = 64
STATE_BYTES_REMEMBERED = 4_096
CLAIMED_REMEMBERED = 4_096
# SQLite takes at most 32,766 values in a statement.
VALUES_MAX = 30_000

# The errors of a good statement if the schema or the text in the file is damaged.
UNREADABLE = (apsw.SQLError, UnicodeDecodeError)
HEAD = "SELECT wall, logical, seq, chain, settled, unsettled, rebuilding, law, last, mark, signed, signature FROM head"
_PUT_HEAD = (
    "UPDATE head SET wall = ?, logical = ?, seq = ?, chain = ?, settled = ?, unsettled = ?, rebuilding = ?, law = ?,"
    " last = ?, mark = ?, signed = ?, signature = ? WHERE one = 1"
)
_ADD_OP = (
    "INSERT INTO ops (seq, id, hlc, variant, family, key, reason, settled, body, place, chain)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
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


class SqliteConnection(Protocol):
    """What the statements use of a connection: of apsw's, or of one to a server that runs SQLite."""

    @property
    def in_transaction(self) -> bool: ...
    def execute(self, statements: str, bindings: Any = ..., /) -> Any: ...
    def executemany(self, statements: str, sequenceofbindings: Any, /) -> Any: ...
    def total_changes(self) -> int: ...


def damaged(how: str) -> StoreError:
    return StoreError(f"the database is damaged ({how}); restore a backup")


@lru_cache
def _in(sql: str, size: int) -> str:
    return sql.format(f"IN ({', '.join('?' * size)})")


class SqliteSession(Session):
    """`is_writer` is for the session of write transactions, which exclude every other writer."""

    dialect = SQLITE

    def __init__(self, connection: SqliteConnection, is_writer: bool = False, macs: RowMacs | None = None) -> None:
        self._is_writer = is_writer
        self._macs = RowMacs() if macs is None else macs
        self._connection = connection
        self._sql = connection.execute
        self._head: Head | None = None
        self._head_version = -1
        self._head_seen = False
        # Jobs that this connection has written as claimed, while no other connection writes: the process that claims a
        # job also ends it.
        self._claimed: dict[bytes, JobEntry] = {}
        # States that this connection has written, while no other connection writes: a lock is released where it was
        # acquired.
        self._states: dict[Subject, bytes] = {}
        # The number of the last op that the transaction has added.
        self._last_added: int | None = None
        # Jobs that the transaction knows to have no outcome.
        self._unended: set[bytes] = set()
        # Which ready jobs the last caller that said so has left to others.
        self._is_left: IsLeft | None = None
        self.row_check: RowCheck | None = None

    # Each result is read to its end. Otherwise the statement stays open as long as its cursor lives, and with it the
    # view: an object that something else still knows, such as a tool that lists all objects, would freeze the reader.

    def _rows(self, sql: str, *values: Any) -> list[Row]:
        rows: list[Row] = self._sql(sql, values).fetchall()
        return rows

    def _one(self, sql: str, *values: Any) -> Any:
        rows = self._rows(sql, *values)
        return rows[0][0] if rows else None

    def _column(self, sql: str, *values: Any) -> list[Any]:
        return [row[0] for row in self._sql(sql, values)]

    def _put(self, sql: str, values: Sequence[Any] = ()) -> None:
        self._sql(sql, values)

    def _many(self, sql: str, rows: Iterable[Sequence[Any]]) -> Any:
        return self._connection.executemany(sql, rows)

    def _among(self, sql: str, values: Sequence[bytes] | Sequence[str] | Sequence[int], *others: Any) -> list[Row]:
        rows: list[Row] = []
        size = VALUES_MAX if others else 1_000
        for start in range(0, len(values), size):
            part = values[start : start + size]
            rows += self._rows(_in(sql, len(part)), *part, *others)
        return rows

    # The log.

    def head(self) -> Head:
        """The head. A write transaction reads it only if another connection has written since this one last did."""
        head = self._head
        if head is None or not self._head_seen:
            version = self._data_version()
            if head is None or version != self._head_version:
                head = self._stored_head()
                self._claimed.clear()
                self._states.clear()
            if self._is_writer:
                self._head, self._head_version, self._head_seen = head, version, True
        return head

    def _stored_head(self) -> Head:
        try:
            row = next(iter(self._rows(HEAD)), None)
        except UNREADABLE as error:
            raise damaged(str(error)) from error
        if row is None or type(row[2]) is not int or type(row[3]) is not bytes:
            raise damaged("it has lost the end of its log")
        return head_of(row)

    @property
    def _is_writing(self) -> bool:
        return self._is_writer and self._connection.in_transaction

    def _data_version(self) -> int:
        """Changes with each commit, also of another connection."""
        assert isinstance(self._connection, apsw.Connection)
        return self._connection.data_version("main")

    def lock_end(self) -> Head:
        return self.head()

    def put_head(self, head: Head) -> None:
        self._sql(_PUT_HEAD, (*head[:9], *head.seal))
        self._head, self._head_seen = head, True

    def committed(self) -> None:
        """The head that this transaction read or wrote stays current until another connection's commit changes the
        version. A transaction that did not read it does not know.
        """
        if self._head_seen:
            self._head_version = self._data_version()
        else:
            self._head = None
        self._head_seen = False
        self._last_added = None
        self._unlock()

    def undone(self) -> None:
        self._head, self._head_seen = None, False
        self._last_added = None
        self._unlock()

    def _unlock(self) -> None:
        self._author, self._has_permissions = None, False
        self._unended.clear()

    def add_ops(self, ops: Sequence[NewOp], links: Sequence[bytes]) -> int:
        last = max(self.head().seq, self._last_added or 0)
        seqs = range(last + 1, last + len(ops) + 1)
        self._many(_ADD_OP, [(seq, *op, link) for seq, op, link in zip(seqs, ops, links, strict=True)])
        self._last_added = last + len(ops)
        return self._last_added

    def seal_ops(self, ops: Sequence[SealedOp]) -> None:
        self._many("UPDATE ops SET body = ?, chain = ? WHERE seq = ?", [(body, chain, seq) for seq, body, chain in ops])

    def drop_ops(self, first: int) -> None:
        super().drop_ops(first)
        self._last_added = None

    def unsettled_ops(self, after: int, limit: int | None) -> list[OpRow]:
        return self._stored("WHERE seq > ? AND settled = 0 ORDER BY seq LIMIT ?", after, -1 if limit is None else limit)

    def mark_settled(self, seqs: Sequence[int]) -> None:
        if seqs:
            self._sql("UPDATE ops SET settled = 1 WHERE seq BETWEEN ? AND ? AND settled = 0", (seqs[0], seqs[-1]))

    def order_ops(self) -> None:
        self._sql("CREATE INDEX IF NOT EXISTS ops_by_author ON ops (substr(hlc, 13), hlc)")

    def cited_among(self, deps: Sequence[bytes]) -> set[bytes]:
        if self._one("SELECT 1 FROM cites LIMIT 1") is None:
            return set()  # as in most logs: only ops that wait or came late are there
        return super().cited_among(deps)

    def _stored_after(self, which: str, seq: int, limit: int) -> list[OpRow]:
        rows = super()._stored_after(which, seq, limit)
        # Readers of the log continue after the last row; a damaged file without order must not make that an endless
        # loop.
        if any(later.seq <= earlier for later, earlier in zip(rows, (seq, *(row.seq for row in rows)), strict=False)):
            raise damaged("its ops are out of order")
        return rows

    def _next_of(self, which: str, after: Mapping[bytes, bytes], limit: int) -> Iterable[Row]:
        sql = f"SELECT {OP_COLUMNS} FROM ops WHERE substr(hlc, 13) = ? AND hlc > ? AND {which} ORDER BY hlc LIMIT ?"
        authors = self._each(sql, [(node, hlc, limit) for node, hlc in after.items()])
        return islice(merge(*authors, key=itemgetter(2)), limit)

    def _each(self, sql: str, values: Sequence[Sequence[Any]]) -> list[Iterable[Any]]:
        """The rows for each of the values. They are read when they are needed."""
        assert isinstance(self._connection, apsw.Connection)
        return [self._connection.cursor().execute(sql, each) for each in values]

    def _stored(self, tail: str, *values: Any) -> list[OpRow]:
        try:
            return super()._stored(tail, *values)
        except UNREADABLE as error:
            raise damaged(str(error)) from error

    def set_reasons(self, reasons: Iterable[tuple[int, bytes]]) -> None:
        self._many("UPDATE ops SET reason = ? WHERE id = ? AND settled = 1", reasons)

    def frontier(self) -> dict[bytes, bytes]:
        return dict(
            self._sql(
                """WITH RECURSIVE authors(node) AS (
                       SELECT min(substr(hlc, 13)) FROM ops
                       UNION ALL SELECT (SELECT min(substr(hlc, 13)) FROM ops WHERE substr(hlc, 13) > node)
                       FROM authors WHERE node IS NOT NULL)
                   SELECT node, (SELECT max(hlc) FROM ops WHERE substr(hlc, 13) = node)
                   FROM authors WHERE node IS NOT NULL"""
            )
        )

    # The roster and the queue.

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

    def _with_bundles(self, sql: str, values: Sequence[Any]) -> tuple[list[Row], Mapping[int, bytes]]:
        rows = self._rows(sql, *values)
        return rows, self._bundles(bundles_of(rows))

    def take_ready(
        self, kind: str, limit: int, after: JobEntry | None = None, is_left: IsLeft | None = None
    ) -> list[ReadyJob]:
        self.lock_subjects(())
        found = self._ready(kind, limit, after) if is_left is None else self._not_left(kind, limit, after, is_left)
        self._unended.update(entry.job.id for entry, _ in found)
        return found

    def _not_left(self, kind: str, limit: int, after: JobEntry | None, is_left: IsLeft) -> list[ReadyJob]:
        """Ready jobs without those that the caller leaves to others. SQLite calls it for each row that it passes."""
        if self._is_left is None:
            # Once: each registration makes SQLite prepare every statement again.
            assert isinstance(self._connection, apsw.Connection)
            self._connection.create_scalar_function("is_left", lambda *job: self._is_left and self._is_left(*job), 2)
        self._is_left = is_left
        return self._ready(kind, limit, after, "AND NOT is_left(j.id, j.fence)")

    # Subjects, settings and rows beside the log.

    def subject_state(self, subject: Subject) -> bytes | None:
        if self._head_seen and subject in self._states:
            return self._states[subject]
        return super().subject_state(subject)

    def _changes(self, subject: Subject, state: bytes | None, last: bytes = b"") -> None:
        super()._changes(subject, state, last)
        self._states.pop(subject, None)
        if state is not None and len(state) <= STATE_BYTES_REMEMBERED:
            if len(self._states) >= STATES_REMEMBERED:
                self._states.clear()
            self._states[subject] = state

    def node_meta(self, node: bytes, key: str) -> bytes | None:
        return self.meta(key)

    def set_node_meta(self, node: bytes, key: str, value: bytes) -> None:
        self.set_meta(key, value)

    def has_rows_to_mac(self) -> bool:
        """Whether an older program has left rows without a MAC."""
        return self._one("SELECT 1 FROM to_mac") is not None

    def mac_old_rows(self) -> None:
        for table, each in MAC_TABLES.items():
            sql = f"SELECT {each.columns} FROM {table} WHERE mac = x''"
            at = [each.columns.split(", ").index(name) for name in each.key.split(", ")]
            which = " AND ".join(f"{name} = ?" for name in each.key.split(", "))
            columns = ", ".join(f"{name} = ?" for name in (each.owner, *each.columns.split(", "), "mac"))
            for row in self._sql(sql).fetchall():
                changed = f"UPDATE {table} SET {columns} WHERE mac = x'' AND {which}"
                self._sql(changed, (*self._macs.with_mac(table, row), *(row[number] for number in at)))
        self._sql("DELETE FROM to_mac")

    def carry_note(self, note: bytes) -> None:
        """Every process that uses the file is on this machine."""

    def drop_projections(self) -> None:
        self._claimed.clear()
        self._states.clear()
        super().drop_projections()

    def damage(self) -> list[str]:
        try:
            return [row[0] for row in self._sql("PRAGMA integrity_check(20)") if row[0] != "ok"]
        except UNREADABLE as error:
            return [str(error)]

    def mark_moved(self, address: str) -> None:
        """Triggers refuse the writes, also those of processes that have the file open, and of older programs."""
        self.set_meta(MOVED, address.encode())
        told = (MOVED_TO + address).replace("'", "''")
        tables = self._sql("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'").fetchall()
        for (table,) in tables:
            for act in ("INSERT", "UPDATE", "DELETE"):
                trigger = f"CREATE TRIGGER moved_{act}_{table} BEFORE {act} ON {table}"
                self._sql(f"{trigger} BEGIN SELECT RAISE(ABORT, '{told}'); END")


def head_of(row: tuple[Any, ...]) -> Head:
    return Head._make((*row[:9], EndSeal(*row[9:])))
