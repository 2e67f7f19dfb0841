"""A subscription as a coroutine uses it."""

import asyncio
from contextlib import suppress

from hocket.bus.hints import NOTHING, Changes, Subscription


class Listener:
    """Create it first, then look, then wait: a change in between ends the wait at once. Close it when done."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._came = NOTHING
        self._changed = asyncio.Event()
        subscription.attach(asyncio.get_running_loop(), self._heard)

    async def wait(self, timeout_s: float) -> Changes:
        """What has changed since the last call; NOTHING if the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        came, self._came = self._came, NOTHING
        self._changed.clear()
        return came

    def close(self) -> None:
        self._subscription.close()

    def _heard(self, changes: Changes) -> None:
        self._came |= changes
        self._changed.set()
