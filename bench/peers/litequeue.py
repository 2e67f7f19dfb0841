"""litequeue: a table, `put`, `pop` and `done`. It sets synchronous=NORMAL itself; here it is FULL, like everyone's.

It ships no worker, so ours for it is the loop of its README: pop, work, done.
"""

from __future__ import annotations

import json
import signal
import sqlite3
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from litequeue import LiteQueue

from bench import crew, meter
from bench.subject import Result

LABEL = "litequeue"
NOTES = {
    "drain": "litequeue sorts its backlog at each pop: its drain is measured on 4,000 jobs at most; more is slower.",
    "submit_batch": "litequeue's batch is its own transaction() around many put() calls.",
    "latency": "litequeue ships no worker; its loop sleeps one millisecond when it finds nothing.",
}

BACKLOG_MAX = 4000


def describe() -> str:
    return f"litequeue {version('litequeue')} (SQLite {sqlite3.sqlite_version})"


def _open(home: Path) -> Any:
    queue = LiteQueue(home / "litequeue.db", timeout=60)
    queue.conn.execute("PRAGMA synchronous = FULL")
    return queue


def submit_single(home: Path, count: int) -> Result:
    queue = _open(home)
    start = time.perf_counter()
    for number in range(count):
        queue.put(json.dumps({"kind": "noop", "n": number}))
    return {"seconds": time.perf_counter() - start}


def submit_batch(home: Path, count: int, size: int) -> Result:
    queue = _open(home)
    start = time.perf_counter()
    for first in range(0, count, size):
        with queue.transaction("IMMEDIATE"):
            for number in range(first, min(first + size, count)):
                queue.put(json.dumps({"kind": "noop", "n": number}))
    return {"seconds": time.perf_counter() - start}


def _worker(mode: str) -> list[str]:
    return [sys.executable, "-m", "bench.peers.litequeue", mode]


def drain(home: Path, count: int, processes: int) -> Result:
    count = min(count, BACKLOG_MAX)
    submit_batch(home, count, 1000)
    return {**crew.drain(home, _worker("until-empty"), count, processes, is_empty=lambda: False), "count": count}


def latency(home: Path, samples: int, polled: bool) -> Result:
    queue = _open(home)
    return crew.latency(
        home, _worker("for-ever"), samples, lambda number: queue.put(json.dumps({"kind": "stamp", "n": number}))
    )


def work(home: Path, for_ever: bool) -> None:
    queue = _open(home)
    meter.wait_for_gate()
    while True:
        message = queue.pop()
        if message is None:
            if not for_ever:
                break
            time.sleep(0.001)
            continue
        job = json.loads(message.data)
        if job["kind"] == "stamp":
            meter.started(job["n"])
        if hasattr(message, "claim_id"):  # newer versions want proof of the claim
            queue.done(message.message_id, claim_id=message.claim_id)
        else:
            queue.done(message.message_id)
        meter.hit()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    meter.report_at_exit()
    work(meter.home(), sys.argv[1] == "for-ever")
