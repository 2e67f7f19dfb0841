"""Content that is too large for the log, stored under its hash: in the home, or in a store that nodes share
(`StoreBlobs`). A blob exists whole or not at all: it is written to this process's staging directory, synced to disk,
and moved to its place when an op names it. Every read checks the hash, so that a damaged blob is never used.
"""

import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import count
from pathlib import Path
from typing import IO, NamedTuple, Protocol

from blake3 import blake3

from hocket.errors import StoreError, Usage
from hocket.families.liveness import ProcessLock, is_alive
from hocket.kernel.ids import hash_text
from hocket.store.artifact_rows import PART_BYTES, BlobTable, ClearedBlobs
from hocket.store.connections import machine_s
from hocket.store.files import sync_directory

BLOB_BYTES_MAX = 1024 * 1024 * 1024
CHUNK_BYTES = 1024 * 1024
# A blob that no op names may belong to an op that is still on its way, from this node or another.
GARBAGE_AGE_S = 3600.0
_HEX_DIGITS = 64
# In a store that nodes share: a larger blob stays in the home of the node that made it, and others fetch it there.
STORED_BYTES_MAX = 64 * 1024 * 1024
# After so long, content that no op names yet is written again: when it is an hour old, other nodes may delete it.
RENEW_S = GARBAGE_AGE_S / 2
# A server that could not be reached is not asked again for so long whether it has a blob.
AWAY_S = 5.0
ASKED_AT_ONCE = 500


class Damaged(StoreError):
    """A blob whose bytes do not match its hash."""


class Staged(NamedTuple):
    """A blob that is complete and on disk, but not yet in its place. `stored_s` is when it was last written to a shared
    store, by the machine's steady clock; 0 if that does not have it.
    """

    hash: bytes
    size: int
    path: Path
    stored_s: float = 0.0


class Blobs(Protocol):
    """Safe to use from several threads."""

    def stage(self, content: bytes | Path | IO[bytes]) -> Staged:
        """Writes the content, from memory or from a file; all of it, if that is open. Raises Usage if it is too large
        or not a file. Not inside a write transaction: it may take long.
        """

    def renewed(self, staged: Staged) -> Staged:
        """Writes content again that was staged long ago, so that it stays a while. Call it before the transaction."""

    def keep(self, staged: Staged) -> None:
        """Moves a staged blob to its permanent place. A second call does nothing."""

    def drop(self, staged: Staged) -> None:
        """Deletes a staged blob."""

    def has(self, hash: bytes) -> bool: ...

    def read(self, hash: bytes) -> bytes | None:
        """The whole content; None if it is not here. Raises Damaged if it does not match its hash."""

    def part(self, hash: bytes, start: int, size: int) -> bytes | None:
        """Part of the content; None if it is not here. The caller that joins the parts checks the hash."""

    def chunks(self, hash: bytes) -> Iterator[bytes]:
        """The content in parts; nothing if it is not here. Damage is reported after the last part."""

    def remove(self, hash: bytes) -> int:
        """Deletes a blob; returns the number of bytes freed."""

    def all(self) -> Iterator[tuple[bytes, float]]:
        """Every blob in this home: its hash, and when it was written, in seconds since the epoch."""

    def clear_leftovers(self) -> ClearedBlobs:
        """Deletes what dead processes staged, and what a shared store no longer needs."""

    def close(self) -> None:
        """Deletes staged blobs that were never kept."""


