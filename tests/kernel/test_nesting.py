"""The bound on the depth of a JSON text, beside a count over the value itself."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.kernel.jws import NESTING_MAX, is_too_deep

values = st.recursive(
    st.none() | st.text(alphabet='a"\\[]{}\n\u00e4') | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet='"\\[{'), inner, max_size=3),
)


def depth(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


@given(values, st.integers(NESTING_MAX - 6, NESTING_MAX + 1), st.booleans())
def test_it_is_the_depth_of_the_value(value: object, around: int, ascii_only: bool):
    for _ in range(around):
        value = [value]
    text = json.dumps(value, ensure_ascii=ascii_only).encode()
    assert is_too_deep(text) == (depth(value) > NESTING_MAX)


@pytest.mark.parametrize("text", [b"", b'"' + b"[" * 100 + b'"', b"x" + b"[" * 100, b'["' + b'\\"[' * 100 + b'"]'])
def test_brackets_in_texts_do_not_count(text: bytes):
    assert not is_too_deep(text)


@pytest.mark.parametrize("text", [b"[" * 100_000, b' {"a":' * 100_000, b'["\\' + b"[" * 100_000])
def test_what_does_not_end_is_bounded_too(text: bytes):
    assert is_too_deep(text)
