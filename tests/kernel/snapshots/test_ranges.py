"""Runs of leaves: however a tree is cut, the runs give its root, and no run passes for another."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.kernel.checkpoints.merkle import leaf_hash, root_of
from hocket.kernel.postcard import Malformed
from hocket.kernel.snapshots.ranges import LeafRange, heights, range_of

LEAVES = [leaf_hash(b"%d" % each) for each in range(300)]


@st.composite
def cuts(draw: st.DrawFn) -> list[int]:
    size = draw(st.integers(0, len(LEAVES)))
    inner = draw(st.sets(st.integers(1, max(1, size - 1)), max_size=8))
    return sorted({0, size, *(each for each in inner if each < size)})


@given(cuts())
def test_the_runs_of_a_tree_give_its_root(borders: list[int]) -> None:
    whole = LeafRange()
    for first, end in pairwise(borders):
        run = range_of(first, LEAVES[first:end])
        assert len(run.hashes) == len(heights(first, end - first))
        whole.join(run.count, run.hashes)
    assert whole.count == borders[-1]
    assert whole.root() == root_of(LEAVES[: borders[-1]])


@given(st.integers(0, 200), st.integers(1, 100), st.data())
def test_another_leaf_gives_another_run(first: int, count: int, data: st.DataObject) -> None:
    run = range_of(first, LEAVES[first : first + count])
    at = data.draw(st.integers(0, count - 1))
    changed = LEAVES[first : first + count]
    changed[at] = leaf_hash(b"another")
    assert range_of(first, changed).hashes != run.hashes


@given(st.integers(0, 200), st.integers(1, 100), st.integers(-1, 1))
def test_a_run_with_too_many_or_too_few_subtrees_is_refused(first: int, count: int, more: int) -> None:
    whole = LeafRange()
    whole.join(first, range_of(0, LEAVES[:first]).hashes)
    hashes = range_of(first, LEAVES[first : first + count]).hashes
    wrong = (*hashes, hashes[0]) if more > 0 else hashes[:-1]
    with pytest.raises(Malformed, match="subtrees"):
        whole.join(count, wrong)
