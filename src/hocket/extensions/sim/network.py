"""The network between simulated nodes. A request takes time, and so does its answer; either can be lost, and then the
sender waits until it gives up; a request can arrive twice; later messages can overtake earlier ones; and whole groups
of nodes can be cut off from each other. A node serves a request within its own life: if that ends, no answer comes.

A node sends requests to the gates of the others and hears their hint streams over it. Its messages go over a simulated
bus: a message takes as long as a request does, and is lost, repeated, overtaken and cut off as requests are. A node
that is down gets none. Announcements are kept by a server that every node reaches.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from hocket.bus.hints import Changes
from hocket.bus.messages import BusMessage, MemoryMessages, MemoryServer
from hocket.errors import Unreachable
from hocket.events import Emit, ignore
from hocket.extensions.sim.faults import HOSTILE
from hocket.extensions.sim.loop import Life
from hocket.mesh import wire
from hocket.mesh.gate import Gate
from hocket.mesh.hint_stream import ALIVE
from hocket.mesh.wire import Reply, Request

T = TypeVar("T")
LATENCY_S = (0.001, 0.015)
# How long a sender waits for a missing answer, and how soon a refused connection is known.
GIVE_UP_S = 2.0
REFUSED_S = 0.05
_PREFIX = "http://node-"
# A stream that is silent for this long is taken for dead.
QUIET_S = 45.0
# Where the topic is in `hocket.<mesh>.<topic>.<kind…>`.
TOPIC = 2


class Weather:
    """How bad the network is now. Nodes in one of the `groups` can talk only among themselves; a node in none can talk
    to every other node in none.
    """

    def __init__(self) -> None:
        self.loss = 0.0
        self.duplicate = 0.0
        self.jitter_s = 0.0
        self.groups: dict[int, int] = {}

    def cuts(self, one: int, other: int) -> bool:
        return self.groups.get(one, -1) != self.groups.get(other, -1)


class Network:
    """`lives` returns the current life of a node, None while it is down."""

    def __init__(self, chance: random.Random, lives: Callable[[int], Life | None]) -> None:
        self.weather = Weather()
        self._chance = chance
        self._lives = lives
        self._loop = asyncio.get_running_loop()
        self.requests = 0
        self.lost = 0
        self.duplicated = 0

    async def call(self, sender: int, receiver: int, serve: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """One request and its answer. `serve` runs at the receiver. Raises Unreachable."""
        answer: asyncio.Future[T] = self._loop.create_future()
        self.requests += 1
        if self._gets_through(sender, receiver):
            self._loop.call_later(self.delay(), self._arrive, sender, receiver, serve, answer)
            if self._chance.random() < self.weather.duplicate:
                self.duplicated += 1
                self._loop.call_later(self.delay() * 3, self._arrive, sender, receiver, serve, None)
        try:
            async with asyncio.timeout(GIVE_UP_S):
                return await answer
        except TimeoutError:
            raise Unreachable(f"node {receiver} does not answer") from None

    def pass_on(self, sender: int, receiver: int, arrive: Callable[[], None]) -> None:
        """Brings something that needs no answer: `arrive` runs at the receiver, once, twice or never."""
        if not self._gets_through(sender, receiver):
            return
        copies = 1 + (self._chance.random() < self.weather.duplicate)
        self.duplicated += copies - 1
        for _ in range(copies):
            self._loop.call_later(self.delay(), self._pass, sender, receiver, arrive)

    def _pass(self, sender: int, receiver: int, arrive: Callable[[], None]) -> None:
        if not self.weather.cuts(sender, receiver) and self._lives(receiver) is not None:
            arrive()

    def _gets_through(self, sender: int, receiver: int) -> bool:
        if self.weather.cuts(sender, receiver):
            return False
        lost = self._chance.random() < self.weather.loss
        self.lost += lost
        return not lost

    def delay(self) -> float:
        return self._chance.uniform(*LATENCY_S) + self._chance.uniform(0, self.weather.jitter_s)

    def _arrive(
        self,
        sender: int,
        receiver: int,
        serve: Callable[[], Coroutine[Any, Any, T]],
        answer: "asyncio.Future[T] | None",
    ) -> None:
        life = self._lives(receiver)
        if self.weather.cuts(sender, receiver):
            return
        if life is None:
            self._loop.call_later(REFUSED_S, _refuse, answer, receiver)
            return
        serving = life.start(serve(), "serve")
        serving.add_done_callback(lambda done: self._served(sender, receiver, done, answer))

    def _served(self, sender: int, receiver: int, done: "asyncio.Task[T]", answer: "asyncio.Future[T] | None") -> None:
        if done.cancelled():
            return
        value = done.result()
        if answer is not None and self._gets_through(receiver, sender):
            self._loop.call_later(self.delay(), _answer, answer, value)


def _answer(answer: "asyncio.Future[T]", value: T) -> None:
    if not answer.done():
        answer.set_result(value)


def _refuse(answer: "asyncio.Future[Any] | None", receiver: int) -> None:
    if answer is not None and not answer.done():
        answer.set_exception(Unreachable(f"node {receiver} is down"))


def address(number: int) -> str:
    return f"{_PREFIX}{number}"


class FarEnd(Protocol):
    """A running node, as the others reach it."""

    gate: Gate
    life: Life


class Lines:
    """`find` returns the node with that number, None while it is down."""

    def __init__(self, me: int, network: Network, find: Callable[[int], FarEnd | None]) -> None:
        self._me = me
        self._network = network
        self._find = find

    async def send(self, address: str, request: Request) -> Reply:
        there = int(address.removeprefix(_PREFIX))
        return await self._network.call(self._me, there, lambda: self._serve(there, request))

    async def _serve(self, there: int, request: Request) -> Reply:
        up = self._find(there)
        assert up is not None
        return await up.gate.answer(request)

    async def hints(self, address: str, headers: Mapping[str, str]) -> AsyncIterator[Changes]:
        there = int(address.removeprefix(_PREFIX))
        reply = await self.send(address, Request("GET", wire.HINTS, "", headers))
        up = self._find(there)
        if reply.status != 200 or reply.stream is None or up is None:
            raise Unreachable(f"{address} does not serve hints")
        came: asyncio.Queue[bytes | None] = asyncio.Queue()
        pump = up.life.start(self._pump(there, reply.stream, came), "hints")
        pump.add_done_callback(lambda done: came.put_nowait(None))
        try:
            while True:
                async with asyncio.timeout(QUIET_S):
                    line = await came.get()
                if line is None:
                    return
                if line != ALIVE:
                    yield wire.read_hint(line.split(b"data:")[1])
        except TimeoutError:
            raise Unreachable(f"{address} has fallen silent") from None
        finally:
            pump.cancel()

    async def _pump(self, there: int, stream: AsyncIterator[bytes], came: "asyncio.Queue[bytes | None]") -> None:
        """At the far end. A broken stream is gone: the listener has to ask again."""
        async for line in stream:
            if self._network.weather.cuts(there, self._me):
                return
            await asyncio.sleep(self._network.delay())
            came.put_nowait(line)


@dataclass
class TopicFigures:
    """The messages of one topic: how many the nodes published, with how many bytes; how many copies the server sent to
    other nodes, and how many of those arrived.
    """

    published: int = 0
    bytes: int = 0
    sent: int = 0
    arrived: int = 0


class SimMessageServer(MemoryServer):
    """Nodes with a number from `honest` on are hostile. What they publish is counted under that name."""

    def __init__(self, network: Network, honest: int) -> None:
        super().__init__(asyncio.get_running_loop().time)
        self._network, self._honest = network, honest
        self._nodes: dict[MemoryMessages, int] = {}
        self.topics: dict[str, TopicFigures] = {}

    def publish(self, sender: MemoryMessages, message: BusMessage) -> None:
        if sender not in self._nodes:
            return  # the sender's life has ended
        topic = "".join(message.subject.split(".")[TOPIC : TOPIC + 1])
        name = topic if self._nodes[sender] < self._honest else HOSTILE
        self._topic = self.topics.setdefault(name, TopicFigures())
        self._topic.published += 1
        self._topic.bytes += len(message.data)
        super().publish(sender, message)

    def open(self, node: int, randomness: Callable[[int], bytes], emit: Emit = ignore) -> MemoryMessages:
        """The bus of one life of a node. Close it when that ends."""
        made = MemoryMessages(self, emit, randomness)
        self._nodes[made] = node
        return made

    def carry(self, sender: MemoryMessages, receiver: MemoryMessages, put: Callable[[], None]) -> None:
        one, other, topic = self._nodes[sender], self._nodes[receiver], self._topic
        if one == other:
            put()
            return

        def arrive() -> None:
            topic.arrived += 1
            put()

        topic.sent += 1
        self._network.pass_on(one, other, arrive)

    def close(self, owner: MemoryMessages) -> None:
        super().close(owner)
        self._nodes.pop(owner, None)
