"""Waits, with a deadline, for what other threads and processes do."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 60.0


def wait_for(look: Callable[[], T], what: str = "it", patience: float = PATIENCE_S) -> T:
    """Looks until there is something to see, and gives it. It looks less and less often: many looks are commands."""
    deadline = time.monotonic() + patience
    pause = 0.005
    while not (seen := look()):
        assert time.monotonic() < deadline, f"waited {patience} seconds in vain for {what}"
        time.sleep(pause)
        pause = min(0.1, pause * 1.5)
    return seen
