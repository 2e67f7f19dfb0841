"""Counts and clocks inside a worker process, and the gate at which all workers start together.

Times are CLOCK_MONOTONIC, which all processes of one Linux machine share. The directory of the run is in BENCH_HOME.
"""

from __future__ import annotations

import atexit
import itertools
import json
import os
import socket
import struct
import time
from pathlib import Path

_SAMPLE = struct.Struct("<qd")
_ticks = itertools.count(1)  # next() on it is atomic, `+= 1` in several threads is not
_done = 0
_last = 0.0
_cpu_began = 0.0
_sender: socket.socket | None = None


def home() -> Path:
    return Path(os.environ["BENCH_HOME"])


def database() -> str:
    """The address of this measurement's database, for those that need a server."""
    return os.environ["BENCH_DATABASE"]


def peak_kib() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    return 0


def wait_for_gate() -> None:
    """Say that this process is ready, then wait until every other one is."""
    (home() / f"ready-{os.getpid()}").touch()
    while not (home() / "gate").exists():
        time.sleep(0.001)
    global _cpu_began
    _cpu_began = time.process_time()


def hit() -> None:
    """One job is done."""
    global _done, _last
    _done = next(_ticks)
    _last = time.monotonic()


def started(number: int) -> None:
    """Job `number` has started now; tell the process that submitted it."""
    global _sender
    now = time.monotonic()
    if _sender is None:
        _sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    _sender.sendto(_SAMPLE.pack(number, now), str(home() / "starts"))


def report_at_exit() -> None:
    atexit.register(report)


def report() -> None:
    cpu_s = time.process_time() - _cpu_began
    figures = {"done": _done, "last": _last, "peak_kib": peak_kib(), "cpu_s": cpu_s}
    (home() / f"report-{os.getpid()}.json").write_text(json.dumps(figures))


class Starts:
    """The submitter's end of `started`."""

    def __init__(self, directory: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(directory / "starts"))
        self._socket.settimeout(60)

    def wait(self, number: int) -> float:
        while True:
            got, when = _SAMPLE.unpack(self._socket.recv(_SAMPLE.size))
            if got == number:
                return float(when)
