"""Opens the node of a process that stays, also while its store is away: the process says what it waits for and tries
again, as it does later when the store fails. An error that does not pass, such as a wrong password, ends it.
"""

import asyncio
import random
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from hocket.cli.settings import open_runtime
from hocket.errors import StoreAway
from hocket.events import Emit
from hocket.events.workers import StoreUnavailable
from hocket.kernel.retrying import STORE_RETRIES
from hocket.node.runtime import Runtime

T = TypeVar("T")


def open_patiently(emit: Emit) -> Runtime:
    """Opens the runtime of the chosen home as soon as its store answers. SIGTERM ends the wait with exit code 0, Ctrl-C
    with 130.
    """
    failures = 0
    with _ended_by_sigterm():
        while True:
            try:
                return open_runtime()
            except StoreAway as error:
                emit(StoreUnavailable(str(error)))
            failures += 1
            time.sleep(_rest_s(failures))


async def until_answered(ask: Callable[[], Awaitable[T]], emit: Emit, is_stopping: Callable[[], bool]) -> T | None:
    """The answer to a question to the store, as soon as the store answers; None if the process is to stop."""
    failures = 0
    while not is_stopping():
        try:
            return await ask()
        except StoreAway as error:
            emit(StoreUnavailable(str(error)))
        failures += 1
        await asyncio.sleep(_rest_s(failures))
    return None


def _rest_s(failures: int) -> float:
    return STORE_RETRIES.delay_s(failures, random.random())


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Nothing is open yet, so the process may end anywhere."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: object) -> None:
        raise SystemExit(0)

    kept = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, kept)
