"""The servers and the buses of a home that run now, for `hocket status` and for invitations. A process notes each in a
file with an OS lock, which ends with the process.
"""

import os
from contextlib import suppress
from pathlib import Path

import msgspec

from hocket.errors import Conflict
from hocket.families.liveness import ProcessLock, ProcessTurn, notes

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
