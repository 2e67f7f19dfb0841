"""The beats of a cluster as one process hears them. Frames of the leader set the tempo and the time. Between frames the
process counts on by itself, so a beat begins on time though its frame is still on its way. Without a leader it follows
the median of the pulses that it hears, without any its own clock, and the tempo stays. `frame_judge` has the rules.
Only members that may lead are heard, and only the one that holds the leader's lock leads (`leader_lock`).

Takes the frames of pulses from the bus. The first frame of a leader waits until the leader's lock has been read again,
because a frame can come before the log has the lock: at most for one beat, and other frames do not wait for it.

A node that hears no pulse has local beats, which follow from the policy and a clock alone.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, Protocol

from hocket.events import Emit, ignore
from hocket.extensions.tempo.beats import (
    BadTempo,
    Phases,
    PhaseSpan,
    Tempo,
    TempoChange,
    Timeline,
    beat_at,
    phase_at,
    timeline,
)
from hocket.extensions.tempo.events import BeatsDegraded, BeatsLed, FrameRefused
from hocket.extensions.tempo.frame_judge import (
    HEARD_BARS,
    DegradedTempo,
    FrameRefusal,
    HeardPulse,
    JudgeState,
    Lead,
    degraded_beat,
    is_leaderless,
    judge_frame,
    median,
    with_local_beat,
)
from hocket.extensions.tempo.leader_lock import LeaderCheck
from hocket.extensions.tempo.messages import BeatFrame, PulseMessage, make_frame
from hocket.extensions.tempo.policy import TempoPolicy, policy_hash
from hocket.extensions.tempo.tempo_messages import TempoQueue
from hocket.kernel.clock import Hlc, parse_wall
from hocket.kernel.ids import node_text
from hocket.kernel.ops import Beat

# A difference up to this is slewed; a larger one is a step.
STEP_MS = 1_000
SLEWED = 0.005
SLOWED = 0.5
# The pulses whose clocks are remembered for the median.
PULSES_MAX = 64
# How often the refusals of a node for one reason are reported.
TOLD_MS = 60_000
# A frame that comes late sets the time back by no more than this part of a beat.
LATE_SHARE = 100
# How often the members that may lead are read, and how often the lock is while a frame waits.
MEMBERS_S = 5.0
CONFIRM_S = 0.1


class BeatNow(NamedTuple):
    """The beat at one moment. `at_ms` is the cluster's time. Degraded means that no leader was heard of late."""

    at_ms: int
    tempo: Tempo
    beat: Beat
    phases: Phases
    is_degraded: bool

    @property
    def phase(self) -> PhaseSpan:
        return phase_at(self.phases, self.tempo.bar_len, self.beat.index)

    @property
    def next_ms(self) -> int:
        """When the next beat begins."""
        return self.beat.epoch_ms + self.tempo.beat_ms


class BeatSource(Protocol):
    @property
    def policy(self) -> TempoPolicy: ...

    @property
    def timeline(self) -> Timeline:
        """The tempi so far, as far as this node knows them."""
        ...

    def now(self) -> BeatNow: ...

    async def next_beat(self) -> BeatNow:
        """Waits for the start of the next beat. Beats that begin while nobody waits are left out."""
        ...


class LocalBeats:
    """Beats of a node that hears no pulse: the policy's first tempo by the given clock, in milliseconds since 1970."""

    def __init__(self, policy: TempoPolicy, clock_ms: Callable[[], int]) -> None:
        self.policy, self._clock_ms = policy, clock_ms
        self.timeline = timeline(policy.initial_tempo)

    def now(self) -> BeatNow:
        return beat_now(self.policy, self.policy.initial_tempo, self._clock_ms(), is_degraded=True)

    async def next_beat(self) -> BeatNow:
        before = self.now()
        while (now := self.now()).beat.epoch_ms <= before.beat.epoch_ms:
            await asyncio.sleep((now.next_ms - now.at_ms) / 1000)
        return now


def beat_now(
    policy: TempoPolicy, tempo: Tempo, at_ms: int, *, is_degraded: bool, phases: Phases | None = None
) -> BeatNow:
    return BeatNow(at_ms, tempo, beat_at(tempo, at_ms), phases or policy.phases, is_degraded)


