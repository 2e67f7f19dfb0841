"""What is in an archive, whatever target it is in. Also the way back: the ops of an archive in the order in which they
were written. The first archive of a log that is pruned already begins with a snapshot of its horizon, in a folder
beside those of the authors: it has who admitted them, what remained, and after which entries their files begin.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from heapq import merge
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from hocket.errors import Failed, Usage
from hocket.kernel.ids import parse_node
from hocket.kernel.ops import Op
from hocket.kernel.ops import decode as decode_op
from hocket.kernel.postcard import Malformed
from hocket.kernel.snapshots.chunks import SnapshotManifest
from hocket.log.archives.day_file import DayFile, decode, file_name, place_in
from hocket.log.archives.git_repository import GIT, git_target
from hocket.log.archives.targets import ArchiveTarget, folder_target, read_bytes
from hocket.log.snapshots.folder import MANIFEST, SnapshotFolder, is_part


def target_at(address: str | Path) -> ArchiveTarget:
    """The target of an address: git+DIR, s3://BUCKET/PREFIX, or the path of a folder. Raises Usage."""
    text = str(address)
    if text.startswith(GIT):
        if text == GIT:
            raise Usage("git+ needs the folder of a repository, like git+/backup/hocket")
        return git_target(Path(text.removeprefix(GIT)).absolute())
    if text.startswith("s3://"):
        from hocket.log.archives.s3_bucket import s3_target  # few need it

        return s3_target(text)
    if "://" in text:
        raise Usage(f"unknown archive {text}; give a folder, git+DIR, or s3://BUCKET/PREFIX")
    return folder_target(Path(text).absolute())


# The folder of the snapshot with which an archive begins.
SNAPSHOT = "snapshot"


class ArchivePlace(NamedTuple):
    """Where a file is, in the order of an author's files."""

    author: str
    day: str
    part: int

    @property
    def name(self) -> str:
        return f"{self.author}/{file_name(self.day, self.part)}"


class Archive:
    """The files of a target as they are when it is first asked for them."""

    def __init__(self, target: ArchiveTarget) -> None:
        self.target = target

    @cached_property
    def _names(self) -> dict[str, list[str]]:
        """The names in the folder of each author."""
        found: defaultdict[str, list[str]] = defaultdict(list)
        for name in self.target.names():
            author, _, file = name.partition("/")
            if _is_author(author) or author == SNAPSHOT:
                found[author].append(file)
        return found

    def places(self, author: str) -> list[ArchivePlace]:
        """The files of an author, in the order of its ops."""
        found = (place_in(name) for name in self._names.get(author, ()))
        return sorted(ArchivePlace(author, *each) for each in found if each is not None)

    def authors(self) -> list[str]:
        return sorted(self._names.keys() - {SNAPSHOT})

    def all_places(self) -> list[ArchivePlace]:
        """Every file, by author. Raises Usage if there is none."""
        found = [place for author in self.authors() for place in self.places(author)]
        if not found:
            raise Usage(
                f"{self.target.shown} has no archive: no file like 0123456789abcdef/2026-01-31.ops.zst is in it"
            )
        return found

    def strangers(self) -> Iterator[str]:
        """What no archive has in the folders of its authors."""
        for author in self.authors():
            for name in sorted(self._names[author]):
                if place_in(name) is None:
                    yield f"{author}/{name}"

    def has_snapshot(self) -> bool:
        return MANIFEST in self._names.get(SNAPSHOT, ())

    @contextmanager
    def snapshot(self) -> Iterator[SnapshotFolder | None]:
        """The snapshot with which it begins, if it has one. Raises Malformed."""
        if not self.has_snapshot():
            yield None
        elif self.target.path is not None:
            yield SnapshotFolder(self.target.path / SNAPSHOT)
        else:
            with TemporaryDirectory(prefix="hocket-archive-") as directory:
                for name in filter(is_part, self._names[SNAPSHOT]):
                    (Path(directory) / name).write_bytes(self.target.read(f"{SNAPSHOT}/{name}"))
                yield SnapshotFolder(Path(directory))

    def put_snapshot(self, write: Callable[[Path], SnapshotManifest]) -> tuple[SnapshotManifest, int]:
        """Stores the files that are written into a folder, the manifest last, and gives it and their size. Raises
        StoreError.
        """
        size = 0
        with TemporaryDirectory(prefix="hocket-archive-") as directory:
            manifest = write(path := Path(directory) / SNAPSHOT)
            for file in sorted(path.iterdir(), key=lambda each: (each.name == MANIFEST, each.name)):
                self.target.put(f"{SNAPSHOT}/{file.name}", data := file.read_bytes())
                size += len(data)
        return manifest, size

    def shown(self, place: ArchivePlace) -> str:
        return f"{self.target.shown.rstrip('/')}/{place.name}"

    def read(self, place: ArchivePlace) -> DayFile:
        """Raises Malformed."""
        return decode(self.target.read(place.name))

    def put(self, place: ArchivePlace, frame: bytes) -> None:
        """The file is there for good when this returns. Raises StoreError."""
        self.target.put(place.name, frame)


def archived_ops(address: str | Path) -> Iterator[tuple[bytes, Op]]:
    """The ops by day, and within a day by their times. Raises Usage if there is no archive, and Failed at a file that
    is damaged.
    """
    archive = Archive(target_at(address))
    by_day = sorted(archive.all_places(), key=lambda place: (place.day, place.author, place.part))
    for _, of_day in groupby(by_day, key=lambda place: place.day):
        authors = [list(of_author) for _, of_author in groupby(of_day, key=lambda place: place.author)]
        sequences = [_of_author(archive, of_author) for of_author in authors]
        yield from merge(*sequences, key=lambda each: each[1].timestamp)


def _of_author(archive: Archive, places: list[ArchivePlace]) -> Iterator[tuple[bytes, Op]]:
    for place in places:
        try:
            for raw in archive.read(place).ops:
                yield raw, decode_op(raw)
        except Malformed as error:
            raise Failed(
                f"{archive.shown(place)} is damaged: {error}. Of its day and later ones nothing more was imported"
            ) from None


def read_file(path: Path) -> DayFile:
    """Raises Malformed."""
    return decode(read_bytes(path))


def _is_author(name: str) -> bool:
    try:
        parse_node(name)
    except ValueError:
        return False
    return True
