"""The connections of a home's processes to their NATS servers, for `hocket status`. Each process notes its own in a
file with an OS lock, which ends with the process.
"""

import os
from contextlib import suppress
from pathlib import Path

import msgspec

from hocket.work.processes import ProcessLock, notes

_ROLE = "bus"


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
        self._lock = ProcessLock(processes, f"{_ROLE}-{os.getpid()}-{os.urandom(4).hex()}")
        self._noted: RunningBus | None = None

    def write(self, bus: RunningBus) -> None:
        if bus != self._noted:
            with suppress(OSError):  # the disk may be full; then `hocket status` shows what was before
                self._lock.path.write_bytes(msgspec.json.encode(bus))
                self._noted = bus

    def close(self) -> None:
        self._lock.close()


def running_buses(processes: Path) -> list[RunningBus]:
    return notes(processes, _ROLE, RunningBus)
