"""A map with room for so many keys, in which the order of additions does not matter: it keeps the keys with the
smallest hashes. A key that was dropped never comes back, because those that displaced it stay. So two maps that were
filled apart and are merged have the same content as one that was filled with everything.
"""

from collections.abc import Callable, ItemsView, ValuesView
from heapq import heappop, heappush
from typing import Generic, TypeVar

from blake3 import blake3

V = TypeVar("V")


class BoundedMap(Generic[V]):
    """`join` makes one value of two; it must not matter in which order, or how often."""

    def __init__(self, limit: int, join: Callable[[V, V], V]) -> None:
        self._limit, self._join = limit, join
        self._values: dict[str, V] = {}
        self._largest: list[tuple[int, str]] = []
        self.is_truncated = False

    def add(self, key: str, value: V) -> None:
        if (known := self._values.get(key)) is not None:
            self._values[key] = self._join(known, value)
            return
        self._values[key] = value
        heappush(self._largest, (-int.from_bytes(blake3(key.encode()).digest(8), "big"), key))
        if len(self._values) > self._limit:
            self.is_truncated = True
            del self._values[heappop(self._largest)[1]]

    def items(self) -> ItemsView[str, V]:
        return self._values.items()

    def values(self) -> ValuesView[V]:
        return self._values.values()

    def __len__(self) -> int:
        return len(self._values)
