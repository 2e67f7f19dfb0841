"""A store in a PostgreSQL database, for nodes that share one. A write transaction is alone, or it runs beside those of
other authors: see `locks`. Only a statement that reads waits for the server: changes go out with the next of those, or
with the commit. Reads are consistent views, and wait for nothing. A commit is on the server's disk when it returns. A
connection that broke is made again at the next transaction. If it breaks during a commit, the store looks whether the
transaction's last op is on the log.
"""

import threading
import time
from contextlib import suppress

import psycopg
from psycopg.pq import TransactionStatus

from hocket.errors import CommitUnknown, StoreAway, StoreError, StoreMoved, StoreStarting
from hocket.kernel.keys import RowMac
from hocket.store.migration import Migration
from hocket.store.postgres.address import DatabaseAddress, read_address
from hocket.store.postgres.beginning import Beginning
from hocket.store.postgres.connecting import connect, is_pooled
from hocket.store.postgres.exchange import Connection
from hocket.store.postgres.faults import LOCK_WAIT_S, RESTARTING, first_line, raise_explained
from hocket.store.postgres.listening import notification
from hocket.store.postgres.migration import check_and_migrate, planned_migration
from hocket.store.postgres.ops import HEAD, head_of
from hocket.store.postgres.session import PostgresSession
from hocket.store.postgres.statements import SERVER_MS
from hocket.store.row_check import RowChecks
from hocket.store.server_clock import ServerClock
from hocket.store.statements import EndedMacs, MustBeAlone, Outdated, RowMacs

READERS_MAX = 8
# How long a process looks for the answer after a connection broke during a commit.
COMMIT_CHECK_S = 30.0
COMMIT_CHECK_PAUSE_S = 0.2
# A server that has said that it shuts down may refuse connections for this long: it is restarting.
RESTART_S = 30.0
# What NOTIFY raises if a listener that is stopped somewhere has let the notifications pile up.
QUEUE_FULL = psycopg.errors.ProgramLimitExceeded


