"""Calls a function on SIGTERM and SIGINT, to stop a process."""

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue

NUMBERS = (signal.SIGTERM, signal.SIGINT)


class ReceivedSignals:
    """The signals that came so far."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    @property
    def is_interrupt(self) -> bool:
        """Whether Ctrl-C was pressed."""
        return signal.SIGINT in self.numbers


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[ReceivedSignals]:
    """Calls `stop` for each signal until the block ends; then restores the previous signal handlers. `stop` runs on the
    event loop that runs here, or else in a thread of its own: a Python signal handler interrupts the main thread
    anywhere, even where it holds a lock that `stop` needs. Only the main thread can receive signals; in others this
    does nothing.
    """
    received = ReceivedSignals()
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def came(number: int) -> None:
        received.numbers.append(number)
        stop()

    kept = {number: signal.getsignal(number) for number in NUMBERS}
    try:
        with _on_the_loop(came) if _has_loop() else _in_a_thread(came):
            yield received
    finally:
        for number, handler in kept.items():
            if handler is not None:
                signal.signal(number, handler)


def _has_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


@contextmanager
def _on_the_loop(stop: Callable[[int], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for number in NUMBERS:
        loop.add_signal_handler(number, stop, number)
    try:
        yield
    finally:
        for number in NUMBERS:
            loop.remove_signal_handler(number)


@contextmanager
def _in_a_thread(stop: Callable[[int], None]) -> Iterator[None]:
    came: SimpleQueue[int] = SimpleQueue()  # the only queue whose `put` is reentrant

    def listen() -> None:
        while number := came.get():
            stop(number)

    thread = threading.Thread(target=listen, name="hocket-signals", daemon=True)
    thread.start()
    for number in NUMBERS:
        signal.signal(number, lambda number, _: came.put(number))
    try:
        yield
    finally:
        for number in NUMBERS:
            signal.signal(number, signal.SIG_IGN)
        came.put(0)
        thread.join()
