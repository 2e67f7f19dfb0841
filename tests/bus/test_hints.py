"""What a hint says: widening and merging lose nothing, and every value has one form as bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.bus import hints as c
from hocket.bus.hints import (
    ANYTHING,
    NOTHING,
    Changes,
    about,
    decode_changes,
    decode_or_anything,
    encode_changes,
    encode_within,
    gathered,
)
from hocket.kernel.postcard import Malformed

pytestmark = pytest.mark.touches("LW-40")

KINDS = st.text("ab.", max_size=4) | st.text(st.characters(codec="utf-8"), max_size=3)
SUBJECTS = st.tuples(st.sampled_from(["", "job", "log", "lock"]), st.binary(max_size=2))
CHANGES = st.builds(Changes, st.frozensets(KINDS, max_size=20), st.frozensets(SUBJECTS, max_size=40))


def naive(changes: Changes, topics: Changes) -> bool:
    """Matching, said once more and slowly."""

    def is_open(kind: str) -> bool:
        return kind == "" or kind.endswith(".")

    kinds = any(
        k == t or (is_open(t) and k.startswith(t)) or (is_open(k) and t.startswith(k))
        for k in changes.kinds
        for t in topics.kinds
    )
    return kinds or any(
        (f == g and (k == h or not k or not h)) or (f == "" and not k) or (g == "" and not h)
        for f, k in changes.subjects
        for g, h in topics.subjects
    )


@given(CHANGES, CHANGES)
def test_a_change_matches_the_topics_that_it_has_something_in_common_with(one: Changes, other: Changes) -> None:
    assert one.matches(other) == naive(one, other) == other.matches(one)


@given(CHANGES, CHANGES, CHANGES)
def test_a_merge_matches_what_either_matches_and_is_bounded(one: Changes, other: Changes, topics: Changes) -> None:
    merged = one | other
    assert merged.matches(topics) or not (one.matches(topics) or other.matches(topics))
    if one and other and one != other:
        assert len(merged.kinds) <= c.KINDS_MAX
        assert len(merged.subjects) <= c.FAMILIES_MAX * c.KEYS_MAX
    assert one | NOTHING == NOTHING | one == one


@given(CHANGES, CHANGES, st.integers(7, 200))
def test_what_must_be_short_is_widened_and_never_narrowed(changes: Changes, topics: Changes, size: int) -> None:
    data = encode_within(changes, size)
    assert len(data) <= size
    short = decode_changes(data)
    assert short == changes or len(encode_changes(changes)) > size
    assert short.matches(topics) or not changes.matches(topics)


@given(CHANGES, CHANGES)
def test_bytes_and_back(one: Changes, other: Changes) -> None:
    assert decode_changes(encode_changes(one)) == one
    assert decode_or_anything(encode_changes(one) + encode_changes(other)) in (one | other, ANYTHING)
    assert decode_or_anything(b"") == NOTHING


@given(st.binary(max_size=40) | CHANGES.map(encode_changes).flatmap(lambda data: st.tuples(
    st.just(data), st.integers(0, len(data) - 1), st.integers(0, 255)
)).map(lambda hit: hit[0][: hit[1]] + bytes([hit[2]]) + hit[0][hit[1] + 1 :]))  # fmt: skip
def test_what_is_read_is_the_one_form_of_what_it_says(data: bytes) -> None:
    try:
        changes = decode_changes(data)
    except Malformed:
        return
    assert encode_changes(changes) == data


@pytest.mark.parametrize(
    "data",
    [
        b"\1",
        b"\1" * 10,
        b"\3\0\0",
        encode_changes(ANYTHING)[:-1],
        encode_changes(about("job", b"x")) + b"\1",
        b"\2\2\1b\1a\0",
        b"\2\2\1a\1a\0",
        b"\2\0\1\3job\0",
        b"\2\0\2\3job\1\1x\3job\1\1y",
        b"\2\0\1\3job\2\1y\1x",
        b"\2\1\1\xff\0",
    ],
    ids=[
        "the first version", "many of the first version", "a later version", "an end", "two versions",
        "kinds in no order", "a kind twice", "a family without keys", "a family twice", "keys in no order", "no text",
    ],
)  # fmt: skip
def test_what_cannot_be_read_may_mean_anything(data: bytes) -> None:
    with pytest.raises(Malformed):
        decode_changes(data)
    assert decode_or_anything(data) == ANYTHING


def test_too_many_of_a_sort_become_all_of_that_sort_alone() -> None:
    many = [bytes([n]) for n in range(c.KEYS_MAX + 1)]
    found = gathered(["a"], {"job": many, "lock": [b"x"], "log": []})
    assert found == Changes(frozenset(("a",)), frozenset((("job", b""), ("lock", b"x"))))
    assert gathered(["a"], {"job": many[:-1]}).subjects == frozenset(("job", key) for key in many[:-1])
    kinds = [f"k{n}" for n in range(c.KINDS_MAX + 1)]
    assert gathered(kinds, {}).kinds == {""}
    assert gathered(kinds[:-1], {}).kinds == set(kinds[:-1])
    families = {f"f{n}": [b"x"] for n in range(c.FAMILIES_MAX + 1)}
    assert gathered((), families).subjects == ANYTHING.subjects


def test_a_kind_that_only_begins_alike_is_another_one() -> None:
    render = Changes(frozenset(("acme.render",)))
    assert render.matches(Changes(frozenset(("acme.",))))
    assert not render.matches(Changes(frozenset(("acme.renderer", "acme.render.", "acm", "acme"))))
    assert ANYTHING.matches(render) and render.matches(ANYTHING)
    assert not NOTHING.matches(ANYTHING)
