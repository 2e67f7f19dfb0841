"""Whose batch is admitted next. A few are admitted at once; of the nodes that wait, the one that has used the least of
the store's time goes first. So a node that sends costly ops waits for the others, and the others do not wait for it.
"""

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count


class Turns:
    """`used` gives how much of the store's time a node has used of late; equals go in the order of their arrival. With
    `is_contested`, another node always waits: a simulation has no moment between two slices of a batch.
    """

    def __init__(self, at_once: int, used: Callable[[int], float], is_contested: bool = False) -> None:
        self._free, self._used, self._is_contested = at_once, used, is_contested
        self._waiting: list[tuple[float, int, int, asyncio.Future[None]]] = []
        self._arrivals = count()

    @asynccontextmanager
    async def turn(self, node: int) -> AsyncIterator[None]:
        if self._free and not self._waiting:
            self._free -= 1
        else:
            await self._wait(node)
        try:
            yield
        finally:
            self._pass_on()

    def is_awaited(self, node: int) -> bool:
        """Whether another node waits for its turn. Any thread may ask."""
        return self._is_contested or any(other != node for _, _, other, _ in list(self._waiting))

    async def _wait(self, node: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (self._used(node), next(self._arrivals), node, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        while self._waiting:
            *_, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
