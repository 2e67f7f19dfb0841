"""How a simulated node reaches the others: requests to their gates, and hint streams from them. It is the mesh's
transport, over the simulated network.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Protocol

from hocket.bus.hints import Changes
from hocket.errors import Unreachable
from hocket.extensions.sim.loop import Life
from hocket.extensions.sim.network import Network
from hocket.mesh import wire
from hocket.mesh.gate import Gate
from hocket.mesh.hint_stream import ALIVE
from hocket.mesh.wire import Reply, Request

_PREFIX = "http://node-"
# A stream that is silent for this long is taken for dead.
QUIET_S = 45.0


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
