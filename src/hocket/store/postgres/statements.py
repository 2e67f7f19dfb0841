"""The base of all statements of the PostgreSQL store: one connection, and what the current transaction knows. Node ids
are eight big-endian bytes, because PostgreSQL's integers are signed.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from psycopg.errors import DivisionByZero

from hocket.errors import StoreError
from hocket.kernel.subjects import Subject
from hocket.store.locks import Outdated
from hocket.store.ops import Head
from hocket.store.postgres.columns import Column, unnested
from hocket.store.postgres.exchange import Connection, Statement, StatementAnswer
from hocket.store.postgres.told import Told
from hocket.store.row_check import RowCheck
from hocket.store.row_macs import MAC_TABLES, RowMacs, RowWithoutMac

T = TypeVar("T")

# A list that could be the whole table is read in pages of this many rows.
PAGE_ROWS = 1_000
# Changes that a transaction gathers before it sends them.
WAITING_MAX = 1_000
# The server's time in milliseconds.
SERVER_MS = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"


def damaged(how: str) -> StoreError:
    return StoreError(f"the database is damaged ({how}); restore a backup")


def insert(table: str, columns: str) -> str:
    return f"INSERT INTO {table} ({columns}) VALUES ({', '.join(['%s'] * (columns.count(',') + 1))})"


def insert_new(table: str, columns: str) -> str:
    """Leaves an existing row as it is."""
    return f"{insert(table, columns)} ON CONFLICT DO NOTHING"


def upsert(table: str, columns: str, key: str) -> str:
    """Adds a row, or replaces the one with this key."""
    return f"{insert(table, columns)} {_replacing(columns, key)}"


def upsert_all(table: str, columns: str, key: str, types: Sequence[type[Column]]) -> str:
    """Adds many rows, given by columns, or replaces those with their keys."""
    return f"INSERT INTO {table} ({columns}) SELECT * FROM {unnested(types)} {_replacing(columns, key)}"


def update_all(table: str, columns: str, key: str, types: Sequence[type[Column]]) -> str:
    """Changes these columns of many rows, given by columns, of which the last is the key."""
    changes = ", ".join(f"{name} = new.{name}" for name in columns.split(", "))
    rows = f"{unnested(types)} AS new ({columns}, {key})"
    return f"UPDATE {table} SET {changes} FROM {rows} WHERE {table}.{key} = new.{key}"


def _replacing(columns: str, key: str) -> str:
    names = [name.strip() for name in columns.split(",")]
    changes = ", ".join(f"{name} = excluded.{name}" for name in names if name not in key.split(", "))
    return f"ON CONFLICT ({key}) DO UPDATE SET {changes}"


def pages(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    """Rows for one statement each."""
    for first in range(0, len(rows), PAGE_ROWS):
        yield rows[first : first + PAGE_ROWS]


class PostgresStatements:
    """`is_writer` is for the session of write transactions, one after the other. `is_beside` is whether transactions of
    other authors may run at the same time as this one.
    """

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
        self.is_beside = False
        self._is_writer = is_writer
        self._in_transaction = False
        self._head: Head | None = None
        # The number and the id of the last op that the transaction has added.
        self._last_added: tuple[int, bytes] | None = None
        # What the transaction has locked.
        self._author: bytes | None = None
        # What a write transaction has read when it began.
        self._told: Told | None = None
        self._has_permissions = False
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

    def _ask(self, *last: Statement) -> list[StatementAnswer]:
        """Sends what waits, and these after it, whose answers it gives."""
        waiting, self._waiting = self._waiting, []
        if self._unchanged is not None:
            waiting.append(self._unchanged)
            self._unchanged = None
        try:
            return self._connection.ask((*waiting, *last))[len(waiting) :]
        except DivisionByZero as error:
            if self.row_check is not None:
                self.row_check.outdated()
            raise Outdated from error

    def _put(self, sql: str, values: Sequence[Any] = ()) -> None:
        """A change that nobody waits for. It goes out with the next statement that is waited for, or with the commit,
        and only then raises an error.
        """
        self._waiting.append((sql, values))
        if len(self._waiting) >= WAITING_MAX:
            self._ask()

    def _own(self, table: str, tail: str = "", *values: Any, others: str = "") -> Iterator[Sequence[Any]]:
        """The rows of this node for the end of a statement: the columns that the MAC covers, the MAC, and others."""
        each = MAC_TABLES[table]
        sql = f"SELECT {each.columns}, mac{others} FROM {table} WHERE {each.owner} = %s {tail}"
        return self._macs.right(table, self._rows(sql, self._macs.node, *values))

    def _put_own(self, table: str, values: Sequence[Any], others: str = "", *others_values: Any) -> None:
        """Adds a row of this node, or replaces the one with its key."""
        each = MAC_TABLES[table]
        key = each.key if each.owner == "node" else f"{each.owner}, {each.key}"
        columns = f"{each.owner}, {each.columns}, mac{others}"
        self._put(upsert(table, columns, key), (*self._macs.with_mac(table, values), *others_values))

    def end_row(self, table: str, row: Sequence[Any]) -> None:
        self._macs.end(table, row)

    def without_mac(self) -> list[RowWithoutMac]:
        found: list[RowWithoutMac] = []
        for table, each in MAC_TABLES.items():
            sql = f"SELECT {each.owner}, {each.columns}, mac FROM {table} WHERE {each.owner} IN (%s, '')"
            found += self._macs.wrong(table, self._rows(sql, self._macs.node))
        return found

    def send(self, *last: Statement) -> None:
        """Sends what waits, and these after it."""
        self._ask(*last)

    def _many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        for row in rows:
            self._put(sql, row)

    def _one(self, sql: str, *values: Any) -> Any:
        """The first column of the first row, or None."""
        row = self._sql(sql, values).first
        return None if row is None else row[0]

    def _bundles(self, seqs: Sequence[int]) -> dict[int, bytes]:
        """The entries with these numbers, unchecked."""
        return {row[0]: row[1] for row in self._rows("SELECT seq, body FROM ops WHERE seq = ANY(%s)", list(seqs))}

    def _rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._sql(sql, values).rows

    def _column(self, sql: str, *values: Any) -> list[Any]:
        return [row[0] for row in self._sql(sql, values).rows]

    def _among(self, sql: str, values: Iterable[bytes]) -> list[tuple[Any, ...]]:
        """The rows of a statement that takes an array of values."""
        chosen = list(values)
        return self._rows(sql, chosen) if chosen else []

    def _pages(self, sql: str) -> Iterator[tuple[Any, ...]]:
        """All rows of a statement that takes an id and a limit, and returns rows in the order of ids, the id first."""
        after = b""
        while rows := self._rows(sql, after, PAGE_ROWS):
            yield from rows
            after = rows[-1][0]
