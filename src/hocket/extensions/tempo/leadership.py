"""When a pulse leads: it asks for the leader's lock once no frame has come for more than a beat, renews the lock on
each beat, and counts its time on its own clocks, from before it asked. So it stops before another pulse can lead.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from hocket.errors import HocketError
from hocket.events import Emit, ignore
from hocket.extensions.tempo.beats.tempo import next_beat
from hocket.extensions.tempo.events import PulseFollows, PulseLeads, PulseLockFailed
from hocket.extensions.tempo.heard_beats import HeardBeats
from hocket.extensions.tempo.leader_lock import LeaderLock
from hocket.families.locks.requests import LockHeld, LockLost
from hocket.kernel.lease import COUNTED
from hocket.kernel.retrying import RetryPolicy

# All in beats: how long the lock lasts, how long after the start of each beat it is renewed, how long after a failed
# renewal that is tried again, after how long a silence a pulse asks for it, and how long after a refusal it asks again.
# A leader that ends is thus replaced before a second beat is missed.
TTL_BEATS = 1.5
RENEW_BEATS = 0.05
TRY_AGAIN_BEATS = 0.15
SILENT_BEATS = 1.25
ASK_AGAIN_BEATS = 0.1
RELEASE_S = 2.0
# After an error, the pulse rests for this many beats, then for more.
RESTS = RetryPolicy(0.25, 8.0)
# After a loss of the lead, too, and for longer if it has not led for so many beats: pulses that depose each other must
# not fill the log with locks.
LOST_RESTS = RetryPolicy(0.25, 32.0)
SETTLED_BEATS = 8


class Leadership:
    """`changed` is called when this pulse begins or ceases to lead."""

    def __init__(
        self, lock: LeaderLock, beats: HeardBeats, emit: Emit = ignore, changed: Callable[[], None] = lambda: None
    ) -> None:
        self._lock, self._beats, self._emit, self._changed = lock, beats, emit, changed
        self._clock, self._cluster = beats.clock, beats.policy.cluster_id
        self._fence = 0
        # By the monotonic clock and by the time of day, which differ if the machine sleeps or its clock is set.
        self._asked_ms = self._ends_ms = 0
        self._asked_at_ms = self._ends_at_ms = 0
        self._is_overdue = False
        self._has_lost = False
        self._losses = 0
        self._led_ms = 0

    @property
    def fence(self) -> int:
        """The fence under which this pulse leads now; 0 if it does not."""
        if self._fence:
            if self._beats.fence > self._fence:
                self._lose("another pulse leads")
            elif self._clock.monotonic_ms() >= self._ends_ms or self._clock.now_ms() >= self._ends_at_ms:
                self._lose("the lock was not renewed in time")
            elif not self._clock.is_steady:
                self._lose("the machine's clock was set back")
        return self._fence

    async def run(self) -> None:
        """Runs until it is cancelled; then it releases the lock."""
        failures = 0
        try:
            while True:
                try:
                    await (self._keep() if self._fence else self._try())
                    failures = 0
                    if self._has_lost:
                        self._has_lost = False
                        await self._rest(LOST_RESTS.delay_s(self._losses, 1.0))
                except LockHeld:
                    failures = 0
                    await self._rest(ASK_AGAIN_BEATS)
                except HocketError as error:
                    failures += 1
                    if failures == 1:
                        self._emit(PulseLockFailed(self._cluster, str(error)))
                    await self._rest(TRY_AGAIN_BEATS if self._fence else RESTS.delay_s(failures, 1.0))
        finally:
            await self._release()

    async def _try(self) -> None:
        """Asks for the lock after a silence."""
        left_ms = SILENT_BEATS * self._beats.tempo.beat_ms - self._beats.silent_ms()
        if left_ms > 0 or not self._clock.is_steady:
            await asyncio.sleep(max(left_ms, 0.1 * self._beats.tempo.beat_ms) / 1000)
            return
        ttl_ms = self._asks()
        fence = await self._lock.acquire(ttl_ms, self._beats.fence)
        self._holds(ttl_ms)
        self._fence, self._led_ms = fence, self._clock.monotonic_ms()
        if self.fence:
            self._emit(PulseLeads(self._cluster, fence))
            self._changed()

    async def _keep(self) -> None:
        """Renews the lock just after the start of the next beat, when its frame has left."""
        tempo, now_ms = self._beats.tempo, self._clock.now_ms()
        due_ms = next_beat(tempo, max(now_ms, self._asked_at_ms + 1)) + RENEW_BEATS * tempo.beat_ms
        if not self._is_overdue:
            await asyncio.sleep((due_ms - now_ms) / 1000)
        if not (fence := self.fence):
            return
        ttl_ms = self._asks()
        self._is_overdue = True
        try:
            await self._lock.renew(fence, ttl_ms)
        except LockLost as error:
            self._lose(str(error))
        else:
            self._holds(ttl_ms)

    def _asks(self) -> int:
        self._asked_ms, self._asked_at_ms = self._clock.monotonic_ms(), self._clock.now_ms()
        return max(1, round(TTL_BEATS * self._beats.tempo.beat_ms))

    def _holds(self, ttl_ms: int) -> None:
        self._is_overdue = False
        counted_ms = int(ttl_ms * COUNTED)
        self._ends_ms, self._ends_at_ms = self._asked_ms + counted_ms, self._asked_at_ms + counted_ms

    def _lose(self, reason: str) -> None:
        if self._fence:
            fence, self._fence = self._fence, 0
            settled_ms = SETTLED_BEATS * self._beats.tempo.beat_ms
            self._losses = 1 if self._clock.monotonic_ms() - self._led_ms >= settled_ms else self._losses + 1
            self._has_lost = True
            self._emit(PulseFollows(self._cluster, fence, reason))
            self._changed()

    async def _rest(self, beats: float) -> None:
        await asyncio.sleep(beats * self._beats.tempo.beat_ms / 1000)

    async def _release(self) -> None:
        fence, self._fence = self._fence, 0
        if fence:
            with suppress(HocketError, TimeoutError):
                async with asyncio.timeout(RELEASE_S):
                    await self._lock.release(fence)
