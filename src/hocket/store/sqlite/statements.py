"""The base of all statements of the SQLite store: one connection, and what a write session may remember from one
transaction to the next. Node ids are eight big-endian bytes, because SQLite's integers are signed.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, Protocol

import apsw

from hocket.errors import StoreError
from hocket.kernel.subjects import Subject
from hocket.store.jobs import IsLeft, JobEntry
from hocket.store.ops import Head
from hocket.store.row_check import RowCheck
from hocket.store.row_macs import MAC_TABLES, RowMacs, RowWithoutMac

# The errors of a good statement if the schema or the text in the file is damaged.
UNREADABLE = (apsw.SQLError, UnicodeDecodeError)


class SqliteConnection(Protocol):
    """What the statements use of a connection: of apsw's, or of one to a server that runs SQLite."""

    @property
    def in_transaction(self) -> bool: ...
    def execute(self, statements: str, bindings: Any = ..., /) -> Any: ...
    def executemany(self, statements: str, sequenceofbindings: Any, /) -> Any: ...
    def total_changes(self) -> int: ...


def damaged(how: str) -> StoreError:
    return StoreError(f"the database is damaged ({how}); restore a backup")


@cache
def _own_rows(table: str, tail: str, others: str) -> str:
    each = MAC_TABLES[table]
    return f"SELECT {each.columns}, mac{others} FROM {table} WHERE {each.owner} = ? {tail}"


@cache
def _own_row(table: str, others: str) -> str:
    columns = f"{MAC_TABLES[table].owner}, {MAC_TABLES[table].columns}, mac{others}"
    return f"REPLACE INTO {table} ({columns}) VALUES ({', '.join('?' * (columns.count(',') + 1))})"


class Statements:
    """`is_writer` is for the session of write transactions, which exclude every other writer."""

    def __init__(self, connection: SqliteConnection, is_writer: bool = False, macs: RowMacs | None = None) -> None:
        self._is_writer = is_writer
        self._macs = RowMacs() if macs is None else macs
        self._connection = connection
        self._sql = connection.execute
        self._many = connection.executemany
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
        # What the transaction has locked.
        self._author: bytes | None = None
        self._has_permissions = False
        self.row_check: RowCheck | None = None

    def _one(self, sql: str, *values: Any) -> Any:
        """The first column of the first row, or None."""
        row = self._sql(sql, values).fetchone()
        return None if row is None else row[0]

    def _own(self, table: str, tail: str = "", *values: Any, others: str = "") -> Iterator[Any]:
        """The rows of this node for the end of a statement: the columns that the MAC covers, the MAC, and others."""
        rows = self._sql(_own_rows(table, tail, others), (self._macs.node, *values))
        return self._macs.right(table, rows)

    def _put_own(self, table: str, values: Sequence[Any], others: str = "", *others_values: Any) -> None:
        """Adds a row of this node, or replaces the one with its key."""
        self._sql(_own_row(table, others), (*self._macs.with_mac(table, values), *others_values))

    def end_row(self, table: str, row: Sequence[Any]) -> None:
        self._macs.end(table, row)

    def without_mac(self) -> list[RowWithoutMac]:
        found: list[RowWithoutMac] = []
        for table, each in MAC_TABLES.items():
            sql = f"SELECT {each.owner}, {each.columns}, mac FROM {table} WHERE {each.owner} IN (?, x'')"
            found += self._macs.wrong(table, self._sql(sql, (self._macs.node,)))
        return found

    def _rows(self, sql: str, *values: Any) -> Iterable[Any]:
        rows: Iterable[Any] = self._sql(sql, values)
        return rows

    def _among(self, sql: str, values: Sequence[bytes]) -> set[bytes]:
        """The one column that a statement returns for any of the values."""
        return {row[0] for row in self._among_rows(sql, values)}

    def _bundles(self, seqs: Sequence[int]) -> dict[int, bytes]:
        """The entries with these numbers, unchecked. In a damaged file any value can stand in the place of bytes."""
        rows = self._among_rows("SELECT seq, body FROM ops WHERE seq IN ", seqs)
        return {seq: body for seq, body in rows if type(body) is bytes}

    def _among_rows(self, sql: str, values: Sequence[bytes] | Sequence[int]) -> Iterator[Any]:
        for start in range(0, len(values), 1_000):
            part = values[start : start + 1_000]
            yield from self._rows(f"{sql}({', '.join('?' * len(part))})", *part)
