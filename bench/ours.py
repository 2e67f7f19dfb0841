"""Hocket itself, as its users run it: the synchronous API for submits, `Node.work` in processes of their own for the
rest. Signatures and `synchronous=FULL` are on; a row of submits ends when the last op is signed. A job counts as done
when its completion is on the log, not when its handler returns.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import apsw

import hocket
from bench import crew, meter
from bench.subject import Result
from hocket.families.jobs import claiming
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.rules import Job
from hocket.kernel.arbitration import Reason
from hocket.log import Transaction
from hocket.node.runtime import Runtime
from hocket.work.runner import Run

LABEL = "Hocket"
NOTES = {
    "drain": "Hocket has the claim and the completion of each job on the disk, and signs its log's end every 20 ms.",
    "latency": "Hocket does not poll: a hint of the submitter wakes the worker.",
}
FILL_STEP = 1_000


def describe() -> str:
    return f"Hocket {hocket.__version__} (SQLite {apsw.sqlite_lib_version()})"


@hocket.job("bench.noop")
def noop(ctx: hocket.Context, n: int) -> None:
    pass


@hocket.job("bench.stamp")
def stamp(ctx: hocket.Context, n: int) -> None:
    meter.started(n)


def _home(home: Path) -> Path:
    node = home / "node"
    if not node.exists():
        Runtime.init(node).close()
    return node


def submit_single(home: Path, count: int) -> Result:
    with hocket.open(_home(home)) as node:
        start = time.perf_counter()
        for number in range(count):
            node.submit(noop, n=number)
        node.runtime.log.seal()
        return {"seconds": time.perf_counter() - start}


def submit_batch(home: Path, count: int, size: int) -> Result:
    with hocket.open(_home(home)) as node:
        start = time.perf_counter()
        for first in range(0, count, size):
            node.submit_many([(noop, {"n": number}) for number in range(first, min(first + size, count))])
        node.runtime.log.seal()
        return {"seconds": time.perf_counter() - start}


def drain(home: Path, count: int, processes: int) -> Result:
    submit_batch(home, count, 1_000)
    command = [sys.executable, "-m", "bench.ours", "until-idle"]
    return crew.drain(home, command, count, processes, is_empty=lambda: False)


def latency(home: Path, samples: int, polled: bool) -> Result:
    with hocket.open(_home(home)) as node:
        command = [sys.executable, "-m", "bench.ours", "for-ever"]
        return crew.latency(home, command, samples, lambda number: node.submit(stamp, n=number))


def fill(home: Path, finished: int) -> Result:
    """Every job is submitted, claimed and completed by real ops, in one process and without handlers."""
    start = time.perf_counter()
    with Runtime.open(_home(home)) as runtime:
        for first in range(0, finished, FILL_STEP):
            step = min(FILL_STEP, finished - first)
            runtime.submit([noop.draft({"n": first + number}) for number in range(step)])
            _finish(runtime, step)
    return {"seconds": time.perf_counter() - start}


def _finish(runtime: Runtime, count: int) -> None:
    claims = runtime.log.run(lambda tx: claiming.claim(tx, 0, count, lambda kind: 60_000)).taken

    def complete(tx: Transaction) -> None:
        tx.projection.jobs.load([claim.job.id for claim in claims])
        for claim in claims:
            assert claim.job.claim_op is not None
            jobs.complete(tx, jobs.Held(claim.job.id, claim.job.claim_op), None, 0)

    runtime.log.run(complete)


def refold(home: Path, ops: int) -> Result:
    fill(home, ops // 3)
    with Runtime.open(_home(home)) as runtime:
        start = time.perf_counter()
        rebuilt = runtime.rebuild()
        seconds = time.perf_counter() - start
    if not rebuilt.unchanged:
        raise RuntimeError("the roster came out different")
    return {"seconds": seconds, "count": rebuilt.ops, "peak_kib": [meter.peak_kib()]}


def work(home: Path, for_ever: bool) -> None:
    with hocket.open(_home(home)) as node:
        meter.wait_for_gate()
        node.work([noop, stamp], until_idle=not for_ever, finished=_count)


def _count(run: Run, outcome: Job | Reason) -> None:
    """A job that goes back to an idle worker is not done."""
    if isinstance(outcome, Job) and outcome.outcome is not None:
        meter.hit()


if __name__ == "__main__":
    meter.report_at_exit()
    work(meter.home(), sys.argv[1] == "for-ever")
