"""The event loop of this process, for blocking calls that wait for other nodes, a lock or a worker."""

import asyncio
import os
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from threading import Lock, Thread
from typing import Any, ParamSpec, TypeVar

from hocket.errors import Usage

P = ParamSpec("P")
T = TypeVar("T")

_loop: asyncio.AbstractEventLoop | None = None
_starting = Lock()


def process_loop() -> asyncio.AbstractEventLoop:
    """Starts the loop when it is first needed. Its thread ends with the process."""
    global _loop
    with _starting:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            Thread(target=_loop.run_forever, name="hocket-loop", daemon=True).start()
        return _loop


def _forget_loop() -> None:
    """A child of this process has no thread that runs the loop."""
    global _loop, _starting
    _loop, _starting = None, Lock()


os.register_at_fork(after_in_child=_forget_loop)


def on_loop(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine on the loop of another thread. If this thread is interrupted meanwhile, cancels the coroutine
    and waits for its end.
    """
    if asyncio._get_running_loop() is loop:
        work.close()
        raise Usage("a blocking call on the event loop that it waits for would never end; make it in another thread")
    done: Future[T] = Future()
    tasks: list[asyncio.Task[T]] = []

    def ended(task: asyncio.Task[T]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None:
            done.set_result(task.result())
        else:
            done.set_exception(error)

    def begin() -> None:
        tasks.append(loop.create_task(work))
        tasks[0].add_done_callback(ended)

    def cancel() -> None:
        if tasks:
            tasks[0].cancel()
        else:
            work.close()
            done.set_exception(asyncio.CancelledError())

    try:
        loop.call_soon_threadsafe(begin)
        return done.result()
    except BaseException:
        if not done.done():
            loop.call_soon_threadsafe(cancel)
            done.exception()
        raise


class InlineExecutor(Executor):
    """Does all work in the thread that submits it."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        done: Future[T] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


INLINE = InlineExecutor()
