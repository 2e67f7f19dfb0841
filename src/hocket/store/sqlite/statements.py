"""How SQLite runs statements: on one connection. And what a write session may remember from one transaction to the
next.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Protocol

import apsw

from hocket.errors import StoreError
from hocket.kernel.subjects import Subject
from hocket.store.jobs import IsLeft, JobEntry
from hocket.store.ops import Head
from hocket.store.row_check import RowCheck
from hocket.store.row_macs import RowMacs
from hocket.store.statements import SQLITE, Row, Statements

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


# SQLite takes at most 32,766 values in a statement.
VALUES_MAX = 30_000


@lru_cache
def _in(sql: str, size: int) -> str:
    return sql.format(f"IN ({', '.join('?' * size)})")


class SqliteStatements(Statements):
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

    def _rows(self, sql: str, *values: Any) -> list[Row]:
        rows: list[Row] = self._sql(sql, values).fetchall()
        return rows

    def _one(self, sql: str, *values: Any) -> Any:
        row = self._sql(sql, values).fetchone()
        return None if row is None else row[0]

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
