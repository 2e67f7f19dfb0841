"""The default store: one SQLite file in WAL mode with `synchronous=FULL`, shared by every process of a node. A commit
is on the disk when it returns. SQLite's lock, taken at the start of a transaction, lets one writer in at a time. A
process that finds it taken sleeps until the writer wakes it (`WriteHints`), because SQLite's own waiting lets some
processes starve.
"""

import functools
import os
import select
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import apsw

from hocket.errors import StoreAway, StoreError, StoreLocked, StoreMoved
from hocket.kernel.keys import RowMac
from hocket.store.connections import LOCK_WAIT_S, Migration, ReadPool, ReadView, StoreReader
from hocket.store.files import is_full
from hocket.store.session import RowChecks
from hocket.store.sqlite.session import MOVED_TO, SqliteSession
from hocket.store.statements import EndedMacs, RowMacs

T = TypeVar("T")

APPLICATION_ID = 0x484F434B  # "HOCK"
VERSION = 18
_SCHEMA = ("schema.sql", *(f"schema_{version}.sql" for version in range(2, VERSION + 1)))
RETRY_MIN_S, RETRY_MAX_S = 0.0001, 0.002
# A process that waits to write and is not woken tries again after this long, and up to twice that: a writer that was
# killed wakes nobody.
UNWOKEN_S = 0.01
_READ_BYTES = 65_536
# A writer looks for the pipe at most this often. A process that has just made it tries again by itself.
LOOK_S = 0.005
# A drain beside 100,000 finished jobs finds 99.6 % of its pages in this, as in twice as much.
CACHE_KIB = 2_048
# A reader's cache is useless once anybody has written. Lists of 200,000 jobs take as long with this as with 1,024.
READER_CACHE_KIB = 256
PAGE_BYTES = 2048
# Statements that stay prepared: there are more than the hundred that apsw keeps by default.
STATEMENTS = 512
# A write-ahead log that has grown beyond this is emptied. SQLite does so by itself only when no process reads.
WAL_BYTES = 16 * 1024 * 1024
# How long that may hold up writers, while it waits for readers to end.
TRIM_WAIT_MS = 250


