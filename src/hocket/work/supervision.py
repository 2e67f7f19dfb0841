"""Keeps background tasks running. A task that fails is reported and restarted after a pause, which grows while it keeps
failing, so that no single bad peer, schedule or job stops the process from doing its work.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from hocket.cancelling import end_tasks
from hocket.events import Emit
from hocket.events.workers import BackgroundTaskFailed
from hocket.kernel.retrying import TASK_RETRIES
from hocket.work.environment import Environment

T = TypeVar("T")

# A task that ran this long before it failed counts as healthy: its next pause is short.
HEALTHY_S = 60.0


async def supervised(name: str, make: Callable[[], Awaitable[T]], emit: Emit, environment: Environment) -> T:
    """Runs what `make` returns until it ends, and returns its result. After an error it emits an event, and the task is
    made again. Cancelling this cancels the task; `name` is its name for the operator ("the sync loop").
    """
    failures = 0
    while True:
        began = environment.monotonic()
        try:
            return await make()
        except Exception as error:
            failures = 1 if environment.monotonic() - began >= HEALTHY_S else failures + 1
            rest = TASK_RETRIES.delay_s(failures, environment.chance.random())
            said = str(error) or "no further detail"
            emit(BackgroundTaskFailed(name, f"{type(error).__name__}: {said}", rest))
        await asyncio.sleep(rest)


@asynccontextmanager
async def supervising(
    name: str, make: Callable[[], Awaitable[Any]], emit: Emit, environment: Environment
) -> AsyncIterator[None]:
    """Runs a supervised task until the block ends."""
    task = asyncio.create_task(supervised(name, make, emit, environment))
    try:
        yield
    finally:
        await end_tasks([task])
