"""How much a peer may ask: a bucket of tokens that fills at a steady rate. A request takes one, or more if it is large;
a peer that finds too few is told when to come back.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable

BUCKETS_MAX = 10_000


class Buckets:
    """One bucket for each asker. The one that was used longest ago is forgotten when there are too many."""

    def __init__(self, rate: float, burst: float, monotonic: Callable[[], float]) -> None:
        self._rate, self._burst, self._monotonic = rate, burst, monotonic
        self._levels: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def take(self, asker: Hashable, cost: float = 1.0) -> float:
        """0 when there were enough tokens; else after how many seconds there will be. Nothing costs more than a full
        bucket.
        """
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
