"""Connections to databases: what SQLite, PostgreSQL and libSQL have in common. A store has one connection that writes
and a pool of those that read. A store in a server has the server's clock, notes from other machines, and an address
that may contain a password.
"""

import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import StrEnum
from typing import Generic, NamedTuple, Protocol, TypeVar

from hocket.errors import CommitUnknown, StoreError
from hocket.kernel.keys import RowMac
from hocket.store.session import RowChecks, Session
from hocket.store.statements import EndedMacs, RowMacs

S = TypeVar("S", bound=Session)

# How long a transaction waits for another one.
LOCK_WAIT_S = 30
READERS_MAX = 8
# How long a process looks for the answer after a connection broke during a commit.
COMMIT_CHECK_S = 30.0
COMMIT_CHECK_PAUSE_S = 0.2
# A longer note would not fit into a notification of PostgreSQL, as text.
NOTE_BYTES_MAX = 2_000
# The variable with the token of a store in libSQL.
DB_TOKEN = "HOCKET_DB_TOKEN"
# How libSQL's own programs call it in an address.
TOKEN_PARAMETER = "authToken"

_USER = r"(?<=://)([^/?#@:]*):([^/?#]*)@"
_PARAMETER = rf"(?<=[?&])(password|sslpassword|{TOKEN_PARAMETER})=[^&#]*&?"


def without_password(address: str) -> str:
    """Passwords and tokens belong into the variables and files that libpq reads, and into the variable of the token."""
    return re.sub(_PARAMETER, "", re.sub(_USER, r"\1@", address)).rstrip("?&")


def has_password(address: str) -> bool:
    return without_password(address) != address.rstrip("?&")


class Compacted(NamedTuple):
    """The bytes of a file before and after it was made anew."""

    before: int
    after: int


class Migration(NamedTuple):
    """The SQL that brings the tables of a store from `version`, 0 for none, to `current`. It is one transaction.
    Opening a store runs it; a person can read it first.
    """

    version: int
    current: int
    statements: tuple[str, ...]

    @property
    def script(self) -> str:
        """For `psql` or `sqlite3`; empty if nothing is to be done."""
        if not self.statements:
            return ""
        return "\n".join(["BEGIN;", *(f"{each.rstrip().rstrip(';')};" for each in self.statements), "COMMIT;"])


class WakeUp(StrEnum):
    """How a process learns of changes that another machine commits."""

    LISTENING = "listening"
    POLLING = "polling"


class NoteListener(Protocol):
    """A connection that hears the notes of a store that several machines share. A write transaction may carry one note,
    and every process that listens hears it after the commit. Notes are hints: one can be lost. One thread opens it and
    waits; any thread may close it.
    """

    def open(self) -> WakeUp:
        """Connects, again if need be. POLLING if the way to the store carries no notes. Raises StoreError."""

    def wait(self) -> list[bytes]:
        """Waits for notes. None come after `close`. Raises StoreError if the connection broke: notes may be lost."""

    def close(self) -> None: ...


class NoNotes:
    """The listener of a server that carries no notes."""

    def open(self) -> WakeUp:
        return WakeUp.POLLING

    def wait(self) -> list[bytes]:
        return []

    def close(self) -> None:
        pass


