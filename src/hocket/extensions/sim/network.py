"""The network between simulated nodes. A request takes time, and so does its answer; either can be lost, and then the
sender waits until it gives up; a request can arrive twice; later messages can overtake earlier ones; and whole groups
of nodes can be cut off from each other. A node serves a request within its own life: if that ends, no answer comes.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from hocket.errors import Unreachable
from hocket.extensions.sim.loop import Life

T = TypeVar("T")

LATENCY_S = (0.001, 0.015)
# How long a sender waits for a missing answer, and how soon a refused connection is known.
GIVE_UP_S = 2.0
REFUSED_S = 0.05


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
