"""taskiq on NATS: its pull-based JetStream broker, which acknowledges a task after its result is stored, and its
results in NATS's object store. Run by its own worker program, with its default of 100 tasks at once in each process.
Nothing is signed.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from taskiq_nats import NATSObjectStoreResultBackend, PullBasedJetStreamBroker

from bench.peers import nats_queue

# Its default is to fetch one message at a time, which is slower.
FETCHED = 100


def connect(url: str) -> tuple[PullBasedJetStreamBroker, Any]:
    """The broker and its only task."""
    broker = PullBasedJetStreamBroker(url, pull_consume_batch=FETCHED)

    async def noop(n: int) -> None:
        pass

    return broker.with_result_backend(NATSObjectStoreResultBackend(url)), broker.task(task_name="noop")(noop)


def rate(home: Path, count: int, workers: int, synced: bool = False) -> float:
    words = ["worker", "bench.peers.taskiq_app:broker", "--workers", "1", "--no-configure-logging"]
    command = [sys.executable, "-m", "taskiq", *words]

    async def run() -> float:
        broker, noop = connect(os.environ["BENCH_NATS"])
        await broker.startup()
        try:
            return await nats_queue.rate(home, command, count, workers, noop.kiq, broker.consumer.consumer_info)
        finally:
            await broker.shutdown()

    with nats_queue.server(home, synced):
        return asyncio.run(run())
