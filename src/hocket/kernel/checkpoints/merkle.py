"""The Merkle tree of RFC 6962, with SHA-256: its root names a sequence of entries, and short proofs show that an entry
is in the tree, and that a tree goes on from an earlier one. To append, a node keeps no tree, but the roots of its
complete subtrees: see `CompactRange`.
"""

import hashlib
from collections.abc import Iterable, Sequence

from hocket.kernel.postcard import Malformed

HASH_BYTES = 32
EMPTY_ROOT = hashlib.sha256(b"").digest()
# A tree of more entries is nobody's log, and every reader of JSON keeps this number.
SIZE_MAX = 9_007_199_254_740_991


def leaf_hash(entry: bytes) -> bytes:
    return hashlib.sha256(b"\x00" + entry).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


class CompactRange:
    """The roots of the complete subtrees of a tree, the largest first: all that is needed to append, and to know the
    root. There are as many as the size has ones in binary.
    """

    __slots__ = ("peaks", "size")

    def __init__(self, size: int = 0, peaks: Iterable[bytes] = ()) -> None:
        """Raises Malformed unless a tree of this size has so many peaks."""
        self.size, self.peaks = size, list(peaks)
        if not 0 <= size <= SIZE_MAX or len(self.peaks) != size.bit_count():
            raise Malformed(f"a tree of {size} entries does not have {len(self.peaks)} peaks")
        if any(len(each) != HASH_BYTES for each in self.peaks):
            raise Malformed(f"a hash in a tree has {HASH_BYTES} bytes")

    @classmethod
    def read(cls, size: int, data: bytes) -> "CompactRange":
        """The range of this size whose peaks stand one after the other in these bytes."""
        return cls(size, (data[at : at + HASH_BYTES] for at in range(0, len(data), HASH_BYTES)))

    def encode(self) -> bytes:
        return b"".join(self.peaks)

    def copy(self) -> "CompactRange":
        return CompactRange(self.size, self.peaks)

    def append(self, leaf: bytes) -> None:
        """Appends the hash of a leaf."""
        peaks, size = self.peaks, self.size
        while size & 1:
            leaf = node_hash(peaks.pop(), leaf)
            size >>= 1
        peaks.append(leaf)
        self.size += 1

    def root(self) -> bytes:
        if not self.peaks:
            return EMPTY_ROOT
        root = self.peaks[-1]
        for peak in reversed(self.peaks[:-1]):
            root = node_hash(peak, root)
        return root


class InclusionProver:
    """Proves one leaf of a tree that it builds from an earlier one, and keeps no more of the tree than its peaks."""

    def __init__(self, start: CompactRange) -> None:
        self._peaks, self.size = list(start.peaks), start.size
        self._proof: list[bytes] = []
        # The leaf's number, and which peak it is below.
        self._index, self._below = -1, -1

    def append(self, leaf: bytes, is_proved: bool = False) -> None:
        """Appends the hash of a leaf, which may be the one to prove."""
        peaks, size = self._peaks, self.size
        if is_proved:
            self._index = size
        while size & 1:
            left = peaks.pop()
            if is_proved:
                self._proof.append(left)
            elif self._below == len(peaks):
                self._proof.append(leaf)
                is_proved = True
            leaf = node_hash(left, leaf)
            size >>= 1
        if is_proved:
            self._below = len(peaks)
        peaks.append(leaf)
        self.size += 1

    def root(self) -> bytes:
        return CompactRange(self.size, self._peaks).root()

    def proof(self) -> tuple[int, list[bytes]]:
        """The leaf's index and its proof, as `inclusion_proof` gives it. Raises Malformed if no leaf was to prove."""
        if self._index < 0:
            raise Malformed("the leaf is not in the tree")
        proof, right, is_right = list(self._proof), self._peaks[-1], self._below == len(self._peaks) - 1
        for place in reversed(range(len(self._peaks) - 1)):
            if is_right:
                proof.append(self._peaks[place])
            elif self._below == place:
                proof.append(right)
                is_right = True
            right = node_hash(self._peaks[place], right)
        return self._index, proof


def root_of(leaves: Iterable[bytes]) -> bytes:
    """The root of the tree over these leaf hashes."""
    tree = CompactRange()
    for each in leaves:
        tree.append(each)
    return tree.root()


def inclusion_proof(leaves: Sequence[bytes], index: int) -> list[bytes]:
    """The hashes that lead from the leaf with this index to the root, from the bottom up."""
    if not 0 <= index < len(leaves):
        raise ValueError(f"no leaf {index} in a tree of {len(leaves)}")
    if len(leaves) == 1:
        return []
    half = _left_size(len(leaves))
    if index < half:
        return [*inclusion_proof(leaves[:half], index), root_of(leaves[half:])]
    return [*inclusion_proof(leaves[half:], index - half), root_of(leaves[:half])]


def is_included(leaf: bytes, index: int, size: int, root: bytes, proof: Sequence[bytes]) -> bool:
    """Whether the proof shows that the leaf with this index is in the tree of this size and root."""
    if not 0 <= index < size <= SIZE_MAX:
        return False
    place, last, found = index, size - 1, leaf
    for each in proof:
        if last == 0:
            return False
        if place & 1 or place == last:
            found = node_hash(each, found)
            while not place & 1 and place:
                place, last = place >> 1, last >> 1
        else:
            found = node_hash(found, each)
        place, last = place >> 1, last >> 1
    return last == 0 and found == root


def consistency_proof(leaves: Sequence[bytes], first: int) -> list[bytes]:
    """The hashes that show that the tree of all leaves begins with the tree of the first ones."""
    if not 0 < first <= len(leaves):
        raise ValueError(f"no tree of {first} leaves in one of {len(leaves)}")
    return _subproof(leaves, first, True)


def _subproof(leaves: Sequence[bytes], first: int, is_whole: bool) -> list[bytes]:
    if first == len(leaves):
        return [] if is_whole else [root_of(leaves)]
    half = _left_size(len(leaves))
    if first <= half:
        return [*_subproof(leaves[:half], first, is_whole), root_of(leaves[half:])]
    return [*_subproof(leaves[half:], first - half, False), root_of(leaves[:half])]


def is_consistent(first: int, first_root: bytes, size: int, root: bytes, proof: Sequence[bytes]) -> bool:
    """Whether the proof shows that the second tree goes on from the first. Every tree goes on from the empty one."""
    if not 0 <= first <= size <= SIZE_MAX:
        return False
    if first == 0:
        return first_root == EMPTY_ROOT and not proof
    if first == size:
        return first_root == root and not proof
    hashes = list(proof)
    if first & (first - 1) == 0:
        hashes.insert(0, first_root)
    if not hashes:
        return False
    place, last = first - 1, size - 1
    while place & 1:
        place, last = place >> 1, last >> 1
    old = new = hashes[0]
    for each in hashes[1:]:
        if last == 0:
            return False
        if place & 1 or place == last:
            old, new = node_hash(each, old), node_hash(each, new)
            while not place & 1 and place:
                place, last = place >> 1, last >> 1
        else:
            new = node_hash(new, each)
        place, last = place >> 1, last >> 1
    return last == 0 and (old, new) == (first_root, root)


def _left_size(size: int) -> int:
    """The largest power of two below the size."""
    return 1 << (size - 1).bit_length() - 1
