"""When to try again for the lock of an SQLite file. A process that finds the lock taken sleeps on a named pipe beside
the file, and a process that has written puts a byte into the pipe. That wakes one of the others, the one that has
waited longest. SQLite's lock decides who writes; a byte that is lost, or comes in vain, costs a moment.
"""

import os
import select
import stat
import sys
import time
from contextlib import suppress

_READ_BYTES = 65_536
# A writer looks for the pipe at most this often. A process that has just made it tries again by itself.
LOOK_S = 0.005


class WriteHints:
    """For one thread at a time. There is no pipe until a process has to wait."""

    def __init__(self, path: str) -> None:
        self._path = f"{path}-waiting"
        self._pipe: int | None = None
        self._looks_at = 0.0

    def wait(self, timeout_s: float) -> None:
        """Sleeps until another process has written, or for so long. It does not sleep if it has just opened the pipe:
        before, the writer may not have found it.
        """
        if self._pipe is not None and sys.platform == "linux":
            with select.epoll() as poll:
                # A byte wakes one process.
                poll.register(self._pipe, select.EPOLLIN | select.EPOLLEXCLUSIVE)
                if poll.poll(timeout_s):
                    with suppress(BlockingIOError):
                        os.read(self._pipe, _READ_BYTES)  # earlier ones, too, that nobody waited for
            return
        with suppress(OSError):
            os.mkfifo(self._path, 0o600)
        self._open()
        if self._pipe is None or sys.platform != "linux":
            time.sleep(timeout_s)

    def written(self) -> None:
        """Wakes a process that waits."""
        if self._pipe is None and (now := time.monotonic()) >= self._looks_at:
            self._looks_at = now + LOOK_S
            if os.access(self._path, os.F_OK):
                self._open()
        if self._pipe is not None:
            with suppress(BlockingIOError):  # it is full of bytes that nobody waited for
                os.write(self._pipe, b"\0")

    def close(self) -> None:
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None

    def _open(self) -> None:
        """Something else may be in its place."""
        with suppress(OSError):
            if stat.S_ISFIFO(os.stat(self._path).st_mode):
                self._pipe = os.open(self._path, os.O_RDWR | os.O_NONBLOCK)
