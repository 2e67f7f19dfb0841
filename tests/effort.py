"""How much a run of the tests tries: the soak tries everything, any other run a part, and another part each time."""

import os
import random
from collections.abc import Iterator, Sequence
from itertools import permutations
from math import factorial
from typing import TypeVar

T = TypeVar("T")

IS_SOAK = os.environ.get("HYPOTHESIS_PROFILE") == "soak"
ORDERS = 24
DRAWN = 12


def some(things: Sequence[T], part: int) -> Sequence[T]:
    """One in `part` of these things, drawn anew in each run; all of them in the soak."""
    return things if IS_SOAK else random.sample(things, len(things) // part)


def orders(things: Sequence[T]) -> Iterator[tuple[T, ...]]:
    """Orders of these things: all of them in the soak, and all of those of up to four things. Of more, the given one,
    its reverse and ten that are drawn.
    """
    if IS_SOAK or factorial(len(things)) <= ORDERS:
        yield from permutations(things)
        return
    yield tuple(things)
    yield tuple(reversed(things))
    for _ in range(DRAWN - 2):
        yield tuple(random.sample(things, len(things)))
