"""Ids: ULIDs in order and in text, node ids, hashes."""

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from ulid import ULID

from hocket.kernel.ids import (
    content_hash,
    derived_ulid,
    hash_text,
    make_ulid,
    next_ulid,
    node_id,
    node_text,
    parse_node,
    parse_ulid,
    ulid_ms,
    ulid_prefix_range,
    ulid_text,
)

pytestmark = pytest.mark.touches("LW-20")

ULIDS = st.binary(min_size=16, max_size=16)
RANDOM = st.binary(min_size=10, max_size=10)
MS = st.integers(0, 2**48 - 1)
DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


@given(ULIDS)
def test_text_comes_back_in_any_case_and_agrees_with_python_ulid(b: bytes) -> None:
    text = ulid_text(b)
    assert text == str(ULID(b))
    assert parse_ulid(text) == parse_ulid(text.lower()) == b


@given(ULIDS, ULIDS)
def test_text_sorts_as_bytes_do(a: bytes, b: bytes) -> None:
    assert (ulid_text(a) < ulid_text(b)) == (a < b)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0" * 25,
        "0" * 27,
        "8" + "0" * 25,
        "0" * 25 + "U",
        "0" * 25 + "I",
        "0" * 25 + "ſ",
        "0" * 25 + "\n",
        "0_0" + "0" * 23,
    ],
)
def test_what_is_no_ulid_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_ulid(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("size", [0, 15, 17])
def test_a_ulid_has_sixteen_bytes(size: int) -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        ulid_text(b"\0" * size)


@given(ULIDS, ULIDS, st.integers(0, 26))
def test_a_prefix_bounds_exactly_the_ulids_that_begin_with_it(b: bytes, other: bytes, size: int) -> None:
    prefix = ulid_text(b)[:size]
    low, high = ulid_prefix_range(prefix)
    assert ulid_prefix_range(prefix.lower()) == (low, high)
    assert low <= b <= high
    assert ulid_text(low).startswith(prefix) and ulid_text(high).startswith(prefix)
    assert (low <= other <= high) == ulid_text(other).startswith(prefix)


@pytest.mark.parametrize("prefix", ["8", "U", "01I", "0" * 27, " ", "0 ", "-"])
def test_an_illegal_prefix_is_refused(prefix: str) -> None:
    with pytest.raises(ValueError, match="beginning of a ULID"):
        ulid_prefix_range(prefix)


@given(MS, RANDOM)
def test_a_ulid_carries_its_time(ms: int, randomness: bytes) -> None:
    b = make_ulid(ms, randomness)
    assert len(b) == 16 and ulid_ms(b) == ms and b.endswith(randomness)


@pytest.mark.parametrize(("ms", "randomness"), [(-1, b"r" * 10), (2**48, b"r" * 10), (0, b"r" * 9), (0, b"r" * 11)])
def test_a_ulid_is_not_made_from_what_does_not_fit(ms: int, randomness: bytes) -> None:
    with pytest.raises(ValueError):
        make_ulid(ms, randomness)


@given(ULIDS.filter(lambda b: b != b"\xff" * 16))
def test_the_next_ulid_is_the_least_greater_one(previous: bytes) -> None:
    assert int.from_bytes(next_ulid(previous), "big") == int.from_bytes(previous, "big") + 1


def test_after_the_last_ulid_there_is_none() -> None:
    with pytest.raises(ValueError, match="last"):
        next_ulid(b"\xff" * 16)


@given(MS, st.lists(st.binary(max_size=8), max_size=4))
def test_a_derived_ulid_depends_on_nothing_but_its_parts(ms: int, parts: list[bytes]) -> None:
    b = derived_ulid(ms, *parts)
    assert b == derived_ulid(ms, *parts)
    assert ulid_ms(b) == ms
    assert b != derived_ulid(ms, *parts, b"")


def test_derived_ulids_tell_parts_apart() -> None:
    assert derived_ulid(1, b"ab", b"c") != derived_ulid(1, b"a", b"bc")
    assert derived_ulid(1, b"a")[6:] == blake3(b"\0\0\0\0\0\0\0\1a").digest()[:10]


@pytest.mark.req("LW-23")
def test_a_node_id_is_the_head_of_the_key_hash() -> None:
    # The first bytes of BLAKE3 of nothing are published: af1349b9f5f9a1a6...
    assert node_id(b"") == 0xAF1349B9F5F9A1A6
    assert node_text(0xAB) == "00000000000000ab"
    assert content_hash(b"").hex().startswith("af1349b9f5f9a1a6a0404dea36dcc949")
    assert hash_text(content_hash(b"")) == "blake3:" + content_hash(b"").hex()


@given(st.integers(0, 2**64 - 1))
def test_node_text_comes_back(n: int) -> None:
    assert parse_node(node_text(n)) == parse_node(node_text(n).upper()) == n


@pytest.mark.parametrize("text", ["", "0" * 15, "0" * 17, "0x" + "0" * 14, "g" * 16, "0" * 15 + "\n", "+" + "0" * 15])
def test_what_is_no_node_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a node id"):
        parse_node(text)
