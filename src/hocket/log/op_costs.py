"""What the ops of a batch cost: the time that each took inside the write transaction, charged to its author. A
transaction that admits ops of members ends after a while, so that other writers go in between.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")

# How long such a transaction goes on, and after how many ops the time is looked at.
SLICE_S = 0.25
SLICE_STEP = 8


class WorkCharge(Protocol):
    """Who is charged, and what follows from it."""

    def is_costly(self, author: int) -> bool:
        """Whether the ops of this author are admitted apart from those of others, and after them."""

    def charge(self, work: Mapping[int, float]) -> bool:
        """Charges each author with these seconds of a transaction that has just ended. False: the rest must wait."""


class Slice:
    """One transaction of a batch. `taken` counts the ops that it has admitted or refused."""

    def __init__(self, stopwatch: Callable[[], float], is_bounded: bool) -> None:
        self._stopwatch, self._is_bounded = stopwatch, is_bounded
        self._began = self._at = stopwatch()
        self._spent: dict[int, float] = {}
        self.taken = 0

    def begin(self) -> None:
        """The store is ours from here on."""
        self._began = self._at = self._stopwatch()

    def steps(self, ops: Sequence[T]) -> Iterator[Sequence[T]]:
        """The ops in parts, until the time is up."""
        size = SLICE_STEP if self._is_bounded else len(ops)
        while self.taken < len(ops):
            step = ops[self.taken : self.taken + size]
            self.taken += len(step)
            yield step
            if self._is_bounded and self._stopwatch() - self._began > SLICE_S:
                return

    def note(self, author: int) -> None:
        """The time since the last note was for an op of this author."""
        now = self._stopwatch()
        self._spent[author] = self._spent.get(author, 0.0) + now - self._at
        self._at = now

    def work(self) -> dict[int, float]:
        """The seconds of each author. What was done for all ops together is shared out in proportion."""
        total, noted = self._stopwatch() - self._began, sum(self._spent.values())
        return {author: spent * (total / noted) for author, spent in self._spent.items()} if noted > 0 else {}
