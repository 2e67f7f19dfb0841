"""One writer for all the tasks of an event loop: while a commit is under way, new requests gather, and the next commit
takes them together. The log itself blocks, so an executor calls it.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, NamedTuple, TypeVar

from hocket.log import Log, Transaction

T = TypeVar("T")

REQUESTS_MAX = 10_000
GROUP_MAX = 1_000


class _Waiting(NamedTuple):
    request: Callable[[Transaction], Any]
    alone: Callable[[], Any] | None
    beside: bool
    done: asyncio.Future[Any]


class Committer:
    """Gathers the requests of one event loop and commits them in groups, one group after the other. An idle committer
    adds no delay.
    """

    def __init__(self, log: Log, executor: Executor) -> None:
        self._log = log
        self._executor = executor
        self._waiting: list[_Waiting] = []
        self._group: list[_Waiting] = []
        self._room = asyncio.Semaphore(REQUESTS_MAX)
        self._flushing: asyncio.Task[None] | None = None

    async def run(
        self, request: Callable[[Transaction], T], alone: Callable[[], T] | None = None, *, beside: bool = False
    ) -> T:
        """Returns the request's result once it is durable. `alone` does the same in a shorter way; it is used if no
        other request waits. `beside` is as in `Log.run`.
        """
        async with self._room:
            done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
            self._waiting.append(_Waiting(request, alone, beside, done))
            if self._flushing is None:
                self._flushing = asyncio.create_task(self._flush())
                self._flushing.add_done_callback(self._flushed)
            return await done

    async def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            group, self._waiting = self._waiting[:GROUP_MAX], self._waiting[GROUP_MAX:]
            self._group = group
            try:
                results = await loop.run_in_executor(self._executor, self._commit, group)
            except Exception as error:
                results = [error] * len(group)
            for (*_, done), result in zip(group, results, strict=True):
                if done.cancelled():
                    continue
                if isinstance(result, Exception):
                    done.set_exception(result)
                else:
                    done.set_result(result)
        self._flushing = None

    def _flushed(self, flushing: asyncio.Task[None]) -> None:
        """If the program has cancelled the task, as `asyncio.run` does at its end, nobody must wait for it for ever."""
        if flushing.cancelled():
            self._flushing = None
            for each in self._group + self._waiting:
                each.done.cancel()
            self._waiting.clear()

    def _commit(self, group: list[_Waiting]) -> list[Any]:
        if len(group) == 1 and (alone := group[0].alone) is not None:
            return [alone()]
        return self._log.commit([each.request for each in group], beside=all(each.beside for each in group))

    async def close(self) -> None:
        while self._flushing is not None:
            await asyncio.wait([self._flushing])
