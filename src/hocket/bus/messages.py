"""Messages between processes and machines: small values on named subjects. A message can be lost, come twice or come
out of order; the log has the truth. A subject has parts with dots between them. In a pattern, `*` stands for one part
and a last `>` for one or more, as in NATS.

An announcement is a message that is also kept for a while, so that those who subscribe later get it too.

`MemoryMessages` carries messages within one process, `process_messages` between the processes of one machine, and
`nats_messages` between machines. `signed` seals and checks them.

The subjects of a mesh are `hocket.<cluster>.<topic>.<kind…>`. A cluster, a topic and a kind can be any text. Letters,
digits, `-` and `_` stand for themselves; every other character is written as `%XX` for each of its bytes, so that a
name can be a subject of NATS and a part of a file's name, and can be read back. A kind is split at its dots, so that
one pattern covers all kinds below a prefix. An empty part is `%`.
"""

import asyncio
import os
import re
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, Protocol

import msgspec

from hocket.bus.envelope import KEPT_MS, SEALED_BYTES_MAX
from hocket.events import Emit, ignore
from hocket.events.nodes import MessagesDropped
from hocket.kernel.clock import Hlc
from hocket.kernel.postcard import Malformed

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


ROOT = "hocket"
# NATS reads commands of up to 4096 bytes: a subject, one to reply to, and a few more. Every kind fits.
NAME_CHARS_MAX = 3_500

_UNSAFE = re.compile(rb"[^A-Za-z0-9_-]")
_TOKEN = re.compile(r"%|(?:[A-Za-z0-9_-]|%[0-9A-F]{2})+")
_ESCAPED = re.compile(rb"%([0-9A-F]{2})")
_EMPTY = "%"


class SubjectName(NamedTuple):
    cluster: str
    topic: str
    kind: str


def cluster_root(cluster: str) -> str:
    """How every subject of a mesh begins."""
    return f"{ROOT}.{_token(cluster)}"


def subject_name(cluster: str, topic: str, kind: str) -> str:
    """Raises Malformed if the name would be too long, or a text cannot be UTF-8."""
    return _checked(".".join((ROOT, _token(cluster), _token(topic), *map(_token, kind.split(".")))))


def subject_pattern(cluster: str, topic: str, kind: str = "") -> str:
    """The pattern for one kind; for all kinds below it if it ends in a dot, and for every kind if it is empty. Raises
    Malformed as `subject_name` does.
    """
    if kind and not kind.endswith("."):
        return subject_name(cluster, topic, kind)
    parts = kind.split(".")[:-1]
    return _checked(".".join((ROOT, _token(cluster), _token(topic), *map(_token, parts), ">")))


def read_subject(name: str) -> SubjectName:
    """The inverse of `subject_name`. Raises Malformed for anything that it would not have written."""
    root, *tokens = _checked(name).split(".")
    if root != ROOT or len(tokens) < 3:
        raise Malformed(f"not a subject of a mesh: {name[:100]!r}")
    cluster, topic, *kind = map(_text, tokens)
    if any("." in part for part in kind):
        raise Malformed(f"a dot inside a part of a kind: {name[:100]!r}")
    return SubjectName(cluster, topic, ".".join(kind))


def _checked(name: str) -> str:
    if len(name) > NAME_CHARS_MAX:
        raise Malformed(f"a subject's name has at most {NAME_CHARS_MAX} characters, not {len(name)}")
    return name


def _token(part: str) -> str:
    try:
        data = part.encode()
    except UnicodeEncodeError as error:
        raise Malformed(f"text that UTF-8 cannot carry: {error}") from None
    return _UNSAFE.sub(lambda found: b"%%%02X" % found[0][0], data).decode("ascii") or _EMPTY


def _text(token: str) -> str:
    if not _TOKEN.fullmatch(token):
        raise Malformed(f"not a part of a subject's name: {token[:100]!r}")
    if token == _EMPTY:
        return ""
    try:
        part = _ESCAPED.sub(lambda found: bytes.fromhex(found[1].decode()), token.encode("ascii")).decode()
    except UnicodeDecodeError as error:
        raise Malformed(f"not UTF-8: {error}") from None
    if _token(part) != token:
        raise Malformed(f"a part of a subject's name has another spelling: {token[:100]!r}")
    return part


class MemoryServer:
    """What several `MemoryMessages` share, as processes share a server. A message is in every matching queue when
    `publish` returns, in the order of the subscriptions, so a run on one event loop is the same every time. A
    simulation overrides `carry`.
    """

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
