"""What a machine has: processors, memory and GPUs, as its node tells others."""

import importlib
import os
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

GPUS_MAX = 64
_NAME_CHARS_MAX = 100


class Hardware(msgspec.Struct, frozen=True, omit_defaults=True):
    """`gpus` are the models, one for each GPU. Zero and none mean unknown, too."""

    cpus: int = 0
    memory_bytes: int = 0
    gpus: tuple[str, ...] = ()


UNKNOWN = Hardware()


def this_machine() -> Hardware:
    """What this process may use: a container's limits count."""
    return Hardware(_cpus(), _memory_bytes(), _gpus(Path("/proc/driver/nvidia/gpus")))


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0


def _memory_bytes() -> int:
    try:
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0
    try:
        return min(whole, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):
        return whole


def _gpus(directory: Path) -> tuple[str, ...]:
    """The GPUs that NVIDIA's driver lists."""
    found = []
    for path in sorted(directory.glob("*/information"))[:GPUS_MAX]:
        try:
            lines = dict(line.partition(":")[::2] for line in path.read_text(errors="replace").splitlines())
        except OSError:
            continue
        found.append(lines.get("Model", "").strip()[:_NAME_CHARS_MAX] or "unknown")
    return tuple(found)


_STAT = Path("/proc/stat")


class MachineLoad:
    """How busy the processors and GPUs have been between two calls."""

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
        library, devices = _nvml()
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
def _nvml() -> tuple[Any, tuple[Any, ...]]:
    try:
        library = importlib.import_module("pynvml")
        library.nvmlInit()
        count = library.nvmlDeviceGetCount()
        return library, tuple(library.nvmlDeviceGetHandleByIndex(number) for number in range(count))
    except Exception:
        return None, ()
