"""A store in a PostgreSQL database, for nodes that share one. A write transaction is alone, or it runs beside those of
other authors: see `locks`. Only a statement that reads waits for the server: changes go out with the next of those, or
with the commit. Reads are consistent views, and wait for nothing. A commit is on the server's disk when it returns. A
connection that broke is made again at the next transaction. If it breaks during a commit, the store looks whether the
transaction's last op is on the log.
"""

import time
from contextlib import suppress
from typing import NoReturn

import psycopg
from psycopg.pq import TransactionStatus

from hocket.errors import StoreAway, StoreError, StoreMoved, StoreStarting
from hocket.store.connections import Migration, ServerStore, StoreReader
from hocket.store.postgres.beginning import Beginning
from hocket.store.postgres.connecting import (
    RESTARTING,
    DatabaseAddress,
    connect,
    first_line,
    is_pooled,
    raise_explained,
    read_address,
)
from hocket.store.postgres.exchange import ANSWER_S, Connection
from hocket.store.postgres.listening import notification
from hocket.store.postgres.migration import check_and_migrate, planned_migration
from hocket.store.postgres.session import PostgresSession
from hocket.store.postgres.statements import HEAD, SERVER_MS, head_of
from hocket.store.statements import MustBeAlone, Outdated, RowMacs

# A server that has said that it shuts down may refuse connections for this long: it is restarting. And so may all of
# several, once the connection to one of them broke: another one is about to take its place.
RESTART_S = 30.0
# What NOTIFY raises if a listener that is stopped somewhere has let the notifications pile up.
QUEUE_FULL = psycopg.errors.ProgramLimitExceeded


class PostgresStore(ServerStore[PostgresSession]):
    def __init__(self, url: str, *, create: bool = False) -> None:
        self.address = address = read_address(url)
        super().__init__(address.shown)
        self._beginning = Beginning(address.schema)
        self._restarts_until = 0.0
        self._is_lost = False
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
            self._explain(error)
            raise
        self._writer = connection
        self._write_session: PostgresSession | None = None
        # How many write transactions this process has committed.
        self.commits = 0

    def _new_reader(self) -> "PostgresReader":
        return PostgresReader(self.address, self.macs)

    def _explain(self, error: BaseException) -> NoReturn:
        raise_explained(self.shown, error)

    def _close_writer(self) -> None:
        self._writer.close()

    def write(self, author: bytes | None = None, *, at_end: bool = False) -> "PostgresWrite":
        return PostgresWrite(self, author, at_end)

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
            except psycopg.Error as error:
                if not self.lost(error):
                    raise
                self._writer = self._reconnected()
                return self._begin(author, at_end)
        except BaseException as error:
            self.lost(error)
            self.roll_back()
            raise_explained(self.shown, error)

    def _resumed(self, author: bytes | None) -> PostgresSession | None:
        session, resumed = self._write_session, self._beginning.resumed(author)
        if resumed is None or session is None or session.connection is not self._writer or self._writer.closed:
            return None
        session.is_beside = True
        session.row_check = None if self.row_checks is None else self.row_checks.within(session)
        session.resumed(resumed)
        return session

    def lost(self, error: BaseException) -> bool:
        """Whether the connection broke. One to a server that takes no writes is given up: another server may take its
        place.
        """
        if isinstance(error, RESTARTING) or (self.address.has_standby and self._writer.closed and not self._is_lost):
            self._restarts_until = time.monotonic() + RESTART_S
        if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
            self._writer.close()
        self._is_lost = self._writer.closed
        return self._is_lost

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
        begun = self._beginning.begun(self._writer.ask(self._beginning.statements(author, at_end), ANSWER_S))
        self.server_clock.set(begun.server_ms)
        self._is_lost = False
        session = self._write_session
        if session is None or session.connection is not self._writer:
            session = PostgresSession(self._writer, self.address.schema, is_writer=True, macs=self.macs)
            self._write_session = session
        session.is_beside = is_beside = author is not None
        session.row_check = None if self.row_checks is None else self.row_checks.within(session)
        session.begun(begun.head, begun.known, has_end=not is_beside or at_end)
        if (address := session.moved_to()) is not None:
            raise StoreMoved(self.shown, address)
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
            session.send(_COMMIT, *note)
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
        with self.read() as session:
            return session.position()

    def _was_committed(self, session: PostgresSession, broken: psycopg.OperationalError) -> bool:
        assert session.last_added is not None
        seq, op_id = session.last_added

        def look() -> bool:
            try:
                self._writer.close()
                self._writer = connect(self.address)
                is_there = self._begin().has_op(seq, op_id)
                # A commit that no longer waited for its standby is here, and may be lost with this server. A later one
                # takes it along.
                self._writer.ask((_WRITE_AGAIN, _COMMIT) if is_there else (_ROLLBACK,), ANSWER_S)
                return is_there
            except BaseException:
                self._writer.close()
                raise

        return self._looked_up(op_id, look, first_line(broken), (psycopg.OperationalError, StoreError))

    def ended(self, session: PostgresSession, *, is_committed: bool) -> None:
        """Remembers what its transactions ask, and what the last one has left."""
        head, resumes = session.head() if is_committed else None, session.resumes
        ended = session.ended()
        if not resumes:
            self._beginning.ended(*ended)
        self._beginning.left(head, *ended)

    def roll_back(self) -> None:
        try:
            with suppress(psycopg.Error):  # then the connection broke, and the server has rolled back
                if not self._writer.closed and self._writer.info.transaction_status is not TransactionStatus.IDLE:
                    self._writer.ask((_ROLLBACK,))
        finally:
            self._lock.release()


_BEGIN_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_SEARCH = "SELECT set_config('search_path', ?, true)"
_COMMIT = ("COMMIT", ())
_ROLLBACK = ("ROLLBACK", ())
_WRITE_AGAIN = ("UPDATE head SET seq = seq", ())


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
        self._store.lost(error)
        self._store.roll_back()
        if resumes and session.connection.closed and isinstance(error, psycopg.Error):
            # The connection may have been lost before the transaction began.
            raise Outdated from error
        if self._author is not None and isinstance(error, psycopg.errors.DeadlockDetected):
            raise MustBeAlone from error
        raise_explained(self._store.shown, error)


class PostgresReader(StoreReader[PostgresSession]):
    def __init__(self, address: DatabaseAddress, macs: RowMacs) -> None:
        self._address, self._macs = address, macs
        self._connect()

    def _connect(self) -> None:
        self._connection = connect(self._address)
        self.session = PostgresSession(self._connection, self._address.schema, macs=self._macs)

    def begin(self) -> None:
        try:
            self._begin()
        except psycopg.OperationalError:
            self._connection.close()
            self._connect()
            self._begin()

    def _begin(self) -> None:
        path = f"{self._address.schema}, pg_temp"
        *_, head = self._connection.ask(((_BEGIN_READ, ()), (_SEARCH, (path,)), (HEAD, ())), ANSWER_S)
        self.session.begun(head_of(head.first))

    def end(self) -> None:
        self.session.ended()
        with suppress(psycopg.Error):  # then the connection broke, and is made again
            self._connection.ask((_ROLLBACK,))

    def close(self) -> None:
        self._connection.close()


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
