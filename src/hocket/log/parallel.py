"""Signing and verifying many ops on all cores. The libraries let go of the interpreter while they compute, so
threads are enough; the caller's thread does its share.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

# Below this many, handing some to another thread costs more than it saves.
PARALLEL_MIN = 8


def in_parallel(helpers: Executor | None, work: Callable[[Sequence[T]], list[R]], items: Sequence[T]) -> list[R]:
    """What `work` makes of the items, in their order. Without helpers everything happens here."""
    if helpers is None or len(items) < PARALLEL_MIN:
        return work(items)
    half = len(items) // 2
    helped = helpers.submit(work, items[:half])
    mine = work(items[half:])
    return helped.result() + mine
