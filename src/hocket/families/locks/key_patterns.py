"""Keys of locks, and patterns of keys: `*` stands for any text without a slash, `**` for any text. A slash after `**`
belongs to it: `src/**/x` also stands for `src/x`. Two keys overlap if one name fits both, so `file:src/**` overlaps
`file:src/lib.rs` and `file:*/lib.rs`.

Whether two keys overlap is found in one pass over one of them, however many stars they have: a number remembers, bit by
bit, which places of the other key some common name can have reached.
"""

from functools import lru_cache
from typing import NamedTuple

_STAR, _GLOBSTAR = "*", "**"


def is_pattern(key: str) -> bool:
    return "*" in key


def plain_prefix(key: str) -> str:
    """What stands before the first star: every name that fits the key begins with it."""
    star = key.find("*")
    return key if star < 0 else key[:star]


def overlap(left: str, right: str) -> bool:
    if left == right:
        return True
    if "*" not in left and "*" not in right:
        return False
    length = min(_plain(left), _plain(right))
    if left[:length] != right[:length]:
        return False
    # The pass goes over the shorter one, and every pair is remembered in one order.
    return _meet(left, right) if (len(left), left) < (len(right), right) else _meet(right, left)


def _plain(key: str) -> int:
    star = key.find("*")
    return len(key) if star < 0 else star


class _Places(NamedTuple):
    """The tokens of a key, and one bit for each place at which a token of a kind stands. The bit after the last token
    stands for the end.
    """

    tokens: tuple[str, ...]
    of_character: dict[str, int]
    stars: int
    globstars: int
    end: int


@lru_cache(maxsize=1024)
def _places(key: str) -> _Places:
    tokens = tuple(_tokens(key))
    bits: dict[str, int] = {}
    for place, token in enumerate(tokens):
        bits[token] = bits.get(token, 0) | 1 << place
    stars, globstars = bits.pop(_STAR, 0), bits.pop(_GLOBSTAR, 0)
    return _Places(tokens, bits, stars, globstars, 1 << len(tokens))


def _tokens(key: str) -> list[str]:
    """Characters and stars, of which no two stand side by side. `**` can end anywhere, so its slash adds nothing."""
    tokens: list[str] = []
    at = 0
    while at < len(key):
        if key[at] != "*":
            tokens.append(key[at])
            at += 1
            continue
        begin = at
        while at < len(key) and key[at] == "*":
            at += 1
        is_globstar = at - begin > 1
        at += is_globstar and key[at : at + 1] == "/"
        if tokens and tokens[-1] in (_STAR, _GLOBSTAR):
            is_globstar |= tokens.pop() == _GLOBSTAR
        tokens.append(_GLOBSTAR if is_globstar else _STAR)
    return tokens


@lru_cache(maxsize=4096)
def _meet(left: str, right: str) -> bool:
    """Walks along the left key and keeps the set of places of the right one that a common name can have reached."""
    tokens = _places(left).tokens
    _, of_character, stars, globstars, end = _places(right)
    gaps = stars | globstars
    no_slash = (end - 1) & ~of_character.get("/", 0)
    reached = 1 | (gaps & 1) << 1
    for token in tokens:
        if token == _GLOBSTAR:
            # Any text: every later place.
            reached = (end << 1) - (reached & -reached)
        elif token == _STAR:
            # Any text up to the next slash: the carry of the addition runs to it.
            reached |= ((reached & no_slash) + no_slash) ^ no_slash
            reached |= (reached & gaps) << 1
        else:
            stays = reached & (globstars if token == "/" else gaps)
            reached = (reached & of_character.get(token, 0)) << 1 | stays
            reached |= (reached & gaps) << 1
        if not reached:
            return False
    return bool(reached & end)
