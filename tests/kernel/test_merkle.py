"""The Merkle tree of RFC 6962: known roots, and proofs, which are found anew and prove nothing else."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.kernel.checkpoints.merkle import (
    EMPTY_ROOT,
    SIZE_MAX,
    CompactRange,
    InclusionProver,
    consistency_proof,
    inclusion_proof,
    is_consistent,
    is_included,
    leaf_hash,
    root_of,
)
from hocket.kernel.postcard import Malformed

# The entries and the roots that the programs of Certificate Transparency are tested with.
ENTRIES = [
    bytes.fromhex(each)
    for each in (
        *("", "00", "10", "2021", "3031", "40414243", "5051525354555657"),
        "606162636465666768696a6b6c6d6e6f",
    )
]
ROOTS = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]


def leaves_of(count: int) -> list[bytes]:
    return [leaf_hash(b"%d" % each) for each in range(count)]


def defined_root(entries: list[bytes]) -> bytes:
    """MTH as section 2.1 of the RFC defines it."""
    if len(entries) < 2:
        return hashlib.sha256(b"\0" + entries[0] if entries else b"").digest()
    half = 1
    while half * 2 < len(entries):
        half *= 2
    return hashlib.sha256(b"\1" + defined_root(entries[:half]) + defined_root(entries[half:])).digest()


@pytest.mark.parametrize("count", range(len(ROOTS)))
def test_roots_are_those_of_certificate_transparency(count: int) -> None:
    entries = ENTRIES[:count]
    assert root_of(map(leaf_hash, entries)).hex() == defined_root(entries).hex() == ROOTS[count]


@given(st.lists(st.binary(max_size=4), max_size=70), st.integers(0, 70))
def test_a_range_goes_on_where_it_was_stored(entries: list[bytes], cut: int) -> None:
    tree = CompactRange()
    for each in entries[:cut]:
        tree.append(leaf_hash(each))
    again = CompactRange.read(tree.size, tree.encode())
    for each in entries[cut:]:
        again.append(leaf_hash(each))
    assert (again.size, again.root()) == (len(entries), defined_root(entries))


@pytest.mark.parametrize("size,peaks", [(1, 0), (0, 1), (3, 1), (4, 2), (-1, 0), (SIZE_MAX + 1, 1)])
def test_a_range_with_other_peaks_than_its_size_has_is_refused(size: int, peaks: int) -> None:
    with pytest.raises(Malformed):
        CompactRange(size, [EMPTY_ROOT] * peaks)
    with pytest.raises(Malformed):
        CompactRange.read(1, b"short")


@given(st.integers(1, 70), st.data())
def test_a_proof_shows_its_leaf_and_nothing_else(size: int, data: st.DataObject) -> None:
    leaves, index = leaves_of(size), data.draw(st.integers(0, size - 1))
    proof, root = inclusion_proof(leaves, index), root_of(leaves)
    assert is_included(leaves[index], index, size, root, proof)
    other = data.draw(st.integers(0, size - 1).filter(lambda each: each != index) if size > 1 else st.just(size))
    assert not is_included(leaves[index], other, size, root, proof)
    assert not is_included(leaf_hash(b"another"), index, size, root, proof)
    assert not is_included(leaves[index], index, size, EMPTY_ROOT, proof)
    assert not is_included(leaves[index], index, size, root, [*proof, EMPTY_ROOT])
    assert not proof or not is_included(leaves[index], index, size, root, proof[:-1])


@given(st.integers(1, 70), st.data())
def test_a_proof_shows_that_a_tree_goes_on_and_nothing_else(size: int, data: st.DataObject) -> None:
    leaves, first = leaves_of(size), data.draw(st.integers(1, size))
    proof, old, new = consistency_proof(leaves, first), root_of(leaves[:first]), root_of(leaves)
    assert is_consistent(first, old, size, new, proof)
    other = root_of([leaf_hash(b"another"), *leaves[1:first]])
    assert not is_consistent(first, other, size, new, proof)
    assert not is_consistent(first, old, size, other if first == size else EMPTY_ROOT, proof)
    assert not is_consistent(first, old, size, new, [*proof, EMPTY_ROOT])
    assert not proof or not is_consistent(first, old, size, new, proof[:-1])
    assert is_consistent(0, EMPTY_ROOT, size, new, []) and not is_consistent(0, old, size, new, [])


@given(st.integers(-1, 9), st.integers(-1, 9), st.lists(st.sampled_from([EMPTY_ROOT, leaf_hash(b"")]), max_size=5))
def test_any_input_gives_an_answer(first: int, size: int, proof: list[bytes]) -> None:
    assert is_consistent(first, b"", size, b"", proof) is (first == size > 0 and not proof)
    assert is_included(b"no leaf", first, size, b"", proof) is False


def test_there_is_no_proof_for_what_is_not_there() -> None:
    with pytest.raises(ValueError):
        inclusion_proof(leaves_of(3), 3)
    with pytest.raises(ValueError):
        consistency_proof(leaves_of(3), 4)


@given(st.integers(1, 70), st.data())
def test_a_prover_that_begins_anywhere_gives_the_same_proof(size: int, data: st.DataObject) -> None:
    leaves = [leaf_hash(bytes([number])) for number in range(size)]
    index = data.draw(st.integers(0, size - 1))
    first = data.draw(st.integers(0, index))
    start = CompactRange()
    for leaf in leaves[:first]:
        start.append(leaf)
    prover = InclusionProver(start)
    for number, leaf in enumerate(leaves[first:], start=first):
        prover.append(leaf, number == index)
    assert prover.proof() == (index, inclusion_proof(leaves, index))
    assert prover.root() == root_of(leaves) and start.size == first


def test_a_prover_without_its_leaf_proves_nothing() -> None:
    prover = InclusionProver(CompactRange())
    prover.append(leaf_hash(b"a"))
    with pytest.raises(Malformed, match="not in the tree"):
        prover.proof()
