"""The leaves of a snapshot, in their order: the head of each author, the base of each subject whose ops went, and the
entries that were kept. The tree over them is that of RFC 6962, with SHA-256.

The leaf of an entry is what its author signs, and its id. The entry itself has the signature, too, so a reader checks
both: the tree says that the entry belongs there, and the signature whose it is. A bundle of which some facts have gone
is kept whole; a leaf at the end names these facts.
"""

from enum import IntEnum
from typing import NamedTuple

from hocket.kernel.checkpoints.merkle import leaf_hash
from hocket.kernel.ops import decode
from hocket.kernel.postcard import Malformed
from hocket.kernel.signing import signed_form


class LeafTag(IntEnum):
    """What a leaf is. The leaves of a snapshot are in the order of these numbers."""

    HEAD = 0
    BASE = 1
    ENTRY = 2
    PARTIAL = 3


class Leaf(NamedTuple):
    """`data` is an entry with its signature, or what the tree covers of a head or a base."""

    tag: LeafTag
    data: bytes

    @property
    def covered(self) -> bytes:
        """The bytes that the tree covers. Raises Malformed for an entry that cannot be read, or has no signature."""
        if self.tag is not LeafTag.ENTRY:
            return bytes((self.tag,)) + self.data
        op = decode(self.data)
        return bytes((self.tag,)) + op.id + signed_form(self.data, op.node_id)

    @property
    def hash(self) -> bytes:
        """Raises Malformed."""
        return leaf_hash(self.covered)


def leaf(tag: int, data: bytes) -> Leaf:
    """Raises Malformed for a tag that no leaf has."""
    try:
        return Leaf(LeafTag(tag), data)
    except ValueError:
        raise Malformed(f"no leaf has the tag {tag}") from None
