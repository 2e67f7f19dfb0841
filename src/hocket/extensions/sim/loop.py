"""An event loop on virtual time. When nothing is ready it does not wait: time jumps to the next due event. An
executor's work is done on the spot, there are no threads and no files, and callbacks run in the order in which they
became ready. Each task belongs to the life of the node that started it, so that all of it can be ended between two
steps, as by a power cut.
"""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from contextvars import Context, ContextVar
from functools import partial
from typing import Any, ParamSpec, TypeVar

from hocket.cancelling import end_loop

P = ParamSpec("P")
T = TypeVar("T")

# The least time that passes between an event and the next: a clock that runs a little slow must not make a task wait
# for ever shorter times.
GRAIN_S = 0.0001


class Stuck(Exception):
    """All tasks wait and nothing is due."""


class Life:
    """One life of a node, from its start to its crash: whatever it started ends with it."""

    def __init__(self) -> None:
        self.is_over = False
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def adopt(self, task: asyncio.Task[Any]) -> None:
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    def end(self) -> None:
        self.is_over = True
        for task in list(self._tasks):
            task.cancel()

    async def ended(self) -> None:
        """Waits until nothing of it is left."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def start(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """A task of this life; so are all tasks that it starts."""
        token = _living.set(self)
        try:
            return asyncio.get_running_loop().create_task(work, name=name)
        finally:
            _living.reset(token)


_living: ContextVar[Life | None] = ContextVar("hocket-sim-life", default=None)


class Inline(Executor):
    """An executor that does its work on the loop's own time."""

    def start(self, done: "asyncio.Future[T] | Future[T]", work: Callable[..., T], *args: Any) -> None:
        """Does the work and gives its outcome to `done`."""
        raise NotImplementedError

    def submit(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        done: Future[T] = Future()
        self.start(done, partial(work, *args, **kwargs))
        return done


class VirtualLoop(asyncio.BaseEventLoop):
    """`now` is the true time of the simulation, in seconds; no node can read it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self._selector = _Jump(self)
        self._clock_resolution = 1e-9
        self.set_task_factory(_task)

    def time(self) -> float:
        return self.now

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return super().call_at(max(when, self.now + GRAIN_S), callback, *args, context=context)

    def run_in_executor(self, executor: Executor | None, func: Callable[..., T], *args: Any) -> "asyncio.Future[T]":  # type: ignore[override]
        done: asyncio.Future[T] = self.create_future()
        if isinstance(executor, Inline):
            executor.start(done, func, *args)
            return done
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def _process_events(self, event_list: object) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


class _Jump:
    """Replaces a real loop's waiting for files and for time."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> None:
        loop = self._loop
        if timeout is None:
            raise Stuck("all tasks wait, and nothing is due")
        if timeout > 0:
            loop.now = max(loop.now, loop._scheduled[0].when())  # type: ignore[attr-defined]

    def close(self) -> None:
        pass


def _task(loop: asyncio.AbstractEventLoop, work: Any, context: Context | None = None) -> "asyncio.Task[Any]":
    task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, context=context)
    life = _living.get()
    if life is not None:
        life.adopt(task)
        if life.is_over:
            task.cancel()
    return task


def run(main: Coroutine[Any, Any, T]) -> T:
    """Runs one coroutine to its end on a loop of its own. What it leaves under way is cancelled."""
    loop = VirtualLoop()
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(main)
    finally:
        asyncio.set_event_loop(None)
        end_loop(loop)
