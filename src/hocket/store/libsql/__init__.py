"""A store in a libSQL server, for nodes that share one. Write transactions exclude each other, as on SQLite, and see
everything that was committed before. Only a statement that reads waits for the server: changes go out with the next of
those, or with the commit. Reads are consistent views, and wait for nothing. A connection that broke is made again at
the next transaction. If it breaks during a commit, the store looks whether the transaction's last op is on the log.
The server ends a transaction of more than five seconds if another one waits.

The tables are those of SQLite, by the same numbered steps, and one with their version, because the server lets nobody
write SQLite's own marks. The write lock lets one process at a time look and change, however many start at once. A
database of a newer program, or with tables that are not ours, is refused and left as it is.
"""

import random
import time
from typing import NoReturn

import apsw

from hocket.errors import StoreError
from hocket.store.connections import LOCK_WAIT_S, Migration, ServerStore, StoreReader
from hocket.store.libsql.connecting import Broken, ServerAddress, raise_explained, read_address
from hocket.store.libsql.connection import LibsqlConnection
from hocket.store.libsql.hrana import Statement
from hocket.store.libsql.session import LATEST, LibsqlSession
from hocket.store.sqlite import VERSION, table_steps
from hocket.store.sqlite.session import HEAD, damaged, head_of
from hocket.store.statements import RowMacs

# How long to wait before the next try for the write lock, at most.
PAUSE_S = 0.2
# The server's time in milliseconds.
_SERVER_MS: Statement = ("SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER)", ())


class LibsqlStore(ServerStore[LibsqlSession]):
    def __init__(self, url: str, *, create: bool = False) -> None:
        self.address = address = read_address(url)
        super().__init__(address.shown)
        # The author of the last transaction, which is most likely that of the next one.
        self._author: bytes | None = None
        self._writer = writer = LibsqlConnection(address)
        try:
            check_and_migrate(writer, address.shown, create)
            writer.begin_read()
            self.server_clock.set(next(iter(writer.execute(*_SERVER_MS)))[0])
            writer.roll_back()
        except BaseException as error:
            writer.close()
            self._explain(error)
        self._session = LibsqlSession(writer, is_writer=True, macs=self.macs)

    def _new_reader(self) -> "LibsqlReader":
        return LibsqlReader(self.address, self.macs)

    def _explain(self, error: BaseException) -> NoReturn:
        raise_explained(self.shown, error)

    def _close_writer(self) -> None:
        self._writer.close()

    def write(self, author: bytes | None = None, *, at_end: bool = False) -> "LibsqlWrite":
        """Always alone."""
        return LibsqlWrite(self, author)

    @property
    def round_trips(self) -> int:
        """How often write transactions have waited for the server."""
        return self._writer.stream.round_trips

    def begin(self, author: bytes | None) -> LibsqlSession:
        """Locks the store against other threads and all other processes."""
        self._lock.acquire()
        if self._writer.in_transaction:
            self._lock.release()
            raise RuntimeError("a write transaction cannot begin within another one of the same thread")
        try:
            self._author = author or self._author
            return self._begin()
        except BaseException as error:
            self.roll_back()
            self._explain(error)

    def _begin(self) -> LibsqlSession:
        latest = (LATEST, (self._author or b"",))
        deadline = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                heads, ((now_ms,),), last = self._writer.begin_write((HEAD, ()), _SERVER_MS, latest)
                break
            except apsw.BusyError:
                self._writer.roll_back()
                if time.monotonic() > deadline:
                    raise
                time.sleep(PAUSE_S * random.uniform(0.5, 1))
        if not heads:
            raise damaged("it has lost the end of its log")
        self.server_clock.set(now_ms)
        self._session.row_check = None if self.row_checks is None else self.row_checks.within(self._session)
        self._session.begun(head_of(heads[0]), (self._author, last[0][0] if last else bytes(16)))
        return self._session

    def commit(self) -> None:
        """The server may have got a commit whose answer is lost."""
        added = self._session.last_added
        try:
            self._writer.commit()
        except Broken as error:
            if added is None or not self._was_committed(*added, error):
                raise
        if self._session.row_check is not None:
            self._session.row_check.committed()
        self._release()

    def _was_committed(self, seq: int, op_id: bytes, broken: Broken) -> bool:
        def look() -> bool:
            self._writer.roll_back()
            is_there = self._begin().has_op(seq, op_id)
            self._writer.roll_back()
            return is_there

        return self._looked_up(op_id, look, broken.message, (Broken, StoreError, apsw.Error))

    def roll_back(self) -> None:
        try:
            self._writer.roll_back()
        finally:
            self._release()

    def _release(self) -> None:
        try:
            self._author = self._session.author or self._author
            self._session.ended()
        finally:
            self._lock.release()