class HomeBlobs:
    """The blobs of one home. The directory is created with the first blob."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._shelves = directory / "staged"
        self._lock = threading.Lock()
        self._shelf: tuple[Path, ProcessLock] | None = None
        self._numbers = count()

    def close(self) -> None:
        with self._lock:
            if self._shelf is not None:
                path, alive = self._shelf
                _remove(path)
                alive.close()
                self._shelf = None

    def stage(self, content: bytes | Path | IO[bytes]) -> Staged:
        return self.stage_parts(chunks_of(content))

    def stage_parts(self, parts: Iterator[bytes]) -> Staged:
        with _explained("write a blob"):
            target = self._own_shelf() / str(next(self._numbers))
            with open(target, "xb", opener=_private) as out:
                try:
                    hash, size = _copy(parts, out)
                    out.flush()
                    os.fsync(out.fileno())
                except BaseException:
                    target.unlink(missing_ok=True)
                    raise
        return Staged(hash, size, target)

    def renewed(self, staged: Staged) -> Staged:
        return staged

    def keep(self, staged: Staged) -> None:
        place = self._place(staged.hash)
        with _explained("keep a blob"):
            if not place.parent.exists():
                place.parent.mkdir(mode=0o700, exist_ok=True)
                sync_directory(self._directory)
            try:
                os.replace(staged.path, place)
            except FileNotFoundError:
                if not place.exists():
                    raise
            sync_directory(place.parent)

    def drop(self, staged: Staged) -> None:
        staged.path.unlink(missing_ok=True)

    def has(self, hash: bytes) -> bool:
        return self._place(hash).exists()

    def size(self, hash: bytes) -> int:
        return self._place(hash).stat().st_size

    def read(self, hash: bytes) -> bytes | None:
        parts = list(self.chunks(hash))
        return b"".join(parts) if parts or self.has(hash) else None

    def part(self, hash: bytes, start: int, size: int) -> bytes | None:
        with _explained(f"read the blob {hash_text(hash)}"):
            try:
                with self._place(hash).open("rb") as file:
                    file.seek(start)
                    return file.read(size)
            except FileNotFoundError:
                return None

    def chunks(self, hash: bytes) -> Iterator[bytes]:
        hasher = blake3()
        with _explained(f"read the blob {hash_text(hash)}"):
            try:
                file = self._place(hash).open("rb")
            except FileNotFoundError:
                return
            with file:
                while part := file.read(CHUNK_BYTES):
                    hasher.update(part)
                    yield part
        if hasher.digest() != hash:
            raise Damaged(f"the blob {hash_text(hash)} is damaged; restore {self._place(hash)} from a backup")

    def remove(self, hash: bytes) -> int:
        place = self._place(hash)
        with _explained("delete a blob"):
            try:
                size = place.stat().st_size
                place.unlink()
            except FileNotFoundError:
                return 0
        return size

    def all(self) -> Iterator[tuple[bytes, float]]:
        for path in self._directory.glob("[0-9a-f][0-9a-f]/*"):
            try:
                hash = bytes.fromhex(path.name)
                if len(path.name) == _HEX_DIGITS and path == self._place(hash):
                    yield hash, path.stat().st_mtime
            except (ValueError, FileNotFoundError):
                continue

    def clear_leftovers(self) -> ClearedBlobs:
        return ClearedBlobs(0, self.clear_shelves())

    def clear_shelves(self) -> int:
        """Deletes what dead processes staged; returns the number of bytes freed."""
        freed = 0
        for shelf in self._shelves.glob("*/"):
            if not is_alive(self._shelves, shelf.name):
                freed += sum(path.stat().st_size for path in shelf.iterdir())
                _remove(shelf)
        return freed

    def _place(self, hash: bytes) -> Path:
        name = hash.hex()
        return self._directory / name[:2] / name

    def _own_shelf(self) -> Path:
        """A directory of this object alone, with a lock file for as long as it is in use."""
        with self._lock:
            if self._shelf is None:
                for directory in (self._directory, self._shelves):
                    directory.mkdir(mode=0o700, exist_ok=True)
                name = f"{os.getpid()}-{os.urandom(4).hex()}"
                alive = ProcessLock(self._shelves, name)
                path = self._shelves / name
                path.mkdir(mode=0o700)
                self._shelf = path, alive
            return self._shelf[0]


def chunks_of(content: bytes | Path | IO[bytes]) -> Iterator[bytes]:
    """Raises Usage if it is not a file, or cannot be read."""
    if isinstance(content, bytes):
        yield content
        return
    with _opened(content) if isinstance(content, Path) else nullcontext(content) as file:
        file.seek(0)
        while part := file.read(CHUNK_BYTES):
            yield part


def beginning(path: Path, size: int) -> bytes:
    """The first bytes of a file. Raises Usage as `chunks_of` does."""
    with _opened(path) as file:
        return file.read(size)


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    try:
        # Without O_NONBLOCK, opening a pipe would block before its type could be checked.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise Usage(f"{path} is not a file")
            yield file
    except OSError as error:
        raise Usage(f"cannot read {path}: {error.strerror}") from None


def _copy(parts: Iterator[bytes], out: IO[bytes]) -> tuple[bytes, int]:
    hasher, size = blake3(), 0
    for part in parts:
        size += len(part)
        if size > BLOB_BYTES_MAX:
            raise Usage(f"the content has more than {BLOB_BYTES_MAX} bytes; store it elsewhere and keep a reference")
        hasher.update(part)
        out.write(part)
    return hasher.digest(), size


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _remove(directory: Path) -> None:
    # It brings every compression of archives, and few runs stage a blob.
    import shutil

    shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"cannot {what}: {error.strerror}") from error


class StoreBlobs:
    """Blobs in a store that nodes share, so that each node can read those of the others without asking them. A blob is
    written to the store when it is staged: before the transaction whose op names it, and over another connection. The
    home keeps a copy for an hour, and reads it first. `clock` counts seconds, and is the same for all processes of this
    machine.
    """

    def __init__(self, home: HomeBlobs, table: BlobTable, clock: Callable[[], float] = machine_s) -> None:
        self._home, self._table, self._clock = home, table, clock
        self._away_until = 0.0

    def stage(self, content: bytes | Path | IO[bytes]) -> Staged:
        staged = self._home.stage(content)
        try:
            return self.renewed(staged)
        except BaseException:
            self._home.drop(staged)
            raise

    def renewed(self, staged: Staged) -> Staged:
        now = self._clock()
        if staged.size > STORED_BYTES_MAX or (staged.stored_s and now - staged.stored_s < RENEW_S):
            return staged
        self._table.write(staged.hash, staged.size, lambda: self._staged_parts(staged))
        return staged._replace(stored_s=now)

    def _staged_parts(self, staged: Staged) -> Iterator[bytes]:
        """A transaction that is repeated has moved the file to its place already."""
        return chunks_of(staged.path) if staged.path.exists() else self._home.chunks(staged.hash)

    def keep(self, staged: Staged) -> None:
        if staged.size <= STORED_BYTES_MAX and self._clock() - staged.stored_s > GARBAGE_AGE_S:
            raise StoreError(f"{hash_text(staged.hash)} was stored more than an hour before its op; repeat the change")
        self._home.keep(staged)

    def drop(self, staged: Staged) -> None:
        self._home.drop(staged)

    def has(self, hash: bytes) -> bool:
        """A server that is away has nothing to give."""
        if self._home.has(hash):
            return True
        if self._clock() < self._away_until:
            return False
        try:
            return bool(self._table.among([hash]))
        except StoreError:
            self._away_until = self._clock() + AWAY_S
            return False

    def read(self, hash: bytes) -> bytes | None:
        content = self._home.read(hash)
        if content is None:
            parts = list(stored_parts(self._table, hash))
            content = b"".join(parts) if parts else None
        return content

    def part(self, hash: bytes, start: int, size: int) -> bytes | None:
        found = self._home.part(hash, start, size)
        if found is not None:
            return found
        first, skipped = divmod(start, PART_BYTES)
        parts = b""
        for number in range(first, -(-(start + size) // PART_BYTES)):
            if (part := self._table.part(hash, number)) is None:
                break
            parts += part
        if not parts and not self._table.among([hash]):
            return None
        return parts[skipped : skipped + size]

    def chunks(self, hash: bytes) -> Iterator[bytes]:
        is_here = False
        for part in self._home.chunks(hash):
            is_here = True
            yield part
        if not is_here and not self._home.has(hash):
            yield from stored_parts(self._table, hash)

    def remove(self, hash: bytes) -> int:
        """In the store only if no node has written it for an hour: one may be about to name it again."""
        return max(self._home.remove(hash), self._table.remove(hash, GARBAGE_AGE_S))

    def all(self) -> Iterator[tuple[bytes, float]]:
        return self._home.all()

    def clear_leftovers(self) -> ClearedBlobs:
        """Also deletes the home's copies of what the store has, after an hour."""
        freed = self._home.clear_shelves()
        until = time.time() - GARBAGE_AGE_S
        copies = [hash for hash, written in self._home.all() if written < until]
        for start in range(0, len(copies), ASKED_AT_ONCE):
            freed += sum(map(self._home.remove, self._table.among(copies[start : start + ASKED_AT_ONCE])))
        cleared = self._table.clear(GARBAGE_AGE_S)
        return ClearedBlobs(cleared.blobs, cleared.bytes + freed)

    def close(self) -> None:
        self._home.close()
        self._table.close()


def stored_parts(table: BlobTable, hash: bytes) -> Iterator[bytes]:
    """The content of a blob in the store; nothing if it is not there. Raises Damaged after the last part."""
    hasher = blake3()
    for number in count():
        part = table.part(hash, number)
        if part is None and number == 0:
            return
        hasher.update(part or b"")
        yield part or b""
        if part is None or len(part) < PART_BYTES:
            break
    if hasher.digest() != hash:
        raise Damaged(f"the blob {hash_text(hash)} is damaged; restore it in {table.shown} from a backup")
