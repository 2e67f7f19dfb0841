"""The folder of an archive: what is in it, and how a file gets in. A file is there whole or not at all. Also the way
back: the ops of an archive in the order in which they were written.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from heapq import merge
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from hocket.errors import Conflict, Failed, StoreError, Usage
from hocket.kernel.ids import parse_node
from hocket.kernel.ops import Op
from hocket.kernel.ops import decode as decode_op
from hocket.kernel.postcard import Malformed
from hocket.log.archives.day_file import FILE_BYTES_MAX, DayFile, decode, file_name, place_in
from hocket.store.files import sync_directory, written


class ArchivePlace(NamedTuple):
    """Where a file is, in the order of an author's files."""

    author: str
    day: str
    part: int

    @property
    def name(self) -> str:
        return f"{self.author}/{file_name(self.day, self.part)}"


class ArchiveFolder:
    def __init__(self, path: Path) -> None:
        self.path = path

    def places(self, author: str) -> list[ArchivePlace]:
        """The files of an author, in the order of its ops."""
        found = (place_in(name) for name in self._names(self.path / author))
        return sorted(ArchivePlace(author, *each) for each in found if each is not None)

    def authors(self) -> list[str]:
        return sorted(filter(_is_author, self._names(self.path)))

    def strangers(self) -> Iterator[str]:
        """What no archive has in the folders of its authors."""
        for author in self.authors():
            for name in sorted(self._names(self.path / author)):
                if place_in(name) is None:
                    yield f"{author}/{name}"

    def _names(self, path: Path) -> list[str]:
        # What begins with a dot is an unfinished file, or the repository in which someone keeps the archive.
        try:
            return [name for name in os.listdir(path) if not name.startswith(".")]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise Usage(f"cannot read the archive {path}: {error.strerror}") from None

    def read(self, place: ArchivePlace) -> DayFile:
        """Raises Malformed."""
        return read_file(self.path / place.name)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Makes the folder, and keeps other writers out. Raises Conflict if there is one."""
        with written(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Conflict(f"another process is writing into the archive {self.path}; try again later") from None
            except OSError as error:
                raise StoreError(f"cannot lock the archive {self.path}: {error.strerror}") from None
            yield
        finally:
            os.close(handle)

    def put(self, place: ArchivePlace, frame: bytes) -> None:
        """The file is on disk when this returns. Raises StoreError."""
        path = self.path / place.name
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
            for folder in (path.parent, self.path):
                sync_directory(folder)


def archived_ops(path: Path) -> Iterator[tuple[bytes, Op]]:
    """The ops by day, and within a day by their times. Raises Usage if there is no archive, and Failed at a file that
    is damaged.
    """
    folder = ArchiveFolder(path)
    places = [place for author in folder.authors() for place in folder.places(author)]
    if not places:
        raise Usage(f"{path} has no archive; name its folder, which has one for each author")
    by_day = sorted(places, key=lambda place: (place.day, place.author, place.part))
    for _, of_day in groupby(by_day, key=lambda place: place.day):
        authors = [list(of_author) for _, of_author in groupby(of_day, key=lambda place: place.author)]
        sequences = [_of_author(folder, of_author) for of_author in authors]
        yield from merge(*sequences, key=lambda each: each[1].timestamp)


def _of_author(folder: ArchiveFolder, places: list[ArchivePlace]) -> Iterator[tuple[bytes, Op]]:
    for place in places:
        try:
            for raw in folder.read(place).ops:
                yield raw, decode_op(raw)
        except Malformed as error:
            raise Failed(
                f"{folder.path / place.name} is damaged: {error}. Of its day and later ones nothing more was imported"
            ) from None


def read_file(path: Path) -> DayFile:
    """Raises Malformed."""
    try:
        with path.open("rb") as file:
            frame = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise Malformed(f"it cannot be read: {error.strerror}") from None
    if len(frame) > FILE_BYTES_MAX:
        raise Malformed("it is larger than a file of an archive")
    return decode(frame)


def _is_author(name: str) -> bool:
    try:
        parse_node(name)
    except ValueError:
        return False
    return True