class TempoClock:
    """The clock of a pulse: the machine's monotonic clock, disciplined by its time of day. It never goes back. Small
    differences are slewed by half a percent, so that no beat is noticeably longer. If the time of day has moved ahead
    by more than a second, the machine slept or was set right, and this clock follows at once. If it was set back by
    that much, this clock runs at half speed until the time of day has caught up. Both clocks count seconds; `wall`
    counts them since 1970.
    """

    def __init__(self, monotonic: Callable[[], float], wall: Callable[[], float]) -> None:
        self._monotonic, self._wall = monotonic, wall
        self._at = monotonic()
        self._value = wall() * 1000.0
        self._drift_ms = 0.0

    @property
    def drift_ms(self) -> float:
        """How far the time of day was ahead of this clock when it was last read; negative if it was behind."""
        return self._drift_ms

    @property
    def is_steady(self) -> bool:
        """False while this clock waits for a time of day that was set back."""
        return self._drift_ms >= -STEP_MS

    def monotonic_ms(self) -> int:
        return round(self._monotonic() * 1000.0)

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        at = self._monotonic()
        passed, self._at = max(0.0, at - self._at) * 1000.0, at
        value = self._value + passed
        drift = self._drift_ms = self._wall() * 1000.0 - value
        if drift > STEP_MS:
            value += drift
        else:
            most = passed * (SLEWED if self.is_steady else SLOWED)
            value += min(most, max(-most, drift))
        self._value = max(self._value, value)
        return round(self._value)


class Leaders(Protocol):
    """Who may lead, and who does."""

    def may_lead(self, node: int) -> bool: ...

    @property
    def lead(self) -> Lead | None:
        """As it was last read; None if this process cannot read it."""
        ...


class AnyLeader:
    """Believes every pulse: for a process that has no log and no register to read."""

    lead: Lead | None = None

    def may_lead(self, node: int) -> bool:
        return True


