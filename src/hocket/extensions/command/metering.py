"""What a command uses. The kernel reports exact figures for ended processes: CPU time, bytes read from and written to
disks, the peak memory of each. The memory of all processes together is sampled, and so is the CPU time of processes
that their parents never wait for, which the exact figures leave out. Shared pages count for each process. It runs
inside the fork server, so it imports little.
"""

from __future__ import annotations

import resource

from hocket.work.child_processes.process_tree import Process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# The first sample comes after the first number, and each wait until the next is twice as long as the one before, up to
# the second. Most commands that end sooner are too small to matter.
LOOK_S = 0.01
LOOK_MAX_S = 0.25
# Sampling may take this part of a CPU, and a little more at the start; where it is slow, because there are many
# processes, it is done less often.
LOOK_SHARE = 0.01
LOOK_ADVANCE_S = 0.005
# A process begins as a copy of this one, and Linux counts the copy's size towards its peak. A peak that may be the
# copy's is left to sampling.
COPY_BYTES_MAX = 16 * 1024 * 1024

_BLOCK_BYTES = 512
_GB = 1e9


class UsageMeter:
    """Counts for one command. `look` takes the processes that exist, `ended` what each took that was waited for."""

    def __init__(self, now: float) -> None:
        self._began = self._looked = now
        self.memory_bytes = 0
        self._memory_peak = 0
        self._memory_byte_s = 0.0
        self._cpu_s = 0.0
        self._read_blocks = 0
        self._written_blocks = 0
        # CPU time of the processes seen, by pid, and of those seen that are gone.
        self._cpu_seen: dict[int, float] = {}
        self._cpu_gone_s = 0.0
        self._copy_peak = 0

    def look(self, processes: dict[int, Process], now: float) -> None:
        self._hold(now)
        self.memory_bytes = sum(process.memory_bytes for process in processes.values())
        self._memory_peak = max(self._memory_peak, self.memory_bytes)
        for number in self._cpu_seen.keys() - processes.keys():
            self._cpu_gone_s += self._cpu_seen.pop(number)
        for number, process in processes.items():
            self._cpu_seen[number] = process.cpu_s

    def ended(self, usage: resource.struct_rusage) -> None:
        """A process ended; its usage includes that of the children that it waited for."""
        self._cpu_s += usage.ru_utime + usage.ru_stime
        self._read_blocks += usage.ru_inblock
        self._written_blocks += usage.ru_oublock
        peak = usage.ru_maxrss * 1024
        if peak > COPY_BYTES_MAX:
            self._memory_peak = max(self._memory_peak, peak)
        self._copy_peak = max(self._copy_peak, peak)

    def total(self, now: float) -> dict[str, Any]:
        self._hold(now)
        wall_s = now - self._began
        # For processes that ended before the first sample, only an upper bound is known.
        peak = self._memory_peak or self._copy_peak
        memory_byte_s = self._memory_byte_s or peak * wall_s
        return {
            "wall_s": wall_s,
            "cpu_s": max(self._cpu_s, self._cpu_gone_s + sum(self._cpu_seen.values())),
            "memory_peak_bytes": peak,
            "memory_gb_s": memory_byte_s / _GB,
            "disk_read_bytes": self._read_blocks * _BLOCK_BYTES,
            "disk_written_bytes": self._written_blocks * _BLOCK_BYTES,
        }

    def _hold(self, now: float) -> None:
        self._memory_byte_s += self.memory_bytes * (now - self._looked)
        self._looked = now
