"""Calls a function on SIGTERM and SIGINT, to stop a process; and holds Ctrl-C back while the store is in use."""

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


class HeldInterrupts:
    """Whether Ctrl-C was pressed, and whether it may end a wait now."""

    def __init__(self) -> None:
        self._has_come = self._is_welcome = False

    def came(self, *_: object) -> None:
        self._has_come = True
        self.check(self._is_welcome)

    def check(self, is_welcome: bool = True) -> None:
        if is_welcome and self._has_come:
            self._has_come = False
            raise KeyboardInterrupt

    @contextmanager
    def let_in(self) -> Iterator[None]:
        """In this block, Ctrl-C raises KeyboardInterrupt at once."""
        self._is_welcome = True
        try:
            self.check()
            yield
        finally:
            self._is_welcome = False


@contextmanager
def held_interrupts() -> Iterator[HeldInterrupts]:
    """In this block, Ctrl-C raises KeyboardInterrupt only where it is let in, or at the end. Elsewhere it could come
    between taking a lock of the store and noting that it is taken, and closing the store would wait for that lock
    forever. Programs with a handler of their own keep it, and other threads get no signals.
    """
    held = HeldInterrupts()
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield held
        return
    signal.signal(signal.SIGINT, held.came)
    try:
        yield held
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        held.check()


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
