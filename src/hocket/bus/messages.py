"""Messages between processes and machines: small values on named subjects. A message can be lost, come twice or come
out of order; the log has the truth. A subject has parts with dots between them. In a pattern, `*` stands for one part
and a last `>` for one or more, as in NATS.

An announcement is a message that is also kept for a while, so that those who subscribe later get it too.

`memory_messages` carries messages within one process, `process_messages` between the processes of one machine, and
`nats_messages` between machines. `signed` seals and checks them.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, Protocol

import msgspec

from hocket.events import Emit, ignore
from hocket.events.nodes import MessagesDropped
from hocket.kernel.clock import Hlc
from hocket.kernel.envelope import KEPT_MS, SEALED_BYTES_MAX

CAPACITY = 1_024
# The same bounds for announcements on every bus.
ANNOUNCED_S_MAX = KEPT_MS / 1000
ANNOUNCED_MAX = 4_096
REPLY_CAPACITY = 16
# A receiver that always finds a message lets others have the event loop after so many.
GIVEN_AT_ONCE = 32


class BusMessage(NamedTuple):
    """`at` is the time at which its author signed it, and `at.node` is the author; None for a message that was not
    checked.
    """

    subject: str
    data: bytes
    reply_to: str = ""
    at: Hlc | None = None


class MessagesState(msgspec.Struct, frozen=True):
    """`since_ms` is when the connection began or ended; `detail` says why it ended, or what the server refuses.
    `keeps` is whether announcements are kept. `lost` counts messages that were not sent.
    """

    what: str
    is_connected: bool
    since_ms: int
    detail: str = ""
    keeps: bool = True
    lost: int = 0


class MessageQueue(Protocol):
    """The messages of one subscription, in the order in which they came. It is bounded: a message that comes while the
    queue is full replaces the oldest, which is counted in `dropped`.
    """

    @property
    def dropped(self) -> int: ...
    @property
    def is_closed(self) -> bool: ...
    async def get(self, timeout_s: float) -> BusMessage | None:
        """The next message; None if the time is over or the queue is closed."""

    def close(self) -> None: ...


class MessageBus(Protocol):
    """Use it on one event loop. No call fails because of a server or of a receiver: what cannot be sent is lost and
    counted. A bad subject or too much data is a ValueError.
    """

    @property
    def state(self) -> MessagesState: ...
    async def publish(self, subject: str, data: bytes, *, reply_to: str = "") -> None: ...
    async def announce(self, subject: str, data: bytes) -> None:
        """Publishes a message that is kept for up to ANNOUNCED_S_MAX."""

    async def subscribe(self, pattern: str, *, capacity: int = CAPACITY, since_s: float = 0.0) -> MessageQueue:
        """Receives every matching message from now on, and first the announcements of the last `since_s` seconds."""

    async def request(self, subject: str, data: bytes, timeout_s: float) -> BusMessage | None:
        """Publishes a message and returns the first reply; None if none comes in time."""

    async def close(self) -> None: ...


class BoundedQueue:
    """The queue of every bus. Each implementation puts messages into it, and is told when it is closed."""

    def __init__(
        self,
        pattern: str,
        capacity: int,
        emit: Emit = ignore,
        closed: "Callable[[BoundedQueue], None]" = lambda queue: None,
    ) -> None:
        if capacity < 1:
            raise ValueError(f"a queue has room for one message or more, not {capacity}")
        self.pattern = check_pattern(pattern)
        self.dropped = 0
        self._messages: deque[BusMessage] = deque()
        self._capacity, self._emit, self._closed = capacity, emit, closed
        self._changed = asyncio.Event()
        self.is_closed = False
        self._given = 0

    def put(self, message: BusMessage) -> None:
        if self.is_closed:
            return
        if len(self._messages) >= self._capacity:
            self._messages.popleft()
            self.drop()
        self._messages.append(message)
        self._changed.set()

    def drop(self) -> None:
        """Counts a message that is lost for this queue."""
        self.dropped += 1
        if self.dropped == 1:
            self._emit(MessagesDropped(self.pattern, self._capacity))

    async def get(self, timeout_s: float) -> BusMessage | None:
        self._given += 1
        if self._given % GIVEN_AT_ONCE == 0:
            await asyncio.sleep(0)
        if not self._messages:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    while not self._messages and not self.is_closed:
                        self._changed.clear()
                        await self._changed.wait()
        return self._messages.popleft() if self._messages else None

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._messages.clear()
            self._changed.set()
            self._closed(self)


async def ask(messages: MessageBus, inbox: str, subject: str, data: bytes, timeout_s: float) -> BusMessage | None:
    """A request as any bus can make it: `inbox` is a subject that nobody else listens to."""
    replies = await messages.subscribe(inbox, capacity=REPLY_CAPACITY)
    try:
        await messages.publish(subject, data, reply_to=inbox)
        return await replies.get(timeout_s)
    finally:
        replies.close()


def is_match(pattern: str, subject: str) -> bool:
    wanted, parts = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        if len(parts) < len(wanted):
            return False
        wanted, parts = wanted[:-1], parts[: len(wanted) - 1]
    return len(wanted) == len(parts) and all(each in ("*", part) for each, part in zip(wanted, parts, strict=True))


def check_pattern(pattern: str) -> str:
    *parts, last = pattern.split(".")
    if last == ">":
        last = "*"
    for part in (*parts, last):
        if part != "*":
            _check_part(part, pattern)
    return pattern


def check_message(message: BusMessage) -> BusMessage:
    for subject in (message.subject, message.reply_to):
        for part in subject.split(".") if subject or subject is message.subject else ():
            _check_part(part, subject)
    if len(message.data) > SEALED_BYTES_MAX:
        raise ValueError(f"a message has at most {SEALED_BYTES_MAX} bytes, not {len(message.data)}")
    return message


def _check_part(part: str, subject: str) -> None:
    if not part or not part.isprintable() or any(each in part for each in " *>"):
        raise ValueError(f"bad subject {subject[:100]!r}: its parts are words without spaces, * and >")
