"""One writer for all the tasks of an event loop: what they want written gathers while a commit is under way, and goes
into the next one together. The log itself blocks, so it is called on an executor.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

from hocket.log import Log, Transaction

T = TypeVar("T")

REQUESTS_MAX = 10_000
GROUP_MAX = 1_000


class Committer:
    """Gathers the requests of one event loop and commits whatever has gathered, one group after the other.
    Nothing is delayed when nothing is under way.
    """

    def __init__(self, log: Log, executor: Executor) -> None:
        self._log = log
        self._executor = executor
        self._waiting: list[tuple[Callable[[Transaction], Any], asyncio.Future[Any]]] = []
        self._room = asyncio.Semaphore(REQUESTS_MAX)
        self._flushing: asyncio.Task[None] | None = None

    async def run(self, request: Callable[[Transaction], T]) -> T:
        """The request's result, once it is durable."""
        async with self._room:
            done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
            self._waiting.append((request, done))
            if self._flushing is None:
                self._flushing = asyncio.create_task(self._flush())
            return await done

    async def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            group, self._waiting = self._waiting[:GROUP_MAX], self._waiting[GROUP_MAX:]
            try:
                results = await loop.run_in_executor(
                    self._executor, self._log.commit, [request for request, _ in group]
                )
            except Exception as error:
                results = [error] * len(group)
            for (_, done), result in zip(group, results, strict=True):
                if done.cancelled():
                    continue
                if isinstance(result, Exception):
                    done.set_exception(result)
                else:
                    done.set_result(result)
        self._flushing = None

    async def close(self) -> None:
        while self._flushing is not None:
            await asyncio.wait([self._flushing])
