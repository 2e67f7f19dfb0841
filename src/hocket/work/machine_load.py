"""How busy the processors and GPUs of a machine are, as its workers tell others."""

import importlib
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

_STAT = Path("/proc/stat")


class MachineLoad:
    """Between two calls."""

    def __init__(self) -> None:
        self._before = _ticks()

    def cpu(self) -> float:
        """The share of its time that the processors have worked since the last call; 0 where the system does not
        tell.
        """
        (busy, whole), self._before = self._since(now := _ticks()), now
        return round(busy / whole, 3) if whole > 0 else 0.0

    def _since(self, now: tuple[int, int]) -> tuple[int, int]:
        return max(0, now[0] - self._before[0]), now[1] - self._before[1]

    def gpu(self) -> float | None:
        """The recent load of all GPUs together, from 0 to 1; None without GPUs or a library that reads them."""
        library, devices = _gpus()
        with suppress(Exception):
            rates = [library.nvmlDeviceGetUtilizationRates(each).gpu / 100 for each in devices]
            return round(min(1.0, sum(rates) / len(rates)), 3) if rates else None
        return None


def _ticks() -> tuple[int, int]:
    """Those in which a processor worked, and all."""
    try:
        numbers = [int(each) for each in _STAT.read_text().partition("\n")[0].split()[1:9]]
        return sum(numbers) - numbers[3] - numbers[4], sum(numbers)
    except (OSError, ValueError, IndexError):
        return 0, 0


@cache
def _gpus() -> tuple[Any, tuple[Any, ...]]:
    try:
        library = importlib.import_module("pynvml")
        library.nvmlInit()
        count = library.nvmlDeviceGetCount()
        return library, tuple(library.nvmlDeviceGetHandleByIndex(number) for number in range(count))
    except Exception:
        return None, ()
