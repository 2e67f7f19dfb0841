"""The servers of a home that run now. Each holds an OS lock on a file in the home, which names its process and its
address; the lock ends with the process.
"""

import os
from pathlib import Path

import msgspec

from hocket.work.processes import ProcessLock, notes

_ROLE = "server"


class RunningServer(msgspec.Struct, frozen=True):
    pid: int
    address: str
    started_ms: int


def announce_server(directory: Path, name: str, address: str, now_ms: int) -> ProcessLock:
    """Notes a server of this process until the lock is closed. The name begins with `server`."""
    lock = ProcessLock(directory, name)
    lock.path.write_bytes(msgspec.json.encode(RunningServer(os.getpid(), address, now_ms)))
    return lock


def running_servers(directory: Path) -> list[RunningServer]:
    return notes(directory, _ROLE, RunningServer)
