"""One writer for all the tasks of an event loop: while a commit is under way, new requests gather, and the next commit
takes them together. The log itself blocks, so an executor calls it.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import closing, suppress
from typing import Any, NamedTuple, TypeVar

from hocket.bus.hints import about
from hocket.bus.listener import Listener
from hocket.log import Committed, Log, Transaction

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
    adds no delay: the requests of one turn of the loop are a group.
    """

    def __init__(self, log: Log, executor: Executor) -> None:
        self._log = log
        self._executor = executor
        self._waiting: list[_Waiting] = []
        self._room = asyncio.Semaphore(REQUESTS_MAX)
        # While there is a commit, or one about to begin; done when there is no other request.
        self._committing: asyncio.Future[None] | None = None
        # Those who wait until other nodes have what this one has decided as the coordinator.
        self._confirming: set[asyncio.Task[None]] = set()

    async def run(
        self, request: Callable[[Transaction], T], alone: Callable[[], T] | None = None, *, beside: bool = False
    ) -> T:
        """Returns the request's result once it is durable. `alone` does the same in a shorter way; it is used if no
        other request waits. `beside` is as in `Log.run`.
        """
        async with self._room:
            loop = asyncio.get_running_loop()
            done: asyncio.Future[T] = loop.create_future()
            if not self._is_committing:
                # What an earlier loop has left waits for nothing.
                self._waiting.clear()
                self._committing = loop.create_future()
                loop.call_soon(self._begin, loop)
            self._waiting.append(_Waiting(request, alone, beside, done))
            return await done

    @property
    def _is_committing(self) -> bool:
        """A loop that is closed gets no answer to its last commit."""
        return self._committing is not None and not self._committing.get_loop().is_closed()

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begins the next commit. The thread that ends it sends the answers straight to the loop."""
        group, self._waiting = self._waiting[:GROUP_MAX], self._waiting[GROUP_MAX:]

        def ended(commit: Future[Committed]) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._answer, loop, group, commit)

        try:
            commit = self._executor.submit(self._commit, group)
        except RuntimeError as error:  # the executor is shut down
            commit = Future()
            commit.set_exception(error)
        commit.add_done_callback(ended)

    def _answer(self, loop: asyncio.AbstractEventLoop, group: list[_Waiting], commit: Future[Committed]) -> None:
        error = asyncio.CancelledError() if commit.cancelled() else commit.exception()
        results, unconfirmed = commit.result() if error is None else ([error] * len(group), {})
        for index, ((*_, done), result) in enumerate(zip(group, results, strict=True)):
            if index not in unconfirmed:
                _tell(done, result)
        if unconfirmed:
            waiting = [(group[index].done, results[index]) for index in unconfirmed]
            task = loop.create_task(self._confirm(waiting, max(unconfirmed.values())))
            self._confirming.add(task)
            task.add_done_callback(self._confirming.discard)
        if self._waiting:
            self._begin(loop)
        elif self._committing is not None:
            self._committing.set_result(None)
            self._committing = None

    async def _confirm(self, waiting: list[tuple[asyncio.Future[Any], Any]], at: bytes) -> None:
        """Gives the answers once enough named nodes have this node's op of that time."""
        try:
            await self.confirmed(at)
        except asyncio.CancelledError:
            for done, _ in waiting:
                done.cancel()
            raise
        except Exception as error:
            waiting = [(done, error) for done, _ in waiting]
        for done, result in waiting:
            _tell(done, result)

    async def confirmed(self, at: bytes) -> None:
        """Waits until this node's op of that time is confirmed. Raises Unconfirmed."""
        from hocket.log.succession.leading import CONFIRM_S, CONFIRMED, LOOK_AGAIN_S

        lead = self._log.lead
        deadline = lead.monotonic() + CONFIRM_S
        with closing(Listener(lead.bus.subscribe(about(CONFIRMED)))) as changes:
            while not await self._off_loop(lambda: lead.is_confirmed(at)):
                left = deadline - lead.monotonic()
                if left <= 0:
                    raise await self._off_loop(lead.unconfirmed)
                await changes.wait(min(left, LOOK_AGAIN_S))

    async def all_confirmed(self) -> None:
        """Waits until everything is confirmed that this node has decided as the coordinator. Raises Unconfirmed."""
        known = self._log.permissions_reader.latest
        if known is None or not self._log.is_shared_out(known):
            return
        at = await self._off_loop(self._log.lead.last_own)
        if at is not None:
            await self.confirmed(at)

    async def _off_loop(self, work: Callable[[], T]) -> T:
        return await asyncio.wrap_future(self._executor.submit(work))

    def _commit(self, group: list[_Waiting]) -> Committed:
        if len(group) == 1 and (alone := group[0].alone) is not None:
            return Committed([alone()], {})
        return self._log.commit_unconfirmed([each.request for each in group], beside=all(each.beside for each in group))

    async def close(self) -> None:
        while self._is_committing and self._committing is not None:
            await asyncio.wait([self._committing])
        if self._confirming:
            await asyncio.wait(self._confirming)


def _tell(done: asyncio.Future[Any], result: Any) -> None:
    if done.done():  # nobody waits any longer
        return
    if isinstance(result, asyncio.CancelledError):
        done.cancel()
    elif isinstance(result, BaseException):
        done.set_exception(result)
    else:
        done.set_result(result)
