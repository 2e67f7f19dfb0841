"""What the store needs of the file system: which process holds the write lock of an SQLite file, whether the disk is
full, and how a file's new name becomes durable, and not only its bytes.

The kernel knows who holds the lock, on Linux. This reads the kernel's list and never opens a file of the database:
closing it would release SQLite's own locks.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from hocket.errors import StoreError

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


@contextmanager
def written(path: Path) -> Iterator[None]:
    """Says in a sentence which path cannot be written. Raises StoreError."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}") from None
