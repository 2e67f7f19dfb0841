"""The parts of a snapshot, which come from a peer or from a folder."""

from hocket.kernel.postcard import Malformed
from hocket.kernel.snapshots.chunks import (
    CHUNK_LEAVES_MAX,
    FORMAT,
    ChunkRange,
    SnapshotManifest,
    cut,
    decode_manifest,
    encode_manifest,
    read_chunk,
)
from hocket.kernel.snapshots.leaf_contents import PartialBundle, SnapshotBase, SnapshotHead, leaves_of, read_leaves
from hocket.kernel.snapshots.leaves import Leaf
from tests.fuzz.codecs import Sample
from tests.fuzz.mutate import Damage
from tests.fuzz.target import Target
from tests.kernel.snapshots.entries import kept_entry

_ENTRIES = [kept_entry(wall) for wall in range(1, 6)]
_HEADS = [SnapshotHead(bytes(12) + number.to_bytes(8, "big"), bytes(16), 1, bytes(32)) for number in range(3)]
_BASES = [SnapshotBase("lock", b"%d" % number, bytes(20), b"state") for number in range(3)]
LEAVES = list(leaves_of(_HEADS, _BASES, _ENTRIES, [PartialBundle(bytes(16), (1, 2))]))
(CHUNK,) = cut(LEAVES)
RANGES = CHUNK.range, ChunkRange(1, (bytes(32),))
MANIFESTS = [
    SnapshotManifest(FORMAT, "did:key:z6Mk", _ENTRIES[0], tuple(_ENTRIES[1:]), b"note", RANGES),
    SnapshotManifest(FORMAT, "", b"", (), b"", ()),
]


def _sample(data: bytes) -> Sample:
    return Sample(data, tuple(range(len(data) + 1)))


def _hold_manifest(data: bytes, read: SnapshotManifest) -> bool:
    assert encode_manifest(read) == data, "not the one form of what it says"
    assert all(0 < each.count <= CHUNK_LEAVES_MAX for each in read.chunks)
    read.root()
    assert list(read.firsts()) == [sum(each.count for each in read.chunks[:n]) for n in range(len(read.chunks))]
    return True


def _read_chunk(data: bytes) -> list[Leaf]:
    found = read_chunk(data, 0, CHUNK.range)
    read_leaves(found)
    return found


def _hold_chunk(data: bytes, read: list[Leaf]) -> bool:
    """Only the signatures of entries, which their authors' keys check, can differ."""
    assert len(data) == len(CHUNK.data)
    assert [each.covered for each in read] == [each.covered for each in LEAVES], "not what the root covers"
    return True


_MANIFEST_SAMPLES = [_sample(encode_manifest(each)) for each in MANIFESTS]
_CHUNK_SAMPLES = [_sample(CHUNK.data)]

TARGETS = (
    Target(
        *("snapshot-manifest", decode_manifest, (Malformed,), _hold_manifest, _MANIFEST_SAMPLES),
        lambda rng: Damage(rng, _MANIFEST_SAMPLES),
    ),
    Target(
        *("snapshot-chunk", _read_chunk, (Malformed,), _hold_chunk, _CHUNK_SAMPLES),
        lambda rng: Damage(rng, _CHUNK_SAMPLES),
    ),
)
