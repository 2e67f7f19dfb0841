"""Opens the node of a client, whose database may be away just then."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import hocket
from hocket.errors import StoreAway
from hocket.node.node import Node


@asynccontextmanager
async def patiently_opened(home: str) -> AsyncIterator[Node]:
    while True:
        try:
            node = await hocket.open(home)
            break
        except StoreAway:
            await asyncio.sleep(0.1)
    try:
        yield node
    finally:
        await node.close()
