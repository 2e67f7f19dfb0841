"""Locks that end with their process. Each process that others must know to be alive holds an exclusive OS lock on a
file of its own; the kernel releases it the moment the process ends, however it ends. So a free lock means a dead
process, without a clock or a timeout, for every process of the same running system that sees the same directory.
"""

import fcntl
import os
from pathlib import Path
from typing import TypeVar
from weakref import WeakSet

import msgspec

from hocket.kernel.decoding import decode_json

T = TypeVar("T")

# The locks of this process. A forked child would share them: they would make this process look alive after its end, and
# nobody else could take them. They are registered together: what is registered stays for the life of the process, also
# after its lock was closed.
_HELD: "WeakSet[_FileLock]" = WeakSet()
SYNC_TURN = "sync.turn"


class _FileLock:
    """A file that is locked until `close` or the end of the process. Raises BlockingIOError if another one has it."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            raise
        _HELD.add(self)

    def _let_go(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class ProcessLock(_FileLock):
    """This process's sign of life."""

    def __init__(self, directory: Path, name: str) -> None:
        super().__init__(lock_path(directory, name))

    @property
    def fd(self) -> int:
        """A process that inherits it holds the lock, too."""
        return self._fd

    def close(self) -> None:
        self.path.unlink(missing_ok=True)
        self._let_go()


class ProcessTurn(_FileLock):
    """What only one process of a node does at a time: sync with the peers, or what else the name stands for."""

    @classmethod
    def take(cls, directory: Path, name: str = SYNC_TURN) -> "ProcessTurn | None":
        """None if another process has it. The file is never removed: a removed file could be locked twice."""
        try:
            return cls(directory / name)
        except BlockingIOError:
            return None

    @staticmethod
    def is_taken(directory: Path) -> bool:
        """Whether a process of this node syncs now."""
        return bool(_is_locked(directory / SYNC_TURN))

    def close(self) -> None:
        self._let_go()


def _let_all_go() -> None:
    for lock in list(_HELD):
        lock._let_go()


os.register_at_fork(after_in_child=_let_all_go)


def lock_path(directory: Path, name: str) -> Path:
    return directory / f"{name}.lock"


def is_held(directory: Path, name: str) -> bool | None:
    """Whether a process holds the lock of that name. None if there is no such file, or locks do not work here. A name
    from a store that nodes share may be anything.
    """
    return None if "/" in name or "\0" in name else _is_locked(lock_path(directory, name))


def _is_locked(path: Path) -> bool | None:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    else:
        return False
    finally:
        os.close(fd)


def is_alive(directory: Path, name: str) -> bool:
    """Whether the process that made something in this directory under that name is alive. Removes the file of a dead
    one.
    """
    held = is_held(directory, name)
    if held is False:
        lock_path(directory, name).unlink(missing_ok=True)
    return bool(held)


def notes(directory: Path, role: str, kind: type[T]) -> list[T]:
    """What living processes have written into their locks of this role."""
    found = []
    for path in sorted(directory.glob(f"{role}-*.lock")):
        try:
            if is_alive(directory, path.stem):
                found.append(decode_json(path.read_bytes(), kind))
        except (OSError, msgspec.MsgspecError):
            continue  # it has just started, changed or ended
    return found
