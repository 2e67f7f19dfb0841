"""A task that loses a cancellation is ended all the same."""

import asyncio
import gc
import time
from contextlib import suppress
from pathlib import Path

import pytest

from hocket.bus.nats_messages import NatsMessages
from hocket.bus.nats_register import NatsRegister
from hocket.cancelling import cancellable, end_tasks
from tests.bus.nats_server import NatsServer, connected


@pytest.mark.touches("GR-05")
def test_a_task_that_loses_its_cancellation_is_cancelled_again() -> None:
    async def deaf() -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(3_600)
        await asyncio.sleep(3_600)

    async def test() -> None:
        task = asyncio.create_task(deaf())
        await asyncio.sleep(0)
        await end_tasks([task], again_s=0.01)
        assert task.cancelled()
        await end_tasks([])

    asyncio.run(test())


@pytest.mark.touches("GR-05")
def test_a_bus_whose_server_is_away_is_closed_at_any_moment() -> None:
    """The client library may lose the cancellation while it connects."""

    async def closed_after(delay_s: float) -> None:
        messages = NatsMessages(["nats://127.0.0.1:1"])
        await asyncio.sleep(delay_s)
        await messages.close()

    async def test() -> None:
        async with asyncio.timeout(60):
            await asyncio.gather(*(closed_after(number / 100) for number in range(200)))

    asyncio.run(test())


@pytest.mark.touches("BB-03")
def test_work_that_fails_while_it_is_cancelled_is_not_reported() -> None:
    reported: list[dict[str, object]] = []

    async def failing() -> None:
        try:
            await asyncio.sleep(3_600)
        finally:
            raise OSError("the connection has ended")

    async def test() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
        caller = asyncio.create_task(cancellable(failing()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.wait([caller])
        assert caller.cancelled()
        del caller
        gc.collect()

    asyncio.run(test())
    assert reported == []


@pytest.mark.touches("BB-03")
def test_a_register_loses_no_cancellation(tmp_path: Path) -> None:
    """It is cancelled at every moment until its answer has come, and a little later."""

    async def test(url: str) -> None:
        messages = NatsMessages([url])
        await connected(messages)
        register = NatsRegister(messages, "mesh", "one")
        await register.swap(0, b"a value")
        began = time.perf_counter()
        await asyncio.gather(*(register.read() for _ in range(10)))
        one_s = (time.perf_counter() - began) / 10
        cancelled = 0
        for number in range(1_000):
            reading = asyncio.create_task(register.read())
            until = time.perf_counter() + 2 * one_s * number / 1_000
            while time.perf_counter() < until and not reading.done():
                await asyncio.sleep(0)
            if reading.cancel():
                await asyncio.wait([reading])
                assert reading.cancelled()
                cancelled += 1
        assert cancelled
        await messages.close()

    with NatsServer(tmp_path) as server:
        asyncio.run(test(server.url))
