"""A pulse sends the beats of a cluster. Several may run: one leads and sends each beat under the fence of its lock, the
others follow and are silent. Without a leader each sends its own beats, marked as degraded, from which agents take the
median; the tempo stays as it is. The pulse that comes to lead sends the beat that runs if nobody has sent it.

A pulse asks for the leader's lock once no frame has come for more than a beat, renews the lock on each beat, and counts
its time on its own clocks, from before it asked. So it stops before another pulse can lead.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from hocket.errors import Conflict, HocketError, Usage
from hocket.events import Emit, ignore
from hocket.extensions.tempo.beats import Phases, Tempo, TempoChange, beat_at, changed, next_beat, next_downbeat
from hocket.extensions.tempo.events import (
    BeatSent,
    PulseFollows,
    PulseLeads,
    PulseLockFailed,
    ReportRefused,
    TempoChanged,
)
from hocket.extensions.tempo.frame_judge import LEADERLESS_BEATS
from hocket.extensions.tempo.heard_beats import TOLD_MS, BeatNow, HeardBeats, local_frame
from hocket.extensions.tempo.leader_lock import LeaderLock
from hocket.extensions.tempo.messages import BarReport, PulseMessage
from hocket.extensions.tempo.policy import CHANGE_MS, ControlState, control, redistribute
from hocket.families.lease import COUNTED
from hocket.families.locks.requests import LockHeld, LockLost
from hocket.kernel.clock import parse_wall
from hocket.kernel.ids import node_text
from hocket.kernel.retrying import RetryPolicy

Publish = Callable[[PulseMessage], Awaitable[None]]
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


class Pulse:
    """`beats` hears the pulses of the cluster, this one too; `publish` sends to them."""

    def __init__(self, beats: HeardBeats, lock: LeaderLock, publish: Publish, emit: Emit = ignore) -> None:
        self._beats, self._publish, self._emit = beats, publish, emit
        self._policy, self._clock = beats.policy, beats.clock
        self._woken = asyncio.Event()
        self._leadership = Leadership(lock, beats, emit, self._changed)
        self._tempo = beats.tempo
        self._change: TempoChange | None = None
        self._phases = beats.phases
        self._next_phases: tuple[int, Phases] | None = None
        self._control = ControlState()
        self._window_ms = 0
        self._sent_ms = 0
        self._told_ms = -TOLD_MS

    @property
    def fence(self) -> int:
        """The fence under which this pulse leads; 0 if it does not."""
        return self._leadership.fence

    @property
    def tempo(self) -> Tempo:
        return self._tempo

    async def run(self) -> None:
        """Runs until it is cancelled; then another pulse can lead at once."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._leadership.run())
            tasks.create_task(self._send_beats())

    def hear_report(self, report: BarReport, author: int, *, is_incident: bool) -> None:
        """Adapts the tempo to the load of a bar, if the policy says so and this pulse leads. A report counts if its
        author may lead, too, and its window is the next one that is due: no more than one a bar, and none of the
        future.
        """
        if report.cluster_id != self._policy.cluster_id or not self.fence:
            return
        if not self._beats.leaders.may_lead(author):
            self._refuse_report(author)
            return
        window_ms, now_ms = parse_wall(report.window), self._clock.now_ms()
        bar_ms = self._tempo.bar_ms
        # The reverb's clock may differ, and the bar's length may have changed.
        if not self._window_ms + bar_ms // 2 <= window_ms <= now_ms + bar_ms:
            return
        self._window_ms = window_ms
        is_frozen = is_incident or self._change is not None
        self._control, change = control(self._policy, self._control, self._tempo, report, now_ms, is_frozen=is_frozen)
        if change is not None:
            self._change = change
            self._emit(TempoChanged(self._policy.cluster_id, self._tempo.bpm, change.tempo.bpm))
        elif self._policy.is_adaptive and not is_frozen and self._next_phases is None:
            self._redistribute(report, now_ms)

    def _redistribute(self, report: BarReport, now_ms: int) -> None:
        """Moves a beat between two phases on the next downbeat, at most once a minute."""
        since_ms, changed_ms = next_downbeat(self._tempo, now_ms), self._control.changed_ms
        if changed_ms is not None and since_ms - changed_ms < CHANGE_MS:
            return
        phases = redistribute(self._policy, self._phases, report)
        if phases is not None:
            self._next_phases = since_ms, phases
            self._control = ControlState(self._control.integral, since_ms)

    @property
    def now(self) -> BeatNow:
        return self._beats.now()

    @property
    def next_change(self) -> TempoChange | None:
        """The change of the tempo that comes with the next downbeat."""
        return self._change

    def change_tempo(self, bpm: int) -> TempoChange:
        """Changes the tempo on the next downbeat, as an operator asks. Raises Conflict if another pulse leads, and
        Usage for a tempo beyond the policy's limits.
        """
        policy = self._policy
        if not self.fence:
            raise Conflict("this pulse does not lead; ask the one that does")
        if not policy.min_bpm <= bpm <= policy.max_bpm:
            raise Usage(f"the tempo has {policy.min_bpm} to {policy.max_bpm} beats a minute, not {bpm}")
        change = changed(self._tempo, bpm, self._clock.now_ms())
        self._change, self._control = change, ControlState(changed_ms=change.since_ms)
        self._emit(TempoChanged(policy.cluster_id, self._tempo.bpm, bpm))
        return change

    def _refuse_report(self, author: int) -> None:
        now_ms = self._clock.now_ms()
        if now_ms - self._told_ms >= TOLD_MS:
            self._told_ms = now_ms
            self._emit(ReportRefused(self._policy.cluster_id, node_text(author)))

    def _changed(self) -> None:
        """This pulse begins or ceases to lead. It goes on with the tempo that it has heard last, for a minute at least:
        the leader before may have changed it just now.
        """
        self._tempo, self._change, self._sent_ms = self._beats.tempo, None, 0
        self._phases, self._next_phases = self._beats.phases, None
        self._control = ControlState(changed_ms=self._clock.now_ms())
        self._woken.set()

    async def _send_beats(self) -> None:
        while True:
            self._woken.clear()
            now_ms, fence = self._clock.now_ms(), self.fence
            if fence:
                self._adopt_change(now_ms)
            else:
                self._tempo, self._phases = self._beats.tempo, self._beats.phases
            beat = beat_at(self._tempo, now_ms)
            next_ms = beat.epoch_ms + self._tempo.beat_ms
            if beat.epoch_ms >= self._sent_ms and (self._is_unsent(beat.epoch_ms) if fence else self._is_leaderless()):
                await self._send(now_ms, fence)
                self._sent_ms = next_ms
            with suppress(TimeoutError):
                async with asyncio.timeout((next_ms - self._clock.now_ms()) / 1000):
                    await self._woken.wait()

    def _adopt_change(self, now_ms: int) -> None:
        if self._change is not None and now_ms >= self._change.since_ms:
            self._tempo, self._change = self._change.tempo, None
        if self._next_phases is not None and now_ms >= self._next_phases[0]:
            self._phases, self._next_phases = self._next_phases[1], None

    def _is_unsent(self, epoch_ms: int) -> bool:
        """Whether no other leader has sent this beat, as far as this pulse has heard."""
        return epoch_ms > self._beats.epoch_ms or self._beats.now().is_degraded

    def _is_leaderless(self) -> bool:
        return self._beats.silent_ms() > LEADERLESS_BEATS * self._tempo.beat_ms

    async def _send(self, now_ms: int, fence: int) -> None:
        frame = local_frame(self._policy, self._tempo, now_ms, self._phases)
        phases = None if self._phases == self._policy.phases else dict(self._phases)
        await self._publish(PulseMessage(frame, fence, fence == 0, phases))
        late_s = (now_ms - frame.epoch_ms) / 1000
        drift_s = self._clock.drift_ms / 1000
        self._emit(BeatSent(self._policy.cluster_id, frame.beat_index, frame.tempo_bpm, late_s, drift_s, fence == 0))
