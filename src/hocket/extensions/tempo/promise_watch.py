"""Watches the promises that a worker's jobs were given. When a thread closes, or help has come, it tells on the bus how
the promise ended, and counts that to the agent that made it. What other nodes tell is counted too, if they are parties
of the promise.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from hocket.extensions.tempo.beats.messages import HelpPromise, PromiseOutcome, PromiseResult
from hocket.extensions.tempo.beats.promise_record import PromiseRecord
from hocket.extensions.tempo.beats.promises import PromiseTimes, promise_outcome, promise_times
from hocket.extensions.tempo.tempo_messages import Heard, TempoMessages
from hocket.kernel.clock import Hlc, hlc_text

OPEN_MAX = 4_096
AGENTS_MAX = 10_000
RESULTS_MAX = 10_000
OUTGOING_MAX = 1_024
HEARD_S = 60.0
# A result can come before the log has its promise: it is looked at again once, after this time, and so many wait.
AGAIN_S = 5.0
AGAIN_MAX = 64

Key = tuple[str, str]
"""A thread, and the agent that made a promise in it."""


class PromiseCounts:
    """What became of each agent's promises. A result counts once, however often it is heard."""

    def __init__(self) -> None:
        self._records: OrderedDict[str, PromiseRecord] = OrderedDict()
        self._counted: OrderedDict[Key, None] = OrderedDict()

    def add(self, result: PromiseResult, at_ms: int) -> None:
        key = result.thread_id, result.agent_id
        if key in self._counted:
            return
        self._counted[key] = None
        self._records[result.agent_id] = self.of(result.agent_id).after(result.outcome, at_ms)
        self._records.move_to_end(result.agent_id)
        for kept, most in ((self._counted, RESULTS_MAX), (self._records, AGENTS_MAX)):
            if len(kept) > most:
                kept.popitem(last=False)

    def of(self, agent_id: str) -> PromiseRecord:
        return self._records.get(agent_id, PromiseRecord())

    def of_node(self, node: str, now_ms: int) -> float:
        """The reliability of the worst agent of a node."""
        return min(
            (kept.reliability(now_ms) for agent, kept in self._records.items() if agent.endswith(f"@{node}")),
            default=1.0,
        )


class _Open(NamedTuple):
    times: PromiseTimes
    timer: asyncio.TimerHandle


class PromiseWatch:
    """`reading` reads the clock of the log, and `now_ms` that of the cluster. `answered_at` finds on the log when an
    agent has answered a thread; None if it has not. `may_tell` finds there whether a node may say how a promise ended.
    `promised` and `answered` may be called from any thread.
    """

    def __init__(
        self,
        messages: TempoMessages,
        lane: str,
        reading: Callable[[], Hlc],
        now_ms: Callable[[], int],
        answered_at: Callable[[str, str], Awaitable[int | None]],
        may_tell: Callable[[PromiseResult, int], Awaitable[bool]],
    ) -> None:
        self._messages, self._lane = messages, lane
        self._reading, self._now_ms, self._answered_at, self._may_tell = reading, now_ms, answered_at, may_tell
        self.counts = PromiseCounts()
        self._open: dict[Key, _Open] = {}
        self._outgoing: asyncio.Queue[msgspec.Struct] = asyncio.Queue(OUTGOING_MAX)
        self._judging: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    def promised(self, agent_id: str, promise: HelpPromise, made_ms: int, beat_ms: int) -> None:
        times = promise_times(promise, made_ms, beat_ms)
        self._soon(self._promised, (promise.thread_id, agent_id), promise, times)

    def answered(self, thread_id: str, agent_id: str, at_ms: int) -> None:
        """Help has come. Others that have promised it are released."""
        self._soon(self._answered, thread_id, agent_id, at_ms)

    def _soon(self, act: Callable[..., None], *given: object) -> None:
        with suppress(RuntimeError):  # the worker has ended
            self._loop.call_soon_threadsafe(act, *given)

    def _promised(self, key: Key, promise: HelpPromise, times: PromiseTimes) -> None:
        if key in self._open or len(self._open) >= OPEN_MAX:
            return
        left_ms = times.closes_ms - self._now_ms()
        timer = self._loop.call_later(max(0, left_ms + 1) / 1000, self._close, key)
        self._open[key] = _Open(times, timer)
        self._tell(promise)

    def _answered(self, thread_id: str, agent_id: str, at_ms: int) -> None:
        for key in [each for each in self._open if each[0] == thread_id]:
            found = self._open.pop(key)
            found.timer.cancel()
            if key[1] == agent_id:
                self._judge(key, found.times, at_ms)

    def _close(self, key: Key) -> None:
        self._begin(self._look(key))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._judging.add(task)
        task.add_done_callback(self._judging.discard)

    async def _look(self, key: Key) -> None:
        """The requester has not seen an answer. One may be on the log all the same."""
        answered_ms = await self._answered_at(*key)
        if (found := self._open.pop(key, None)) is not None:
            self._judge(key, found.times, answered_ms)

    def _judge(self, key: Key, times: PromiseTimes, answered_ms: int | None) -> None:
        now = self._reading()
        outcome = promise_outcome(times, answered_ms, self._now_ms()) or PromiseOutcome.BROKEN
        result = PromiseResult(*key, outcome, hlc_text(now))
        self.counts.add(result, now.wall)
        self._tell(result)

    def _tell(self, message: msgspec.Struct) -> None:
        with suppress(asyncio.QueueFull):
            self._outgoing.put_nowait(message)

    async def send(self) -> None:
        """Sends for ever."""
        while True:
            message = await self._outgoing.get()
            await self._messages.publish(message, self._lane)

    async def hear(self) -> None:
        """Counts what other nodes tell, for ever."""
        queue = await self._messages.subscribe(PromiseResult, self._lane)
        try:
            while True:
                heard = await queue.get(HEARD_S)
                if heard is not None and not await self._count(heard) and len(self._judging) < AGAIN_MAX:
                    self._begin(self._count_later(heard))
        finally:
            queue.close()

    async def _count(self, heard: Heard[PromiseResult]) -> bool:
        is_party = await self._may_tell(heard.message, heard.at.node)
        if is_party:
            self.counts.add(heard.message, heard.at.wall)
        return is_party

    async def _count_later(self, heard: Heard[PromiseResult]) -> None:
        await asyncio.sleep(AGAIN_S)
        await self._count(heard)
