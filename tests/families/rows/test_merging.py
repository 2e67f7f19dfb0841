"""The three-way merge of JSON objects: symmetric, and no member that only one side changed is ever lost."""

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.families.rows.rules import MergeClash, merged

NAMES = ("a", "b", "c", "é", "")
leaves = st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from((0.0, 1.0, "1", "", [], [1], [{}]))
values = st.recursive(leaves, lambda inner: st.dictionaries(st.sampled_from(NAMES), inner, max_size=4), max_leaves=12)
objects = st.dictionaries(st.sampled_from(NAMES), values, max_size=5)


def encoded(value: Any) -> bytes:
    return msgspec.json.encode(value, order="sorted")


def together(base: Any, left: Any, right: Any) -> Any:
    """The merged value; a clash is the class of the error."""
    try:
        found = merged(encoded(base), encoded(left), encoded(right))
    except MergeClash:
        return MergeClash
    assert found is not None
    return msgspec.json.decode(found)


def same(left: Any, right: Any) -> bool:
    return encoded(left) == encoded(right)


@pytest.mark.touches("VX-12")
@given(values, values, values)
def test_it_does_not_matter_which_side_is_called_left(base: Any, left: Any, right: Any) -> None:
    one, other = together(base, left, right), together(base, right, left)
    assert one is other is MergeClash or same(one, other)


@given(values, values)
def test_a_side_that_changed_nothing_gives_way(base: Any, changed: Any) -> None:
    assert same(together(base, changed, base), changed)


@pytest.mark.req("VX-13")
@given(values, values)
def test_the_same_change_on_both_sides_is_no_agreement(base: Any, changed: Any) -> None:
    """Each of them may have counted, or taken something."""
    assert same(base, changed) or together(base, changed, changed) is MergeClash


@st.composite
def edits(draw: st.DrawFn) -> tuple[Any, Any, Any, dict[tuple[str, ...], Any]]:
    """An object, and two sides of it that changed different members, some of them in nested objects. Also what each
    changed place must be in the end; an absent value stands for a removed member.
    """
    base = draw(objects)
    sides = [copy.deepcopy(base), copy.deepcopy(base)]
    expected: dict[tuple[str, ...], Any] = {}
    places = [(name,) for name in NAMES]
    places += [(name, inner) for name, value in base.items() if isinstance(value, dict) for inner in NAMES]
    for place in draw(st.lists(st.sampled_from(places), unique=True, max_size=6)):
        if any(place[: len(other)] == other or other[: len(place)] == place for other in expected):
            continue
        side: Any = sides[draw(st.integers(0, 1))]
        for name in place[:-1]:
            side = side[name]
        if draw(st.booleans()) and place[-1] in side:
            expected[place] = Ellipsis
            del side[place[-1]]
        else:
            expected[place] = side[place[-1]] = draw(values)
    return base, *sides, expected


@pytest.mark.req("VX-12")
@given(edits())
def test_a_member_that_only_one_side_changed_is_never_lost(
    edited: tuple[Any, Any, Any, dict[tuple[str, ...], Any]],
) -> None:
    base, left, right, expected = edited
    found = together(base, left, right)
    assert found is not MergeClash
    for place, value in expected.items():
        inner = found
        for name in place[:-1]:
            inner = inner[name]
        assert place[-1] not in inner if value is Ellipsis else same(inner[place[-1]], value)
    untouched = [name for name in base if all(place[0] != name for place in expected)]
    assert all(same(found[name], base[name]) for name in untouched)


@pytest.mark.parametrize(
    ("base", "left", "right"),
    [
        ({"a": 1}, {"a": 2}, {"a": 3}),
        ({"a": 1}, {"a": 2}, {"a": 2}),
        ({"a": 1}, {}, {}),
        ({}, {"a": 1}, {"a": 1}),
        ({"a": 1}, {}, {"a": 3}),
        ({}, {"a": 2}, {"a": 3}),
        ({}, {"a": {"b": 1}}, {"a": {"c": 1}}),
        ({"a": 1}, {"a": True}, {"a": 1.0}),
        ([1], [1, 2], [1, 3]),
        (1, 2, 3),
        ({"a": 1}, 7, {"a": 2}),
    ],
)
def test_two_changes_of_one_thing_clash(base: Any, left: Any, right: Any) -> None:
    assert together(base, left, right) is MergeClash


def test_values_that_only_python_calls_equal_are_different() -> None:
    assert same(together({"a": 1, "b": 0}, {"a": True, "b": 0}, {"a": 1, "b": 5}), {"a": True, "b": 5})


def test_a_removed_value_and_a_changed_one_clash() -> None:
    with pytest.raises(MergeClash):
        merged(b'{"a":1}', None, b'{"a":2}')
    assert merged(b'{"a":1}', None, b'{"a":1}') is None
