"""What an operation streams, over HTTP: as server-sent events, or as lines of JSON. Each stream ends when its program
disconnects, when the server stops, and when the token of its program is no longer in force. A program that reads slowly
gets less in memory, not more: the next items are fetched when the ones before are sent.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import msgspec

from hocket.api.operation import StreamBatch
from hocket.cancelling import end_tasks
from hocket.errors import HocketError

EVENTS = "text/event-stream"
LINES = ("application/x-ndjson", "application/jsonl")
# How long a program waits before it connects again.
RETRY_MS = 2_000
# How often a stream looks whether its token is still in force.
CHECK_S = 15.0

Key = Callable[[Any], str]


def wanted_type(accept: str) -> str:
    """The type of the stream for a header Accept. The first one that is known counts; events if there is none."""
    named = (each.partition(";")[0].strip().lower() for each in accept.split(","))
    return next((each for each in named if each in (EVENTS, *LINES)), EVENTS)


def event_bytes(batch: StreamBatch, key: Key | None) -> bytes:
    """Server-sent events. A sign of life is a comment; with it goes the place, so that a program which gets few events
    need not search again what was searched for it.
    """
    if not batch.items:
        return b":\n\n" if batch.place is None else f":\nid: {batch.place}\n\n".encode()
    out = bytearray()
    for item in batch.items:
        if key is not None:
            out += f"id: {key(item)}\n".encode()
        out += b"data: " + msgspec.json.encode(item) + b"\n\n"
    return bytes(out)


def line_bytes(batch: StreamBatch) -> bytes:
    """Lines of JSON. A sign of life is an empty line."""
    return b"".join(msgspec.json.encode(item) + b"\n" for item in batch.items) or b"\n"


class ItemStream:
    """The bytes of a stream. Make it with `opened`, and close it. `check` raises a HocketError if the program may no
    longer have it.
    """

    def __init__(
        self,
        batches: AsyncGenerator[StreamBatch, None],
        first: StreamBatch,
        encode: Callable[[StreamBatch], bytes],
        stopping: asyncio.Event,
        check: Callable[[], Awaitable[object]],
    ) -> None:
        self._batches, self._encode, self._check = batches, encode, check
        self._first: bytes | None = encode(first)
        self._stop = asyncio.create_task(stopping.wait())
        self._next: asyncio.Task[StreamBatch] | None = None
        self._check_at = asyncio.get_running_loop().time() + CHECK_S

    @classmethod
    async def opened(
        cls,
        batches: AsyncGenerator[StreamBatch, None],
        type: str,
        key: Key | None,
        stopping: asyncio.Event,
        check: Callable[[], Awaitable[object]],
    ) -> "ItemStream":
        """Waits for the first batch, so that a request which is wrong is answered with its status."""
        try:
            first = await anext(batches)
        except BaseException:
            await batches.aclose()
            raise
        if type != EVENTS:
            return cls(batches, first, line_bytes, stopping, check)
        stream = cls(batches, first, lambda batch: event_bytes(batch, key), stopping, check)
        stream._first = f"retry: {RETRY_MS}\n".encode() + (stream._first or b"")
        return stream

    def __aiter__(self) -> "ItemStream":
        return self

    async def __anext__(self) -> bytes:
        if self._first is not None:
            begin, self._first = self._first, None
            return begin
        if self._next is None:
            self._next = asyncio.create_task(_next(self._batches))
        await asyncio.wait([self._next, self._stop], return_when=asyncio.FIRST_COMPLETED)
        if not self._next.done():
            raise StopAsyncIteration
        now = asyncio.get_running_loop().time()
        if now >= self._check_at:
            self._check_at = now + CHECK_S
            with_token = await self._is_allowed()
            if not with_token:
                raise StopAsyncIteration
        done, self._next = self._next, None
        try:
            return self._encode(done.result())
        except HocketError:  # the answer has begun, so only its end can tell; the program connects again
            raise StopAsyncIteration from None

    async def _is_allowed(self) -> bool:
        try:
            await self._check()
        except HocketError:
            return False
        return True

    async def aclose(self) -> None:
        await end_tasks(task for task in (self._next, self._stop) if task is not None and not task.done())
        if self._next is not None and not self._next.cancelled():
            with suppress(Exception):
                self._next.result()
        await self._batches.aclose()


async def _next(batches: AsyncGenerator[StreamBatch, None]) -> StreamBatch:
    """As `anext`, which gives no coroutine for a task."""
    return await anext(batches)
