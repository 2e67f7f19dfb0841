"""Where an archive can be: a folder, a git repository or an object store. A target knows names and bytes, and nothing
of ops.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from hocket.errors import Conflict, StoreError, Usage
from hocket.kernel.postcard import Malformed
from hocket.log.archives.day_file import FILE_BYTES_MAX
from hocket.store.files import sync_directory, written


class ArchiveTarget(NamedTuple):
    """`shown` is its address. Names are like `0123456789abcdef/2026-01-31.ops.zst`. A file is there whole or not at
    all.
    """

    shown: str
    names: Callable[[], list[str]]
    """Every file in a folder of it, in any order."""
    read: Callable[[str], bytes]
    """The bytes of a file. Raises Malformed if they cannot be read or are too many."""
    put: Callable[[str, bytes], None]
    """Stores a file for good, in place of an older one. Raises StoreError."""
    writing: Callable[[], AbstractContextManager[object]]
    """Around a run that puts files. Raises Conflict if it would disturb another writer."""
    exists: Callable[[], bool]
    path: Path | None = None
    """The folder, if it is one."""


def folder_target(path: Path, shown: str | None = None) -> ArchiveTarget:
    if path.exists() and not path.is_dir():
        raise Usage(f"{path} is no folder; name the folder of the archive")
    return ArchiveTarget(
        shown or str(path),
        partial(_names, path),
        lambda name: read_bytes(path / name),
        partial(_put, path),
        partial(_writing, path),
        path.exists,
        path,
    )


def read_bytes(path: Path) -> bytes:
    """Raises Malformed."""
    try:
        with path.open("rb") as file:
            found = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise Malformed(f"it cannot be read: {error.strerror}") from None
    return checked_size(found)


def checked_size(found: bytes) -> bytes:
    if len(found) > FILE_BYTES_MAX:
        raise Malformed("it is larger than a file of an archive")
    return found


def _names(path: Path) -> list[str]:
    # What begins with a dot is an unfinished file, or the repository in which someone keeps the archive.
    found = []
    for folder in _listed(path):
        if (path / folder).is_dir():
            found += [f"{folder}/{name}" for name in _listed(path / folder)]
    return found


def _listed(path: Path) -> list[str]:
    try:
        return [name for name in os.listdir(path) if not name.startswith(".")]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise Usage(f"cannot read the archive {path}: {error.strerror}") from None


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    with written(path):
        path.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(f"another process is writing into the archive {path}; try again later") from None
        except OSError as error:
            raise StoreError(f"cannot lock the archive {path}: {error.strerror}") from None
        yield
    finally:
        os.close(handle)


def _put(folder: Path, name: str, frame: bytes) -> None:
    path = folder / name
    # A writer that was killed may have left it.
    unfinished = path.with_name(f".{path.name}.new")
    with written(path):
        path.parent.mkdir(exist_ok=True)
        try:
            with unfinished.open("wb") as file:
                file.write(frame)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
        for each in (path.parent, folder):
            sync_directory(each)
