"""The blobs of a log that moves to another store. They are in a home before and after, in a store before and after, or
they change sides. A blob that is there already is not copied again, so a transfer that was killed goes on where it was.
Every blob is checked against its hash. Homes keep what they have.
"""

from collections.abc import Iterator

from hocket.errors import Usage
from hocket.node.home import Home
from hocket.node.home_store import blob_place
from hocket.store import BlobTable, Store, backend
from hocket.store.blobs import BlobPlace
from hocket.work.blobs import HomeBlobs
from hocket.work.store_blobs import STORED_BYTES_MAX, stored_parts

# So many blobs are looked for at once.
STEP = 500


def blob_transfer(home: Home, kept: Store, old: str, new: str, place: BlobPlace | None) -> "BlobTransfer":
    """`place` is where the nodes of the new store keep their blobs; None: in the same as before, if that can be."""
    old_table, new_table = backend(old).blobs, backend(new).blobs
    if place is BlobPlace.STORE and new_table is None:
        raise Usage("--blobs store is for a store in PostgreSQL, and the new one is not; leave it out")
    with kept.read() as session:
        before = blob_place(session)
    source = old_table(old) if old_table is not None and before is BlobPlace.STORE else None
    after = place or (BlobPlace.HOME if source is None else BlobPlace.STORE)
    target = new_table(new) if new_table is not None and after is BlobPlace.STORE else None
    return BlobTransfer(HomeBlobs(home.blobs), source, target)


class BlobTransfer:
    """`source` and `target` are the tables of the old and of the new store; None stands for the home."""

    def __init__(self, home: HomeBlobs, source: BlobTable | None, target: BlobTable | None) -> None:
        self._home, self._source, self._target = home, source, target
        self.copied = 0

    @property
    def target_place(self) -> BlobPlace:
        return BlobPlace.HOME if self._target is None else BlobPlace.STORE

    @property
    def is_homeward(self) -> bool:
        return self._source is not None and self._target is None

    def copy(self) -> None:
        """Copies every blob that the target lacks. Raises Damaged for one that does not match its hash."""
        if self._source is None and self._target is None:
            return
        for sizes in self._pages():
            for hash in sizes.keys() - self._there(list(sizes)):
                self._copy(hash, sizes[hash])
                self.copied += 1

    def close(self) -> None:
        self._home.close()
        for table in (self._source, self._target):
            if table is not None:
                table.close()

    def _pages(self) -> Iterator[dict[bytes, int]]:
        """The blobs that belong into the target, with their sizes."""
        page: dict[bytes, int] = {}
        for hash, size in self._at_home() if self._source is None else self._source.all():
            page[hash] = size
            if len(page) == STEP:
                yield page
                page = {}
        yield page

    def _at_home(self) -> Iterator[tuple[bytes, int]]:
        for hash, _ in self._home.all():
            if (size := self._home.size(hash)) <= STORED_BYTES_MAX:
                yield hash, size

    def _there(self, hashes: list[bytes]) -> set[bytes]:
        return {*filter(self._home.has, hashes)} if self._target is None else self._target.among(hashes)

    def _copy(self, hash: bytes, size: int) -> None:
        if self._target is not None:
            self._target.write(hash, size, lambda: self._parts(hash))
        else:
            self._home.keep(self._home.stage_parts(self._parts(hash)))

    def _parts(self, hash: bytes) -> Iterator[bytes]:
        return self._home.chunks(hash) if self._source is None else stored_parts(self._source, hash)
