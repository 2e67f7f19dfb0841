"""What a machine has: processors, memory and GPUs, as its node tells others."""

import os
from pathlib import Path

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
