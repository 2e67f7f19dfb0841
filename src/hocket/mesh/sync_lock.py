"""What only one process of a node does at a time: sync with the peers, or serve. The process holds an OS lock in the
home. When that process ends, however it ends, the lock is free and another process takes it.
"""

import fcntl
import os
from pathlib import Path
from weakref import WeakSet

SYNC_TURN = "sync.turn"
# A forked child would share these locks, and keep them after this process has ended.
_TAKEN: "WeakSet[SyncLock]" = WeakSet()


class SyncLock:
    """The right to sync (or to do what else `name` stands for), until it is closed or the process ends."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        _TAKEN.add(self)

    @classmethod
    def take(cls, directory: Path, name: str = SYNC_TURN) -> "SyncLock | None":
        """None if another process has it. The file is never removed: a removed file could be locked twice."""
        directory.mkdir(mode=0o700, exist_ok=True)
        fd = os.open(directory / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        return cls(fd)

    @staticmethod
    def is_taken(directory: Path) -> bool:
        """Whether a process of this node syncs now."""
        try:
            fd = os.open(directory / SYNC_TURN, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            return False
        finally:
            os.close(fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _close_all() -> None:
    for lock in list(_TAKEN):
        lock.close()


os.register_at_fork(after_in_child=_close_all)