class LibsqlWrite:
    """One write transaction."""

    __slots__ = ("_author", "_store")

    def __init__(self, store: LibsqlStore, author: bytes | None) -> None:
        self._store, self._author = store, author

    def __enter__(self) -> LibsqlSession:
        return self._store.begin(self._author)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            if error is None:
                self._store.commit()
                return
        except BaseException as failure:
            error = failure
        self._store.roll_back()
        raise_explained(self._store.shown, error)


class LibsqlReader(StoreReader[LibsqlSession]):
    """A stream that reads."""

    def __init__(self, address: ServerAddress, macs: RowMacs) -> None:
        self._connection = LibsqlConnection(address)
        self.session = LibsqlSession(self._connection, macs=macs)

    def begin(self) -> None:
        self._connection.begin_read()

    def end(self) -> None:
        self.session.ended()
        self._connection.roll_back()

    def close(self) -> None:
        self._connection.close()


def planned(url: str) -> Migration:
    """What opening the store would do to its tables. Changes nothing."""
    address = read_address(url)
    connection = LibsqlConnection(address)
    try:
        return planned_migration(connection, address.shown)
    except BaseException as error:
        raise_explained(address.shown, error)
    finally:
        connection.close()


_MARK = "hocket_version"
# Many nodes write here, so the sequences of authors are indexed from the start.
_AUTHORS = "CREATE INDEX IF NOT EXISTS ops_by_author ON ops (substr(hlc, 13), hlc);"

# Rows of version 10 have no MAC. These end with the processes that wrote them.
_WITHOUT_MAC = "DELETE FROM workers WHERE mac = x''; DELETE FROM lock_requests WHERE mac = x'';"


def check_and_migrate(connection: LibsqlConnection, shown: str, create: bool) -> None:
    """Brings a new or an older store to the current version."""
    connection.begin_read()
    version = stored_version(connection, shown)
    connection.roll_back()
    if version == VERSION:
        return
    if version == 0 and not create:
        raise StoreError(f"{shown} has no Hocket store; create one with `hocket init --store`")
    connection.begin_write()
    version = stored_version(connection, shown)
    if version < VERSION:
        connection.run_script("\n".join(migration(version)))
    connection.commit()


def planned_migration(connection: LibsqlConnection, shown: str) -> Migration:
    connection.begin_read()
    version = stored_version(connection, shown)
    return Migration(version, VERSION, tuple(migration(version)))


def migration(version: int) -> list[str]:
    """The SQL that brings a store from this version to the current one."""
    if version == VERSION:
        return []
    mark = f"UPDATE {_MARK} SET version = {VERSION};"
    if version == 0:
        mark = f"CREATE TABLE {_MARK} (version INTEGER NOT NULL) STRICT; INSERT INTO {_MARK} VALUES ({VERSION});"
    return [*table_steps(version), _WITHOUT_MAC, _AUTHORS, mark]


def stored_version(connection: LibsqlConnection, shown: str) -> int:
    """The version of the store in the database, 0 for none."""
    sql = "SELECT name FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%' AND name NOT LIKE 'libsql_%'"
    names = {name for (name,) in connection.execute(sql)}
    if not names:
        return 0
    if _MARK not in names:
        raise StoreError(f"{shown} has tables of another program; choose another database")
    row = connection.execute(f"SELECT version FROM {_MARK}").fetchone()
    if row is None:
        raise StoreError(f"{shown} is damaged (it has lost its version); restore a backup")
    version = int(row[0])
    if version > VERSION:
        raise StoreError(
            f"{shown} has version {version}, this program knows up to {VERSION}; upgrade Hocket, nothing was changed"
        )
    return version
