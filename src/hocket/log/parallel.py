"""Verifies many ops on all cores. The libraries release the interpreter lock while they compute, so threads are enough;
the caller's thread does its share.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

T = TypeVar("T")
R = TypeVar("R")

# Below this many items, handing some to another thread costs more than it saves.
PARALLEL_MIN = 8
# How many items a thread takes at a time: enough to be worth it, few enough that the last part ends soon.
CHUNK = 64
# The most helpers for one task.
HELPERS_MAX = 16


class Helpers(Protocol):
    """Threads that take work; every executor is one."""

    def submit(self, work: Callable[[], R], /) -> "Future[R]": ...

    def shutdown(self) -> None: ...


class HelperThreads:
    """Makes its threads when they are first needed: most commands never do."""

    def __init__(self, threads: int, name: str) -> None:
        self._threads, self._name = threads, name
        self._lock = threading.Lock()
        self._executor: Executor | None = None

    def submit(self, work: Callable[[], R], /) -> "Future[R]":
        with self._lock:
            if self._executor is None:
                from concurrent.futures import ThreadPoolExecutor

                self._executor = ThreadPoolExecutor(self._threads, self._name)
        return self._executor.submit(work)

    def shutdown(self) -> None:
        if self._executor is not None:
            self._executor.shutdown()


class Shared(Generic[T, R]):
    """Work that helpers begin at once and the caller joins when it has nothing else to do."""

    def __init__(self, helpers: Helpers | None, work: Callable[[Sequence[T]], list[R]], items: Sequence[T]) -> None:
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
        """The results, in the order of the items."""
        self._help()
        for helping in self._helping:
            if not helping.cancel():
                helping.result()
        return [result for _, results in sorted(self._done.items()) for result in results]


def in_parallel(helpers: Helpers | None, work: Callable[[Sequence[T]], list[R]], items: Sequence[T]) -> list[R]:
    """The results of `work`, in the order of the items. Without helpers the caller's thread does everything."""
    if helpers is None or len(items) < PARALLEL_MIN:
        return work(items)
    return Shared(helpers, work, items).finish()
