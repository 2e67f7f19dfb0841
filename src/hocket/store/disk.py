"""A store's disk: whether it is full, and how a file's new name becomes durable, and not only its bytes."""

import os
from pathlib import Path

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
