"""Keys of locks, and patterns of keys: `*` stands for any text without a slash, `**` for any text. Two keys overlap if
one name fits both, so `file:src/**` overlaps `file:src/lib.rs` and `file:*/lib.rs`.
"""

from functools import lru_cache

_STAR, _GLOBSTAR = "*", "**"


def is_pattern(key: str) -> bool:
    return "*" in key


def overlap(left: str, right: str) -> bool:
    if left == right:
        return True
    if "*" not in left and "*" not in right:
        return False
    # What stands before the first star must agree.
    length = min(_plain(left), _plain(right))
    return left[:length] == right[:length] and _meet(left, right)


def _plain(key: str) -> int:
    star = key.find("*")
    return len(key) if star < 0 else star


def _tokens(key: str) -> list[str]:
    """Characters and stars. A slash after `**` belongs to it: `src/**/x` also stands for `src/x`."""
    tokens: list[str] = []
    at = 0
    while at < len(key):
        stars = len(key[at:]) - len(key[at:].lstrip("*")) if key[at] == "*" else 0
        tokens.append(key[at] if not stars else _STAR if stars == 1 else _GLOBSTAR)
        at += stars or 1
    return tokens


@lru_cache(maxsize=4096)
def _meet(left: str, right: str) -> bool:
    """Walks through both at once, over every pair of places that some name can reach."""
    one, other = _tokens(left), _tokens(right)
    ends = len(one), len(other)
    seen, open_pairs = {(0, 0)}, [(0, 0)]
    while open_pairs:
        pair = open_pairs.pop()
        if pair == ends:
            return True
        i, j = pair
        reached = [(to, j) for to in _skips(one, i)] + [(i, to) for to in _skips(other, j)]
        if i < ends[0] and j < ends[1] and _share(one[i], other[j]):
            reached.append((i + (one[i] not in (_STAR, _GLOBSTAR)), j + (other[j] not in (_STAR, _GLOBSTAR))))
        for each in reached:
            if each not in seen:
                seen.add(each)
                open_pairs.append(each)
    return False


def _skips(tokens: list[str], at: int) -> list[int]:
    """Where a star may end without another character."""
    if at == len(tokens) or tokens[at] not in (_STAR, _GLOBSTAR):
        return []
    is_folder = tokens[at] == _GLOBSTAR and tokens[at + 1 : at + 2] == ["/"]
    return [at + 1, at + 2] if is_folder else [at + 1]


def _share(left: str, right: str) -> bool:
    """Whether one character fits both."""
    if left == _GLOBSTAR or right == _GLOBSTAR:
        return True
    if left == _STAR or right == _STAR:
        return "/" not in (left, right)
    return left == right
