"""Verifying many ops on all cores. The libraries let go of the interpreter while they compute, so
threads are enough; the caller's thread does its share.
"""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")

# Below this many, handing some to another thread costs more than it saves.
PARALLEL_MIN = 8
# How many are taken at a time: enough to be worth the taking, few enough that nobody waits long for the last.
CHUNK = 64
# More helpers than this are not asked.
HELPERS_MAX = 16


class Shared(Generic[T, R]):
    """Work that helpers begin at once and the caller joins when it has nothing else to do."""

    def __init__(self, helpers: Executor | None, work: Callable[[Sequence[T]], list[R]], items: Sequence[T]) -> None:
        size = min(CHUNK, max(1, len(items) // 2))
        self._work = work
        self._parts: deque[tuple[int, Sequence[T]]] = deque()
        for number, start in enumerate(range(0, len(items), size)):
            self._parts.append((number, items[start : start + size]))
        self._done: dict[int, list[R]] = {}
        asked = 0 if helpers is None or len(items) < PARALLEL_MIN else min(HELPERS_MAX, len(self._parts) - 1)
        self._helping = [helpers.submit(self._help) for _ in range(asked)] if helpers is not None else []

    def _help(self) -> None:
        while True:
            try:
                number, part = self._parts.popleft()
            except IndexError:
                return
            self._done[number] = self._work(part)

    def finish(self) -> list[R]:
        """What came of the items, in their order."""
        self._help()
        for helping in self._helping:
            if not helping.cancel():
                helping.result()
        return [result for _, results in sorted(self._done.items()) for result in results]


def in_parallel(helpers: Executor | None, work: Callable[[Sequence[T]], list[R]], items: Sequence[T]) -> list[R]:
    """What `work` makes of the items, in their order. Without helpers everything happens here."""
    if helpers is None or len(items) < PARALLEL_MIN:
        return work(items)
    return Shared(helpers, work, items).finish()