class StoreReader(ABC, Generic[S]):
    """A connection that reads, for one thread at a time."""

    session: S
    thread = 0
    depth = 0
    """In how many views the thread's view was begun again."""

    @abstractmethod
    def begin(self) -> None:
        """Begins a view. Connects again if the connection broke since the last one."""

    @abstractmethod
    def end(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


class ReadPool(Generic[S]):
    """The readers of a store: as many as there are threads that read at once, up to a limit. At the limit, a thread
    waits for one.
    """

    def __init__(self, new_reader: Callable[[], StoreReader[S]], shown: str) -> None:
        self._new_reader = new_reader
        self._shown = shown
        self._places = threading.Semaphore(READERS_MAX)
        self._free: list[StoreReader[S]] = []
        self._taken: dict[int, StoreReader[S]] = {}
        self._is_closed = False

    def take(self) -> StoreReader[S]:
        """A reader with a view. A view within a view is the same view."""
        thread = threading.get_ident()
        reader = self._taken.get(thread)
        if reader is not None:
            reader.depth += 1
            return reader
        if not self._places.acquire(timeout=LOCK_WAIT_S):
            raise StoreError(f"{self._shown} has {READERS_MAX} readers that do not end; find out what they wait for")
        try:
            if self._is_closed:
                raise StoreError(f"{self._shown} is closed")
            reader = self._free.pop() if self._free else self._new_reader()
            try:
                reader.begin()
            except BaseException:
                reader.close()
                raise
        except BaseException:
            self._places.release()
            raise
        reader.thread = thread
        self._taken[thread] = reader
        return reader

    def give_back(self, reader: StoreReader[S]) -> None:
        if reader.depth:
            reader.depth -= 1
            return
        try:
            reader.end()
        except BaseException:
            reader.close()  # its view goes on, so that it can begin no other
            raise
        else:
            self._free.append(reader)
        finally:
            del self._taken[reader.thread]
            self._places.release()

    def close(self) -> None:
        """Waits for the current readers, at most as long as for a lock."""
        deadline = time.monotonic() + LOCK_WAIT_S
        for _ in range(READERS_MAX):
            self._places.acquire(timeout=max(0.0, deadline - time.monotonic()))
        self._is_closed = True
        for reader in self._free:
            reader.close()
        self._places.release(READERS_MAX)


class ReadView(Generic[S]):
    """One view. `explain` raises the errors of a database as sentences for the user."""

    __slots__ = ("_checks", "_explain", "_reader", "_readers")

    def __init__(
        self, readers: ReadPool[S], explain: Callable[[BaseException], None], checks: RowChecks | None = None
    ) -> None:
        self._readers, self._explain, self._checks = readers, explain, checks

    def __enter__(self) -> S:
        try:
            self._reader = self._readers.take()
        except BaseException as error:
            self._explain(error)
            raise
        session = self._reader.session
        if self._checks is not None:
            session.row_check = self._checks.within(session)
        return session

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._readers.give_back(self._reader)
        if error is not None:
            self._explain(error)


def machine_s() -> float:
    """Seconds that also pass while the machine sleeps, where the system counts them."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class ServerClock:
    """The server's clock, as a process reads it between two transactions: the seconds since the epoch. Each write
    transaction reads the server's time. From then on the process counts by a clock of its machine that nobody can set.
    So all nodes that share a store agree on the time, however wrong the clocks of their machines are.
    """

    def __init__(self) -> None:
        self._offset_s = 0.0

    def __call__(self) -> float:
        return machine_s() + self._offset_s

    def set(self, server_ms: int) -> None:
        """The server has just told its time."""
        self._offset_s = server_ms / 1000 - machine_s()


class ServerStore(ABC, Generic[S]):
    """A store in a database server, which nodes share."""

    def __init__(self, shown: str) -> None:
        self.shown = shown
        """The address without the password or the token."""
        self.server_clock = ServerClock()
        self.macs = RowMacs()
        self.row_checks: RowChecks | None = None
        self._lock = threading.RLock()
        self._readers = ReadPool(self._new_reader, shown)

    @abstractmethod
    def _new_reader(self) -> StoreReader[S]: ...

    @abstractmethod
    def _explain(self, error: BaseException) -> None:
        """Raises an error of the server as a sentence for the user, and every other error as it is."""

    @abstractmethod
    def _close_writer(self) -> None: ...

    def check_rows(self, checks: RowChecks) -> None:
        self.row_checks = checks

    def mac_rows(self, mac: RowMac, ended: EndedMacs | None = None) -> None:
        self.macs.use(mac, ended)

    def read(self) -> ReadView[S]:
        return ReadView(self._readers, self._explain, self.row_checks)

    def trim(self) -> bool:
        """The server does this by itself."""
        return False

    def close(self) -> None:
        self._readers.close()
        with self._lock:
            self._close_writer()

    def _looked_up(
        self, op_id: bytes, look: Callable[[], bool], why: str, failures: tuple[type[Exception], ...]
    ) -> bool:
        """Whether the last op of a transaction is on the log, whose connection broke during the commit. `look` asks in
        a transaction of its own: the old one has ended by then, one way or the other. It may fail for a while.
        """
        deadline = time.monotonic() + COMMIT_CHECK_S
        while True:
            try:
                return look()
            except failures as error:
                if time.monotonic() > deadline:
                    raise CommitUnknown(
                        f"{self.shown} broke off during a commit ({why}), and could not be asked since whether op"
                        f" {op_id[:16].hex()} is on the log; look before you repeat the change"
                    ) from error
                time.sleep(COMMIT_CHECK_PAUSE_S)
