"""The guard of rows in a user's own database: a table with the highest fence of each resource, which is compared and
raised in the transaction that writes. For SQLite (the modules sqlite3 and apsw) and PostgreSQL (psycopg).
"""

import inspect
from types import TracebackType
from typing import Any

from hocket.errors import StaleFence, Usage
from hocket.guard.fences import check_fence, check_resource

RAISE = (
    "INSERT INTO hocket_fences AS kept (resource, fence) VALUES (?, ?)"
    " ON CONFLICT (resource) DO UPDATE SET fence = excluded.fence WHERE kept.fence <= excluded.fence RETURNING fence"
)
NEWEST = "SELECT fence FROM hocket_fences WHERE resource = ?"
CREATE_SQLITE = (
    "CREATE TABLE IF NOT EXISTS hocket_fences (resource TEXT PRIMARY KEY NOT NULL, fence INTEGER NOT NULL)"
    " WITHOUT ROWID"
)
CREATE_POSTGRES = "CREATE TABLE IF NOT EXISTS hocket_fences (resource text PRIMARY KEY, fence bigint NOT NULL)"
HAS_TABLE_POSTGRES = "SELECT to_regclass('hocket_fences') IS NOT NULL"
# Processes that create a table at the same time collide in PostgreSQL's catalogue: this lock puts them in a row.
LOCK_CREATION_POSTGRES = "SELECT pg_advisory_xact_lock(114784820028788)"


class SqliteGuard:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def in_transaction(self) -> bool:
        return bool(self._connection.in_transaction)

    def begin(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        self._connection.execute("COMMIT")

    def rollback(self) -> None:
        self._connection.execute("ROLLBACK")

    def create_table(self) -> None:
        self._connection.execute(CREATE_SQLITE)

    def values(self, statement: str, *given: object) -> list[Any]:
        return _values(self._connection.execute(statement, given))


class PostgresGuard:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def in_transaction(self) -> bool:
        return bool(self._connection.info.transaction_status != 0)  # psycopg's TransactionStatus.IDLE

    def begin(self) -> None:
        # Without autocommit, the first statement begins the transaction.
        if self._connection.autocommit:
            self._connection.execute("BEGIN")

    def commit(self) -> None:
        self._connection.commit()

    def rollback(self) -> None:
        self._connection.rollback()

    def create_table(self) -> None:
        if self.values(HAS_TABLE_POSTGRES) != [True]:
            self._connection.execute(LOCK_CREATION_POSTGRES)
            self._connection.execute(CREATE_POSTGRES)

    def values(self, statement: str, *given: object) -> list[Any]:
        return _values(self._connection.execute(statement.replace("?", "%s"), given))


def _values(cursor: Any) -> list[Any]:
    """The first value of each row. The connection may turn rows into dicts."""
    return [next(iter(row.values() if isinstance(row, dict) else row)) for row in cursor.fetchall()]


class FencedTransaction:
    """A transaction whose writer has shown a fence that is not stale. Enter it with `with`: the end of the block
    commits, an error rolls back.
    """

    def __init__(self, guard: SqliteGuard | PostgresGuard, resource: str, fence: int) -> None:
        self._guard = guard
        self._is_ours = not guard.in_transaction()
        if self._is_ours:
            guard.begin()
        try:
            guard.create_table()
            if not guard.values(RAISE, resource, fence):
                raise StaleFence(resource, fence, guard.values(NEWEST, resource)[0])
        except BaseException:
            self._roll_back()
            raise

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._roll_back()
            return
        if not self._guard.in_transaction():
            raise Usage(
                "the guarded block ended its transaction itself (with commit, rollback or executescript);"
                " nothing guarded what it wrote after that"
            )
        if self._is_ours:
            try:
                self._guard.commit()
            except BaseException:
                self._roll_back()
                raise

    def _roll_back(self) -> None:
        if self._is_ours and self._guard.in_transaction():
            self._guard.rollback()


def fenced(connection: Any, resource: str, fence: int) -> FencedTransaction:
    """Refuses writes of a holder that has lost its lock or its job and does not know it.

        with hocket.fenced(connection, "page:7", held.fence):
            connection.execute("UPDATE page SET text = ? WHERE id = 7", (text,))

    Raises StaleFence if the resource has seen a higher fence. Otherwise it refuses lower fences from now on, with the
    commit at the end of the block. An error rolls everything back. If a transaction is already open, the guard joins
    it, and the caller commits. The connection is one of sqlite3, apsw or psycopg.
    """
    number, name = check_fence(fence), check_resource(resource)
    if inspect.iscoroutinefunction(inspect.unwrap(getattr(connection, "execute", print))):
        raise Usage(f"fenced cannot use the asynchronous {type(connection).__name__}; open a synchronous connection")
    if isinstance(getattr(connection, "in_transaction", None), bool):
        return FencedTransaction(SqliteGuard(connection), name, number)
    if hasattr(getattr(connection, "info", None), "transaction_status"):
        return FencedTransaction(PostgresGuard(connection), name, number)
    raise Usage(f"fenced needs a connection of sqlite3, apsw or psycopg, not a {type(connection).__name__}")
