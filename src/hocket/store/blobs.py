"""Blobs in a store that nodes share: content that is too large for the log, by its hash. A blob is in the table whole
or not at all. It is split into parts, so that no statement carries a large one.
"""

from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

PART_BYTES = 1024 * 1024

# The store's key of where its nodes keep their blobs.
BLOBS = "blobs"


class BlobPlace(StrEnum):
    """Where the nodes of a store keep blobs: each in its home, or all in the store."""

    HOME = "home"
    STORE = "store"


class ClearedBlobs(NamedTuple):
    blobs: int
    bytes: int


class BlobTable(Protocol):
    """Has connections of its own, so it can be used inside a write transaction and beside it. Safe to use from several
    threads, also from those that an exception may interrupt anywhere.
    """

    shown: str
    """The store's address without its password."""

    def write(self, hash: bytes, size: int, content: Callable[[], Iterator[bytes]]) -> None:
        """Stores a blob, and commits. One that is there already only becomes young again. Raises StoreError, and stores
        nothing, if the content does not match the hash. `content` gives it in parts, and may be called again.
        """

    def among(self, hashes: Sequence[bytes]) -> set[bytes]:
        """Those of the blobs that are there."""

    def part(self, hash: bytes, number: int) -> bytes | None:
        """The part with this number, the first is 0; None if there is none."""

    def all(self) -> Iterator[tuple[bytes, int]]:
        """Every blob with its size."""

    def remove(self, hash: bytes, age_s: float) -> int:
        """Deletes a blob that nobody has written for so long; returns the number of bytes freed."""

    def clear(self, age_s: float) -> ClearedBlobs:
        """Deletes the blobs that nobody has written for so long and that no artifact needs. Nothing while artifacts are
        being derived from the ops.
        """

    def close(self) -> None: ...
