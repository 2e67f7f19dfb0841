"""Finds the lock requests that conflict with a request without comparing it with each of them. Requests are found by
their keys: the same text at once, and keys with stars by the text before their first star, which must begin like the
other key. Only what is left is compared character by character. `locks` decides what a conflict means.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Generic, NamedTuple, Protocol, TypeVar

from hocket.families.locks.facts import LockMode


class LockRequest(Protocol):
    """What conflicts with other requests: a hold, a wait or an AcquireLocks."""

    @property
    def keys(self) -> tuple[str, ...]: ...
    @property
    def mode(self) -> LockMode: ...


R = TypeVar("R", bound=LockRequest)


def conflict(left: LockRequest, right: LockRequest) -> bool:
    if left.mode == right.mode == LockMode.SHARED:
        return False
    return any(overlap(one, other) for one in left.keys for other in right.keys)


class _Keys:
    """A set of keys in which those that overlap another key are found."""

    def __init__(self) -> None:
        self.compared_chars = 0
        self._literals: dict[str, None] = {}
        self._by_prefix: dict[str, list[str]] = {}
        self._lengths: list[int] = []
        # Both in order; the literals once a pattern was looked for.
        self._prefixes: list[str] = []
        self._ordered: list[str] | None = None

    def add(self, key: str) -> None:
        if not is_pattern(key):
            self._literals[key] = None
            if self._ordered is not None:
                insort(self._ordered, key)
            return
        prefix = plain_prefix(key)
        if prefix not in self._by_prefix:
            insort(self._prefixes, prefix)
            if len(prefix) not in self._lengths:
                insort(self._lengths, len(prefix))
        self._by_prefix.setdefault(prefix, []).append(key)

    def overlapping(self, key: str) -> Iterator[str]:
        """The keys other than this one itself that overlap it."""
        prefix = plain_prefix(key)
        for length in self._lengths:
            if length > len(prefix):
                break
            yield from self._compared(key, self._by_prefix.get(prefix[:length], ()))
        if len(prefix) == len(key):
            return
        for longer in _starting_with(self._prefixes, prefix):
            if longer != prefix:
                yield from self._compared(key, self._by_prefix[longer])
        if self._ordered is None:
            self._ordered = sorted(self._literals)
        yield from self._compared(key, _starting_with(self._ordered, prefix))

    def _compared(self, key: str, others: Iterable[str]) -> Iterator[str]:
        for other in others:
            if other != key:
                self.compared_chars += min(len(key), len(other))
                if overlap(key, other):
                    yield other


def _starting_with(ordered: list[str], prefix: str) -> Iterator[str]:
    for place in range(bisect_left(ordered, prefix), len(ordered)):
        if not ordered[place].startswith(prefix):
            return
        yield ordered[place]


class _Numbered(NamedTuple, Generic[R]):
    number: int
    request: R


class LockIndex(Generic[R]):
    """Requests in the order in which they were added. They are indexed when a conflict is first looked for."""

    def __init__(self, requests: Iterable[R] = ()) -> None:
        self.requests = list(requests)
        self._indexed = 0

    @property
    def compared_chars(self) -> int:
        """How many characters of keys were compared so far."""
        return sum(keys.compared_chars for keys in self._keys.values()) if self._indexed else 0

    def add(self, request: R) -> None:
        self.requests.append(request)

    def _catch_up(self) -> None:
        if not self._indexed:
            self._keys = {LockMode.EXCLUSIVE: _Keys(), LockMode.SHARED: _Keys()}
            self._places: dict[tuple[LockMode, str], list[_Numbered[R]]] = {}
            self._overlaps: dict[str, tuple[str, ...]] = {}
        for number in range(self._indexed, len(self.requests)):
            request = self.requests[number]
            mode = request.mode
            for key in request.keys:
                places = self._places.get((mode, key))
                if places is None:
                    self._places[mode, key] = places = []
                    self._keys[mode].add(key)
                    self._overlaps.clear()
                places.append(_Numbered(number, request))
        self._indexed = len(self.requests)

    def any_conflict(self, request: LockRequest) -> R | None:
        """A request that conflicts with this one, a late one if possible; None if there is none."""
        if not self.requests:
            return None
        self._catch_up()
        modes = _rivals(request.mode)
        for key in request.keys:
            for mode in modes:
                if places := self._places.get((mode, key)):
                    return places[-1].request
        for key in request.keys:
            for mode in modes:
                for other in self._keys[mode].overlapping(key):
                    return self._places[mode, other][-1].request
        return None

    def conflicts(self, request: LockRequest) -> list[R]:
        """All requests that conflict with this one, in order."""
        if not self.requests:
            return []
        self._catch_up()
        found: dict[int, R] = {}
        for mode in _rivals(request.mode):
            for key in request.keys:
                for other in (key, *self._keys[mode].overlapping(key)):
                    found.update(self._places.get((mode, other), ()))
        return [found[number] for number in sorted(found)]

    def in_front(self, request: LockRequest, number: int) -> Iterator[R]:
        """The requests with a lower number that conflict with this one. Of those with one key, those before the last
        exclusive one are left out: that one conflicts with all of them.
        """
        self._catch_up()
        for key in request.keys:
            if key not in self._overlaps:
                others = (other for keys in self._keys.values() for other in keys.overlapping(key))
                self._overlaps[key] = (key, *dict.fromkeys(others))
            for other in self._overlaps[key]:
                yield from self._in_front(other, request.mode, number)

    def _in_front(self, key: str, mode: LockMode, number: int) -> Iterator[R]:
        exclusive = self._places.get((LockMode.EXCLUSIVE, key), [])
        before = bisect_left(exclusive, number, key=_number)
        last = exclusive[before - 1] if before else None
        if last is not None:
            yield last.request
        if mode is LockMode.EXCLUSIVE:
            shared = self._places.get((LockMode.SHARED, key), [])
            begin = 0 if last is None else bisect_left(shared, last.number, key=_number)
            for place in shared[begin : bisect_left(shared, number, key=_number)]:
                yield place.request


def _number(place: _Numbered[R]) -> int:
    return place.number


def _rivals(mode: LockMode) -> tuple[LockMode, ...]:
    return (LockMode.EXCLUSIVE,) if mode is LockMode.SHARED else (LockMode.EXCLUSIVE, LockMode.SHARED)


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
