"""The node of a process that runs an event loop, for the other threads of that process: what waits or asks other nodes
is done on the loop, with the node's own connections.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from hocket.errors import Usage
from hocket.node.node import Node, SyncNode

T = TypeVar("T")


class LoopNode(SyncNode):
    """Use it on any thread but that of the loop."""

    def __init__(self, node: Node, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(node.runtime)
        self._node, self._loop = node, loop

    def close(self) -> None:
        raise Usage("this node belongs to the process, which closes it")

    def with_node(self, act: Callable[[Node], Awaitable[T]]) -> T:
        async def run() -> T:
            return await act(self._node)

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()
