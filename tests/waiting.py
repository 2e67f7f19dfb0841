"""Waits, with a deadline, for what other threads and processes do."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 60.0


def wait_for(look: Callable[[], T], what: str = "it", patience: float = PATIENCE_S) -> T:
    """Looks until there is something to see, and gives it. It looks less and less often, and does not spend most of its
    time on looking: many looks are commands, and what it waits for needs the processor.
    """
    deadline = time.monotonic() + patience
    pause = 0.005
    while True:
        began = time.monotonic()
        if seen := look():
            return seen
        looked = time.monotonic()
        assert looked < deadline, f"waited {patience} seconds in vain for {what}"
        time.sleep(max(pause, min(0.3, 2 * (looked - began))))
        pause = min(0.1, pause * 1.5)
