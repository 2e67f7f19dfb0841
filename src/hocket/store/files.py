"""The write lock of an SQLite file: when to try again for it, and which process holds it.

A process that finds the lock taken sleeps on a named pipe beside the file, and a process that has written puts a byte
into the pipe. That wakes one of the others, the one that has waited longest. SQLite's lock decides who writes; a byte
that is lost, or comes in vain, costs a moment.

The kernel knows who holds the lock, on Linux. This reads the kernel's list and never opens a file of the database:
closing it would release SQLite's own locks.
"""

import os
import select
import stat
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

# The byte of the shared-memory file that a writer locks.
_WRITE_BYTE = 120
_COMMAND_CHARS_MAX = 80


class LockHolder(NamedTuple):
    pid: int
    command: str
    is_stopped: bool

    def __str__(self) -> str:
        which = f"process {self.pid}" + (f" ({self.command})" if self.command else "")
        return f"{which}, which is stopped" if self.is_stopped else which

    @property
    def remedy(self) -> str:
        if self.is_stopped:
            return f"continue it with `kill -CONT {self.pid}`, or end it"
        return "find out what it waits for, or end it"


def lock_holder(path: str) -> LockHolder | None:
    """The process that writes to this database now. None if there is none, or the system does not tell."""
    try:
        inode = Path(f"{path}-shm").stat().st_ino
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        match line.split():
            case [_, "POSIX", _, "WRITE", pid, file, first, last] if file.endswith(f":{inode}"):
                if int(first) <= _WRITE_BYTE and (last == "EOF" or int(last) >= _WRITE_BYTE) and int(pid) > 0:
                    return LockHolder(int(pid), _command(pid), _is_stopped(pid))
    return None


def _command(pid: str) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return ""
    text = "".join(each if each.isprintable() else "?" for each in " ".join(words).strip())
    return text if len(text) <= _COMMAND_CHARS_MAX else text[: _COMMAND_CHARS_MAX - 1] + "…"


def _is_stopped(pid: str) -> bool:
    try:
        # The name before the state stands in parentheses, and may contain any character.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    except (OSError, IndexError):
        return False


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


# SQLite needs about this much for the files beside a database.
FULL_BYTES = 256 * 1024


def sync_directory(directory: str | os.PathLike[str]) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def is_full(path: str) -> bool:
    """Whether the disk of this file has no room, for bytes or for files."""
    try:
        found = os.statvfs(Path(path).parent)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize < FULL_BYTES or (found.f_files > 0 and found.f_favail == 0)
