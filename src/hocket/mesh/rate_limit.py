"""Rate limits: a bucket of tokens that fills at a steady rate. A request takes one token, or more if it is large; a
peer that finds too few learns from the answer when to come back.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from threading import Lock
from typing import NamedTuple

BUCKETS_MAX = 10_000


class Buckets:
    """One bucket for each caller. If there are too many, the least recently used one is dropped."""

    def __init__(self, rate: float, burst: float, monotonic: Callable[[], float]) -> None:
        self._rate, self._burst, self._monotonic = rate, burst, monotonic
        self._levels: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def take(self, asker: Hashable, cost: float = 1.0) -> float:
        """0 if there were enough tokens; else the seconds until there are. Nothing costs more than a full bucket."""
        cost = min(cost, self._burst)
        now = self._monotonic()
        level, at = self._levels.pop(asker, (self._burst, now))
        level = min(self._burst, level + (now - at) * self._rate)
        wait = 0.0
        if level >= cost:
            level -= cost
        else:
            wait = (cost - level) / self._rate
        self._levels[asker] = level, now
        if len(self._levels) > BUCKETS_MAX:
            self._levels.popitem(last=False)
        return wait


class Draw(NamedTuple):
    """A number of tokens from one bucket, which fills at this rate."""

    bucket: Hashable
    rate: float
    cost: float


class DebtBuckets:
    """Buckets with their own rates, each of which holds what flows in within `burst_s` seconds. A draw larger than a
    full bucket is granted when the bucket is full, and leaves it in debt, so that in the long run no more is drawn than
    flows in. Safe to use from several threads.
    """

    def __init__(self, burst_s: float, monotonic: Callable[[], float]) -> None:
        self._burst_s, self._monotonic = burst_s, monotonic
        # How much is missing from a full bucket, and since when.
        self._missing: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()
        self._lock = Lock()

    def take(self, draws: Sequence[Draw]) -> bool:
        """Takes from all these buckets, or from none."""
        with self._lock:
            now = self._monotonic()
            missing = [self._missing_of(draw, now) for draw in draws]
            if any(self._short(draw, each) > 0 for draw, each in zip(draws, missing, strict=True)):
                return False
            for draw, each in zip(draws, missing, strict=True):
                self._put(draw.bucket, each + draw.cost, now)
            return True

    def charge(self, draw: Draw) -> None:
        """Takes even if there is not enough: for what has already cost something."""
        with self._lock:
            now = self._monotonic()
            self._put(draw.bucket, self._missing_of(draw, now) + draw.cost, now)

    def wait(self, draw: Draw) -> float:
        """The seconds until such a draw would be granted; 0 for now."""
        with self._lock:
            short = self._short(draw, self._missing_of(draw, self._monotonic()))
        if short <= 0:
            return 0.0
        return short / draw.rate if draw.rate > 0 else self._burst_s

    def missing(self, draw: Draw) -> float:
        """How much is missing from a full bucket."""
        with self._lock:
            return self._missing_of(draw, self._monotonic())

    def _short(self, draw: Draw, missing: float) -> float:
        """How many tokens are missing. A bucket with no inflow grants nothing."""
        full = draw.rate * self._burst_s
        return missing + min(draw.cost, full) - full if full > 0 else draw.cost

    def _missing_of(self, draw: Draw, now: float) -> float:
        missing, at = self._missing.get(draw.bucket, (0.0, now))
        return max(0.0, missing - (now - at) * draw.rate)

    def _put(self, bucket: Hashable, missing: float, now: float) -> None:
        self._missing[bucket] = missing, now
        self._missing.move_to_end(bucket)
        if len(self._missing) > BUCKETS_MAX:
            self._missing.popitem(last=False)
