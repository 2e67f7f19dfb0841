"""The time of day for a node: it never goes back. If the machine's clock is set back, or the log has already seen a
later time, this clock runs at half speed until the machine's has caught up, so that leases and delays still end.
"""

import time
from collections.abc import Callable


class SteadyWall:
    """Milliseconds since the epoch. Pass the log's own clock reading: the result is never behind it."""

    def __init__(self, clock: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._monotonic = monotonic
        self._value = 0.0
        self._at = monotonic()

    def __call__(self, floor: int = 0) -> int:
        at = self._monotonic()
        slowed = self._value + (at - self._at) * 500.0
        self._value = max(self._clock() * 1000.0, slowed, float(floor))
        self._at = at
        return int(self._value)
