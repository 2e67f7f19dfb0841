"""The worst bus that is allowed, for tests: of all messages it drops a share; the others it sends once or more, at once
or later, in any order.
"""

import random
from collections.abc import Awaitable, Callable
from functools import partial

from hocket.bus.messages import CAPACITY, BusMessage, MessageBus, MessageQueue, MessagesState

COPIES_MAX = 3
# Messages that wait for later ones to overtake them.
WAITING_MAX = 64


class LossyMessages:
    def __init__(self, messages: MessageBus, chance: random.Random, dropped: float = 0.5) -> None:
        self._messages, self._chance, self._dropped = messages, chance, dropped
        self._waiting: list[Callable[[], Awaitable[None]]] = []
        self.lost = self.sent = 0

    @property
    def state(self) -> MessagesState:
        return self._messages.state

    async def publish(self, subject: str, data: bytes, *, reply_to: str = "") -> None:
        await self._send(partial(self._messages.publish, subject, data, reply_to=reply_to))

    async def announce(self, subject: str, data: bytes) -> None:
        await self._send(partial(self._messages.announce, subject, data))

    async def subscribe(self, pattern: str, *, capacity: int = CAPACITY, since_s: float = 0.0) -> MessageQueue:
        return await self._messages.subscribe(pattern, capacity=capacity, since_s=since_s)

    async def request(self, subject: str, data: bytes, timeout_s: float) -> BusMessage | None:
        if self._chance.random() < self._dropped:
            self.lost += 1
            return None
        return await self._messages.request(subject, data, timeout_s)

    async def close(self) -> None:
        await self._messages.close()

    async def _send(self, send: Callable[[], Awaitable[None]]) -> None:
        if self._chance.random() < self._dropped:
            self.lost += 1
        else:
            self._waiting += [send] * self._chance.randint(1, COPIES_MAX)
        self._chance.shuffle(self._waiting)
        keep = self._chance.randint(0, min(len(self._waiting), WAITING_MAX))
        now, self._waiting = self._waiting[keep:], self._waiting[:keep]
        for each in now:
            self.sent += 1
            await each()
