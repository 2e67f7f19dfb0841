"""The breaker of a process's store, and which processes of a home cannot write now. A breaker that is not closed is
noted in a file beside an OS lock, not in the store, which may be the very thing that fails. While the process holds
leases, the breaker's pause is far shorter than the shortest of them: a renewal or a result that comes after its lease
is lost work.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hocket.breakers import CircuitBreaker
from hocket.errors import StoreCircuitOpen
from hocket.families.liveness import ProcessLock, notes
from hocket.kernel.lease import store_pause_s
from hocket.kernel.retrying import OPEN_MS, Breaker, BreakerState

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from hocket.events import Emit, Event

_ROLE = "breaker"


class StoreTrouble(msgspec.Struct, frozen=True):
    """A process whose breaker is not closed. `next_ms` is when it tries again."""

    pid: int
    state: str
    failures: int
    error: str
    since_ms: int
    next_ms: int


class StoreBreaker(CircuitBreaker):
    """Close it when done."""

    def __init__(self, directory: Path, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__(
            "the store", monotonic, refusal=StoreCircuitOpen, changed=self._note, pause_ms=self._shortened_ms
        )
        self._directory = directory
        self._leases_s: list[Callable[[], float]] = []
        self._file: ProcessLock | None = None

    @contextmanager
    def told(self, loop: "AbstractEventLoop", emit: "Emit") -> Iterator[None]:
        """Calls `emit` on that event loop while the block runs, whichever thread changes the state."""

        def soon(event: "Event") -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(emit, event)

        self.emit = soon
        try:
            yield
        finally:
            self.emit = None

    @contextmanager
    def holding(self, shortest_lease_s: Callable[[], float]) -> Iterator[None]:
        """Shortens the pause while the block runs, by the shortest lease that the process holds; infinity for none."""
        self._leases_s.append(shortest_lease_s)
        try:
            yield
        finally:
            self._leases_s.remove(shortest_lease_s)

    def _shortened_ms(self) -> int:
        pauses_s = [store_pause_s(shortest()) for shortest in list(self._leases_s)]
        return int(min(OPEN_MS, *(each * 1000 for each in pauses_s))) if pauses_s else OPEN_MS

    def close(self) -> None:
        self._note(Breaker())

    def _note(self, breaker: Breaker) -> None:
        with suppress(OSError):  # the disk may be full; then only this process knows
            if breaker.state is BreakerState.CLOSED:
                if self._file is not None:
                    self._file.close()
                    self._file = None
                return
            if self._file is None:
                self._file = ProcessLock(self._directory, f"{_ROLE}-{os.getpid()}-{os.urandom(4).hex()}")
            now_ms, monotonic_ms = int(time.time() * 1000), self._now_ms()
            since_ms = now_ms - monotonic_ms + (breaker.since_ms or monotonic_ms)
            next_ms = now_ms + breaker.wait_ms(monotonic_ms, self.pause_ms())
            noted = StoreTrouble(os.getpid(), breaker.state, breaker.failures, breaker.error, since_ms, next_ms)
            self._file.path.write_bytes(msgspec.json.encode(noted))


def store_troubles(directory: Path) -> list[StoreTrouble]:
    return notes(directory, _ROLE, StoreTrouble)
