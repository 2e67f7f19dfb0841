"""The messages of tempo on the bus. Each type has a topic, and below it lanes: a cluster, a project. The bus signs and
checks messages; one that arrives and is not of its type is dropped and counted.
"""

import asyncio
from typing import Generic, NamedTuple, TypeVar

import msgspec

from hocket.bus.messages import CAPACITY, BusMessage, MessageBus, MessageQueue
from hocket.bus.subject_names import subject_name, subject_pattern
from hocket.kernel.beats.messages import (
    BarReport,
    HelpPromise,
    NodeLoad,
    PromiseResult,
    PulseMessage,
    StatusClaim,
    from_json,
    to_json,
)
from hocket.kernel.beats.reverb import WindowContent, WindowDigests
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import node_text
from hocket.kernel.postcard import Malformed

TOPICS: dict[type[msgspec.Struct], str] = {
    PulseMessage: "beats",
    StatusClaim: "status",
    HelpPromise: "promises",
    PromiseResult: "promise_results",
    NodeLoad: "loads",
    BarReport: "reports",
    WindowContent: "windows",
    WindowDigests: "digests",
}
T = TypeVar("T", bound=msgspec.Struct)


class Heard(NamedTuple, Generic[T]):
    """`at` is when its author signed it, and `at.node` is the author."""

    message: T
    at: Hlc


class TempoQueue(Generic[T]):
    """The messages of one type. `refused` counts those that were none."""

    def __init__(self, queue: MessageQueue, kind: type[T]) -> None:
        self._queue, self._kind = queue, kind
        self.refused = 0

    async def get(self, timeout_s: float) -> Heard[T] | None:
        """The next message; None if the time is over or the queue is closed."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while (found := await self._queue.get(max(0.0, deadline - loop.time()))) is not None:
            if (heard := self._read(found)) is not None:
                return heard
            self.refused += 1
        return None

    def close(self) -> None:
        self._queue.close()

    def _read(self, found: BusMessage) -> Heard[T] | None:
        try:
            message = from_json(found.data, self._kind)
        except Malformed:
            return None
        # A node speaks for itself. A message without an author was not checked.
        if found.at is None or (isinstance(message, NodeLoad) and message.node_id != node_text(found.at.node)):
            return None
        return Heard(message, found.at)


class TempoMessages:
    """`messages` is a signed bus, and `mesh` the mesh whose members sign."""

    def __init__(self, messages: MessageBus, mesh: str) -> None:
        self._messages, self._mesh = messages, mesh

    async def publish(self, message: msgspec.Struct, lane: str) -> None:
        subject = subject_name(self._mesh, TOPICS[type(message)], lane)
        await self._messages.publish(subject, to_json(message))

    async def subscribe(self, kind: type[T], lane: str = "", *, capacity: int = CAPACITY) -> TempoQueue[T]:
        """Every message of this type in a lane, or in all of them."""
        pattern = subject_pattern(self._mesh, TOPICS[kind], lane)
        return TempoQueue(await self._messages.subscribe(pattern, capacity=capacity), kind)
