"""What both peers on NATS have in common: a server of their own, workers that wait, jobs sent as fast as the server
takes them, and the rate from the first job sent to the last one done.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from nats.js import JetStreamContext

from bench import crew
from tests.bus.nats_server import NatsServer

# Jobs sent whose arrival the server has yet to confirm.
IN_FLIGHT = 100


def server(home: Path, synced: bool) -> NatsServer:
    """As shipped, NATS confirms a message before it is on the disk; `synced`: it writes each to the disk first."""
    sync = "sync_interval: always" if synced else ""
    stored = f'jetstream {{ store_dir: "{home / "nats"}", max_file_store: 1GB, {sync} }}'
    made = NatsServer(home, stored, jetstream=False)
    os.environ["BENCH_NATS"] = made.url
    return made


async def rate(
    home: Path,
    command: list[str],
    count: int,
    workers: int,
    send: Callable[[int], Awaitable[object]],
    info: Callable[[], Awaitable[JetStreamContext.ConsumerInfo]],
) -> float:
    room = asyncio.Semaphore(IN_FLIGHT)

    async def send_one(number: int) -> None:
        async with room:
            await send(number)

    with crew.crew(home, command, workers) as team:
        start = await asyncio.to_thread(team.open_gate)
        await asyncio.gather(*(send_one(number) for number in range(count)))
        while True:
            found = await info()
            if not found.num_pending and not found.num_ack_pending:
                break
            await asyncio.sleep(0.1)
        reports = await asyncio.to_thread(team.stop)
    done = sum(report["done"] for report in reports)
    if done != count:
        raise RuntimeError(f"{done} jobs done of {count}")
    return count / (max(report["last"] for report in reports) - start)
