"""A lease as its holder counts it, and as others do. The holder counts on its own monotonic clock, from the moment
before it asked: it renews at a third, and stops a little before the lease ends. A renewal asks for more the longer the
job has run. An observer that only sees an unchanged claim waits a little longer than the lease. So two workers never
hold a job at once, unless their clocks run at very different rates. Every worker uses this; how it asks and what it
stops is its own matter.
"""

import math
from collections.abc import Iterable
from typing import Protocol, TypeVar

# The part of its lease that a holder counts on, for clocks that run at different rates.
COUNTED = 0.99
# When a lease is renewed, and how long after a failed renewal the next try follows, as parts of the lease.
RENEWED_AFTER = 0.33
TRIED_AGAIN_AFTER = 0.1
# A renewal asks for this part of the time that the job has run, if that is more than the lease, up to a maximum. So a
# long job writes few ops, and a dead machine delays it by a part of what is lost anyway.
GROWTH = 0.25
GROWN_S_MAX = 900.0
# A holder tries a store that fails again after this part of its shortest lease, at the latest after so many seconds.
STORE_PAUSE = 0.1
STORE_PAUSE_S_MAX = 5.0
# How many lease lengths an observer waits for an unchanged claim.
WAITED = 1.1


class Lease:
    """One hold. Times are readings of the holder's clock, in seconds."""

    is_over = False
    """Whether the holder has given up the lease, or was told that it has lost it."""

    def __init__(self, length_s: float, asked_at: float) -> None:
        self._first_s, self._begun_at = length_s, asked_at
        self.renewed(length_s, asked_at)

    @property
    def renews_at(self) -> float:
        """When to renew: never once it has ended, nor during a renewal."""
        return math.inf if self.is_over or self._is_renewing else self._renews_at

    def next_s(self, now: float) -> float:
        """How long a lease to ask for in a renewal."""
        return max(self._first_s, min((now - self._begun_at) * GROWTH, GROWN_S_MAX))

    def renewing(self) -> None:
        """A renewal has begun; `renewed`, `try_again` or `end` follows."""
        self._is_renewing = True

    def renewed(self, length_s: float, asked_at: float) -> None:
        """The lease lasts this long from the moment the renewal was requested."""
        self._is_renewing = False
        self._length_s = length_s
        self._renews_at = asked_at + length_s * RENEWED_AFTER
        self.ends_at = asked_at + length_s * COUNTED
        """When the lease ends by the holder's count, unless renewed."""

    def try_again(self, now: float) -> None:
        """The outcome of the renewal is unknown."""
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
    """The holds that their holder must stop now."""
    return [each for each in held if now >= each.lease.ends_at and not each.lease.is_over]


def store_pause_s(shortest_lease_s: float) -> float:
    """The longest time between two tries of a store that fails, for a holder of leases; infinity if it holds none."""
    return math.inf if shortest_lease_s == math.inf else min(shortest_lease_s * STORE_PAUSE, STORE_PAUSE_S_MAX)


def may_be_taken_over(seen_at: float, length_s: float, now: float) -> bool:
    """Whether another worker's claim has expired, which was first seen at `seen_at` and has not changed since."""
    return now - seen_at >= length_s * WAITED
