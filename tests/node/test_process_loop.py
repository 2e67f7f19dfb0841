"""The event loop of a process, on which blocking calls wait."""

import asyncio
import signal
import threading

import pytest

from hocket.errors import Usage
from hocket.node.process_loop import on_loop, process_loop


def interrupt_main_thread() -> None:
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)


def test_ctrl_c_ends_what_a_call_waits_for() -> None:
    ended: list[bool] = []

    async def work() -> None:
        try:
            asyncio.get_running_loop().call_soon(interrupt_main_thread)
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            on_loop(process_loop(), work())
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended


def test_a_blocking_call_on_the_loop_that_it_waits_for_is_refused() -> None:
    async def inner() -> None:
        raise AssertionError("it must not run")

    async def outer() -> None:
        on_loop(process_loop(), inner())

    with pytest.raises(Usage, match="in another thread"):
        on_loop(process_loop(), outer())
