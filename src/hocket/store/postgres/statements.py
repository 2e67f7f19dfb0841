"""How PostgreSQL runs statements: on one connection, where changes wait for the next statement that reads. What the
current transaction knows without asking. And the statements about the log that differ from those that all stores share.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

from psycopg.errors import DivisionByZero

from hocket.errors import StoreError
from hocket.families.availability.facts import AVAILABILITY
from hocket.families.kinds.facts import KIND
from hocket.kernel.vocabulary import Subject
from hocket.store.op_rows import OP_COLUMNS, Head, NewOp, OpRow, OpSession, SealedOp
from hocket.store.postgres.exchange import (
    ANSWER_S,
    Bytes,
    Column,
    Connection,
    Numbers,
    Statement,
    StatementAnswer,
    Texts,
    columns,
    unnested,
)
from hocket.store.session import RowCheck
from hocket.store.statements import (
    PAGE_ROWS,
    POSTGRES,
    LockMisuse,
    LockSession,
    Outdated,
    Row,
    RowMacs,
    insert,
    replacing,
)

# The families of subjects that transactions ask for again and again.
FAMILIES = (KIND, AVAILABILITY)


class Prefetched:
    """What a transaction knows without asking; None is for what it has to ask. A write transaction has read some of it
    when it began. All of this changes only in transactions that are alone.
    """

    __slots__ = ("asked", "has_after", "has_routes", "last", "next_ready", "offered", "subjects", "worker")

    def __init__(
        self,
        last: tuple[bytes | None, bytes] = (None, b""),
        has_after: bool | None = None,
        has_routes: bool | None = None,
        worker: tuple[int, bool] | None = None,
    ) -> None:
        self.last = last
        """An author, and its last op."""
        self.has_after, self.has_routes, self.worker = has_after, has_routes, worker
        """A worker, and whether it is registered."""
        self.offered: set[bytes] | None = None
        """The jobs with claims that wait for the arbiter, as of the last look at the queue."""
        self.next_ready: tuple[int | None] | None = None
        """When the next delayed job is due, if one is, as of that look."""
        self.subjects: dict[Subject, tuple[bytes | None, bytes | None]] = {}
        """The states of subjects, each with the time of the latest op about it."""
        self.asked: set[Subject] = set()
        """The subjects that the transaction has asked for."""

    def resume(self, last: tuple[bytes, bytes]) -> None:
        """Another transaction begins, and nobody else has written meanwhile. The queue depends on the time, too."""
        self.last = last
        self.offered = self.next_ready = None
        if self.worker is not None and not self.worker[1]:
            self.worker = None

    def forget(self) -> None:
        """The transaction has changed the tables."""
        self.has_after = self.has_routes = self.worker = self.offered = self.next_ready = None
        self.subjects.clear()


T = TypeVar("T")

# Changes that a transaction gathers before it sends them.
WAITING_MAX = 1_000
# The server's time in milliseconds.
SERVER_MS = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
HEAD = "SELECT wall, logical, seq, chain, settled, unsettled, rebuilding, law FROM head"
_PUT_HEAD = (
    "UPDATE head SET wall = ?, logical = ?, seq = ?, chain = ?, settled = ?, unsettled = ?, rebuilding = ?,"
    " law = ?, sealed = ?"  # older programs want `sealed` to be the number of ops
)
_TYPES = (Bytes, Bytes, Numbers, Texts, Bytes, Numbers, Numbers, Bytes, Numbers, Bytes)
_COLUMNS = "seq, id, hlc, variant, family, key, reason, settled, body, place, chain"
# For one op, as a single submit writes it. Arrays of one value cost the server and this process more than the row.
_ADD_OP = insert("ops", _COLUMNS)
_ADD_OPS = f"""
    INSERT INTO ops ({_COLUMNS})
    SELECT ? + number, id, hlc, variant, family, key, reason, settled, body, place, chain
    FROM {unnested(_TYPES)}
        WITH ORDINALITY AS new (id, hlc, variant, family, key, reason, settled, body, place, chain, number)"""
_SEAL_OPS = """
    UPDATE ops SET body = new.body, chain = new.chain
    FROM unnest(?::bigint[], ?::bytea[], ?::bytea[]) AS new (seq, body, chain)
    WHERE ops.seq = new.seq"""
_SET_REASONS = """
    UPDATE ops SET reason = new.reason FROM unnest(?::integer[], ?::bytea[]) AS new (reason, id)
    WHERE ops.id = new.id AND ops.settled = 1"""
# Each author once, by hopping through the index from author to author.
_FRONTIER = """
    WITH RECURSIVE latest(node, hlc) AS (
        (SELECT substr(hlc, 13), hlc FROM ops ORDER BY substr(hlc, 13) DESC, hlc DESC LIMIT 1)
        UNION ALL SELECT lower.* FROM latest, LATERAL (
            SELECT substr(ops.hlc, 13), ops.hlc FROM ops WHERE substr(ops.hlc, 13) < latest.node
            ORDER BY substr(ops.hlc, 13) DESC, ops.hlc DESC LIMIT 1) AS lower)
    SELECT node, hlc FROM latest"""


def damaged(how: str) -> StoreError:
    return StoreError(f"the database is damaged ({how}); restore a backup")


def upsert_all(table: str, columns: str, key: str, types: Sequence[type[Column]]) -> str:
    """Adds many rows, given by columns, or replaces those with their keys."""
    return f"INSERT INTO {table} ({columns}) SELECT * FROM {unnested(types)} {replacing(columns, key)}"


def update_all(table: str, columns: str, key: str, types: Sequence[type[Column]]) -> str:
    """Changes these columns of many rows, given by columns, of which the last is the key."""
    changes = ", ".join(f"{name} = new.{name}" for name in columns.split(", "))
    rows = f"{unnested(types)} AS new ({columns}, {key})"
    return f"UPDATE {table} SET {changes} FROM {rows} WHERE {table}.{key} = new.{key}"


@cache
def _among(sql: str) -> str:
    return sql.format("= ANY(?)")


def pages(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    """Rows for one statement each."""
    for first in range(0, len(rows), PAGE_ROWS):
        yield rows[first : first + PAGE_ROWS]


@cache
def _merged(which: str) -> str:
    return f"""
    SELECT next.* FROM unnest(?::bytea[], ?::bytea[]) AS known (node, hlc), LATERAL (
        SELECT {OP_COLUMNS} FROM ops WHERE substr(ops.hlc, 13) = known.node AND ops.hlc > known.hlc AND {which}
        ORDER BY ops.hlc LIMIT ?) AS next
    ORDER BY next.hlc LIMIT ?"""


class PostgresOps(OpSession, LockSession):
    """`is_writer` is for the session of write transactions, one after the other."""

    dialect = POSTGRES

    def __init__(
        self,
        connection: Connection,
        schema: str,
        *,
        is_writer: bool = False,
        macs: RowMacs | None = None,
    ) -> None:
        self.connection = self._connection = connection
        self._macs = RowMacs() if macs is None else macs
        self._schema = schema
        self._is_writer = is_writer
        self._in_transaction = False
        self._head: Head | None = None
        # The number and the id of the last op that the transaction has added.
        self._last_added: tuple[int, bytes] | None = None
        self._prefetched = Prefetched()
        self._locked: set[Subject] = set()
        self._has_end = False
        # Statements that go out with the next one that is waited for.
        self._waiting: list[Statement] = []
        # In a transaction that began without a message: what fails if others have written since the last one, until it
        # goes out, and what also locks the end of the log.
        self._unchanged: Statement | None = None
        self._unchanged_end: Statement | None = None
        self.row_check: RowCheck | None = None

    def _sql(self, sql: str, values: Sequence[Any] = ()) -> StatementAnswer:
        """Waits for the answer."""
        return self._ask((sql, values))[0]

    def _ask(self, *last: Statement, limit_s: float | None = None) -> list[StatementAnswer]:
        """Sends what waits, and these after it, whose answers it gives."""
        waiting, self._waiting = self._waiting, []
        if self._unchanged is not None:
            waiting.append(self._unchanged)
            self._unchanged = None
        try:
            return self._connection.ask((*waiting, *last), limit_s)[len(waiting) :]
        except DivisionByZero as error:
            if self.row_check is not None:
                self.row_check.outdated()
            raise Outdated from error

    def _put(self, sql: str, values: Sequence[Any] = ()) -> None:
        self._waiting.append((sql, values))
        if len(self._waiting) >= WAITING_MAX:
            self._ask()

    def send(self, *last: Statement) -> None:
        """Sends what waits, and these after it, which end the transaction."""
        self._ask(*last, limit_s=ANSWER_S)

    def _many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        for row in rows:
            self._put(sql, row)

    def _rows(self, sql: str, *values: Any) -> list[Row]:
        return self._sql(sql, values).rows

    def _among(self, sql: str, values: Sequence[bytes] | Sequence[str] | Sequence[int], *others: Any) -> list[Row]:
        return self._rows(_among(sql), list(values), *others) if values else []

    # The log.

    def head(self) -> Head:
        if self._head is None:
            self._head = head_of(self._sql(HEAD).first)
        return self._head

    def lock_author(self, node: bytes) -> None:
        """From now on the head's `last` is that of this author."""
        if self._author != node:
            super().lock_author(node)
            author, known = self._prefetched.last
            last = known if author == node else self.latest_of(node)[1]
            if (head := self.head()).last != last:
                self._head = head._replace(last=last)

    def lock_end(self) -> Head:
        """What was changed so far goes out with this, so that the lock is held for one more message, the commit."""
        if self._has_end:
            return self.head()
        self._has_end = True
        if self._unchanged_end is not None:
            self._put(*self._unchanged_end)
            self._unchanged = None
        else:
            last = self.head().last
            self._head = head_of(self._sql(f"{HEAD} FOR UPDATE").first)._replace(last=last)
        return self.head()

    def put_head(self, head: Head) -> None:
        self._check_end()
        self._put(_PUT_HEAD, (*head[:8], head.seq))
        self._head = head

    def add_ops(self, ops: Sequence[NewOp], links: Sequence[bytes]) -> int:
        self._check_end()
        last = max(self.head().seq, 0 if self._last_added is None else self._last_added[0])
        if ops:
            if len(ops) == 1:
                self._put(_ADD_OP, (last + 1, *ops[0], *links))
            else:
                rows = [(*op, link) for op, link in zip(ops, links, strict=True)]
                self._put(_ADD_OPS, (last, *columns(_TYPES, rows)))
            self._last_added = last + len(ops), ops[-1].id
        return last + len(ops)

    def _check_end(self) -> None:
        if not self._has_end:
            raise LockMisuse("lock the end of the log before it changes")

    def seal_ops(self, ops: Sequence[SealedOp]) -> None:
        self._sql(_SEAL_OPS, [[each[i] for each in ops] for i in range(3)])

    def drop_ops(self, first: int) -> None:
        super().drop_ops(first)
        self._last_added = None

    def unsettled_ops(self, after: int, limit: int | None) -> list[OpRow]:
        """A transaction beside others leaves them those that they are folding."""
        lock = "FOR UPDATE SKIP LOCKED" if self.is_beside else ""
        return self._stored(f"WHERE seq > ? AND settled = 0 ORDER BY seq LIMIT ? {lock}", after, limit)

    def mark_settled(self, seqs: Sequence[int]) -> None:
        self._put("UPDATE ops SET settled = 1 WHERE seq = ANY(?)", (list(seqs),))

    def every_op_about(self, subject: Subject, after: bytes = b"") -> list[OpRow]:
        # An OR would use none of the two indexes.
        about = f"SELECT {OP_COLUMNS} FROM ops WHERE key = ? AND settled = {{}} AND family = ? AND hlc > ?"
        values = (subject.key, subject.family, after)
        rows = self._rows(f"{about.format(1)} UNION ALL {about.format(0)} ORDER BY hlc", *values, *values)
        return self._checked(self._read(rows))

    def _next_of(self, which: str, after: Mapping[bytes, bytes], limit: int) -> Iterable[Row]:
        return self._rows(_merged(which), list(after), list(after.values()), limit, limit)

    def set_reasons(self, reasons: Iterable[tuple[int, bytes]]) -> None:
        chosen = list(reasons)
        if chosen:
            self._put(_SET_REASONS, ([int(reason) for reason, _ in chosen], [op_id for _, op_id in chosen]))

    def frontier(self) -> dict[bytes, bytes]:
        return {node: hlc for node, hlc in self._rows(_FRONTIER)}


def head_of(row: tuple[Any, ...] | None) -> Head:
    if row is None:
        raise damaged("it has lost the end of its log")
    return Head(*row)
