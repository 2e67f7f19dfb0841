"""Procrastinate's tasks, and a worker process of it."""

from __future__ import annotations

from typing import Any

from procrastinate import App, PsycopgConnector
from procrastinate.connector import BaseConnector

from bench import meter

# As many at once as a worker of ours. On an idle machine 1, 16 and 64 were no faster: it fetches one job at a time.
CONCURRENCY = 4


def connect(connector: BaseConnector) -> App:
    app = App(connector=connector)

    @app.task(name="noop")
    async def noop(n: int) -> None:
        pass

    @app.task(name="stamp")
    async def stamp(n: int) -> None:
        meter.started(n)

    return app


async def work(for_ever: bool) -> None:
    app = connect(PsycopgConnector(conninfo=meter.database()))
    async with app.open_async():
        finish_job = app.job_manager.finish_job

        async def counted(*arguments: Any, **options: Any) -> None:
            await finish_job(*arguments, **options)
            meter.hit()

        app.job_manager.finish_job = counted  # type: ignore[method-assign]
        meter.wait_for_gate()
        await app.run_worker_async(concurrency=CONCURRENCY, wait=for_ever, delete_jobs="always")
