"""What a handler uses. Linux counts processor time and disk for each thread, so those of a plain handler are exact; of
a coroutine the time of its own steps is counted. The memory of a process is shared out among the runs in it. What no
kernel tells, such as seconds of an accelerator, the handler says itself.
"""

import resource
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from types import coroutine
from typing import Any

from hocket.extensions.cost.budget_guard import BudgetGuard
from hocket.extensions.cost.rate_card import ResourceUse, beats_used

_GB = 1e9
_HOUR_S = 3600
_PAGE_BYTES = resource.getpagesize()


class RunMeter:
    """One run. Any thread may call it; `enter` and `leave` are for the thread of a plain handler."""

    _running = 0

    def __init__(self, guard: BudgetGuard, monotonic: Callable[[], float]) -> None:
        self.guard, self._monotonic = guard, monotonic
        self._lock = threading.Lock()
        self._began = self.looked_at = 0.0
        self._thread: tuple[int, int] | None = None
        self._cpu_base = 0.0
        self._io_base = 0
        self._cpu_s = self._memory_gb_s = self._storage_gbh = 0.0
        self._disk_bytes = 0
        self._said = ResourceUse()
        self._heard: ResourceUse | None = None

    def begin(self, now: float) -> None:
        self._began = self.looked_at = now
        RunMeter._running += 1

    def enter(self) -> None:
        with self._lock:
            self._thread = threading.get_ident(), threading.get_native_id()
            self._cpu_base, self._io_base = time.thread_time(), _disk_bytes(self._thread[1])

    def leave(self) -> None:
        with self._lock:
            self._count_thread()
            self._thread = None

    def _count_thread(self) -> None:
        if self._thread is None:
            return
        ident, number = self._thread
        self._cpu_s = time.clock_gettime(time.pthread_getcpuclockid(ident)) - self._cpu_base
        self._disk_bytes = _disk_bytes(number) - self._io_base

    def stepped(self, cpu_s: float) -> None:
        self._cpu_s += cpu_s

    def add(self, said: ResourceUse) -> None:
        """What the handler says that it has used."""
        with self._lock:
            self._said += said

    def hear(self, usage: ResourceUse) -> None:
        """What the process has measured in which the handler runs."""
        self._heard = usage

    def look(self, stored_bytes: int) -> ResourceUse:
        """What the run has used until now. `stored_bytes` are those that it keeps."""
        now = self._monotonic()
        with self._lock:
            self._count_thread()
            passed_s, self.looked_at = now - self.looked_at, now
            self._memory_gb_s += _memory_bytes() / max(1, RunMeter._running) / _GB * passed_s
            self._storage_gbh += stored_bytes / _GB * passed_s / _HOUR_S
            beats = beats_used((now - self._began) * 1000, self.guard.beat_ms)
            own = ResourceUse(0, self._cpu_s, {}, self._memory_gb_s, self._disk_bytes / 1e6, 0.0, self._storage_gbh)
            return ResourceUse(beats) + (self._heard or own + self._said)

    def over(self, stored_bytes: int) -> str | None:
        """Why the run must stop; None if it may go on."""
        return self.guard.over_use(self.look(stored_bytes), (self.looked_at - self._began) * 1000)

    def end(self, stored_bytes: int) -> ResourceUse:
        """Call this once."""
        RunMeter._running -= 1
        return self.look(stored_bytes)


@coroutine
def metered(awaited: Coroutine[Any, Any, Any], meter: RunMeter) -> Generator[Any, Any, Any]:
    """What the coroutine gives. The time of each of its steps counts."""
    value: Any = None
    error: BaseException | None = None
    while True:
        before = time.thread_time()
        try:
            waited = awaited.send(value) if error is None else awaited.throw(error)
        except StopIteration as done:
            return done.value
        finally:
            meter.stepped(time.thread_time() - before)
        try:
            value, error = (yield waited), None
        except BaseException as thrown:
            value, error = None, thrown


def _disk_bytes(thread: int) -> int:
    """What the thread has read from and written to disks; 0 where the system does not tell."""
    with suppress(OSError, ValueError):
        with open(f"/proc/self/task/{thread}/io", "rb") as file:
            told = dict(line.split(b": ") for line in file.read().splitlines())
        return int(told.get(b"read_bytes", 0)) + int(told.get(b"write_bytes", 0))
    return 0


def _memory_bytes() -> int:
    with suppress(OSError, ValueError), open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * _PAGE_BYTES
    return 0
