"""Workers inside a program that does other things as well."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from hocket.work.worker import Worker

# Called with the worker when it begins.
Started = Callable[[Worker], None]


@asynccontextmanager
async def beside(work: Callable[[Started], Coroutine[Any, Any, object]]) -> AsyncIterator[Worker]:
    """Runs `work` as a task until the block ends; then stops the worker and waits for it. If the block is cancelled, so
    is the task: the worker hands its jobs back at once.
    """
    begun: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(work(begun.set_result))
    try:
        first: list[asyncio.Future[Any]] = [begun, task]
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        if not begun.done():
            await task  # it has failed
        yield begun.result()
    except asyncio.CancelledError:
        task.cancel()
        raise
    finally:
        if begun.done() and not task.cancelling():
            begun.result().stop()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()