class HeardBeats:
    """A `BeatSource`. Call `hear` with each message of a pulse. `skew_ms` is by how much clocks may differ.
    `tempo_changed` is called with each change of the tempo.
    """

    def __init__(
        self,
        policy: TempoPolicy,
        clock: TempoClock,
        skew_ms: int,
        emit: Emit = ignore,
        leaders: Leaders | None = None,
        tempo_changed: Callable[[TempoChange], None] = lambda change: None,
    ) -> None:
        self.policy, self.clock = policy, clock
        self.leaders: Leaders = leaders or AnyLeader()
        self.timeline: Timeline = timeline(policy.initial_tempo)
        self.refusals: Counter[FrameRefusal] = Counter()
        self.changed = asyncio.Event()
        """Set and cleared after each accepted frame."""
        self._skew_ms, self._emit, self._tempo_changed = skew_ms, emit, tempo_changed
        self._judge = JudgeState()
        self._tempo = policy.initial_tempo
        self.phases: Phases = policy.phases
        """Those of the bar, which the leader may have redistributed."""
        self._offset_ms: int | None = None
        self._epoch_ms = 0
        self._heard: dict[int, HeardPulse] = {}
        self._began_ms = clock.monotonic_ms()
        self._led_ms: int | None = None
        self._is_degraded = False
        self._at_ms = 0
        self._untold: Counter[tuple[int, FrameRefusal]] = Counter()
        self._told_ms: dict[tuple[int, FrameRefusal], int] = {}

    @property
    def tempo(self) -> Tempo:
        return self._tempo

    @property
    def fence(self) -> int:
        """That of the leader whose frame was accepted last; 0 if there was none."""
        return self._judge.fence

    @property
    def epoch_ms(self) -> int:
        """The start of the last beat whose frame was accepted, or that was counted here without a leader."""
        return self._epoch_ms

    def silent_ms(self) -> int:
        """How long ago the last frame was accepted; without any, how long this has listened."""
        return self.clock.monotonic_ms() - (self._began_ms if self._led_ms is None else self._led_ms)

    def needs_confirmation(self, message: PulseMessage, sender: int) -> bool:
        """Whether the frame may count once the leader's lock has been read again."""
        self._forget()
        judged = self._judged(message, sender)
        return judged is FrameRefusal.UNCONFIRMED

    def hear(self, message: PulseMessage, sender: int, came_ms: int | None = None) -> FrameRefusal | None:
        """Why the frame is refused; None if it is accepted. `came_ms` is when it came, by the monotonic clock, if that
        was before now.
        """
        self._forget()
        self._count()
        judged = self._judged(message, sender)
        if judged is not FrameRefusal.NOT_A_PULSE:
            self._sample(message.frame, sender, self.clock.monotonic_ms() if came_ms is None else came_ms)
        if isinstance(judged, JudgeState):
            self._accept(judged, message.frame, sender)
            return None
        self._refuse(judged, sender)
        return judged

    def _judged(self, message: PulseMessage, sender: int) -> JudgeState | FrameRefusal:
        if not self.leaders.may_lead(sender):
            return FrameRefusal.NOT_A_PULSE
        state, now_ms = self._state(), self.clock.now_ms()
        ahead_ms, lead = message.frame.beat_ms + self._measured_skew(), self.leaders.lead
        judged = judge_frame(self.policy, state, message, sender, now_ms, self._skew_ms, ahead_ms, lead)
        if isinstance(judged, JudgeState) and state.last is None and self._is_over(message.frame):
            return FrameRefusal.FROM_THE_PAST
        return judged

    def _measured_skew(self) -> int:
        """By how much the pulses that were heard of late are ahead of this clock; the most that is allowed, if none
        was.
        """
        now_ms = self.clock.monotonic_ms()
        since_ms = now_ms - HEARD_BARS * self._tempo.bar_ms
        offsets = [each.offset_ms for each in self._heard.values() if each.heard_ms >= since_ms]
        return max(0, median(offsets) + now_ms - self.clock.now_ms()) if offsets else self._skew_ms

    def _forget(self) -> None:
        """Forgets pulses that may no longer lead, and a leader that the lock never knew."""
        self._heard = {node: each for node, each in self._heard.items() if self.leaders.may_lead(node)}
        judge, lead = self._judge, self.leaders.lead
        is_gone = judge.fence > 0 and not self.leaders.may_lead(judge.leader)
        if is_gone or (lead is not None and judge.fence > lead.fence):
            self._judge = JudgeState(last=judge.last)

    def now(self) -> BeatNow:
        self._count()
        self._at_ms = max(self._at_ms, self.clock.monotonic_ms() + self._offset())
        return beat_now(self.policy, self._tempo, self._at_ms, is_degraded=self._is_leaderless(), phases=self.phases)

    async def next_beat(self) -> BeatNow:
        before = self.now().beat.epoch_ms
        while (now := self.now()).beat.epoch_ms <= before:
            with suppress(TimeoutError):
                async with asyncio.timeout((now.next_ms - now.at_ms) / 1000):
                    await self.changed.wait()
        return now

    def _offset(self) -> int:
        """The cluster's time minus the monotonic clock."""
        if self._offset_ms is None:
            return self.clock.now_ms() - self.clock.monotonic_ms()
        return self._offset_ms

    def _is_leaderless(self) -> bool:
        return self._led_ms is None or is_leaderless(self._tempo, self._led_ms, self.clock.monotonic_ms())

    def _sample(self, frame: BeatFrame, sender: int, came_ms: int) -> None:
        """Remembers the clock of a pulse of this cluster, unless it is off by more than clocks may be."""
        is_ours = frame.cluster_id == self.policy.cluster_id and frame.policy_hash == policy_hash(
            self.policy, frame.tempo
        )
        sent_ms = parse_wall(frame.deadline_at) - frame.beat_ms
        is_right = abs(sent_ms - self.clock.now_ms()) <= self._skew_ms
        if is_ours and is_right and (sender in self._heard or len(self._heard) < PULSES_MAX):
            self._heard[sender] = HeardPulse(sent_ms - came_ms, came_ms)

    def _accept(self, judged: JudgeState, frame: BeatFrame, sender: int) -> None:
        is_new = self._is_leaderless() or sender != self._judge.leader
        offset_ms = self._heard[sender].offset_ms if sender in self._heard else self._offset()
        if not is_new and self._offset_ms is not None:
            offset_ms = max(offset_ms, self._offset_ms - frame.beat_ms // LATE_SHARE)
        if self._is_degraded or self._led_ms is None:
            self._emit(BeatsLed(self.policy.cluster_id, node_text(sender), judged.fence))
        self._judge, self._offset_ms, self._is_degraded = judged, offset_ms, False
        self.phases = judged.phases or self.policy.phases
        self._led_ms, self._epoch_ms = self.clock.monotonic_ms(), frame.epoch_ms
        if frame.tempo != self._tempo:
            self._tempo = frame.tempo
            change = TempoChange(frame.window_ms, frame.tempo)
            try:
                self.timeline = self.timeline.with_change(change)
            except BadTempo:  # the change itself was missed
                self.timeline = Timeline((change,))
            self._tempo_changed(change)
        self.changed.set()
        self.changed.clear()

    def _count(self) -> None:
        """Without a leader, counts the beat that has begun. Frames of earlier beats are refused from then on."""
        if not self._is_leaderless():
            return
        if not self._is_degraded and self._led_ms is not None:
            self._is_degraded = True
            self._emit(BeatsDegraded(self.policy.cluster_id, self._tempo.bpm))
        state = DegradedTempo(self._tempo, self._offset(), self._epoch_ms)
        state, beat = degraded_beat(state, self._heard, self.clock.monotonic_ms())
        if self._offset_ms is not None or self._heard:
            self._offset_ms = state.offset_ms
        if beat is not None:
            self._epoch_ms = beat.epoch_ms

    def _state(self) -> JudgeState:
        """What the next frame is judged by. After more than a bar without a leader, a frame may have any tempo."""
        judge = self._judge
        if self._led_ms is None or self.silent_ms() > self._tempo.bar_ms:
            return JudgeState(judge.fence, judge.leader)
        # A new leader may still send the frame of the beat that runs, so the one before is the last that is over.
        over_ms = self._epoch_ms - self._tempo.beat_ms
        if judge.last is None or over_ms <= judge.last.epoch_ms:
            return judge
        return with_local_beat(judge, local_frame(self.policy, self._tempo, over_ms, self.phases))

    def _is_over(self, frame: BeatFrame) -> bool:
        """Whether the beat of this frame is over here, or its frame was accepted before."""
        last = self._judge.last
        is_second = last is not None and frame.epoch_ms < last.epoch_ms + last.beat_ms
        return is_second or frame.epoch_ms + frame.beat_ms <= self._epoch_ms

    def _refuse(self, reason: FrameRefusal, sender: int) -> None:
        self.refusals[reason] += 1
        if reason is FrameRefusal.LEADERLESS:  # what a pulse says without a leader, as it should
            return
        key, now_ms = (sender, reason), self.clock.monotonic_ms()
        self._untold[key] += 1
        told_ms = self._told_ms.get(key)
        if told_ms is None or now_ms - told_ms >= TOLD_MS:
            if told_ms is None and len(self._told_ms) >= PULSES_MAX * len(FrameRefusal):
                self._told_ms.clear()
            self._told_ms[key] = now_ms
            count = self._untold.pop(key)
            self._emit(FrameRefused(self.policy.cluster_id, node_text(sender), reason.value, count))


def local_frame(policy: TempoPolicy, tempo: Tempo, at_ms: int, phases: Phases | None = None) -> BeatFrame:
    """The frame of the beat in which this time lies. The phases are the policy's unless others are given."""
    at = Hlc(at_ms, 0, 0)
    return make_frame(policy.cluster_id, tempo, phases or policy.phases, policy_hash(policy, tempo), at_ms, at)


class BeatListener:
    """A frame that waits has its place by its sender, so a member that sends many loses its own."""

    def __init__(self, beats: HeardBeats, leaders: LeaderCheck) -> None:
        self._beats, self._leaders, self._clock = beats, leaders, beats.clock
        self._waiting: dict[int, tuple[PulseMessage, int]] = {}
        self._members_ms = self._looked_ms = 0

    async def run(self, queue: TempoQueue[PulseMessage]) -> None:
        """Listens for ever."""
        while True:
            heard = await queue.get(CONFIRM_S if self._waiting else MEMBERS_S)
            if heard is not None:
                self._hear(heard.message, heard.at.node)
            await self._look()

    def _hear(self, message: PulseMessage, sender: int) -> None:
        if self._beats.needs_confirmation(message, sender):
            self._waiting[sender] = message, self._clock.monotonic_ms()
        else:
            self._beats.hear(message, sender)

    async def _look(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._members_ms:
            self._members_ms = now_ms + round(MEMBERS_S * 1000)
            await self._leaders.refresh_members()
        if not self._waiting or now_ms < self._looked_ms + round(CONFIRM_S * 1000):
            return
        self._looked_ms = now_ms
        await self._leaders.refresh()
        for sender, (message, came_ms) in list(self._waiting.items()):
            is_over = self._clock.monotonic_ms() - came_ms > message.frame.beat_ms
            if is_over or not self._beats.needs_confirmation(message, sender):
                del self._waiting[sender]
                self._beats.hear(message, sender, came_ms)
