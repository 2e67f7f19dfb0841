"""Signals tell a process to stop, whatever it is doing when they come."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from hocket.node.signals import held_interrupts, stopped_by_signals

PATIENCE_S = 60.0

# It waits as a worker does, and is stopped by a function that needs the lock of what it waits for.
WAITER = """
import signal, threading
from hocket.node.signals import stopped_by_signals

stops = 0
wake = threading.Event()

def stop():
    global stops
    stops += 1
    wake.set()

for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
with stopped_by_signals(stop):
    print("up", flush=True)
    while stops < 3000:
        wake.clear()
        wake.wait(0.0002)
"""

LOOP = """
import asyncio
from hocket.node.signals import stopped_by_signals

async def main():
    ended = asyncio.Event()
    with stopped_by_signals(ended.set):
        print("up", flush=True)
        await ended.wait()

asyncio.run(main())
"""


def started(program: str) -> "subprocess.Popen[str]":
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    return process


def test_a_signal_that_comes_at_any_moment_is_heard():
    """Signals come from outside as fast as they can, one also while another is being handled."""
    process = started(WAITER)
    deadline = time.monotonic() + PATIENCE_S
    while process.poll() is None and time.monotonic() < deadline:
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
    process.kill()
    assert process.wait() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_event_loop_is_told(number: signal.Signals):
    process = started(LOOP)
    process.send_signal(number)
    assert process.wait(PATIENCE_S) == 0


def test_at_the_end_signals_do_what_they_did_before():
    heard: list[int] = []
    told = threading.Event()
    kept = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        with stopped_by_signals(told.set):
            os.kill(os.getpid(), signal.SIGTERM)
            assert told.wait(PATIENCE_S) and heard == []
        os.kill(os.getpid(), signal.SIGTERM)
        assert heard == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, kept)


def test_outside_of_the_main_thread_nothing_changes():
    found: list[object] = []

    def look() -> None:
        with stopped_by_signals(lambda: None):
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGTERM)]


def test_ctrl_c_is_held_back_until_it_is_let_in() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        reached = []
        with pytest.raises(KeyboardInterrupt), held_interrupts() as interrupts:
            signal.raise_signal(signal.SIGINT)
            reached.append("held")
            with interrupts.let_in():
                reached.append("let in")
        assert reached == ["held"]
        with pytest.raises(KeyboardInterrupt), held_interrupts() as interrupts, interrupts.let_in():
            signal.raise_signal(signal.SIGINT)
            reached.append("after it was let in")
        with pytest.raises(KeyboardInterrupt), held_interrupts():
            signal.raise_signal(signal.SIGINT)
            raise TimeoutError  # does not hide it
        assert reached == ["held"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_handler_of_the_program_is_kept() -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        with held_interrupts():
            signal.raise_signal(signal.SIGINT)
            assert came == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)
