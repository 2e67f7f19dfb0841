"""The base of all statements of the PostgreSQL store: one connection, and what the current transaction knows. Node ids
are eight big-endian bytes, because PostgreSQL's integers are signed.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import psycopg

from hocket.errors import StoreError
from hocket.store.ops import Head

# A list that could be the whole table is read in pages of this many rows.
PAGE_ROWS = 1_000

Connection = psycopg.Connection[tuple[Any, ...]]
Cursor = psycopg.Cursor[tuple[Any, ...]]


def damaged(how: str) -> StoreError:
    return StoreError(f"the database is damaged ({how}); restore a backup")


def insert(table: str, columns: str) -> str:
    return f"INSERT INTO {table} ({columns}) VALUES ({', '.join(['%s'] * (columns.count(',') + 1))})"


def insert_new(table: str, columns: str) -> str:
    """Leaves an existing row as it is."""
    return f"{insert(table, columns)} ON CONFLICT DO NOTHING"


def upsert(table: str, columns: str, key: str) -> str:
    """Adds a row, or replaces the one with this key."""
    names = [name.strip() for name in columns.split(",")]
    changes = ", ".join(f"{name} = excluded.{name}" for name in names if name not in key.split(", "))
    return f"{insert(table, columns)} ON CONFLICT ({key}) DO UPDATE SET {changes}"


class PostgresStatements:
    """`is_writer` is for the session of write transactions, which exclude every other writer."""

    def __init__(self, connection: Connection, is_writer: bool = False) -> None:
        self._connection = connection
        self._is_writer = is_writer
        self._in_transaction = False
        self._head: Head | None = None
        # The number and the id of the last op that the transaction has added.
        self._last_added: tuple[int, bytes] | None = None
        # What the transaction has locked.
        self._author: bytes | None = None
        # An author and its last op, which a write transaction reads when it begins.
        self._known_last: tuple[bytes | None, bytes] = (None, b"")
        self._has_permissions = False

    def _sql(self, sql: str, values: Sequence[Any] = ()) -> Cursor:
        return self._connection.execute(sql, values, binary=True)

    def _many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        if len(rows) == 1:
            self._sql(sql, rows[0])
        elif rows:
            self._connection.cursor().executemany(sql, rows)

    def _one(self, sql: str, *values: Any) -> Any:
        """The first column of the first row, or None."""
        row = self._sql(sql, values).fetchone()
        return None if row is None else row[0]

    def _rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._sql(sql, values).fetchall()

    def _column(self, sql: str, *values: Any) -> list[Any]:
        return [row[0] for row in self._sql(sql, values)]

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
