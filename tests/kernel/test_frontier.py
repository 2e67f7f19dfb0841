"""Frontiers: one spelling each, and merging is taking the later."""

import base64
import gc
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.kernel.clock import Hlc
from hocket.kernel.frontier import (
    AUTHORS_MAX,
    Frontier,
    decode_frontier,
    encode_frontier,
    frontier_text,
    merge,
    parse_frontier,
)
from hocket.kernel.postcard import Malformed

pytestmark = pytest.mark.touches("LW-28")

NODES = st.integers(0, 2**64 - 1)
ENTRIES = st.builds(Hlc, st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), NODES | st.integers(0, 5))
FRONTIERS = st.lists(ENTRIES, max_size=6).map(lambda stamps: {stamp.node: stamp for stamp in stamps})


def test_the_form_by_exact_bytes() -> None:
    assert encode_frontier({}) == b"\x00"
    assert frontier_text({}) == "AA"
    assert parse_frontier("AA") == {}
    frontier = {300: Hlc(128, 2, 300), 7: Hlc(1, 0, 7)}
    assert encode_frontier(frontier) == b"\x02" + b"\x07\x01\x00\x07" + b"\xac\x02\x80\x01\x02\xac\x02"


@given(FRONTIERS)
def test_a_frontier_comes_back(frontier: Frontier) -> None:
    data = encode_frontier(frontier)
    assert decode_frontier(data) == frontier
    assert encode_frontier(dict(reversed(frontier.items()))) == data
    text = frontier_text(frontier)
    assert text == base64.urlsafe_b64encode(data).decode().rstrip("=")
    assert parse_frontier(text) == frontier


@given(st.binary(max_size=60))
def test_what_is_read_has_no_second_spelling(data: bytes) -> None:
    try:
        frontier = decode_frontier(data)
    except Malformed:
        return
    assert encode_frontier(frontier) == data


@given(st.text(max_size=40) | st.text(alphabet="ABQg-_=+/", max_size=40))
def test_no_text_has_a_second_spelling(text: str) -> None:
    try:
        frontier = parse_frontier(text)
    except Malformed:
        return
    assert frontier_text(frontier) == text


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00\x00",
        b"\x01",
        b"\x01\x07\x01\x00",
        b"\x01\x07\x01\x00\x08",
        b"\x02\x07\x01\x00\x07\x07\x01\x00\x07",
        b"\x02\x08\x01\x00\x08\x07\x01\x00\x07",
        b"\x01\x07\x01\x00\x07\x00",
        b"\x01\x87\x00\x01\x00\x07",
        b"\x01\x07\x01\x80\x80\x80\x80\x10\x07",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    ],
)
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        decode_frontier(data)


@pytest.mark.parametrize("text", ["", "A", "AA==", "AAA", "AB", "AA\n", " AA", "é", "A" * 1_000_000])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(Malformed):
        parse_frontier(text)


def test_as_many_authors_as_there_may_be() -> None:
    first = 2**64 - AUTHORS_MAX
    full = {node: Hlc(2**64 - 1, 2**32 - 1, node) for node in range(first, 2**64)}
    assert parse_frontier(frontier_text(full)) == full
    more = full | {1: Hlc(1, 0, 1)}
    with pytest.raises(Malformed):
        encode_frontier(more)
    data = bytearray(encode_frontier(full))
    data[:2] = b"\x91\x4e"  # 10,001
    with pytest.raises(Malformed):
        decode_frontier(bytes(data[:2] + b"\x01\x01\x00\x01" + data[2:]))


def test_an_author_has_its_own_time() -> None:
    with pytest.raises(Malformed):
        encode_frontier({1: Hlc(1, 0, 2)})


@given(FRONTIERS, FRONTIERS, FRONTIERS)
def test_merging_takes_the_later_of_each(a: Frontier, b: Frontier, c: Frontier) -> None:
    before = dict(a)
    both = merge(a, b)
    assert a == before
    assert both == {node: max(f[node] for f in (a, b) if node in f) for node in {*a, *b}}
    assert merge(b, a) == both
    assert merge(both, a) == both
    assert merge(both, c) == merge(a, merge(b, c))


def _grown_bytes(first: int, last: int) -> int:
    """How much memory is kept of frontiers in which one author moves on."""
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    for wall in range(first, last):
        encode_frontier({7: Hlc(wall, 0, 7), 8: Hlc(1, 0, 8)})
    gc.collect()
    return tracemalloc.get_traced_memory()[0] - before


def test_frontiers_that_were_encoded_are_not_kept() -> None:
    """An author that writes on is in each frontier with another time. Memory is needed for authors, not for times."""
    tracemalloc.start()
    try:
        # The encodings of numbers are cached, up to some thousand.
        _grown_bytes(1, 8_000)
        assert _grown_bytes(8_000, 16_000) < 8_000 * 10
    finally:
        tracemalloc.stop()
