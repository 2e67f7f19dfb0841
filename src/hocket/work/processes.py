"""Which processes of this node are alive. Each one that may hold claims keeps an exclusive OS lock on a file of
its own in the home; the kernel lets go of it the moment the process ends, however it ends. So a lock that can
be taken means a dead process, without a clock or a timeout.
"""

import fcntl
import os
from pathlib import Path


class ProcessLock:
    """This process's sign of life. The file stays locked until `close` or the end of the process."""

    def __init__(self, directory: Path, name: str) -> None:
        self.path = directory / f"{name}.lock"
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # A child made by fork would share the lock and keep this process alive in everybody's eyes.
        os.register_at_fork(after_in_child=self._let_go)

    def close(self) -> None:
        self.path.unlink(missing_ok=True)
        self._let_go()

    def _let_go(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def is_alive(directory: Path, name: str) -> bool:
    """Whether the process of that name still holds its lock. The file of a dead one is removed."""
    path = directory / f"{name}.lock"
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        path.unlink(missing_ok=True)
        return False
    finally:
        os.close(fd)
