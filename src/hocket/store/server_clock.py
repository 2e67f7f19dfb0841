"""The server's clock, as a process reads it between two transactions. Each write transaction reads the server's time.
From then on the process counts by a clock of its machine that nobody can set. So all nodes that share a store agree on
the time, however wrong the clocks of their machines are.
"""

import time


def machine_s() -> float:
    """Seconds that also pass while the machine sleeps, where the system counts them."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class ServerClock:
    """Seconds since the epoch."""

    def __init__(self) -> None:
        self._offset_s = 0.0

    def __call__(self) -> float:
        return machine_s() + self._offset_s

    def set(self, server_ms: int) -> None:
        """The server has just told its time."""
        self._offset_s = server_ms / 1000 - machine_s()
