"""Whether two keys overlap: compared with a plain model, and at a cost that grows like the keys and not like what their
stars can stand for.
"""

import sys
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.families.locks.index import overlap
from hocket.families.locks.rules import KEY_CHARS_MAX

parts = st.sampled_from(["a", "b", "ab", "/", "*", "**", "***", "/**/", "**/*", "*/"])
patterns = st.lists(parts, min_size=1, max_size=7).map("".join)


def model(left: str, right: str) -> bool:
    """Tries every pair of rests of both keys that a common name can leave."""
    one, other = _tokens(left), _tokens(right)
    seen, open_pairs = {(0, 0)}, [(0, 0)]
    while open_pairs:
        i, j = open_pairs.pop()
        if (i, j) == (len(one), len(other)):
            return True
        reached = [(to, j) for to in _skips(one, i)] + [(i, to) for to in _skips(other, j)]
        if i < len(one) and j < len(other) and _share(one[i], other[j]):
            reached.append((i + ("*" not in one[i]), j + ("*" not in other[j])))
        open_pairs += [pair for pair in reached if pair not in seen]
        seen.update(reached)
    return False


def _tokens(key: str) -> list[str]:
    tokens: list[str] = []
    for character in key:
        if character == "*" and tokens and "*" in tokens[-1]:
            tokens[-1] = "**"
        else:
            tokens.append(character)
    return tokens


def _skips(tokens: list[str], at: int) -> list[int]:
    if at == len(tokens) or "*" not in tokens[at]:
        return []
    return [at + 1, at + 2] if tokens[at] == "**" and tokens[at + 1 : at + 2] == ["/"] else [at + 1]


def _share(left: str, right: str) -> bool:
    if "**" in (left, right):
        return True
    return "/" not in (left, right) if "*" in (left, right) else left == right


@given(patterns, patterns)
def test_keys_overlap_as_in_the_model(left: str, right: str) -> None:
    assert overlap(left, right) == overlap(right, left) == (left == right or model(left, right))


def steps(left: str, right: str) -> int:
    """How many lines of code the comparison runs."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        assert not overlap(left, right)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.req("LW-49")
@pytest.mark.parametrize("stars", [8, 60])
def test_a_comparison_costs_in_proportion_to_the_length_of_the_keys(stars: int) -> None:
    def pair(length: int) -> tuple[str, str]:
        return (("*" + "a" * (length // stars - 1)) * stars, ("*" + "a" * (length // stars - 1)) * stars + "/b*")

    half, whole = steps(*pair(KEY_CHARS_MAX // 2)), steps(*pair(KEY_CHARS_MAX))
    assert whole < 2.5 * half and whole < 40 * KEY_CHARS_MAX
