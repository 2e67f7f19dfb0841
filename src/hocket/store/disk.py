"""Makes a file's new name durable, and not only its bytes."""

import os


def sync_directory(directory: str | os.PathLike[str]) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
