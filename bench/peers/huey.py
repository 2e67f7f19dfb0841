"""Huey on SQLite, WAL, fsync=True, run by its own consumer with thread workers, its default.

A task that returns None leaves no row behind, so a no-op job costs Huey one insert and one delete. The delete comes
before the handler runs: a worker that dies takes its job with it. That is Huey's design, and it is the faster one.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import time
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

from bench import crew
from bench.subject import Result

LABEL = "Huey"
NOTES = {
    "submit_batch": "Huey has no batch call: its batch figure is its single enqueue.",
    "drain": "Huey drains with 1 and with 4 worker threads a process each time; the faster of the two counts.",
    "latency": "Huey as shipped polls every 100 ms when idle; in the polled row it is told to poll every millisecond.",
}
THREADS = (1, 4)


def describe() -> str:
    return f"Huey {version('huey')} (SQLite {sqlite3.sqlite_version})"


def _app(home: Path) -> ModuleType:
    os.environ["BENCH_HOME"] = str(home)
    from bench.peers import huey_app

    return huey_app


def _consumer(*options: str) -> list[str]:
    # -q: no log line per task, which would cost Huey more than the job.
    program = "from bench import meter; meter.report_at_exit()\n"
    program += "from huey.bin.huey_consumer import consumer_main; consumer_main()"
    return [sys.executable, "-c", program, "bench.peers.huey_app.huey", "-q", *options]


def _enqueue(home: Path, count: int) -> float:
    noop = _app(home).noop
    start = time.perf_counter()
    for number in range(count):
        noop(number)
    return time.perf_counter() - start


def submit_single(home: Path, count: int) -> Result:
    return {"seconds": _enqueue(home, count)}


def submit_batch(home: Path, count: int, size: int) -> Result:
    return submit_single(home, count)


def _drain(home: Path, count: int, processes: int, threads: int) -> Result:
    app = _app(home)
    _enqueue(home, count)

    def is_empty() -> bool:
        return not app.huey.storage.sql("select 1 from task limit 1", results=True)

    return crew.drain(home, _consumer("-w", str(threads)), count, processes, is_empty, signal.SIGINT)


def drain(home: Path, count: int, processes: int) -> Result:
    # Each choice runs in full: a short trial picked the slower one now and then, and that would tune Huey down.
    tried = [{**_drain(home, count, processes, threads), "threads": threads} for threads in THREADS]
    return min(tried, key=lambda result: result["seconds"])


def latency(home: Path, samples: int, polled: bool) -> Result:
    app = _app(home)
    options = ["-d", "0.001", "-m", "0.001"] if polled else []
    return crew.latency(home, _consumer(*options), samples, app.stamp, signal.SIGINT)
