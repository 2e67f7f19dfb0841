"""Opening a node: `async with hocket.open() as node` gives a `Node`, `with hocket.open() as node` a `SyncNode`; and
`await hocket.open()` and `hocket.open_sync()` give one that the program closes itself.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hocket.events import ignore
from hocket.node.delivery import Delivery
from hocket.node.kept_requests import send_kept_if_in_touch
from hocket.node.node import Node, SyncNode
from hocket.node.runtime import Runtime

if TYPE_CHECKING:
    from hocket.mesh.services import MeshServices

_LOG = logging.getLogger("hocket")


class Opening:
    """The result of `open`: enter it with `async with` or with `with`, or await it and close the node yourself."""

    def __init__(self, home: Path | str | None) -> None:
        self._home = home
        self._async: Node | None = None
        self._sync: SyncNode | None = None

    def __await__(self) -> Generator[Any, None, Node]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> Node:
        runtime = await asyncio.get_running_loop().run_in_executor(None, _opened, self._home)
        self._async = Node(runtime)
        self._async.delivery = delivery(runtime)
        return self._async

    async def __aexit__(self, *_: object) -> None:
        if self._async is not None:
            await self._async.close()

    def __enter__(self) -> SyncNode:
        self._sync = open_sync(self._home)
        return self._sync

    def __exit__(self, *_: object) -> None:
        if self._sync is not None:
            self._sync.close()


def init(
    home: Path | str | None = None, user_key: Path | None = None, *, strict: bool = False, ranked_open: bool = False
) -> None:
    """Creates a home: the user's key, the node's key, and the user's root delegation to the node as the first op. With
    a `user_key` from another home, this node belongs to the same user. Raises Conflict if the home exists. A `strict`
    home keeps to Likewise v0.1: no node writes a Hocket extension op in its mesh. In a mesh with `ranked_open`, jobs
    that workers claim by rank are open by default, so that they need no coordinator.
    """
    Runtime.init(home, user_key, strict=strict, ranked_open=ranked_open).close()


def open(home: Path | str | None = None) -> Opening:
    """Opens the node of this home (default: $HOCKET_HOME, else ~/.hocket)."""
    return Opening(home)


def open_sync(home: Path | str | None = None) -> SyncNode:
    """Opens it for synchronous code outside a `with` block. Close it when done."""
    runtime = _opened(home)
    return SyncNode(runtime, delivery(runtime))


def _opened(home: Path | str | None) -> Runtime:
    runtime = Runtime.open(home)
    send_kept_if_in_touch(runtime)
    return runtime


def delivery(runtime: Runtime, warn: Callable[[str], None] = _LOG.warning) -> Delivery:
    """What connects a program that only submits and waits with the other nodes."""

    @asynccontextmanager
    async def connected() -> "AsyncIterator[MeshServices]":
        from hocket.node.bus_settings import bus_settings

        node = Node(runtime)
        try:
            if bus_settings(runtime.home) is not None:
                await node.relay_messages(ignore)  # which tells at once of results
            yield node.services()
        finally:
            await node.finish()

    return Delivery(runtime, connected, warn)
