"""A worker process of PgQueuer, on uvloop as `pgq run` has it, with one connection."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from typing import Any

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode

from bench import meter

# The fastest of 10, 50, 100, 200, 500 and 1,000 on an idle machine; its default of 10 was half as fast.
BATCH = 200


class CountingQueries(Queries):
    """Counts the jobs whose end is committed."""

    async def log_jobs(self, job_status: list[Any]) -> None:
        await super().log_jobs(job_status)
        for _ in job_status:
            meter.hit()


async def work(for_ever: bool) -> None:
    driver = AsyncpgDriver(await asyncpg.connect(meter.database()))
    queue = PgQueuer(driver, queries=CountingQueries(driver))

    @queue.entrypoint("noop")
    async def noop(job: Job) -> None:
        pass

    @queue.entrypoint("stamp")
    async def stamp(job: Job) -> None:
        assert job.payload is not None
        meter.started(json.loads(job.payload)["n"])

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, queue.shutdown.set)
    meter.wait_for_gate()
    mode = QueueExecutionMode.continuous if for_ever else QueueExecutionMode.drain
    await queue.qm.run(batch_size=BATCH, mode=mode)


if __name__ == "__main__":
    meter.report_at_exit()
    uvloop.run(work(sys.argv[1] == "for-ever"))
