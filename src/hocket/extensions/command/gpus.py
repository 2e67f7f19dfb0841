"""Which GPUs a command uses, according to NVIDIA's library. The package `nvidia-ml-py` is optional; without it or a
driver, GPUs are not metered.
"""

import importlib
from collections import Counter
from collections.abc import Collection
from typing import Any

# How often the library is asked while a command runs.
ASK_S = 1.0


class Gpus:
    """The GPUs of this machine. A second in which a process of a command has a device open counts for that device's
    class, its model name. Safe to use from several threads.
    """

    def __init__(self, library: Any, devices: list[tuple[str, Any]]) -> None:
        self._library = library
        self._devices = devices

    @classmethod
    def find(cls) -> "Gpus | None":
        """None if there are no GPUs or no library."""
        try:
            library = importlib.import_module("pynvml")
        except ImportError:
            return None
        try:
            library.nvmlInit()
            handles = [library.nvmlDeviceGetHandleByIndex(each) for each in range(library.nvmlDeviceGetCount())]
            devices = [(_text(library.nvmlDeviceGetName(handle)), handle) for handle in handles]
        except library.NVMLError:
            return None
        return cls(library, devices) if devices else None

    @property
    def classes(self) -> list[str]:
        return sorted({name for name, _ in self._devices})

    def in_use(self, processes: Collection[int]) -> Counter[str]:
        """How many devices of each class at least one of the processes has open."""
        used: Counter[str] = Counter()
        for name, handle in self._devices:
            if self._holders(handle).intersection(processes):
                used[name] += 1
        return used

    def _holders(self, handle: Any) -> set[int]:
        library, found = self._library, set()
        for ask in (library.nvmlDeviceGetComputeRunningProcesses, library.nvmlDeviceGetGraphicsRunningProcesses):
            try:
                found |= {process.pid for process in ask(handle)}
            except library.NVMLError:
                continue  # not every device supports both queries
        return found


class GpuMeter:
    """Seconds by class for one command. A device in use at one look counts until the next look."""

    def __init__(self, gpus: Gpus) -> None:
        self._gpus = gpus
        self._used: Counter[str] = Counter()
        self._looked = 0.0
        self.seconds: dict[str, float] = {}

    def look(self, processes: Collection[int], now: float) -> None:
        self._count(now)
        self._used = self._gpus.in_use(processes)

    def finish(self, now: float) -> dict[str, float]:
        self._count(now)
        self._used = Counter()
        return self.seconds

    def _count(self, now: float) -> None:
        for name, count in self._used.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + count * (now - self._looked)
        self._looked = now


def _text(name: str | bytes) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else name
