"""Ends tasks for certain. Until Python 3.12, `asyncio.wait_for` loses a cancellation that comes at the moment when what
it waits for is done, and libraries use it: the task would go on, and a caller that awaits its end would never return.
A task group cancels each of its tasks only once, so what runs in one calls such a library with `cancellable`.
"""

import asyncio
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

# A task that has not ended after this long is cancelled again.
AGAIN_S = 5.0


async def end_tasks(tasks: Iterable[asyncio.Task[Any]], again_s: float = AGAIN_S) -> None:
    """Cancels the tasks until all have ended. Their results and errors stay with them."""
    running = set(tasks)
    while running:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=again_s)


async def cancellable(work: Coroutine[Any, Any, T]) -> T:
    """The result of work that may lose a cancellation. A caller that is cancelled hears of it, whatever becomes of the
    work.
    """
    task = asyncio.create_task(work)
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        await end_tasks([task])
        if not task.cancelled():
            task.exception()  # or the loop would report that nobody has looked at it
        raise
    return task.result()


def end_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Closes a loop that has stopped. What is still under way is cancelled and gets one turn to clean up, no more."""
    for task in asyncio.all_tasks(loop):
        task.cancel()
    try:
        # It may have been told more than once to stop, and then stops again at once.
        with suppress(RuntimeError):
            loop.run_until_complete(asyncio.sleep(0))
    finally:
        loop.close()