class SqliteStore:
    """`path` is a file, or ":memory:" for a store in memory, which is gone when this object is."""

    server_clock = None

    def __init__(self, path: Path | str, *, create: bool = False) -> None:
        self.path = str(path)
        self._can_shorten = False
        self._may_fill = create or self.path == ":memory:"
        flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
        self._write_lock = threading.RLock()
        self._hints: WriteHints | None = None if self.path == ":memory:" else WriteHints(self.path)
        with _explained(self.path), _readable(self.path):
            self._writer = self._connect(flags)
            version = _persist(lambda: _version(self._writer, self.path))
            if self.path != ":memory:":
                if version == 0:
                    from hocket.store.sqlite import space

                    # A commit writes whole pages, and an append touches a few bytes in several of them.
                    _set(self._writer, f"page_size={PAGE_BYTES}", f"auto_vacuum={space.INCREMENTAL}")
                _set(self._writer, "journal_mode=WAL")
            self._migrate()
        self._macs = RowMacs()
        self._write_session = session = SqliteSession(self._writer, is_writer=True, macs=self._macs)
        self._write = WriteTransaction(self._writer, session, self._write_lock, self.path, self._hints)
        self._explain = functools.partial(_explain, self.path)
        self._readers: ReadPool[SqliteSession]
        if self.path == ":memory:":
            self._readers = WriterAsReader(SqliteReader(self._writer, self._macs), self._write_lock)
        else:
            self._readers = ReadPool(self._new_reader, self.path)

    def check_rows(self, checks: RowChecks) -> None:
        """The file is one node's own."""

    def write(self, author: bytes | None = None, *, at_end: bool = False) -> "WriteTransaction":
        """Always alone."""
        return self._write

    def read(self) -> ReadView[SqliteSession]:
        return ReadView(self._readers, self._explain)

    def mac_rows(self, mac: RowMac, ended: EndedMacs | None = None) -> None:
        """A file is of one node, so the rows of an older program are that node's."""
        self._macs.use(mac, ended)
        with self.read() as session:
            is_old = session.has_rows_to_mac()
        if is_old:
            with suppress(StoreMoved), self.write() as session:
                session.mac_old_rows()

    def trim(self) -> bool:
        if self.path == ":memory:":
            return False
        from hocket.store.sqlite import space

        with _explained(self.path):
            done = space.give_back(self._writer, self.write)
        self._can_shorten |= done.has_given
        # The file gets shorter when the log is copied into it.
        if self._has_long_log() or (self._can_shorten and not done.has_more):
            self._can_shorten = False
            self._empty_log()
        return done.has_more

    def _has_long_log(self) -> bool:
        with suppress(FileNotFoundError):
            return Path(f"{self.path}-wal").stat().st_size > WAL_BYTES
        return False

    def _empty_log(self) -> None:
        """The first step copies without blocking anybody; the second waits briefly for readers, and is left for another
        time if they do not end.
        """
        with _explained(self.path), closing(self._connect(apsw.SQLITE_OPEN_READWRITE, READER_CACHE_KIB)) as connection:
            connection.set_busy_timeout(TRIM_WAIT_MS)
            with suppress(apsw.BusyError):
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)

    def close(self) -> None:
        self._readers.close()
        with self._write_lock:
            self._writer.close()
            if self._hints is not None:
                self._hints.close()

    def _connect(self, flags: int, cache_kib: int = CACHE_KIB) -> apsw.Connection:
        connection = apsw.Connection(self.path, flags=flags, statementcachesize=STATEMENTS)
        connection.set_busy_timeout(0)
        _set(connection, "synchronous=FULL", f"cache_size=-{cache_kib}", "temp_store=MEMORY")
        return connection

    def _new_reader(self) -> "SqliteReader":
        return SqliteReader(self._connect(apsw.SQLITE_OPEN_READWRITE, READER_CACHE_KIB), self._macs)

    def _migrate(self) -> None:
        """Brings a new or an older file to the current version."""
        if _persist(lambda: _version(self._writer, self.path)) == VERSION:
            return
        if self.path == ":memory:":
            _copy(_empty_database(), self._writer)
            return
        _persist(lambda: self._writer.execute("BEGIN IMMEDIATE"))
        try:
            version = _version(self._writer, self.path)
            if version < 1 and not self._may_fill:
                # Every complete database has its tables: this one has lost its content.
                raise StoreError(f"{self.path} is empty; restore a backup")
            _upgrade(self._writer, version)
            self._writer.execute("COMMIT")
        finally:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")


def _version(connection: apsw.Connection, path: str) -> int:
    """The file's version, 0 for a new one. Raises, and changes nothing, if another program or a newer Hocket made the
    file.
    """
    # This comes first: another process may be creating the database now, and marks it together with the tables.
    has_tables = bool(connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall())
    version, owner = int(connection.pragma("user_version")), int(connection.pragma("application_id"))
    if owner not in (0, APPLICATION_ID) or (owner == 0 and has_tables):
        raise StoreError(f"{path} is not a Hocket database; choose another home")
    if version > VERSION:
        raise StoreError(
            f"{path} has version {version}, this program knows up to {VERSION}; upgrade Hocket, nothing was changed"
        )
    return version


def planned(path: str) -> Migration:
    """What opening the file would do to its tables. Changes nothing."""
    version = 0
    if Path(path).exists():
        with _explained(path), _readable(path), closing(apsw.Connection(path, apsw.SQLITE_OPEN_READONLY)) as connection:
            version = _persist(lambda: _version(connection, path))
    return Migration(version, VERSION, tuple(_steps(version)))


def _steps(version: int) -> list[str]:
    """The SQL that brings a file from this version to the current one."""
    if version == VERSION:
        return []
    return [*table_steps(version), f"PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={VERSION}"]


def table_steps(version: int) -> list[str]:
    """The SQL that brings the tables from this version to the current one."""
    from importlib.resources import files  # for a new or an older store

    return [files("hocket.store.sqlite").joinpath(step).read_text() for step in _SCHEMA[version:]]


