"""Runs of leaves in a Merkle tree. A run is known by the roots of the largest complete subtrees that lie in it; the
runs of all chunks, one after the other, give the root of the whole tree. So a reader that trusts the root knows of each
chunk, before it has seen another, whether it belongs there.
"""

from collections.abc import Iterable, Sequence

from hocket.kernel.checkpoints.merkle import EMPTY_ROOT, HASH_BYTES, SIZE_MAX, node_hash
from hocket.kernel.postcard import Malformed


def heights(first: int, count: int) -> list[int]:
    """The heights of the largest complete subtrees in a run of so many leaves, from the left."""
    found: list[int] = []
    while count:
        height = count.bit_length() - 1
        if first:
            height = min(height, (first & -first).bit_length() - 1)
        found.append(height)
        first, count = first + (1 << height), count - (1 << height)
    return found


class LeafRange:
    """A run of leaves that begins at `first`, and can be continued."""

    __slots__ = ("_nodes", "count", "first")

    def __init__(self, first: int = 0) -> None:
        self.first, self.count = first, 0
        self._nodes: list[tuple[int, bytes]] = []

    @property
    def end(self) -> int:
        return self.first + self.count

    @property
    def hashes(self) -> tuple[bytes, ...]:
        return tuple(each for _, each in self._nodes)

    def append(self, leaf: bytes) -> None:
        """Appends the hash of a leaf."""
        self._push(0, leaf)

    def join(self, count: int, hashes: Sequence[bytes]) -> None:
        """Appends a run that begins where this one ends. Raises Malformed unless a run there has so many subtrees."""
        if not 0 <= count <= SIZE_MAX - self.end:
            raise Malformed(f"no tree has {count} more leaves")
        each_height = heights(self.end, count)
        if len(each_height) != len(hashes) or any(len(each) != HASH_BYTES for each in hashes):
            raise Malformed(f"a run of {count} leaves from {self.end} on has {len(each_height)} subtrees")
        for height, each in zip(each_height, hashes, strict=True):
            self._push(height, each)

    def _push(self, height: int, hash: bytes) -> None:
        start = self.end
        self.count += 1 << height
        # A subtree that ends a larger one, which begins in this run, becomes part of that.
        while self._nodes and self._nodes[-1][0] == height and (start >> height) & 1:
            _, left = self._nodes.pop()
            hash, start, height = node_hash(left, hash), start - (1 << height), height + 1
        self._nodes.append((height, hash))

    def root(self) -> bytes:
        """The root of the whole tree. The run must begin with its first leaf."""
        assert self.first == 0
        if not self._nodes:
            return EMPTY_ROOT
        *rest, root = self.hashes
        for each in reversed(rest):
            root = node_hash(each, root)
        return root


def range_of(first: int, leaves: Iterable[bytes]) -> LeafRange:
    """The run of these leaf hashes."""
    found = LeafRange(first)
    for each in leaves:
        found.append(each)
    return found