class PostgresStore:
    def __init__(self, url: str, *, create: bool = False) -> None:
        self.address = address = read_address(url)
        self._lock = threading.RLock()
        self.server_clock = ServerClock()
        self._beginning = Beginning(address.schema)
        self._restarts_until = 0.0
        connection = connect(address)
        try:
            if is_pooled(connection):
                connection.prepare_threshold = None
                self.address = address._replace(is_pooled=True)
            _check_encoding(connection, address)
            check_and_migrate(connection, address, create)
            self._ask_time(connection)
        except BaseException as error:
            connection.close()
            raise_explained(address.shown, error)
        self._writer = connection
        self._write_session: PostgresSession | None = None
        self.macs = RowMacs()
        self._readers = PostgresReaders(self.address, self.macs)
        self.row_checks: RowChecks | None = None
        # How many write transactions this process has committed.
        self.commits = 0

    def check_rows(self, checks: RowChecks) -> None:
        self.row_checks = checks

    def write(self, author: bytes | None = None, *, at_end: bool = False) -> "PostgresWrite":
        return PostgresWrite(self, author, at_end)

    def read(self) -> "PostgresRead":
        return PostgresRead(self._readers, self.address.shown, self.row_checks)

    def mac_rows(self, mac: RowMac, ended: EndedMacs | None = None) -> None:
        self.macs.use(mac, ended)

    def trim(self) -> None:
        """PostgreSQL's own autovacuum does this."""

    def close(self) -> None:
        self._readers.close()
        with self._lock:
            self._writer.close()

    def begin(self, author: bytes | None, at_end: bool) -> PostgresSession:
        """Locks the store against other threads, and other processes or those of the author, after a new connection if
        the last one broke.
        """
        self._lock.acquire()
        if not self._writer.closed and self._writer.info.transaction_status is not TransactionStatus.IDLE:
            self._lock.release()
            raise RuntimeError("a write transaction cannot begin within another one of the same thread")
        try:
            if (session := self._resumed(author)) is not None:
                return session
            try:
                return self._begin(author, at_end)
            except psycopg.OperationalError as error:
                if not self._writer.closed:
                    raise
                self.lost(error)
                self._writer = self._reconnected()
                return self._begin(author, at_end)
        except BaseException as error:
            self.roll_back()
            raise_explained(self.address.shown, error)

    def _resumed(self, author: bytes | None) -> PostgresSession | None:
        session, resumed = self._write_session, self._beginning.resumed(author)
        if resumed is None or session is None or session.connection is not self._writer or self._writer.closed:
            return None
        session.is_beside = True
        session.row_check = None if self.row_checks is None else self.row_checks.within(session)
        session.resumed(resumed)
        return session

    def lost(self, error: psycopg.OperationalError) -> None:
        """The connection broke."""
        if isinstance(error, RESTARTING):
            self._restarts_until = time.monotonic() + RESTART_S

    def _reconnected(self) -> Connection:
        try:
            return connect(self.address)
        except StoreStarting:
            self._restarts_until = time.monotonic() + RESTART_S
            raise
        except StoreAway as error:
            if time.monotonic() < self._restarts_until:
                raise StoreStarting(str(error)) from error
            raise

    def _begin(self, author: bytes | None = None, at_end: bool = False) -> PostgresSession:
        begun = self._beginning.begun(self._writer.ask(self._beginning.statements(author, at_end)))
        self.server_clock.set(begun.server_ms)
        session = self._write_session
        if session is None or session.connection is not self._writer:
            session = PostgresSession(self._writer, self.address.schema, is_writer=True, macs=self.macs)
            self._write_session = session
        session.is_beside = is_beside = author is not None
        session.row_check = None if self.row_checks is None else self.row_checks.within(session)
        session.begun(begun.head, begun.told, has_end=not is_beside or at_end)
        if (address := session.moved_to()) is not None:
            raise StoreMoved(self.address.shown, address)
        return session

    def _ask_time(self, connection: Connection) -> None:
        row = connection.execute(f"SELECT {SERVER_MS}").fetchone()
        assert row is not None
        self.server_clock.set(row[0])

    def commit(self, session: PostgresSession) -> None:
        """A note goes out in the same message, after the commit and not in it: transactions that notify commit one at a
        time in the whole server, and those that cannot are undone.
        """
        try:
            note = () if session.note is None else (notification(self.address, session.note),)
            session.send(("COMMIT", ()), *note)
        except psycopg.OperationalError as error:
            is_doubtful = self._writer.closed or isinstance(error, QUEUE_FULL)
            if not is_doubtful or session.last_added is None or not self._was_committed(session, error):
                raise
        if session.row_check is not None:
            session.row_check.committed()
        self.commits += 1
        self.ended(session, is_committed=True)
        self._lock.release()

    def position(self) -> int:
        """How far the server's write-ahead log is. It contains all that this process has committed."""
        return self._readers.position()

    def _was_committed(self, session: PostgresSession, broken: psycopg.OperationalError) -> bool:
        """Whether the last op of a transaction is on the log, asked over a new connection in a transaction that is
        alone: the old one has ended by then, one way or the other.
        """
        assert session.last_added is not None
        seq, op_id = session.last_added
        deadline = time.monotonic() + COMMIT_CHECK_S
        while True:
            try:
                self._writer.close()
                self._writer = connect(self.address)
                found = self._begin().has_op(seq, op_id)
                self._writer.ask((_ROLLBACK,))
                return found
            except (psycopg.OperationalError, StoreError) as error:
                self._writer.close()
                if time.monotonic() > deadline:
                    raise CommitUnknown(
                        f"{self.address.shown} broke off during a commit ({first_line(broken)}), and could not be asked"
                        f" since whether op {op_id[:16].hex()} is on the log; look before you repeat the change"
                    ) from error
                time.sleep(COMMIT_CHECK_PAUSE_S)

    def ended(self, session: PostgresSession, *, is_committed: bool) -> None:
        """Remembers what its transactions ask, and what the last one has left."""
        head, resumes = session.head() if is_committed else None, session.resumes
        if (ended := session.ended()) is not None:
            if not resumes:
                self._beginning.ended(*ended)
            self._beginning.left(head, *ended)

    def roll_back(self) -> None:
        with suppress(psycopg.Error):  # then the connection broke, and the server has rolled back
            if not self._writer.closed and self._writer.info.transaction_status is not TransactionStatus.IDLE:
                self._writer.ask((_ROLLBACK,))
        self._lock.release()


_BEGIN_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_SEARCH = "SELECT set_config('search_path', ?, true)"
_ROLLBACK = ("ROLLBACK", ())
_POSITION = (
    "SELECT (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END"
    " - '0/0'::pg_lsn)::bigint"
)


class PostgresWrite:
    """One write transaction."""

    __slots__ = ("_at_end", "_author", "_session", "_store")

    def __init__(self, store: PostgresStore, author: bytes | None, at_end: bool) -> None:
        self._store, self._author, self._at_end = store, author, at_end

    def __enter__(self) -> PostgresSession:
        self._session = self._store.begin(self._author, self._at_end)
        return self._session

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            if error is None:
                self._store.commit(self._session)
                return
        except BaseException as failure:
            error = failure
        # The next transaction, maybe of another thread, has the same session.
        session = self._session
        resumes = session.resumes
        self._store.ended(session, is_committed=False)
        self._store.roll_back()
        if resumes and session.connection.closed and isinstance(error, psycopg.OperationalError):
            # The connection may have been lost before the transaction began.
            self._store.lost(error)
            raise Outdated from error
        if self._author is not None and isinstance(error, psycopg.errors.DeadlockDetected):
            raise MustBeAlone from error
        raise_explained(self._store.address.shown, error)


