"""A lease as its holder counts it, and as the others do. The holder counts on its own monotonic clock, from the moment
before it asked: it renews at a third, and gives up a little before the lease is over. Others who see no more than that
a claim stays as it is wait a little longer than the lease. So the two never hold a job at the same time, unless their
clocks run at very different rates. Every worker goes by this; how it asks, and what it stops, is its own affair.
"""

import math
from collections.abc import Iterable
from typing import Protocol, TypeVar

# The part of its lease that a holder counts on, for clocks that run at different rates.
COUNTED = 0.99
# When a lease is renewed, and how long after a renewal that failed it is tried again, as parts of it.
RENEWED_AFTER = 0.33
TRIED_AGAIN_AFTER = 0.1
# How many leases others wait for a claim that stays as it is.
WAITED = 1.1


class Lease:
    """One hold. Times are readings of the holder's clock, in seconds."""

    def __init__(self, length_s: float, asked_at: float) -> None:
        self.is_over = False
        """Whether the holder has given up, or was told that it holds no longer."""
        self._is_renewing = False
        self._start(length_s, asked_at)

    def _start(self, length_s: float, asked_at: float) -> None:
        self._length_s = length_s
        self._renews_at = asked_at + length_s * RENEWED_AFTER
        self.ends_at = asked_at + length_s * COUNTED
        """When the lease is over by the holder's count, unless it is renewed."""

    @property
    def renews_at(self) -> float:
        """When to renew it: never once it is over, nor while that is under way."""
        return math.inf if self.is_over or self._is_renewing else self._renews_at

    def renewing(self) -> None:
        """A renewal was asked for; `renewed`, `try_again` or `end` follows."""
        self._is_renewing = True

    def renewed(self, length_s: float, asked_at: float) -> None:
        """It holds for this long from when the renewal was asked for."""
        self._is_renewing = False
        self._start(length_s, asked_at)

    def try_again(self, now: float) -> None:
        """Nothing is known of the renewal that was asked for."""
        self._is_renewing = False
        self._renews_at = now + self._length_s * TRIED_AGAIN_AFTER

    def end(self) -> None:
        self.is_over = True


class Leased(Protocol):
    @property
    def lease(self) -> Lease: ...


H = TypeVar("H", bound=Leased)


def to_renew(held: Iterable[H], now: float) -> list[H]:
    return [each for each in held if now >= each.lease.renews_at]


def run_out(held: Iterable[H], now: float) -> list[H]:
    """Those that their holder must stop now."""
    return [each for each in held if now >= each.lease.ends_at and not each.lease.is_over]


def may_be_taken_over(seen_at: float, length_s: float, now: float) -> bool:
    """Whether another worker's claim is over, which was first seen then and has not changed since."""
    return now - seen_at >= length_s * WAITED
