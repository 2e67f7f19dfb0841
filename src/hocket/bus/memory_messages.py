"""Messages within one process, for tests and simulations. A message is in every matching queue when `publish` returns,
in the order of the subscriptions, so a run on one event loop is the same every time.
"""

import os
import time
from collections import deque
from collections.abc import Callable

from hocket.bus.messages import (
    ANNOUNCED_MAX,
    ANNOUNCED_S_MAX,
    CAPACITY,
    BoundedQueue,
    BusMessage,
    MessagesState,
    ask,
    check_message,
    is_match,
)
from hocket.events import Emit, ignore


class MemoryServer:
    """What several `MemoryMessages` share, as processes share a server. A simulation overrides `carry`."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._queues: dict[BoundedQueue, MemoryMessages] = {}
        self._announced: deque[tuple[float, BusMessage]] = deque(maxlen=ANNOUNCED_MAX)

    def carry(self, sender: "MemoryMessages", receiver: "MemoryMessages", put: Callable[[], None]) -> None:
        """Brings a message from one to the other: `put` delivers it."""
        put()

    def add(self, queue: BoundedQueue, owner: "MemoryMessages", since_s: float) -> None:
        now_s = self._monotonic()
        for at_s, message in self._announced:
            if (
                now_s - at_s <= min(since_s, ANNOUNCED_S_MAX)
                and since_s > 0
                and is_match(queue.pattern, message.subject)
            ):
                queue.put(message)
        self._queues[queue] = owner

    def remove(self, queue: BoundedQueue) -> None:
        self._queues.pop(queue, None)

    def close(self, owner: "MemoryMessages") -> None:
        for queue in [queue for queue, whose in self._queues.items() if whose is owner]:
            queue.close()

    def publish(self, sender: "MemoryMessages", message: BusMessage) -> None:
        for queue, owner in list(self._queues.items()):
            if is_match(queue.pattern, message.subject):
                self.carry(sender, owner, lambda queue=queue: queue.put(message))  # type: ignore[misc]

    def announce(self, sender: "MemoryMessages", message: BusMessage) -> None:
        self._announced.append((self._monotonic(), message))
        self.publish(sender, message)


class MemoryMessages:
    def __init__(
        self, server: MemoryServer, emit: Emit = ignore, randomness: Callable[[int], bytes] = os.urandom
    ) -> None:
        self._server, self._emit, self._randomness = server, emit, randomness
        self.state = MessagesState("this process", True, 0)

    async def publish(self, subject: str, data: bytes, *, reply_to: str = "") -> None:
        self._server.publish(self, check_message(BusMessage(subject, data, reply_to)))

    async def announce(self, subject: str, data: bytes) -> None:
        self._server.announce(self, check_message(BusMessage(subject, data)))

    async def subscribe(self, pattern: str, *, capacity: int = CAPACITY, since_s: float = 0.0) -> BoundedQueue:
        queue = BoundedQueue(pattern, capacity, self._emit, self._server.remove)
        self._server.add(queue, self, since_s)
        return queue

    async def request(self, subject: str, data: bytes, timeout_s: float) -> BusMessage | None:
        return await ask(self, f"reply.{self._randomness(16).hex()}", subject, data, timeout_s)

    async def close(self) -> None:
        self._server.close(self)
