"""Follows the log for all listeners of a process: one task wakes when the log grows, reads the new ops once, and hands
each listener the events that it may have and wants. A listener that begins in the past, or has too many events waiting,
reads the log by itself until it has caught up, so nobody waits for a slow one and none misses anything.
"""

import asyncio
from collections import deque
from contextlib import closing

from hocket.bus.hints import LOG, about
from hocket.cancelling import end_tasks
from hocket.events import ignore
from hocket.families.access import NodeAccess
from hocket.log.succession.leading import CONFIRMED
from hocket.node.log_events import Allowed, Chunk, EventFilter, FoundEvent, LogEvent, check_place, read_chunk
from hocket.store import Session
from hocket.work.environment import Environment, supervised

# A hint can be lost, so the feed looks again after this long.
LOOK_AGAIN_S = 2.0
# Growth within this time is read at once.
GAP_S = 0.02
# How many events wait for one listener.
PENDING_MAX = 256


class EventListener:
    """Gives the events after a place one by one, for ever. Close it."""

    def __init__(self, feed: "EventFeed", wanted: EventFilter, allowed: Allowed, seq: int) -> None:
        self._feed, self._wanted, self._allowed = feed, wanted, allowed
        # It was given, or has waiting, everything up to `seq`.
        self.seq = self._given = seq
        self.pending: deque[LogEvent] = deque()
        self.due = asyncio.Event()

    @property
    def place(self) -> str:
        """Who has all events that were given goes on after this place, which may be far behind the last of them."""
        return str(self._given if self.pending else self.seq)

    def __aiter__(self) -> "EventListener":
        return self

    async def __anext__(self) -> LogEvent:
        while not self.pending:
            self.due.clear()
            if self.seq < self._feed.seq:
                await self._feed.catch_up(self)
            else:
                await self.due.wait()
        return self._taken()

    def waiting(self) -> list[LogEvent]:
        """Takes the events that are there already."""
        return [self._taken() for _ in range(len(self.pending))]

    def _taken(self) -> LogEvent:
        event = self.pending.popleft()
        self._given = event.seq
        return event

    def take(self, events: list[FoundEvent], seq: int) -> None:
        """Keeps those of these events, which end at a place, that it may have, as far as there is room."""
        for found in events:
            event = found.event
            if event.seq > self.seq and self._wanted.fits(event) and self._allowed(found.need):
                if len(self.pending) >= PENDING_MAX:
                    return
                self.pending.append(event)
                self.seq = event.seq
        self.seq = max(self.seq, seq)

    async def aclose(self) -> None:
        await self._feed.leave(self)


class EventFeed:
    """The feed of one node in one process, on one event loop."""

    def __init__(self, access: NodeAccess, environment: Environment) -> None:
        self._access, self._environment = access, environment
        self._listeners: dict[EventListener, None] = {}
        self._watching: asyncio.Task[None] | None = None
        # How far the log was read for those that are not behind.
        self.seq = 0

    async def listen(self, wanted: EventFilter, allowed: Allowed, after: int | None = None) -> EventListener:
        """Listens for the events after a place; without one, for those from now on. Raises PlaceGone."""

        def begin(session: Session) -> int:
            if after is not None:
                check_place(session, after)
            return session.head().seq

        end = await self._access.peek(begin)
        listener = EventListener(self, wanted, allowed, end if after is None else after)
        self._listeners[listener] = None
        if self._watching is None:
            self.seq = end
            watch = supervised("the feed of events", self._watch, ignore, self._environment)
            self._watching = asyncio.create_task(watch)
        return listener

    async def leave(self, listener: EventListener) -> None:
        self._listeners.pop(listener, None)
        if not self._listeners and self._watching is not None:
            watching, self._watching = self._watching, None
            await end_tasks([watching])

    async def catch_up(self, listener: EventListener) -> None:
        """Reads a part of the log for a listener that is behind."""
        chunk = await self._read(listener.seq)
        listener.take(chunk.events, chunk.seq)

    async def _watch(self) -> None:
        with closing(self._access.listen(about(LOG) | about(CONFIRMED))) as changes:
            while True:
                chunk = await self._read(self.seq)
                before, self.seq = self.seq, chunk.seq
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
        log = self._access.log
        return await self._access.read(lambda session: read_chunk(session, after, log.rules.is_strict, log.lead))
