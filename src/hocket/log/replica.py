"""A local SQLite copy of a store that a database server has. It follows the server: a read first copies the ops that
were sealed there since, unless that was done a moment ago by any process. When the server is away, reads go on from the
copy, and say how old it is. Writes go to the server alone, and a process that has written reads its own changes.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from hocket.errors import Conflict, StoreError
from hocket.kernel.keys import RowMac
from hocket.log import Log
from hocket.log.archive import StoreCopy, copy_unlogged, origin
from hocket.store import RowChecks, Session, Store
from hocket.store.local import REPLICA
from hocket.store.statements import EndedMacs

# A copy that is older than this is brought up to date before it is read.
FOLLOW_MS = 1_000
# After the server could not be reached, reads go on for this long before it is tried again.
AWAY_S = 5.0
# The store's key of when the copy had all that was sealed, in milliseconds.
FOLLOWED = "followed"


class ReplicaState(NamedTuple):
    """The copy has all ops up to this number. `followed_ms` is when these were all that were sealed. `error` says why
    the server cannot be followed now.
    """

    path: str
    ops: int
    followed_ms: int
    error: str | None


class ReplicatedStore:
    """`open_primary` connects to the server; it is called when that is needed first. `log_of` gives the log of this
    node in a store.
    """

    def __init__(
        self,
        path: Path,
        copy: Store,
        open_primary: Callable[[], Store],
        log_of: Callable[[Store], Log],
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._path, self._copy, self._open_primary, self._log_of = path, copy, open_primary, log_of
        self._clock_ms = clock_ms
        self._lock, self._following = Lock(), Lock()
        self._primary: Store | None = None
        self._mac: tuple[RowMac, EndedMacs | None] | None = None
        self._row_checks: RowChecks | None = None
        self._copying: StoreCopy | None = None
        self._writes = self._writes_copied = 0
        self._away_until = 0.0
        self._error: str | None = None

    # What a store does.

    def check_rows(self, checks: RowChecks) -> None:
        """The copy is this node's own, and verifies what it takes over."""
        with self._lock:
            self._row_checks = checks
            if self._primary is not None:
                self._primary.check_rows(checks)

    @contextmanager
    def write(self, author: bytes | None = None, *, at_end: bool = False) -> Iterator[Session]:
        try:
            with self.primary.write(author, at_end=at_end) as session:
                yield session
        finally:
            self._writes += 1

    def read(self) -> AbstractContextManager[Session]:
        """A process that has written reads from the server, for its decisions. Others read the copy."""
        if self._writes:
            return self.primary.read()
        self.refresh()
        return self.copy()

    @property
    def server_clock(self) -> Callable[[], float]:
        return self._time_of_day

    def _time_of_day(self) -> float:
        """By the server's clock, or by this machine's until the server has been reached."""
        if self._primary is None and time.monotonic() >= self._away_until:
            try:
                return (self.primary.server_clock or time.time)()
            except StoreError as error:
                self._note_away(error)
        clock = None if self._primary is None else self._primary.server_clock
        return (clock or time.time)()

    def mac_rows(self, mac: RowMac, ended: EndedMacs | None = None) -> None:
        self._copy.mac_rows(mac, ended)
        with self._lock:
            self._mac = mac, ended or (None if self._mac is None else self._mac[1])
            if self._primary is not None:
                self._primary.mac_rows(mac, ended)

    def trim(self) -> None:
        self._copy.trim()

    def close(self) -> None:
        if self._writes != self._writes_copied:
            with suppress(StoreError, Conflict):
                self._follow()
        self._copy.close()
        if self._primary is not None:
            self._primary.close()

    # The copy.

    @property
    def primary(self) -> Store:
        with self._lock:
            if self._primary is None:
                self._primary = self._open_primary()
                if self._mac is not None:
                    self._primary.mac_rows(*self._mac)
                if self._row_checks is not None:
                    self._primary.check_rows(self._row_checks)
            return self._primary

    def copy(self) -> AbstractContextManager[Session]:
        """A view of the copy as it is."""
        return self._copy.read()

    def check(self) -> None:
        """Raises Conflict if the copy is that of another store."""
        with self._following:
            self._begin(self.primary)

    def refresh(self) -> bool:
        """Follows the server if the copy is old or this process has written. Whether the copy has what this process
        wrote. Raises Conflict if the copy is that of another store.
        """
        with self._following:
            return self._refresh()

    def _refresh(self) -> bool:
        writes = self._writes
        if writes == self._writes_copied and not self._is_old():
            return True
        if time.monotonic() < self._away_until:
            return writes == self._writes_copied
        try:
            if self._follow():
                self._writes_copied = writes
            self._error = None
        except StoreError as error:
            if self.state.ops == 0:
                raise
            self._note_away(error)
        return writes == self._writes_copied

    def _note_away(self, error: StoreError) -> None:
        self._error, self._away_until = str(error), time.monotonic() + AWAY_S

    @property
    def state(self) -> ReplicaState:
        with self._copy.read() as session:
            return ReplicaState(str(self._path), session.head().seq, int(session.meta(FOLLOWED) or 0), self._error)

    def _is_old(self) -> bool:
        return not 0 <= self._clock_ms() - self.state.followed_ms < FOLLOW_MS

    def _follow(self) -> bool:
        """Copies what is on the server's log by now. Whether nothing has come since."""
        primary = self.primary
        if self._copying is None:
            self._begin(primary)
            self._copying = StoreCopy(primary, self._log_of(self._copy), str(self._path))
        while True:
            now = self._clock_ms()
            done = self._copying.step()
            if done.ops >= done.of:
                break
        with primary.read() as source, self._copy.write() as session:
            # Another process may have copied more since.
            if session.head().seq <= source.head().seq:
                marks = {REPLICA: origin(source), FOLLOWED: str(now).encode()}
                copy_unlogged(source, session, self._log_of(self._copy).node, marks)
            return session.head().seq >= source.head().seq

    def _begin(self, primary: Store) -> None:
        """Makes an empty file a copy of the server's store. Raises Conflict if it is something else."""
        with primary.read() as source, self._copy.write() as session:
            found = session.meta(REPLICA)
            if session.head().seq and found != origin(source):
                what = "a store of its own" if not found else "the replica of another store"
                raise Conflict(f"{self._path} is {what}; name another file, or remove it, and it is made anew")
            if not found:
                copy_unlogged(source, session, self._log_of(self._copy).node, {REPLICA: origin(source)})
