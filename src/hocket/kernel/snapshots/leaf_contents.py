"""What the leaves of a snapshot hold besides entries: heads of authors, bases of subjects, and which facts of a bundle
have gone.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from hocket.kernel.checkpoints.merkle import CompactRange
from hocket.kernel.clock import Hlc, unpack
from hocket.kernel.postcard import BYTES, STR, U64, ULID, Malformed, decode, encode, fixed, seq, struct
from hocket.kernel.snapshots.leaves import Leaf, LeafTag


class SnapshotHead(msgspec.Struct, frozen=True):
    """The last settled entry of an author: the packed time of its last op, its id, and the tree over all entries of the
    author up to it, of which `peaks` are the roots of the complete subtrees.
    """

    hlc: bytes
    entry: bytes
    size: int
    peaks: bytes

    @property
    def at(self) -> Hlc:
        return unpack(self.hlc)

    @property
    def author(self) -> bytes:
        return self.hlc[12:]

    def tree(self) -> CompactRange:
        """Raises Malformed."""
        return CompactRange.read(self.size, self.peaks)


class SnapshotBase(msgspec.Struct, frozen=True):
    """The state of a subject after all settled ops about it, in place of those that have gone. `last` is the packed
    time of the latest of them.
    """

    family: str
    key: bytes
    last: bytes
    state: bytes


class PartialBundle(msgspec.Struct, frozen=True):
    """The facts of a kept bundle that have gone, by their places."""

    entry: bytes
    gone: tuple[int, ...]


_HLC = fixed(20)
HEAD = struct(SnapshotHead, _HLC, ULID, U64, BYTES)
BASE = struct(SnapshotBase, STR, BYTES, _HLC, BYTES)
PARTIAL = struct(PartialBundle, ULID, seq(U64, 1024))


def head_leaf(head: SnapshotHead) -> Leaf:
    return Leaf(LeafTag.HEAD, encode(HEAD, head))


def base_leaf(base: SnapshotBase) -> Leaf:
    return Leaf(LeafTag.BASE, encode(BASE, base))


def partial_leaf(partial: PartialBundle) -> Leaf:
    return Leaf(LeafTag.PARTIAL, encode(PARTIAL, partial))


def leaves_of(
    heads: Iterable[SnapshotHead],
    bases: Iterable[SnapshotBase],
    entries: Iterable[bytes],
    partials: Iterable[PartialBundle],
) -> Iterator[Leaf]:
    """The leaves in their order: heads by author, bases by family and key, entries by time and id as the caller gives
    them, and partial bundles by their ids.
    """
    yield from (head_leaf(each) for each in sorted(heads, key=lambda each: each.author))
    yield from (base_leaf(each) for each in sorted(bases, key=lambda each: (each.family, each.key)))
    yield from (Leaf(LeafTag.ENTRY, each) for each in entries)
    yield from (partial_leaf(each) for each in sorted(partials, key=lambda each: each.entry))


class SnapshotContents(NamedTuple):
    heads: list[SnapshotHead]
    bases: list[SnapshotBase]
    entries: list[bytes]
    partials: list[PartialBundle]


def read_leaves(leaves: Iterable[Leaf]) -> SnapshotContents:
    """Raises Malformed for leaves out of order, and for ones that cannot be read."""
    found = SnapshotContents([], [], [], [])
    last = -1
    for each in leaves:
        if each.tag < last:
            raise Malformed("the leaves of a snapshot are out of order")
        last = each.tag
        if each.tag is LeafTag.HEAD:
            found.heads.append(decode(HEAD, each.data))
        elif each.tag is LeafTag.BASE:
            found.bases.append(decode(BASE, each.data))
        elif each.tag is LeafTag.ENTRY:
            found.entries.append(each.data)
        else:
            found.partials.append(decode(PARTIAL, each.data))
    return found
