"""Runs the targets under atheris, which sees which branches an input reaches and breeds those that reach new ones. Its
loop ends the process that it runs in, so each target gets a process of its own, and the counts are kept in memory that
both share.
"""

import mmap
import os
import struct
import sys
import tempfile
from pathlib import Path
from types import ModuleType

from tests.fuzz.mutate import SIZE_MAX
from tests.fuzz.target import SECONDS_MAX, Tally, Target

_COUNTS = struct.Struct("<QQ")


def run_guided(atheris: ModuleType, target: Target, runs: int) -> Tally:
    """So many inputs, bred from the target's samples. Raises AssertionError when the process ended badly; what it
    found then stands on its standard error."""
    shared = mmap.mmap(-1, _COUNTS.size)
    with tempfile.TemporaryDirectory() as folder:
        for n, sample in enumerate(target.samples):
            Path(folder, str(n)).write_bytes(sample.data)
        sys.stdout.flush()
        child = os.fork()
        if not child:
            _loop(atheris, target, runs, folder, shared)
        _, status, used = os.wait4(child, 0)
    inputs, accepted = _COUNTS.unpack(shared[:])
    if status:
        raise AssertionError(f"{target.name}: found after {inputs} inputs (status {os.waitstatus_to_exitcode(status)})")
    return Tally(inputs, accepted, used.ru_utime + used.ru_stime)


def _loop(atheris: ModuleType, target: Target, runs: int, folder: str, shared: mmap.mmap) -> None:
    inputs = accepted = 0

    def one_input(data: bytes) -> None:
        nonlocal inputs, accepted
        inputs += 1
        accepted += target(data)
        shared[:] = _COUNTS.pack(inputs, accepted)

    # Seconds are whole ones there.
    bounds = [f"-max_len={SIZE_MAX}", f"-timeout={round(SECONDS_MAX + 1)}", "-rss_limit_mb=2048", "-verbosity=0"]
    atheris.Setup([sys.argv[0], f"-runs={runs}", *bounds, folder], one_input)
    atheris.Fuzz()
    os._exit(0)
