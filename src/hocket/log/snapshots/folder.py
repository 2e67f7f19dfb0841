"""The folder of a snapshot: a file for each chunk, and the manifest, which is written last. A folder without a manifest
is unfinished. The same folder keeps what a node fetches from a peer: chunks that are there already are not fetched
again. A folder that a person has asked for also has the ops after the horizon.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from msgspec.structs import replace

from hocket.errors import Failed, Usage
from hocket.kernel.postcard import Malformed
from hocket.kernel.snapshots.chunks import (
    CHUNK_SIZE_MAX,
    MANIFEST_BYTES_MAX,
    SnapshotManifest,
    cut,
    decode_manifest,
    encode_manifest,
    read_chunk,
)
from hocket.kernel.snapshots.leaves import Leaf
from hocket.store.files import sync_directory, written

MANIFEST = "manifest"
# What came after the horizon, as `hocket log export` writes ops: in a folder for a machine without a network.
LATER = "later.ops"
_SUFFIX = ".chunk"
_PART = re.compile(r"[0-9]{5,9}\.chunk")


class SnapshotFolder:
    def __init__(self, path: Path) -> None:
        self.path = path

    def is_complete(self) -> bool:
        return (self.path / MANIFEST).is_file()

    def manifest(self) -> SnapshotManifest:
        """Raises Malformed for a damaged one, and Usage if there is none."""
        try:
            data = _read(self.path / MANIFEST, MANIFEST_BYTES_MAX)
        except FileNotFoundError:
            raise Usage(f"{self.path} has no snapshot: the file {MANIFEST} is missing, which is written last") from None
        return decode_manifest(data)

    def mesh(self) -> str:
        """The user of whose mesh it says it is. Raises Failed for a damaged snapshot, and Usage if there is none."""
        try:
            return self.manifest().mesh
        except Malformed as error:
            raise Failed(f"the snapshot in {self.path} does not hold good: {error}") from None

    def chunk(self, number: int) -> bytes:
        """The bytes of a chunk, unchecked. Raises Malformed if it is missing."""
        try:
            return _read(self._chunk(number), CHUNK_SIZE_MAX)
        except FileNotFoundError:
            raise Malformed("the chunk is missing") from None

    def leaves(self, manifest: SnapshotManifest) -> Iterator[list[Leaf]]:
        """The leaves, chunk by chunk. Raises Malformed, with the name of the file, for a chunk that does not belong."""
        for number, (first, expected) in enumerate(zip(manifest.firsts(), manifest.chunks, strict=True)):
            try:
                yield read_chunk(self.chunk(number), first, expected)
            except Malformed as error:
                raise Malformed(f"{self._chunk(number).name}: {error}") from None

    def has_chunk(self, number: int, first: int, manifest: SnapshotManifest) -> bool:
        """Whether the chunk is here as the manifest names it."""
        try:
            read_chunk(self.chunk(number), first, manifest.chunks[number])
        except Malformed:
            return False
        return True

    def keep_chunks(self, count: int) -> None:
        """Drops the chunks of another snapshot that this one, which has so many, would not replace."""
        known = {self._chunk(number).name for number in range(count)}
        with written(self.path):
            for name in self._names():
                if name.endswith(_SUFFIX) and name not in known:
                    (self.path / name).unlink(missing_ok=True)

    def put_chunk(self, number: int, data: bytes) -> None:
        """The chunk is there whole or not at all. Raises StoreError."""
        _put(self._chunk(number), data)

    def later(self) -> Path | None:
        """The file with the ops after the horizon, if there is one."""
        path = self.path / LATER
        return path if path.is_file() else None

    def put_later(self, write: Callable[[BinaryIO], object]) -> None:
        """The file is there whole or not at all. Raises StoreError."""
        _write(self.path / LATER, write)

    def put_manifest(self, manifest: SnapshotManifest) -> None:
        """The chunks are on disk before the manifest is. Raises StoreError."""
        _put(self.path / MANIFEST, encode_manifest(manifest))

    def clear(self) -> None:
        """Drops what is in the folder: the manifest first, so that it is never of other chunks."""
        with written(self.path):
            (self.path / MANIFEST).unlink(missing_ok=True)
            for name in self._names():
                if _is_ours(name):
                    (self.path / name).unlink(missing_ok=True)

    def remove(self) -> None:
        """Drops the folder, too, if nothing else is in it."""
        self.clear()
        with written(self.path):
            if self.path.is_dir() and not any(self.path.iterdir()):
                self.path.rmdir()

    def _chunk(self, number: int) -> Path:
        return self.path / f"{number:05}{_SUFFIX}"

    def _names(self) -> list[str]:
        try:
            return os.listdir(self.path)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise Usage(f"cannot read the snapshot {self.path}: {error.strerror}") from None


def write_folder(path: Path, manifest: SnapshotManifest, root: bytes, leaves: Iterable[Leaf]) -> SnapshotManifest:
    """Writes a snapshot with one chunk in memory at a time, and gives the manifest with its chunks. Raises Failed if
    the leaves do not have this root: then nothing can be read from the folder.
    """
    folder = SnapshotFolder(path)
    with written(path):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if strangers := [name for name in folder._names() if not _is_ours(name)]:
        raise Usage(f"{path} has other files, such as {sorted(strangers)[0]}; name a new folder")
    folder.clear()
    ranges = []
    for number, each in enumerate(cut(leaves)):
        folder.put_chunk(number, each.data)
        ranges.append(each.range)
    manifest = replace(manifest, chunks=tuple(ranges))
    if manifest.root() != root:
        folder.remove()
        raise Failed("what this node has up to the horizon does not have the root that was signed; run `hocket doctor`")
    folder.put_manifest(manifest)
    return manifest


def _read(path: Path, limit: int) -> bytes:
    """Raises Malformed for a file that is too large, and FileNotFoundError."""
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Usage(f"cannot read {path}: {error.strerror}") from None
    if len(data) > limit:
        raise Malformed(f"it is larger than {limit} bytes")
    return data


def is_part(name: str) -> bool:
    """Whether a snapshot has a file of this name. Another store may list any."""
    return name == MANIFEST or _PART.fullmatch(name) is not None


def _is_ours(name: str) -> bool:
    return name.endswith((_SUFFIX, ".new")) or name in (MANIFEST, LATER)


def _put(path: Path, data: bytes) -> None:
    _write(path, lambda file: file.write(data))


def _write(path: Path, write: Callable[[BinaryIO], object]) -> None:
    unfinished = path.with_name(f"{path.name}.new")
    with written(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        sync_directory(path.parent)