def _upgrade(connection: apsw.Connection, version: int) -> None:
    for step in _steps(version):
        connection.execute(step)


@functools.cache
def _empty_database() -> bytes:
    """A new database. To make one takes twenty times longer than to copy it, and tests open thousands in memory."""
    with closing(apsw.Connection(":memory:")) as made:
        _upgrade(made, 0)
        return made.serialize("main")


def _copy(database: bytes, to: apsw.Connection) -> None:
    with closing(apsw.Connection(":memory:")) as source:
        source.deserialize("main", database)
        with to.backup("main", source, "main") as copying:
            copying.step()


class WriteHints:
    """When to try again for the write lock of a file. A process that finds the lock taken sleeps on a named pipe beside
    the file, and a process that has written puts a byte into the pipe. That wakes one of the others, the one that has
    waited longest. SQLite's lock decides who writes; a byte that is lost, or comes in vain, costs a moment. For one
    thread at a time. There is no pipe until a process has to wait.
    """

    def __init__(self, path: str) -> None:
        self._path = f"{path}-waiting"
        self._pipe: int | None = None
        self._looks_at = 0.0

    def wait(self, timeout_s: float) -> None:
        """Sleeps until another process has written, or for so long. It does not sleep if it has just opened the pipe:
        before, the writer may not have found it.
        """
        if self._pipe is not None and sys.platform == "linux":
            with select.epoll() as poll:
                # A byte wakes one process.
                poll.register(self._pipe, select.EPOLLIN | select.EPOLLEXCLUSIVE)
                if poll.poll(timeout_s):
                    with suppress(BlockingIOError):
                        os.read(self._pipe, _READ_BYTES)  # earlier ones, too, that nobody waited for
            return
        with suppress(OSError):
            os.mkfifo(self._path, 0o600)
        self._open()
        if self._pipe is None or sys.platform != "linux":
            time.sleep(timeout_s)

    def written(self) -> None:
        """Wakes a process that waits."""
        if self._pipe is None and (now := time.monotonic()) >= self._looks_at:
            self._looks_at = now + LOOK_S
            if os.access(self._path, os.F_OK):
                self._open()
        if self._pipe is not None:
            with suppress(BlockingIOError):  # it is full of bytes that nobody waited for
                os.write(self._pipe, b"\0")

    def close(self) -> None:
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None

    def _open(self) -> None:
        """Something else may be in its place."""
        with suppress(OSError):
            if stat.S_ISFIFO(os.stat(self._path).st_mode):
                self._pipe = os.open(self._path, os.O_RDWR | os.O_NONBLOCK)


class WriteTransaction:
    """The write transactions of a store, one after the other. It is a class and not a generator, because that is faster
    and every append needs one.
    """

    __slots__ = ("_connection", "_execute", "_hints", "_lock", "_path", "_session")

    def __init__(
        self,
        connection: apsw.Connection,
        session: SqliteSession,
        lock: threading.RLock,
        path: str,
        hints: WriteHints | None,
    ) -> None:
        self._connection = connection
        self._execute = connection.cursor().execute
        self._session = session
        self._lock = lock
        self._path = path
        self._hints = hints

    def __enter__(self) -> SqliteSession:
        self._lock.acquire()
        try:
            try:
                self._execute("BEGIN IMMEDIATE")
            except apsw.BusyError:
                _persist(lambda: self._execute("BEGIN IMMEDIATE"), self._rest)
        except BaseException as error:
            self._lock.release()
            _explain(self._path, error)
            raise
        return self._session

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            if error is None:
                self._execute("COMMIT")
                self._session.committed()
                return
        except BaseException as failure:
            error = failure
        finally:
            if error is not None:
                self._session.undone()
                if self._connection.in_transaction:
                    self._execute("ROLLBACK")
            if self._hints is not None:
                self._hints.written()
            self._lock.release()
        _explain(self._path, error)
        raise error

    def _rest(self) -> None:
        assert self._hints is not None, "a store in memory has one writer"
        self._hints.wait(_between(UNWOKEN_S, 2 * UNWOKEN_S))


