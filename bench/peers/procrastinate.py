"""Procrastinate with its psycopg connector: `defer` one by one, `batch_defer` for batches (their async variants were no
faster), and its own worker with as many jobs at once as ours. Tasks are async, which spares it a thread for each job.
Finished jobs are deleted (`delete_jobs="always"`), so it keeps no result and its tables stay small; its default keeps
them.

A job counts as done when its deletion is committed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from procrastinate import App, SyncPsycopgConnector

from bench import crew, meter
from bench.lock_waits import LockWaits
from bench.peers.procrastinate_app import CONCURRENCY, connect
from bench.subject import Result

LABEL = "Procrastinate"
# It claims and ends each job in transactions of its own, so its rate does not depend on how many there are.
DRAINED_MAX = 1_000
NOTES = {
    "drain": f"Procrastinate runs {CONCURRENCY} jobs at once in each worker, deletes what is finished, and drains"
    f" {DRAINED_MAX:,} jobs at most: more take longer at the same rate."
}


def describe() -> str:
    return f"Procrastinate {version('procrastinate')} (psycopg {version('psycopg')})"


@contextmanager
def _installed() -> Iterator[App]:
    with connect(SyncPsycopgConnector(conninfo=meter.database())).open() as app:
        app.schema_manager.apply_schema()
        yield app


def submit_single(home: Path, count: int) -> Result:
    with _installed() as app:
        noop = app.tasks["noop"]
        start = time.perf_counter()
        for number in range(count):
            noop.defer(n=number)
        return {"seconds": time.perf_counter() - start}


def submit_batch(home: Path, count: int, size: int) -> Result:
    with _installed() as app:
        noop = app.tasks["noop"]
        start = time.perf_counter()
        for first in range(0, count, size):
            noop.batch_defer(*({"n": number} for number in range(first, min(first + size, count))))
        return {"seconds": time.perf_counter() - start}


def drain(home: Path, count: int, processes: int) -> Result:
    count = min(count, DRAINED_MAX)
    submit_batch(home, count, 1_000)
    return {**crew.drain(home, _worker("until-empty"), count, processes, is_empty=lambda: False), "count": count}


def drain_nodes(home: Path, count: int, nodes: int) -> Result:
    count = min(count, DRAINED_MAX)
    submit_batch(home, count, 1_000)
    with LockWaits() as waits:
        drained = crew.drain(home, _worker("until-empty"), count, nodes, is_empty=lambda: False)
    return {**drained, **waits.shares(), "rate": count / drained["seconds"]}


def latency(home: Path, samples: int, polled: bool) -> Result:
    with _installed() as app:
        stamp = app.tasks["stamp"]
        return crew.latency(home, _worker("for-ever"), samples, lambda number: stamp.defer(n=number))


def _worker(mode: str) -> list[str]:
    # Not with -m: Procrastinate warns of an app that is made in the main module.
    program = "import asyncio, sys; from bench import meter; from bench.peers.procrastinate_app import work\n"
    program += "meter.report_at_exit(); asyncio.run(work(sys.argv[1] == 'for-ever'))"
    return [sys.executable, "-c", program, mode]
