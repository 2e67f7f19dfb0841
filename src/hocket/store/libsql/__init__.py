"""A store in a libSQL server, for nodes that share one. Write transactions exclude each other, as on SQLite, and see
everything that was committed before. Only a statement that reads waits for the server: changes go out with the next of
those, or with the commit. Reads are consistent views, and wait for nothing. A connection that broke is made again at
the next transaction. If it breaks during a commit, the store looks whether the transaction's last op is on the log.
The server ends a transaction of more than five seconds if another one waits.
"""

import random
import threading
import time

import apsw

from hocket.errors import CommitUnknown, StoreError
from hocket.kernel.keys import RowMac
from hocket.store.libsql.address import ServerAddress, read_address
from hocket.store.libsql.connection import LibsqlConnection
from hocket.store.libsql.faults import LOCK_WAIT_S, Broken, raise_explained
from hocket.store.libsql.hrana import Statement
from hocket.store.libsql.migration import check_and_migrate, planned_migration
from hocket.store.libsql.session import LATEST, LibsqlSession
from hocket.store.migration import Migration
from hocket.store.row_check import RowChecks
from hocket.store.server_clock import ServerClock
from hocket.store.sqlite import ReadPool
from hocket.store.sqlite.session import HEAD, damaged, head_of
from hocket.store.statements import EndedMacs, RowMacs

# How long a process looks for the answer after a connection broke during a commit.
COMMIT_CHECK_S = 30.0
PAUSE_S = 0.2
# The server's time in milliseconds.
_SERVER_MS: Statement = ("SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER)", ())


class LibsqlStore:
    def __init__(self, url: str, *, create: bool = False) -> None:
        self.address = address = read_address(url)
        self._lock = threading.RLock()
        self.server_clock = ServerClock()
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
            raise_explained(address.shown, error)
        self._macs = macs = RowMacs()
        self._session = LibsqlSession(writer, is_writer=True, macs=macs)
        self._row_checks: RowChecks | None = None
        self._readers = ReadPool(lambda: LibsqlReader(address, macs), address.shown)

    def mac_rows(self, mac: RowMac, ended: EndedMacs | None = None) -> None:
        self._macs.use(mac, ended)

    def check_rows(self, checks: RowChecks) -> None:
        self._row_checks = checks

    def write(self, author: bytes | None = None, *, at_end: bool = False) -> "LibsqlWrite":
        """Always alone."""
        return LibsqlWrite(self, author)

    def read(self) -> "LibsqlRead":
        return LibsqlRead(self._readers, self.address.shown, self._row_checks)

    def trim(self) -> None:
        """The server does this by itself."""

    def close(self) -> None:
        self._readers.close()
        with self._lock:
            self._writer.close()

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
            raise_explained(self.address.shown, error)

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
        self._session.row_check = None if self._row_checks is None else self._row_checks.within(self._session)
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
        """Whether the last op of a transaction is on the log, asked in a transaction of its own: the old one has ended
        by then, one way or the other.
        """
        deadline = time.monotonic() + COMMIT_CHECK_S
        while True:
            try:
                self._writer.roll_back()
                found = self._begin().has_op(seq, op_id)
                self._writer.roll_back()
                return found
            except (Broken, StoreError, apsw.Error) as error:
                if time.monotonic() > deadline:
                    raise CommitUnknown(
                        f"{self.address.shown} broke off during a commit ({broken.message}), and could not be asked"
                        f" since whether op {op_id[:16].hex()} is on the log; look before you repeat the change"
                    ) from error
                time.sleep(PAUSE_S)

    def roll_back(self) -> None:
        self._writer.roll_back()
        self._release()

    def _release(self) -> None:
        self._author = self._session.author or self._author
        self._session.ended()
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
        raise_explained(self._store.address.shown, error)


class LibsqlReader:
    """A stream that reads, for one thread at a time."""

    __slots__ = ("_connection", "_depth", "session", "thread")

    def __init__(self, address: ServerAddress, macs: RowMacs) -> None:
        self._connection = LibsqlConnection(address)
        self.session = LibsqlSession(self._connection, macs=macs)
        self.thread = 0
        self._depth = 0

    def begin(self) -> None:
        if self._depth == 0:
            self._connection.begin_read()
        self._depth += 1

    def end(self) -> bool:
        self._depth -= 1
        if self._depth == 0:
            self.session.ended()
            self._connection.roll_back()
        return self._depth == 0

    def close(self) -> None:
        self._connection.close()


class LibsqlRead:
    """One view."""

    __slots__ = ("_checks", "_reader", "_readers", "_shown")

    def __init__(self, readers: ReadPool, shown: str, checks: RowChecks | None) -> None:
        self._readers, self._shown, self._checks = readers, shown, checks

    def __enter__(self) -> LibsqlSession:
        self._reader = self._readers.take()
        self._reader.begin()
        session = self._reader.session
        assert isinstance(session, LibsqlSession)
        session.row_check = None if self._checks is None else self._checks.within(session)
        return session

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._readers.give_back(self._reader, self._reader.end())
        if error is not None:
            raise_explained(self._shown, error)


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
