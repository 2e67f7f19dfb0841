"""Parts of a result: their forms, and that a listener gives each once and in order whatever is lost."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.bus.envelope import DATA_BYTES_MAX
from hocket.families.jobs.parts import (
    EARLY_MAX,
    PART_BYTES_MAX,
    Part,
    PartsInOrder,
    PartsMessage,
    WantedParts,
    decode_message,
    decode_wanted,
    decode_whole,
    encode_message,
    encode_wanted,
    encode_whole,
    joined,
)
from hocket.kernel.postcard import Malformed

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.lists(JSON, max_size=5) | st.lists(st.binary(), max_size=5), st.integers(0, 2**63), st.integers(0, 2**63))
def test_a_message_is_read_as_it_was_written(values: list[Any], fence: int, first: int) -> None:
    is_bytes = bool(values) and all(isinstance(each, bytes) for each in values)
    written = [msgspec.json.encode(each) for each in values]
    message = decode_message(encode_message(fence, first, written, is_bytes))
    assert message == PartsMessage(fence, first, values)
    assert decode_wanted(encode_wanted(fence, first)) == WantedParts(fence, first)


@given(st.binary(max_size=60))
def test_bytes_of_strangers_are_malformed_or_read(data: bytes) -> None:
    for read in (decode_message, decode_wanted, lambda data: decode_whole(data, False)):
        try:
            read(data)
        except Malformed:
            pass


def test_the_largest_part_fits_into_a_message() -> None:
    part = b'"' + b"x" * (PART_BYTES_MAX - 2) + b'"'
    assert len(encode_message(2**64 - 1, 2**64 - 1, [part], False)) <= DATA_BYTES_MAX


@pytest.mark.parametrize(
    ("values", "whole"),
    [([], None), (["a", "b"], "ab"), ([b"a", b"b"], b"ab"), ([1, "b"], [1, "b"]), ([["a"], ["b"]], [["a"], ["b"]])],
)
def test_text_and_bytes_are_joined_and_other_values_are_a_list(values: list[Any], whole: Any) -> None:
    assert joined(values) == whole


@given(st.data(), st.integers(0, 30), st.integers(1, 8))
def test_each_part_is_given_once_and_in_order_whatever_the_bus_does(data: st.DataObject, count: int, size: int) -> None:
    """Messages are lost, repeated and mixed, and some are of an earlier run."""
    values = list(range(count))
    sent = [PartsMessage(2, first, values[first : first + size]) for first in range(0, count, size)]
    sent += [PartsMessage(1, 0, ["old"]), PartsMessage(3, 0, ["of no claim"])]
    heard = data.draw(st.lists(st.sampled_from(sent), max_size=2 * len(sent)))
    order = PartsInOrder()
    order.begin(2)
    given = [part for message in heard for part in order.take(message)]
    assert [part.number for part in given] == list(range(len(given)))
    given += order.finish(2, values)
    assert given == [Part(value, value, 2) for value in values]
    assert decode_whole(encode_whole([b"%d" % each for each in values]), False) == values


def test_a_new_fence_begins_again_and_says_so_once() -> None:
    order = PartsInOrder()
    assert order.begin(1) and not order.begin(1)
    assert list(order.take(PartsMessage(1, 0, ["a", "b"]))) == [Part("a", 0, 1), Part("b", 1, 1)]
    assert order.begin(2)
    assert list(order.take(PartsMessage(1, 2, ["late"]))) == []
    assert list(order.take(PartsMessage(2, 0, ["A"]))) == [Part("A", 0, 2, is_restart=True)]
    assert list(order.finish(2, ["A", "B"])) == [Part("B", 1, 2)]


def test_a_run_that_nobody_heard_is_no_restart() -> None:
    order = PartsInOrder()
    order.begin(1)
    assert list(order.finish(2, ["a"])) == [Part("a", 0, 2)]


def test_parts_before_their_turn_are_bounded() -> None:
    order = PartsInOrder()
    order.begin(1)
    later, all = EARLY_MAX * 2, list(range(EARLY_MAX * 3))
    assert list(order.take(PartsMessage(1, later, all[later:]))) == []
    assert list(order.take(PartsMessage(1, later - 9, all[later - 9 :]))) == [] and order.has_gap
    given = [each.value for first in range(0, later, 7) for each in order.take(PartsMessage(1, first, all[first:][:7]))]
    assert given == all[: len(given)] and len(given) >= later + EARLY_MAX and not order.has_gap
