"""How PostgreSQL runs statements: on one connection, where changes wait for the next statement that reads. And what the
current transaction knows.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, TypeVar

from psycopg.errors import DivisionByZero

from hocket.errors import StoreError
from hocket.kernel.vocabulary import Subject
from hocket.store.ops import Head
from hocket.store.postgres.columns import Column, unnested
from hocket.store.postgres.exchange import Connection, Statement, StatementAnswer
from hocket.store.postgres.told import Told
from hocket.store.row_check import RowCheck
from hocket.store.statements import PAGE_ROWS, POSTGRES, Outdated, Row, RowMacs, Statements, replacing

T = TypeVar("T")

# Changes that a transaction gathers before it sends them.
WAITING_MAX = 1_000
# The server's time in milliseconds.
SERVER_MS = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"


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


class PostgresStatements(Statements):
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
        # What a write transaction has read when it began.
        self._told: Told | None = None
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
        self._waiting.append((sql, values))
        if len(self._waiting) >= WAITING_MAX:
            self._ask()

    def send(self, *last: Statement) -> None:
        """Sends what waits, and these after it."""
        self._ask(*last)

    def _many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        for row in rows:
            self._put(sql, row)

    def _rows(self, sql: str, *values: Any) -> list[Row]:
        return self._sql(sql, values).rows

    def _among(self, sql: str, values: Sequence[bytes] | Sequence[str] | Sequence[int], *others: Any) -> list[Row]:
        return self._rows(_among(sql), list(values), *others) if values else []
