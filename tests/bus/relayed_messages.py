"""The bus between machines without NATS, for the suite of every bus: nodes with a home each, which have one server as
their peer. Subjects go below the mesh's own root, and messages are signed, as everywhere in a mesh.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec

from hocket.bus.messages import CAPACITY, BusMessage, MessageBus, MessageQueue, MessagesState, cluster_root
from hocket.bus.process_messages import ProcessMessages
from hocket.events import Emit, Event
from hocket.events.nodes import MessagesDropped
from hocket.node.message_bus import NodeMessages
from hocket.node.runtime import Runtime
from tests.mesh.test_message_relay import Member
from tests.mesh.world import Place, world

PATIENCE_S = 60.0
PROBE_S = 0.2
_PROBES = "probe"


class RelayedMessages:
    """One machine."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self._root = f"{cluster_root(member.place.log.user)}."

    @property
    def state(self) -> MessagesState:
        return self.member.bus.state

    def _full(self, subject: str) -> str:
        return self._root + subject

    async def publish(self, subject: str, data: bytes, *, reply_to: str = "") -> None:
        await self.member.bus.publish(self._full(subject), data, reply_to=reply_to and self._full(reply_to))

    async def announce(self, subject: str, data: bytes) -> None:
        await self.member.bus.announce(self._full(subject), data)

    async def subscribe(self, pattern: str, *, capacity: int = CAPACITY, since_s: float = 0.0) -> MessageQueue:
        queue = await self.member.bus.subscribe(self._full(pattern), capacity=capacity, since_s=since_s)
        return _RelayedQueue(queue, self._root)

    async def request(self, subject: str, data: bytes, timeout_s: float) -> BusMessage | None:
        reply = await self.member.bus.request(self._full(subject), data, timeout_s)
        return None if reply is None else reply._replace(at=None)

    async def close(self) -> None:
        """The machines close together."""

    async def reaches(self, other: "RelayedMessages") -> None:
        """Waits until a message of this machine has come to the other one, and so everything before it."""
        queue = await other.member.bus.subscribe(self._full(f"{_PROBES}.>"))
        async with asyncio.timeout(PATIENCE_S):
            while True:
                await self.publish(f"{_PROBES}.x", b"")
                while (message := await queue.get(PROBE_S)) is not None:
                    if message.at is not None and message.at.node == self.member.place.id:
                        queue.close()
                        return


class _RelayedQueue:
    def __init__(self, queue: MessageQueue, root: str) -> None:
        self._queue, self._root = queue, root

    @property
    def dropped(self) -> int:
        return self._queue.dropped

    @property
    def is_closed(self) -> bool:
        return self._queue.is_closed

    async def get(self, timeout_s: float) -> BusMessage | None:
        while (message := await self._queue.get(timeout_s)) is not None:
            subject, reply_to = (each.removeprefix(self._root) for each in (message.subject, message.reply_to))
            if not subject.startswith(f"{_PROBES}."):
                return BusMessage(subject, message.data, reply_to)
        return None

    def close(self) -> None:
        self._queue.close()


@asynccontextmanager
async def relayed(directory: Path) -> AsyncIterator[Callable[..., "asyncio.Future[MessageBus]"]]:
    """A function that adds a machine, which is connected with all that are there when it returns."""
    async with AsyncExitStack() as stack:
        (hub,) = await stack.enter_async_context(world(directory, "hub"))
        made: list[RelayedMessages] = []

        async def member(place: Place, emit: Emit) -> Member:
            raw = ProcessMessages(place.runtime.home.messages, emit)
            bus = await NodeMessages.open(place.node, raw, place.key, place.node.environment)
            stack.push_async_callback(bus.close)
            return Member(place, bus)

        center = await member(hub, lambda event: None)
        await hub.stop_serving()
        await center.serve()

        async def add(emit: Emit = lambda event: None) -> MessageBus:
            home, user_key = directory / f"n{len(made)}", hub.runtime.home.path / "user.key"
            place = Place(await asyncio.to_thread(Runtime.init, home, user_key))
            stack.push_async_callback(place.close)
            root = f"{cluster_root(place.log.user)}."

            def tell(event: Event) -> None:
                dropped = isinstance(event, MessagesDropped)
                emit(msgspec.structs.replace(event, pattern=event.pattern.removeprefix(root)) if dropped else event)

            one = RelayedMessages(await member(place, tell))
            place.befriend(hub.address, hub.id)
            one.member.place.keep_in_touch()
            for other in made:
                await one.reaches(other)
                await other.reaches(one)
            await one.reaches(RelayedMessages(center))
            made.append(one)
            return one

        yield add
