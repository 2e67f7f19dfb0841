"""Tells clients that a resource has changed. A notice is a hint to read again: some may be left out, none is kept."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress

from hocket.errors import HocketError, Usage
from hocket.kernel.ids import content_hash
from hocket.mcp import resources
from hocket.mcp.caller import McpCaller

# The most resources of one listener, and of all that one server watches.
OF_ONE_MAX = 32
WATCHED_MAX = 512
# A hint may be lost, and the output of a job gives none: a resource is looked at again after this long.
LOOK_S = 30.0
LOG_LOOK_S = 2.0
# A busy resource is looked at no more often than this.
REST_S = 0.5

Tell = Callable[[str], Awaitable[None]]


class Watches:
    """How many resources are watched, by all listeners of a server."""

    def __init__(self) -> None:
        self._count = 0

    async def watch(self, caller: McpCaller, uris: list[str], tell: Tell, ready: Callable[[], Awaitable[None]]) -> None:
        """Calls `tell` with the URI of each resource that changes, until it is cancelled. Calls `ready` when no change
        from then on is missed. Raises HocketError if the caller may not read one of them.
        """
        if len(uris) > OF_ONE_MAX or self._count + len(uris) > WATCHED_MAX:
            raise Usage(f"a client watches at most {OF_ONE_MAX} resources, and all clients {WATCHED_MAX}")
        self._count += len(uris)
        try:
            seen = [await _digest(caller, each) for each in uris]
            async with asyncio.TaskGroup() as group:
                for each, digest in zip(uris, seen, strict=True):
                    group.create_task(self._one(caller, each, digest, tell))
                await ready()
        finally:
            self._count -= len(uris)

    async def _one(self, caller: McpCaller, uri: str, seen: bytes, tell: Tell) -> None:
        name = resources.named(uri)
        look_s = LOG_LOOK_S if name.kind == "log" else LOOK_S
        with closing(caller.node.listen(resources.topics(name))) as changes:
            while True:
                digest = seen
                with suppress(HocketError):  # it can be read again later, or the token has ended
                    digest = await _digest(caller, uri)
                if digest != seen:
                    seen = digest
                    await tell(uri)
                if await changes.wait(look_s):
                    await asyncio.sleep(REST_S)


async def _digest(caller: McpCaller, uri: str) -> bytes:
    return content_hash((await resources.read(caller, uri)).content)
