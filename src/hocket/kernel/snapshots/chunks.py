"""Chunks of a snapshot, and the manifest that names them. A chunk is a run of leaves of about a megabyte. The manifest
has the op that moved the horizon, the cosignatures on its root, and the subtrees of each chunk: they must give the root
that the op names. So a reader checks the manifest once, and then each chunk by itself, in any order.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from hocket.kernel.checkpoints.notes import NOTE_BYTES_MAX
from hocket.kernel.ops import MAX_OP_BYTES
from hocket.kernel.postcard import (
    BYTES,
    STR,
    U32,
    U64,
    Malformed,
    Reader,
    encode,
    fixed,
    seq,
    struct,
    write_varint,
)
from hocket.kernel.postcard import decode as decode_value
from hocket.kernel.snapshots.leaves import Leaf, leaf
from hocket.kernel.snapshots.ranges import LeafRange, heights

FORMAT = 1
# A chunk ends before the leaf with which it would have more leaves or bytes than this.
CHUNK_LEAVES_MAX = 8_192
CHUNK_BYTES_MAX = 1024 * 1024
# The largest leaf: a base may be larger than an op, because it is a folded state. A chunk with it, and a manifest, fit
# into one answer between nodes.
LEAF_BYTES_MAX = 7 * 1024 * 1024
CHUNK_SIZE_MAX = LEAF_BYTES_MAX + 8 * CHUNK_LEAVES_MAX + 32
MANIFEST_BYTES_MAX = 7 * 1024 * 1024
CHUNKS_MAX = 65_536
LAW_MAX = 65_536
_HASH = fixed(32)
# A run has two subtrees of each height at most.
_SUBTREES_MAX = 128


class ChunkRange(msgspec.Struct, frozen=True):
    """So many leaves, from where the chunk before ends, and the roots of the largest complete subtrees in them."""

    count: int
    hashes: tuple[bytes, ...]


class SnapshotManifest(msgspec.Struct, frozen=True):
    """`horizon` is the signed op that moved the horizon, and `law` are the ops by which it counts: the rules that it
    depends on, and what says who may do what, up to that op. `note` has the cosignatures on the root, as a
    signed note; a node by itself has none.
    """

    format: int
    mesh: str
    horizon: bytes
    law: tuple[bytes, ...]
    note: bytes
    chunks: tuple[ChunkRange, ...]

    @property
    def leaves(self) -> int:
        return sum(each.count for each in self.chunks)

    def root(self) -> bytes:
        """The root that the chunks give. Raises Malformed."""
        whole = LeafRange()
        for each in self.chunks:
            whole.join(each.count, each.hashes)
        return whole.root()

    def firsts(self) -> Iterator[int]:
        """The number of the first leaf of each chunk."""
        first = 0
        for each in self.chunks:
            yield first
            first += each.count


_RANGE = struct(ChunkRange, U64, seq(_HASH, _SUBTREES_MAX))
_MANIFEST = struct(SnapshotManifest, U32, STR, BYTES, seq(BYTES, LAW_MAX), BYTES, seq(_RANGE, CHUNKS_MAX))


def encode_manifest(manifest: SnapshotManifest) -> bytes:
    return encode(_MANIFEST, manifest)


def decode_manifest(data: bytes) -> SnapshotManifest:
    """Raises Malformed."""
    if len(data) > MANIFEST_BYTES_MAX:
        raise Malformed(f"a manifest has at most {MANIFEST_BYTES_MAX} bytes")
    said = U32.read(Reader(data))
    if said != FORMAT:
        raise Malformed(f"the snapshot has format {said}, and this program reads {FORMAT}; upgrade hocket")
    manifest = decode_value(_MANIFEST, data)
    if max(map(len, (manifest.horizon, *manifest.law))) > MAX_OP_BYTES or len(manifest.note) > NOTE_BYTES_MAX:
        raise Malformed("an op or a note of the manifest is too large")
    first = 0
    for each in manifest.chunks:
        if not 0 < each.count <= CHUNK_LEAVES_MAX or len(heights(first, each.count)) != len(each.hashes):
            raise Malformed("a chunk of the manifest has a wrong number of leaves or subtrees")
        first += each.count
    return manifest


class SnapshotChunk(NamedTuple):
    """The bytes of a chunk, and what the manifest says of it."""

    data: bytes
    range: ChunkRange


def cut(leaves: Iterable[Leaf]) -> Iterator[SnapshotChunk]:
    """The chunks of a snapshot. It holds one in memory at a time. Raises Malformed for a leaf that is too large."""
    run, part, size = LeafRange(), list[Leaf](), 0
    for each in leaves:
        if len(each.data) > LEAF_BYTES_MAX:
            raise Malformed(f"a leaf of {len(each.data)} bytes is larger than {LEAF_BYTES_MAX}")
        if part and (len(part) == CHUNK_LEAVES_MAX or size + len(each.data) > CHUNK_BYTES_MAX):
            yield _chunk(run, part)
            run, part, size = LeafRange(run.end), [], 0
        run.append(each.hash)
        part.append(each)
        size += len(each.data)
    if part:
        yield _chunk(run, part)


def _chunk(run: LeafRange, part: Sequence[Leaf]) -> SnapshotChunk:
    out = bytearray()
    write_varint(out, run.first)
    write_varint(out, len(part))
    for each in part:
        out.append(each.tag)
        write_varint(out, len(each.data))
        out += each.data
    return SnapshotChunk(bytes(out), ChunkRange(run.count, run.hashes))


def read_chunk(data: bytes, first: int, expected: ChunkRange) -> list[Leaf]:
    """The leaves of a chunk whose first leaf has this number. Raises Malformed unless the chunk is the one that the
    manifest names.
    """
    if len(data) > CHUNK_SIZE_MAX:
        raise Malformed(f"a chunk of {len(data)} bytes is larger than {CHUNK_SIZE_MAX}")
    reader = Reader(data)
    at, count = reader.varint(), reader.varint(CHUNK_LEAVES_MAX)
    if at != first:
        raise Malformed(f"the chunk begins with leaf {at}, and leaf {first} belongs there")
    if count != expected.count:
        raise Malformed(f"the chunk has {count} leaves, and the manifest counts {expected.count}")
    found: list[Leaf] = []
    run = LeafRange(first)
    for _ in range(count):
        tag = reader.take(1)[0]
        each = leaf(tag, reader.take(reader.varint(LEAF_BYTES_MAX)))
        if found and each.tag < found[-1].tag:
            raise Malformed("the leaves of the chunk are not in their order")
        run.append(each.hash)
        found.append(each)
    if reader.remaining():
        raise Malformed(f"{reader.remaining()} bytes follow the last leaf")
    if run.hashes != expected.hashes:
        raise Malformed("the leaves of the chunk do not have the hash that the signed root covers")
    return found