class PostgresReader:
    """A connection that reads, for one thread at a time."""

    __slots__ = ("_depth", "_schema", "connection", "session", "thread")

    def __init__(self, connection: Connection, schema: str, macs: RowMacs) -> None:
        self.connection = connection
        self.session = PostgresSession(connection, schema, macs=macs)
        self._schema = schema
        self.thread = 0
        self._depth = 0

    def begin(self) -> None:
        """A view within a view is the same view."""
        if self._depth == 0:
            path = f"{self._schema}, pg_temp"
            *_, head = self.connection.ask(((_BEGIN_READ, ()), (_SEARCH, (path,)), (HEAD, ())))
            self.session.begun(head_of(head.first))
        self._depth += 1

    def end(self) -> bool:
        """Whether this was the outermost view."""
        self._depth -= 1
        if self._depth == 0:
            self.session.ended()
            with suppress(psycopg.Error):  # then the connection broke, and is not used again
                self.connection.ask((_ROLLBACK,))
        return self._depth == 0


class PostgresReaders:
    """The readers of a store: as many as there are threads that read at once, up to a limit. At the limit, a thread
    waits for one.
    """

    def __init__(self, address: DatabaseAddress, macs: RowMacs) -> None:
        self._address, self._macs = address, macs
        self._places = threading.Semaphore(READERS_MAX)
        self._free: list[PostgresReader] = []
        self._taken: dict[int, PostgresReader] = {}
        self._is_closed = False

    def take(self) -> PostgresReader:
        """A reader in a transaction."""
        thread = threading.get_ident()
        reader = self._taken.get(thread)
        if reader is not None:
            reader.begin()
            return reader
        if not self._places.acquire(timeout=LOCK_WAIT_S):
            raise StoreError(f"{self._address.shown} has {READERS_MAX} readers that do not end; what do they wait for?")
        try:
            if self._is_closed:
                raise StoreError(f"{self._address.shown} is closed")
            reader = self._begun()
        except BaseException:
            self._places.release()
            raise
        reader.thread = thread
        self._taken[thread] = reader
        return reader

    def _begun(self) -> PostgresReader:
        while self._free:
            reader = self._free.pop()
            try:
                reader.begin()
                return reader
            except psycopg.OperationalError:
                reader.connection.close()
        reader = PostgresReader(connect(self._address), self._address.schema, self._macs)
        reader.begin()
        return reader

    def give_back(self, reader: PostgresReader) -> None:
        if reader.end():
            del self._taken[reader.thread]
            if not reader.connection.closed:
                self._free.append(reader)
            self._places.release()

    def position(self) -> int:
        """How far the server's write-ahead log is, or how far a replica has replayed it."""
        try:
            reader = self.take()
        except psycopg.Error as error:
            raise_explained(self._address.shown, error)
        try:
            return int(next(iter(reader.connection.execute(_POSITION)))[0])
        finally:
            self.give_back(reader)

    def close(self) -> None:
        """Waits for the current readers, at most as long as for a lock."""
        deadline = time.monotonic() + LOCK_WAIT_S
        for _ in range(READERS_MAX):
            self._places.acquire(timeout=max(0.0, deadline - time.monotonic()))
        self._is_closed = True
        for reader in self._free:
            reader.connection.close()
        self._places.release(READERS_MAX)


class PostgresRead:
    """One view."""

    __slots__ = ("_checks", "_reader", "_readers", "_shown")

    def __init__(self, readers: PostgresReaders, shown: str, checks: RowChecks | None) -> None:
        self._readers, self._shown, self._checks = readers, shown, checks

    def __enter__(self) -> PostgresSession:
        try:
            self._reader = self._readers.take()
        except BaseException as error:
            raise_explained(self._shown, error)
        session = self._reader.session
        session.row_check = None if self._checks is None else self._checks.within(session)
        return session

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._readers.give_back(self._reader)
        if error is not None:
            raise_explained(self._shown, error)


def planned(url: str) -> Migration:
    """What opening the store would do to its tables. Changes nothing."""
    address = read_address(url)
    connection = connect(address)
    try:
        _check_encoding(connection, address)
        return planned_migration(connection, address)
    except BaseException as error:
        raise_explained(address.shown, error)
    finally:
        connection.close()


def _check_encoding(connection: Connection, address: DatabaseAddress) -> None:
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise StoreError(f"{address.shown} has the encoding {encoding}; create the database with UTF8")
