"""When open pages load themselves again. One listener of the server hears the log for all of them, and only while any
is open. They load themselves one after the other, and what that costs together stays a small share of one processor:
with many open pages, or large ones, each loads itself less often.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from threading import Lock

from hocket.bus.hints import LOG, about
from hocket.cancelling import end_tasks
from hocket.node.node import Node

# An open page hears of changes this often at most, and about this often at least if there are any.
CHANGES_S = 1.0
CHANGES_S_MAX = 30.0
# The share of a processor that all views together may take while pages load themselves again.
SHARE = 0.03
# Of so many pages that load themselves at once it is known that their cost is set aside.
PAGES_MAX = 64
# A hint may be lost: the log counts as changed after this long.
LOOK_S = 60.0


News = Callable[[], Awaitable[tuple[int, ...] | None]]


class Refreshing:
    def __init__(self, node: Node, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._node, self._monotonic = node, monotonic
        self._lock = Lock()
        # When what was spent so far will have been within the share.
        self._paid_at = 0.0
        # What a view costs of late, and what is set aside for the pages that load themselves now.
        self._usual_s = 0.0
        self._set_aside: deque[float] = deque(maxlen=PAGES_MAX)
        self._turns = asyncio.Lock()
        self._open = 0
        self._changes = 0
        self._changed = asyncio.Event()
        self._listening: asyncio.Task[None] | None = None

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Counts the time of the processor that a view takes on this thread."""
        began = time.thread_time()
        try:
            yield
        finally:
            used_s = time.thread_time() - began
            with self._lock:
                self._usual_s += (used_s - self._usual_s) / 8
                set_aside = self._set_aside.popleft() if self._set_aside else 0.0
                self._owe(self._rest_after(used_s) - set_aside)

    def _rest_after(self, used_s: float) -> float:
        """For how long no page loads itself after a view: so that this stays within the share, and all open pages have
        their turn in time.
        """
        return min(used_s / SHARE, CHANGES_S_MAX / max(1, self._open))

    def _owe(self, rest_s: float) -> None:
        now = self._monotonic()
        self._paid_at = now + min(max(0.0, max(self._paid_at, now) - now + rest_s), CHANGES_S_MAX)

    async def changes(self, news: News) -> AsyncIterator[str]:
        """Tells an open page that something has changed: on the log, or in the `news` that it shows besides, which are
        None while nothing is under way.
        """
        self._open += 1
        if self._listening is None or self._listening.done():
            self._listening = asyncio.create_task(self._listen())
        shown = self._changes
        seen: tuple[int, ...] | None = None
        try:
            while True:
                now = await news()
                has_news, seen = seen not in (None, now), now
                if has_news or shown != self._changes or await self._wait(LOOK_S if now is None else CHANGES_S):
                    await self._turn()
                    shown = self._changes
                    yield "changed"
                    await asyncio.sleep(CHANGES_S)
        finally:
            self._open -= 1
            if not self._open and self._listening is not None:
                listening, self._listening = self._listening, None
                await end_tasks([listening])

    async def _listen(self) -> None:
        with closing(self._node.listen(about(LOG))) as changes:
            while True:
                if await changes.wait(LOOK_S):
                    self._changes += 1
                    self._changed.set()
                    self._changed = asyncio.Event()
                    await asyncio.sleep(CHANGES_S)

    async def _wait(self, timeout: float) -> bool:
        """Whether the log has changed by then."""
        try:
            await asyncio.wait_for(self._changed.wait(), timeout)
        except TimeoutError:
            return False
        return True

    async def _turn(self) -> None:
        """Waits until this page may load itself, after those that have waited for longer."""
        async with self._turns:
            while rest := self.rest_s:
                await asyncio.sleep(rest)
            with self._lock:
                self._set_aside.append(self._rest_after(self._usual_s))
                self._owe(self._set_aside[-1])

    @property
    def rest_s(self) -> float:
        """How long no page loads itself again, because of what views have cost."""
        return max(0.0, self._paid_at - self._monotonic())
