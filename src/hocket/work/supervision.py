"""Keeps background work going. A task that ends by an error is reported and started again after a rest, which grows
while the errors go on, so that no single bad peer, schedule or job ends what the process promised to do.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from hocket.events import BackgroundTaskFailed, Emit
from hocket.kernel.backoff import backoff_s
from hocket.work.environment import Environment

T = TypeVar("T")

REST_S, REST_S_MAX = 1.0, 60.0
# Work that ran for this long before it failed is taken for healthy: its next rest is a short one.
HEALTHY_S = 60.0


async def supervised(name: str, make: Callable[[], Awaitable[T]], emit: Emit, environment: Environment) -> T:
    """Runs what `make` gives until it returns, and gives its result. After an error the operator is told, and the work
    is made anew. Cancelling this cancels the work; `name` is what the operator is told failed ("the sync loop").
    """
    failures = 0
    while True:
        began = environment.monotonic()
        try:
            return await make()
        except Exception as error:
            failures = 1 if environment.monotonic() - began >= HEALTHY_S else failures + 1
            rest = backoff_s(failures, REST_S, REST_S_MAX, environment.chance.random())
            said = str(error) or "no further detail"
            emit(BackgroundTaskFailed(name, f"{type(error).__name__}: {said}", rest))
        await asyncio.sleep(rest)
