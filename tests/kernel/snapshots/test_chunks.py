"""Chunks of a snapshot: what a writer cuts, a reader puts together again; what was damaged, cut off, moved or taken
from another snapshot is refused with its reason.
"""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.kernel.checkpoints.merkle import root_of
from hocket.kernel.postcard import Malformed
from hocket.kernel.snapshots import chunks
from hocket.kernel.snapshots.chunks import (
    SnapshotChunk,
    SnapshotManifest,
    cut,
    decode_manifest,
    encode_manifest,
    read_chunk,
)
from hocket.kernel.snapshots.leaves import Leaf, LeafTag
from tests.kernel.snapshots.entries import kept_entry

LEAVES = st.lists(
    st.builds(Leaf, st.sampled_from([LeafTag.HEAD, LeafTag.BASE]), st.binary(max_size=60)), max_size=40
).map(sorted)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_LEAVES_MAX", 5)
    monkeypatch.setattr(chunks, "CHUNK_BYTES_MAX", 100)


def manifest_of(cut_up: Sequence[SnapshotChunk]) -> SnapshotManifest:
    return SnapshotManifest(
        chunks.FORMAT, "did:key:z6Mk", b"op", (b"law",), b"note", tuple(each.range for each in cut_up)
    )


def some_leaves(count: int = 12) -> list[Leaf]:
    return [Leaf(LeafTag.BASE, b"leaf %03d" % each) for each in range(count)]


@given(LEAVES)
def test_chunks_are_put_together_again(leaves: list[Leaf]) -> None:
    cut_up = list(cut(leaves))
    manifest = decode_manifest(encode_manifest(manifest_of(cut_up)))
    assert manifest.root() == root_of(each.hash for each in leaves)
    assert manifest.leaves == len(leaves)
    found = [
        read_chunk(each.data, first, named)
        for each, first, named in zip(cut_up, manifest.firsts(), manifest.chunks, strict=True)
    ]
    assert [leaf for part in found for leaf in part] == leaves
    assert all(len(part) <= 5 for part in found)
    assert all(len(part) == 1 or sum(len(leaf.data) for leaf in part) <= 100 for part in found)


@given(LEAVES.filter(bool), st.data())
def test_no_changed_byte_of_a_chunk_passes(leaves: list[Leaf], data: st.DataObject) -> None:
    cut_up = list(cut(leaves))
    first = 0
    for each in cut_up:
        at = data.draw(st.integers(0, len(each.data) - 1))
        changed = bytearray(each.data)
        changed[at] ^= data.draw(st.integers(1, 255))
        with pytest.raises(Malformed):
            read_chunk(bytes(changed), first, each.range)
        first += each.range.count


def refusal(data: bytes, first: int, chunk: SnapshotChunk) -> str:
    with pytest.raises(Malformed) as refused:
        read_chunk(data, first, chunk.range)
    return str(refused.value)


def test_a_chunk_that_is_cut_off_or_goes_on_is_refused() -> None:
    chunk = next(cut(some_leaves()))
    assert "ends" in refusal(chunk.data[:-1], 0, chunk)
    assert "follow the last leaf" in refusal(chunk.data + b"\0", 0, chunk)
    assert refusal(b"", 0, chunk)


def test_chunks_in_another_order_are_refused() -> None:
    left, right, _ = cut(some_leaves())
    assert "begins with leaf 5, and leaf 0 belongs there" in refusal(right.data, 0, left)


def test_a_chunk_of_another_snapshot_is_refused() -> None:
    here = next(cut(some_leaves()))
    there = next(cut([Leaf(LeafTag.BASE, b"leaf x%02d" % each) for each in range(12)]))
    assert "signed root" in refusal(there.data, 0, here)


def test_a_leaf_in_the_wrong_place_is_refused() -> None:
    left, right = Leaf(LeafTag.BASE, b"a"), Leaf(LeafTag.HEAD, b"b")
    chunk = next(cut([left, right]))
    assert "not in their order" in refusal(chunk.data, 0, chunk)


def test_what_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    chunk = next(cut(some_leaves()))
    monkeypatch.setattr(chunks, "CHUNK_SIZE_MAX", len(chunk.data) - 1)
    assert "larger than" in refusal(chunk.data, 0, chunk)
    monkeypatch.setattr(chunks, "LEAF_BYTES_MAX", 7)
    with pytest.raises(Malformed, match="larger than 7"):
        list(cut(some_leaves()))
    manifest = encode_manifest(manifest_of([chunk]))
    monkeypatch.setattr(chunks, "MANIFEST_BYTES_MAX", len(manifest) - 1)
    with pytest.raises(Malformed, match="at most"):
        decode_manifest(manifest)


def test_the_manifest_of_a_later_version_says_so() -> None:
    later = msgspec.structs.replace(manifest_of([]), format=2)
    with pytest.raises(Malformed, match="upgrade hocket"):
        decode_manifest(encode_manifest(later))


def test_a_manifest_with_another_run_has_another_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_LEAVES_MAX", 4)
    cut_up = list(cut(some_leaves()))
    manifest = manifest_of(cut_up)
    swapped = msgspec.structs.replace(manifest, chunks=(cut_up[1].range, cut_up[0].range, cut_up[2].range))
    assert swapped.root() != manifest.root()
    fewer = msgspec.structs.replace(manifest, chunks=manifest.chunks[:-1])
    assert fewer.root() != manifest.root()


def test_the_tree_covers_an_entry_without_its_signature() -> None:
    """Which is checked by its author's key: see the reader of snapshots."""
    entry = kept_entry()
    signed = Leaf(LeafTag.ENTRY, entry)
    other = Leaf(LeafTag.ENTRY, kept_entry(wall=2))
    assert signed.hash != other.hash
    with pytest.raises(Malformed):
        Leaf(LeafTag.ENTRY, b"no op").hash  # noqa: B018
    with pytest.raises(Malformed):
        Leaf(LeafTag.ENTRY, entry[:-1]).hash  # noqa: B018