class SqliteReader(StoreReader[SqliteSession]):
    def __init__(self, connection: apsw.Connection, macs: RowMacs) -> None:
        self.connection = connection
        self.session = SqliteSession(connection, macs=macs)

    def begin(self) -> None:
        self.connection.execute("BEGIN")

    def end(self) -> None:
        self.connection.execute("ROLLBACK")

    def close(self) -> None:
        self.connection.close()


class WriterAsReader(ReadPool[SqliteSession]):
    """The reader of a store in memory: the writer's connection, so readers wait for the writer. It needs no
    transaction: while a thread has it, no other can write.
    """

    def __init__(self, reader: SqliteReader, lock: threading.RLock) -> None:
        self._reader = reader
        self._lock = lock

    def take(self) -> StoreReader[SqliteSession]:
        self._lock.acquire()
        return self._reader

    def give_back(self, reader: StoreReader[SqliteSession]) -> None:
        self._lock.release()

    def close(self) -> None:
        pass


def _set(connection: apsw.Connection, *pragmas: str) -> None:
    for pragma in pragmas:
        _persist(functools.partial(connection.execute, f"PRAGMA {pragma}"))


def _between(low_s: float, high_s: float) -> float:
    import random  # for a process that finds the lock taken

    return random.uniform(low_s, high_s)


def _rest_briefly() -> None:
    time.sleep(_between(RETRY_MIN_S, RETRY_MAX_S))


def _persist(act: Callable[[], T], rest: Callable[[], None] = _rest_briefly) -> T:
    """Tries again after each rest, while another process holds the lock."""
    deadline = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            return act()
        except apsw.BusyError:
            if time.monotonic() > deadline:
                raise
            rest()


@contextmanager
def _readable(path: str) -> Iterator[None]:
    """While a file is opened, SQLite's general error means a header that no current SQLite has written."""
    try:
        yield
    except apsw.SQLError as error:
        raise StoreError(f"{path} is damaged ({error}); restore a backup") from error


@contextmanager
def _explained(path: str) -> Iterator[None]:
    try:
        yield
    except apsw.Error as error:
        _explain(path, error)
        raise


def _explain(path: str, error: BaseException) -> None:
    """Raises SQLite's error as a sentence for the user; ignores every other error."""
    if isinstance(error, apsw.BusyError):
        raise StoreLocked(_locked(path)) from error
    if isinstance(error, apsw.FullError) or (isinstance(error, apsw.IOError | apsw.CantOpenError) and is_full(path)):
        raise StoreAway(f"{path} {_FULL}") from error
    if isinstance(error, apsw.ConstraintError) and MOVED_TO in str(error):
        raise StoreMoved(path, str(error).partition(MOVED_TO)[2]) from error
    for kinds, sentence in _SENTENCES:
        if isinstance(error, kinds):
            raise StoreError(f"{path} {sentence.format(error=error)}") from error


def _locked(path: str) -> str:
    from hocket.store.files import lock_holder

    holder = lock_holder(path)
    if holder is None:
        return f"{path} was locked by another process for {LOCK_WAIT_S:.0f} seconds; find it and end it"
    return f"{path} was locked for {LOCK_WAIT_S:.0f} seconds by {holder}; {holder.remedy}"


_FULL = "has no space left on its disk; the change was not kept, free some space and repeat it"
_SENTENCES: tuple[tuple[tuple[type[BaseException], ...], str], ...] = (
    (
        # A text that is no UTF-8 is not what SQLite was given to keep.
        (apsw.CorruptError, apsw.NotADBError, UnicodeDecodeError),
        "is damaged ({error}); run `hocket node doctor` to see what is wrong, and restore a backup if need be",
    ),
    (
        (apsw.ReadOnlyError, apsw.PermissionsError, apsw.AuthError),
        "is read-only ({error}); Hocket needs to write there",
    ),
    ((apsw.CantOpenError,), "cannot be opened ({error}); is the home there, and may you write in it?"),
    ((apsw.IOError,), "could not be read or written ({error}); check the disk, then repeat"),
)
