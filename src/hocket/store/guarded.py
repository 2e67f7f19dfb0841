"""A store behind a circuit breaker. A failure is an error of the database itself when a transaction begins, writes or
commits: an input/output error, a full disk, a file that cannot be opened or is damaged, a lock that was held for too
long. An error of the caller's own, such as a conflict or a refusal, says nothing about the database, and a server that
restarts will answer in a moment. Reads are not guarded: they wait for no lock, and go on when nothing can be written.
"""

from contextlib import AbstractContextManager
from types import TracebackType

from hocket.breakers import CircuitBreaker
from hocket.errors import StoreError, StoreStarting
from hocket.store import Session, Store


class GuardedStore:
    def __init__(self, store: Store, breaker: CircuitBreaker) -> None:
        self._store, self.breaker = store, breaker
        self.server_clock = store.server_clock
        self.check_rows, self.mac_rows = store.check_rows, store.mac_rows
        self.read, self.trim, self.close = store.read, store.trim, store.close

    def write(self, author: bytes | None = None, *, at_end: bool = False) -> "GuardedWrite":
        return GuardedWrite(self._store.write(author, at_end=at_end), self.breaker)


class GuardedWrite:
    """A write transaction. A class and not a generator: every append needs one."""

    __slots__ = ("_breaker", "_call", "_transaction")

    def __init__(self, transaction: AbstractContextManager[Session], breaker: CircuitBreaker) -> None:
        self._transaction, self._breaker = transaction, breaker

    def __enter__(self) -> Session:
        self._call = self._breaker.admit()
        try:
            return self._transaction.__enter__()
        except BaseException as error:
            self._report(error)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._transaction.__exit__(kind, error, trace)
        except BaseException as raised:
            # The store raises its own error in place of one of the database, and the caller's own as it is.
            self._report(None if raised is error else raised)
            raise
        if error is None:
            self._breaker.succeeded(self._call)
        else:
            self._breaker.abandoned(self._call)

    def _report(self, error: BaseException | None) -> None:
        if isinstance(error, StoreError) and not isinstance(error, StoreStarting):
            self._breaker.failed(self._call, error)
        else:
            self._breaker.abandoned(self._call)
