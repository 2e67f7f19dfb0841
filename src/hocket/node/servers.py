"""The servers of a home that run now. Each holds an OS lock on a file in the home, which names its process and its
address; the lock ends with the process.
"""

import os
from pathlib import Path

import msgspec

from hocket.errors import Conflict
from hocket.mesh.sync_lock import SyncLock
from hocket.work.processes import ProcessLock, notes

_ROLE = "server"
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


def only_server(directory: Path) -> SyncLock:
    """Reserves the place of this home's one server. Raises Conflict if another process has it: invitations would name
    one server, and other nodes would use the other.
    """
    lock = SyncLock.take(directory, _TURN)
    if lock is not None:
        return lock
    running = [f" at {each.address}, process {each.pid}" for each in running_servers(directory)]
    raise Conflict(f"a server of this home already runs{''.join(running[:1])}; stop it first, or serve another home")


def running_servers(directory: Path) -> list[RunningServer]:
    return notes(directory, _ROLE, RunningServer)
