"""Plain consumers of a JetStream work queue, by nats-py: a durable pull consumer, file storage, and an explicit
acknowledgement of each message. There is no result, no signature, and no queue around it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import nats
from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StorageType, StreamConfig

from bench import meter
from bench.peers import nats_queue

STREAM, SUBJECT, CONSUMER = "bench", "bench.jobs", "workers"
BATCH = 100
WAIT_S = 0.2


def rate(home: Path, count: int, workers: int, synced: bool = False) -> float:
    async def run() -> float:
        client = await nats.connect(os.environ["BENCH_NATS"])
        stream = client.jetstream()
        await stream.add_stream(
            StreamConfig(STREAM, subjects=[SUBJECT], retention=RetentionPolicy.WORK_QUEUE, storage=StorageType.FILE)
        )
        await stream.add_consumer(STREAM, ConsumerConfig(durable_name=CONSUMER, ack_policy=AckPolicy.EXPLICIT))
        try:
            return await nats_queue.rate(
                home,
                [sys.executable, "-m", "bench.peers.jetstream"],
                count,
                workers,
                lambda number: stream.publish(SUBJECT, json.dumps({"n": number}).encode()),
                lambda: stream.consumer_info(STREAM, CONSUMER),
            )
        finally:
            await client.close()

    with nats_queue.server(home, synced):
        return asyncio.run(run())


async def work() -> None:
    client = await nats.connect(os.environ["BENCH_NATS"])
    queue = await client.jetstream().pull_subscribe_bind(CONSUMER, STREAM)
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    meter.wait_for_gate()
    while not stopping.is_set():
        try:
            messages = await queue.fetch(BATCH, timeout=WAIT_S)
        except TimeoutError:
            continue
        for message in messages:
            json.loads(message.data)
            await message.ack()
            meter.hit()
    await client.close()


if __name__ == "__main__":
    meter.report_at_exit()
    asyncio.run(work())
