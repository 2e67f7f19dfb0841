"""Carries messages of the bus between nodes over their own HTTP streams, where there is no NATS. A node hands its
messages to the servers of its peers, and gets theirs from a stream; a server passes on what it is handed to the streams
of the others. Each message is checked where it arrives, and passed on once. One that cannot be sent at once is lost.

Every message goes to every node, so this is for meshes of some dozens of nodes; larger ones need NATS.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing

from hocket.bus.messages import ANNOUNCED_S_MAX, BusMessage, MessageQueue
from hocket.bus.opening import LOOK_S
from hocket.bus.signed import SignedMessages
from hocket.bus.subject_names import cluster_root
from hocket.errors import HocketError
from hocket.kernel.envelope import Envelope, Seen, read_envelope
from hocket.kernel.postcard import BYTES, Malformed, decode, encode, seq
from hocket.mesh.wire import message_event

KEEP_ALIVE_S = 15.0
LISTENERS_MAX = 256
LISTENERS_OF_NODE_MAX = 4
# Messages that are handed to a peer in one request.
BATCH_MAX = 32
RELAYED_BYTES_MAX = 4 * 1024 * 1024
BATCH_BYTES_MAX = 1024 * 1024
# Messages within this time of a request go into the next one, so that they leave room for others.
GAP_S = 0.02
# How many messages are remembered with the peer that they came from.
ORIGINS_MAX = 4_096
# How long a peer's answer may take, until its messages are lost.
SEND_S = 5.0

ALIVE = b":\n\n"
_BATCH = seq(BYTES, limit=BATCH_MAX)
_Mark = tuple[int, int, int, bytes]


class MessageRelay:
    """`bus` is this node's own, between the processes of its home. The relay of a process that serves and that of the
    process that syncs may be two: they meet on that bus.
    """

    def __init__(self, bus: SignedMessages, node: int) -> None:
        self._bus, self._node = bus, node
        self._opener = bus.opener()
        self._waiting: asyncio.Task[None] | None = None
        self._pattern = f"{cluster_root(bus.cluster)}.>"
        self._origins: OrderedDict[_Mark, str] = OrderedDict()
        self._streams: dict[MessageQueue, int] = {}
        self.lost = 0

    # As a server.

    def has_room(self, node: int) -> bool:
        return len(self._streams) < LISTENERS_MAX and Counter(self._streams.values())[node] < LISTENERS_OF_NODE_MAX

    async def listen(self, node: int) -> AsyncIterator[bytes]:
        """The lines of one listener's stream: first the announcements that are kept, then everything as it comes, but
        for the listener's own messages.
        """
        queue = await self._bus.messages.subscribe(self._pattern, since_s=ANNOUNCED_S_MAX)
        self._streams[queue] = node
        try:
            yield ALIVE
            while not queue.is_closed:
                message = await queue.get(KEEP_ALIVE_S)
                if not self._bus.is_member(node):
                    return
                envelope = None if message is None else read_envelope(message.data)
                if message is None:
                    if not queue.is_closed:
                        yield ALIVE
                elif envelope is not None and envelope.at.node != node:
                    yield message_event(message.data)
                    await asyncio.sleep(0)  # so that a listener that has gone is noticed
        finally:
            self._streams.pop(queue, None)
            queue.close()

    async def receive(self, body: bytes) -> bool:
        """Passes on the messages that a peer hands over. False if there are none in the body."""
        try:
            sealed = decode(_BATCH, body)
        except Malformed:
            return False
        for each in sealed:
            await self._arrived(each, "")
        return bool(sealed)

    def close(self) -> None:
        """Ends every stream."""
        for queue in list(self._streams):
            queue.close()
        if self._waiting is not None:
            self._waiting.cancel()

    # As a client.

    async def carry(self, address: str, send: Callable[[bytes], Awaitable[None]], stream: AsyncIterator[bytes]) -> None:
        """Hands messages to a peer, and passes on those of its stream, until the connection ends."""
        sending = asyncio.create_task(self._send(address, send))
        try:
            async with aclosing(stream):  # type: ignore[type-var]
                async for sealed in stream:
                    await self._arrived(sealed, address)
        finally:
            sending.cancel()
            await asyncio.wait([sending])

    async def _send(self, address: str, send: Callable[[bytes], Awaitable[None]]) -> None:
        queue = await self._bus.messages.subscribe(self._pattern, since_s=ANNOUNCED_S_MAX)
        seen, dropped = Seen(), 0
        try:
            while not queue.is_closed:
                if batch := await self._batch(queue, seen, address):
                    try:
                        async with asyncio.timeout(SEND_S):
                            await send(encode(_BATCH, tuple(batch)))
                    except (HocketError, TimeoutError):  # the visits report the peer's state
                        self.lost += len(batch)
                    await asyncio.sleep(GAP_S)
                self.lost, dropped = self.lost + queue.dropped - dropped, queue.dropped
        finally:
            queue.close()

    async def _batch(self, queue: MessageQueue, seen: Seen, address: str) -> list[bytes]:
        """The next messages for a peer: those that did not come from there, each once."""
        batch, size = [], 0
        message = await queue.get(KEEP_ALIVE_S)
        while message is not None:
            envelope = read_envelope(message.data)
            if envelope is not None and seen.is_new(envelope) and self._origins.get(_mark(envelope)) != address:
                seen.note(envelope)
                batch.append(message.data)
                size += len(message.data)
            if len(batch) == BATCH_MAX or size > BATCH_BYTES_MAX:
                break
            message = await queue.get(0)
        return batch

    async def _arrived(self, sealed: bytes, address: str) -> None:
        """Puts a message of another node on this node's bus, if it counts and is new."""
        claimed = read_envelope(sealed)
        if claimed is None or claimed.at.node == self._node:
            return
        envelope = self._opener.open(BusMessage(claimed.subject, sealed))
        self._origins.setdefault(_mark(claimed), address)
        if len(self._origins) > ORIGINS_MAX:
            self._origins.popitem(last=False)
        if envelope is not None:
            await self._pass_on(envelope, sealed)
        elif self._opener.has_early and self._waiting is None:
            self._waiting = asyncio.create_task(self._wait_for_authors())

    async def _wait_for_authors(self) -> None:
        """Passes on messages of authors that are known by now."""
        try:
            while self._opener.has_early:
                await asyncio.sleep(LOOK_S)
                for message, envelope in self._opener.open_early():
                    await self._pass_on(envelope, message.data)
        finally:
            self._waiting = None

    async def _pass_on(self, envelope: Envelope, sealed: bytes) -> None:
        if not envelope.subject.startswith(self._pattern[:-1]):
            return
        if envelope.is_kept:
            await self._bus.messages.announce(envelope.subject, sealed)
        else:
            await self._bus.messages.publish(envelope.subject, sealed, reply_to=envelope.reply_to)


def _mark(envelope: Envelope) -> _Mark:
    return envelope.at.node, envelope.at.wall, envelope.at.logical, envelope.process
