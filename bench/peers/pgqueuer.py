"""PgQueuer, as its guide to performance recommends: asyncpg, one connection for each worker (a pool was slower), the
settings of `pgq autovac`, lists of arguments to enqueue a batch, and larger batches of short jobs than the default of
10. Its durability is its default, `durable`; other levels lose jobs or their log in a crash. It runs on uvloop, as `pgq
run` does, and so do its submits.

It writes a row of its log for each step of a job, and deletes the job when it is done, a batch at a time. A job counts
as done when that is committed.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from pathlib import Path

import asyncpg
import uvloop
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries

from bench import crew, meter
from bench.lock_waits import LockWaits
from bench.peers.pgqueuer_app import BATCH
from bench.subject import Result

LABEL = "PgQueuer"
NOTES = {"drain": f"PgQueuer fetches {BATCH} jobs at a time."}


def describe() -> str:
    return f"PgQueuer {version('pgqueuer')} (asyncpg {version('asyncpg')}, uvloop {version('uvloop')})"


def _payload(number: int) -> bytes:
    return json.dumps({"n": number}).encode()


async def _installed() -> Queries:
    queries = Queries(AsyncpgDriver(await asyncpg.connect(meter.database())))
    await queries.install()
    await queries.optimize_autovacuum()
    return queries


async def _timed(submit: Callable[[Queries], Awaitable[None]]) -> Result:
    queries = await _installed()
    start = time.perf_counter()
    await submit(queries)
    return {"seconds": time.perf_counter() - start}


def submit_single(home: Path, count: int) -> Result:
    async def submit(queries: Queries) -> None:
        for number in range(count):
            await queries.enqueue("noop", _payload(number))

    return uvloop.run(_timed(submit))


def submit_batch(home: Path, count: int, size: int) -> Result:
    async def submit(queries: Queries) -> None:
        for first in range(0, count, size):
            payloads: list[bytes | None] = [_payload(number) for number in range(first, min(first + size, count))]
            await queries.enqueue(["noop"] * len(payloads), payloads, [0] * len(payloads))

    return uvloop.run(_timed(submit))


def drain(home: Path, count: int, processes: int) -> Result:
    submit_batch(home, count, 1_000)
    return crew.drain(home, _worker("until-empty"), count, processes, is_empty=lambda: False)


def drain_nodes(home: Path, count: int, nodes: int) -> Result:
    submit_batch(home, count, 1_000)
    with LockWaits() as waits:
        drained = crew.drain(home, _worker("until-empty"), count, nodes, is_empty=lambda: False)
    return {**drained, **waits.shares(), "rate": count / drained["seconds"]}


def latency(home: Path, samples: int, polled: bool) -> Result:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        queries = runner.run(_installed())
        submit = lambda number: runner.run(queries.enqueue("stamp", _payload(number)))  # noqa: E731
        return crew.latency(home, _worker("for-ever"), samples, submit)


def _worker(mode: str) -> list[str]:
    return [sys.executable, "-m", "bench.peers.pgqueuer_app", mode]
