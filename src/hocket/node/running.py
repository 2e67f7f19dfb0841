"""What the processes of a home note for the others, such as `hocket status` and invitations: each server and each bus
that runs, and a store that cannot be reached. Each note is a file with an OS lock, which ends with the process.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hocket.breakers import CircuitBreaker
from hocket.errors import Conflict, StoreCircuitOpen
from hocket.families.lease import store_pause_s
from hocket.families.liveness import ProcessLock, ProcessTurn, notes
from hocket.kernel.retrying import OPEN_MS, Breaker, BreakerState

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from hocket.events import Emit, Event

_SERVER = "server"
_TURN = "serve.turn"


class RunningServer(msgspec.Struct, frozen=True):
    pid: int
    address: str
    started_ms: int


def announce_server(directory: Path, name: str, address: str, now_ms: int) -> ProcessLock:
    """Notes a server of this process until the lock is closed. The name begins with `server`."""
    lock = ProcessLock(directory, name)
    lock.path.write_bytes(msgspec.json.encode(RunningServer(os.getpid(), address, now_ms)))
    return lock


def only_server(directory: Path) -> ProcessTurn:
    """Reserves the place of this home's one server. Raises Conflict if another process has it: invitations would name
    one server, and other nodes would use the other.
    """
    lock = ProcessTurn.take(directory, _TURN)
    if lock is not None:
        return lock
    running = [f" at {each.address}, process {each.pid}" for each in running_servers(directory)]
    raise Conflict(f"a server of this home already runs{''.join(running[:1])}; stop it first, or serve another home")


def running_servers(directory: Path) -> list[RunningServer]:
    return notes(directory, _SERVER, RunningServer)


_BUS = "bus"


class RunningBus(msgspec.Struct, frozen=True):
    """The connection of a process to its server. `refused` counts the messages that did not count, by reason."""

    pid: int
    server: str
    is_connected: bool
    since_ms: int
    detail: str
    keeps: bool
    lost: int
    refused: dict[str, int]


class BusNote:
    """This process's note. Close it when done."""

    def __init__(self, processes: Path) -> None:
        self._lock = ProcessLock(processes, f"{_BUS}-{os.getpid()}-{os.urandom(4).hex()}")
        self._noted: RunningBus | None = None

    def write(self, bus: RunningBus) -> None:
        if bus != self._noted:
            with suppress(OSError):  # the disk may be full; then `hocket status` shows what was before
                self._lock.path.write_bytes(msgspec.json.encode(bus))
                self._noted = bus

    def close(self) -> None:
        self._lock.close()


def running_buses(processes: Path) -> list[RunningBus]:
    return notes(processes, _BUS, RunningBus)


_BREAKER = "breaker"


class StoreTrouble(msgspec.Struct, frozen=True):
    """A process whose breaker is not closed. `next_ms` is when it tries again."""

    pid: int
    state: str
    failures: int
    error: str
    since_ms: int
    next_ms: int


class StoreBreaker(CircuitBreaker):
    """The breaker of a process's store. One that is not closed is noted in a file and not in the store, which may be
    the very thing that fails. While the process holds leases, the pause is far shorter than the shortest of them: a
    renewal or a result that comes after its lease is lost work. Close it when done.
    """

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
                self._file = ProcessLock(self._directory, f"{_BREAKER}-{os.getpid()}-{os.urandom(4).hex()}")
            now_ms, monotonic_ms = int(time.time() * 1000), self._now_ms()
            since_ms = now_ms - monotonic_ms + (breaker.since_ms or monotonic_ms)
            next_ms = now_ms + breaker.wait_ms(monotonic_ms, self.pause_ms())
            noted = StoreTrouble(os.getpid(), breaker.state, breaker.failures, breaker.error, since_ms, next_ms)
            self._file.path.write_bytes(msgspec.json.encode(noted))


def store_troubles(directory: Path) -> list[StoreTrouble]:
    return notes(directory, _BREAKER, StoreTrouble)
