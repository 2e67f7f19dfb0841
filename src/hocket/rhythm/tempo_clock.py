"""The clock of a pulse: the machine's monotonic clock, disciplined by its time of day. It never goes back. Small
differences are slewed by half a percent, so that no beat is noticeably longer. If the time of day has moved ahead by
more than a second, the machine slept or was set right, and this clock follows at once. If it was set back by that much,
this clock runs at half speed until the time of day has caught up.
"""

from collections.abc import Callable

# A difference up to this is slewed; a larger one is a step.
STEP_MS = 1_000
SLEWED = 0.005
SLOWED = 0.5


class TempoClock:
    """Both clocks count seconds; `wall` counts them since 1970."""

    def __init__(self, monotonic: Callable[[], float], wall: Callable[[], float]) -> None:
        self._monotonic, self._wall = monotonic, wall
        self._at = monotonic()
        self._value = wall() * 1000.0
        self._drift_ms = 0.0

    @property
    def drift_ms(self) -> float:
        """How far the time of day was ahead of this clock when it was last read; negative if it was behind."""
        return self._drift_ms

    @property
    def is_steady(self) -> bool:
        """False while this clock waits for a time of day that was set back."""
        return self._drift_ms >= -STEP_MS

    def monotonic_ms(self) -> int:
        return round(self._monotonic() * 1000.0)

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        at = self._monotonic()
        passed, self._at = max(0.0, at - self._at) * 1000.0, at
        value = self._value + passed
        drift = self._drift_ms = self._wall() * 1000.0 - value
        if drift > STEP_MS:
            value += drift
        else:
            most = passed * (SLEWED if self.is_steady else SLOWED)
            value += min(most, max(-most, drift))
        self._value = max(self._value, value)
        return round(self._value)
