"""Blobs in a store that nodes share, so that each node can read those of the others without asking them. A blob is
written to the store when it is staged: before the transaction whose op names it, and over another connection. The home
keeps a copy for an hour, and reads it first. A blob that is too large for the database stays in the home of the node
that made it, and other nodes fetch it from there.
"""

import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

from blake3 import blake3

from hocket.errors import StoreError
from hocket.kernel.ids import hash_text
from hocket.store.artifacts import PART_BYTES, BlobTable, ClearedBlobs
from hocket.store.connections import machine_s
from hocket.work.blobs import GARBAGE_AGE_S, Damaged, HomeBlobs, Staged, chunks_of

STORED_BYTES_MAX = 64 * 1024 * 1024
# After so long, content that no op names yet is written again: when it is an hour old, other nodes may delete it.
RENEW_S = GARBAGE_AGE_S / 2
# A server that could not be reached is not asked again for so long whether it has a blob.
AWAY_S = 5.0
ASKED_AT_ONCE = 500


class StoreBlobs:
    """`clock` counts seconds, and is the same for all processes of this machine."""

    def __init__(self, home: HomeBlobs, table: BlobTable, clock: Callable[[], float] = machine_s) -> None:
        self._home, self._table, self._clock = home, table, clock
        self._away_until = 0.0

    def stage(self, content: bytes | Path) -> Staged:
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
