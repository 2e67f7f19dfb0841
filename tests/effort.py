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


def orders(things: Sequence[T]) -> Iterator[tuple[T, ...]]:
    """Orders of these things: all of them in the soak, and all of those of up to four things. Of more, the given one,
    its reverse and some that are drawn.
    """
    if IS_SOAK or factorial(len(things)) <= ORDERS:
        yield from permutations(things)
        return
    yield tuple(things)
    yield tuple(reversed(things))
    for _ in range(ORDERS - 2):
        yield tuple(random.sample(things, len(things)))
