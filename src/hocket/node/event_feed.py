"""Follows the log for all listeners of a process: one task wakes when the log grows, reads the new ops once, and hands
each listener the events that it may have and wants. A listener that begins in the past, or has too many events waiting,
reads the log by itself until it has caught up, so nobody waits for a slow one and none misses anything.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import closing
from typing import NamedTuple

from hocket.bus.hints import LOG, about
from hocket.cancelling import end_tasks
from hocket.events import ignore
from hocket.families.access import NodeAccess
from hocket.node.log_events import Allowed, Chunk, EventFilter, FoundEvent, LogEvent, check_place, read_chunk
from hocket.store import Session
from hocket.work.environment import Environment, supervised

# A hint can be lost, so the feed looks again after this long.
LOOK_AGAIN_S = 2.0
# Growth within this time is read at once.
GAP_S = 0.02
# How long a listener without news waits for a sign of life.
KEEP_ALIVE_S = 15.0
# How many events wait for one listener.
PENDING_MAX = 256


class EventBatch(NamedTuple):
    """The next events of a listener; none as a sign of life. It has everything up to `seq`."""

    items: list[LogEvent]
    seq: int


class _EventListener:
    """It was given, or has waiting, everything up to `seq`."""

    def __init__(self, wanted: EventFilter, allowed: Allowed, seq: int) -> None:
        self._wanted, self._allowed, self.seq = wanted, allowed, seq
        self.pending: list[LogEvent] = []
        self.due = asyncio.Event()

    def take(self, events: list[FoundEvent], seq: int) -> None:
        for found in events:
            event = found.event
            if event.seq > self.seq and self._wanted.fits(event) and self._allowed(found.need):
                if len(self.pending) >= PENDING_MAX:
                    return
                self.pending.append(event)
                self.seq = event.seq
        self.seq = max(self.seq, seq)

    def batch(self) -> EventBatch:
        items, self.pending = self.pending, []
        return EventBatch(items, self.seq)


class EventFeed:
    """The feed of one node in one process. Use it on one event loop."""

    def __init__(self, access: NodeAccess, environment: Environment) -> None:
        self._node, self._environment = access, environment
        self._listeners: dict[_EventListener, None] = {}
        self._watching: asyncio.Task[None] | None = None
        self._seq = 0

    async def follow(
        self, wanted: EventFilter, allowed: Allowed, after: int | None = None
    ) -> AsyncGenerator[EventBatch, None]:
        """The events after a place, for ever; without one, those from now on. The first batch comes at once. Raises
        PlaceGone.
        """

        def begin(session: Session) -> int:
            if after is not None:
                check_place(session, after)
            return session.head().seq

        end = await self._node.peek(begin)
        listener = _EventListener(wanted, allowed, end if after is None else after)
        self._listeners[listener] = None
        try:
            if self._watching is None:
                self._seq = end
                watch = supervised("the feed of events", self._watch, ignore, self._environment)
                self._watching = asyncio.create_task(watch)
            yield listener.batch()
            while True:
                if listener.pending:
                    yield listener.batch()
                elif listener.seq < self._seq:
                    await self._catch_up(listener)
                    if listener.pending:
                        yield listener.batch()
                elif not await self._news(listener):
                    yield listener.batch()
        finally:
            del self._listeners[listener]
            if not self._listeners and self._watching is not None:
                watching, self._watching = self._watching, None
                await end_tasks([watching])

    async def _news(self, listener: _EventListener) -> bool:
        """Waits for events; False if it is time for a sign of life."""
        listener.due.clear()
        try:
            async with asyncio.timeout(KEEP_ALIVE_S):
                await listener.due.wait()
        except TimeoutError:
            return False
        return True

    async def _catch_up(self, listener: _EventListener) -> None:
        """Reads the log for one listener until it has events, has reached the others, or must give a sign of life."""
        loop = asyncio.get_running_loop()
        until = loop.time() + KEEP_ALIVE_S
        while not listener.pending and listener.seq < self._seq and loop.time() < until:
            chunk = await self._read(listener.seq)
            before = listener.seq
            listener.take(chunk.events, chunk.seq)
            if listener.seq == before:  # what is next is not folded yet
                return

    async def _watch(self) -> None:
        with closing(self._node.listen(about(LOG))) as changes:
            while True:
                chunk = await self._read(self._seq)
                before, self._seq = self._seq, chunk.seq
                for listener in list(self._listeners):
                    # One that is behind reads by itself.
                    if listener.seq >= before:
                        listener.take(chunk.events, chunk.seq)
                        if listener.pending or listener.seq < chunk.seq:
                            listener.due.set()
                if chunk.is_end:
                    await changes.wait(LOOK_AGAIN_S)
                    await asyncio.sleep(GAP_S)

    async def _read(self, after: int) -> Chunk:
        is_strict = self._node.log.rules.is_strict
        return await self._node.read(lambda session: read_chunk(session, after, is_strict))
