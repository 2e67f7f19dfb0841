"""The messages of tempo on the bus. Each type has a topic, and below it lanes: a cluster, a project. The bus signs and
checks messages; one that arrives and is not of its type is dropped and counted. A message of the bus may carry several
of one type, as a JSON array, with one signature for all of them.
"""

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

import msgspec

from hocket.bus.messages import CAPACITY, BusMessage, MessageBus, MessageQueue, subject_name, subject_pattern
from hocket.extensions.tempo.messages import (
    BarReport,
    HelpPromise,
    NodeLoad,
    PromiseResult,
    PulseMessage,
    StatusClaim,
    batch_decoder,
    to_json,
)
from hocket.extensions.tempo.windows import WindowContent, WindowDigests
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
# Messages that are published together go in arrays of at most so many bytes.
ARRAY_BYTES_MAX = 16_384


class Heard(NamedTuple, Generic[T]):
    """`at` is when its author signed it, and `at.node` is the author."""

    message: T
    at: Hlc


class TempoQueue(Generic[T]):
    """The messages of one type. `refused` counts those of the bus that were none."""

    def __init__(self, queue: MessageQueue, kind: type[T]) -> None:
        self._queue, self._decode = queue, batch_decoder(kind)
        self._heard: deque[Heard[T]] = deque()
        self.refused = 0

    async def get(self, timeout_s: float) -> Heard[T] | None:
        """The next message; None if the time is over or the queue is closed."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while not self._heard:
            found = await self._queue.get(max(0.0, deadline - loop.time()))
            if found is None:
                return None
            self._heard.extend(self._read(found))
        return self._heard.popleft()

    def close(self) -> None:
        self._heard.clear()
        self._queue.close()

    def _read(self, found: BusMessage) -> list[Heard[T]]:
        """Empty if one of them is not as it should be."""
        try:
            messages = self._decode(found.data)
        except Malformed:
            messages = []
        # A message without an author was not checked.
        if not messages or found.at is None or not all(_is_own(each, found.at.node) for each in messages):
            self.refused += 1
            return []
        return [Heard(each, found.at) for each in messages]


def _is_own(message: msgspec.Struct, author: int) -> bool:
    """A node speaks for itself."""
    return not isinstance(message, NodeLoad) or message.node_id == node_text(author)


class TempoMessages:
    """`messages` is a signed bus, and `mesh` the mesh whose members sign."""

    def __init__(self, messages: MessageBus, mesh: str) -> None:
        self._messages, self._mesh = messages, mesh

    async def publish(self, message: msgspec.Struct, lane: str) -> None:
        await self.publish_all([message], lane)

    async def publish_all(self, messages: Sequence[msgspec.Struct], lane: str) -> None:
        """Publishes messages of one type, in as few messages of the bus as they fit into."""
        for data in _arrays([to_json(each) for each in messages]):
            await self._messages.publish(subject_name(self._mesh, TOPICS[type(messages[0])], lane), data)

    async def subscribe(self, kind: type[T], lane: str = "", *, capacity: int = CAPACITY) -> TempoQueue[T]:
        """Every message of this type in a lane, or in all of them."""
        pattern = subject_pattern(self._mesh, TOPICS[kind], lane)
        return TempoQueue(await self._messages.subscribe(pattern, capacity=capacity), kind)


def _arrays(encoded: Sequence[bytes]) -> Iterator[bytes]:
    """JSON arrays that are not too long. A message that goes alone is not in an array."""
    taken: list[bytes] = []
    size = 0
    for each in encoded:
        if taken and size + len(each) >= ARRAY_BYTES_MAX:
            yield _array(taken)
            taken, size = [], 0
        taken.append(each)
        size += len(each) + 1
    if taken:
        yield _array(taken)


def _array(encoded: Sequence[bytes]) -> bytes:
    return encoded[0] if len(encoded) == 1 else b"[" + b",".join(encoded) + b"]"
