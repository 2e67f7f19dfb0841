"""A task that loses a cancellation is ended all the same."""

import asyncio
from contextlib import suppress

import pytest

from hocket.bus.nats_messages import NatsMessages
from hocket.cancelling import end_tasks


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
