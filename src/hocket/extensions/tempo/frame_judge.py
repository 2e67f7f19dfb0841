"""Which frames an agent accepts. A pulse that leads holds a lock and puts its fence into each frame; so after the first
frame of a new leader none of the old one counts, however late it wakes. A frame says a fence, and does not prove it:
the first frame of a leader counts if the lock shows that its sender holds it under this fence. An agent accepts at most
one frame for a beat, and never goes back. The envelope of the bus has proved who sent a frame.

Also the beats without a leader. A beat is a function of the time, so the median of the pulses that are heard is the
median of how far their clocks are from ours. If none is heard, the last known distance stays, and the local monotonic
clock counts on. The tempo is frozen: nothing that is heard changes it.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

import msgspec

from hocket.extensions.tempo.beats import (
    Phases,
    Tempo,
    beat_at,
    is_downbeat,
    next_downbeat,
    phase_at,
    redistributed,
)
from hocket.extensions.tempo.messages import BeatFrame, PulseMessage
from hocket.extensions.tempo.policy import TempoPolicy, policy_hash
from hocket.kernel.clock import parse_wall
from hocket.kernel.ops import Beat

# Without a frame for so many beats, there is no leader.
LEADERLESS_BEATS = 2
# A pulse that was not heard for so many bars does not count.
HEARD_BARS = 2


class FrameRefusal(StrEnum):
    WRONG_CLUSTER = "wrong cluster"
    LEADERLESS = "leaderless"  # a degraded pulse: a sample for the median, and no frame
    FOREIGN_POLICY = "foreign policy"
    INCONSISTENT = "inconsistent"  # its fields contradict each other or the policy
    FROM_THE_PAST = "from the past"
    FROM_THE_FUTURE = "from the future"
    DEPOSED = "deposed"  # its sender no longer leads
    SECOND_LEADER = "second leader"  # another node has this fence
    MID_BAR = "mid-bar"  # it changes the tempo where no bar begins
    NOT_A_PULSE = "not a pulse"  # its sender is no member that may lead
    UNCONFIRMED = "unconfirmed"  # the lock does not show that its sender leads


class Lead(NamedTuple):
    """Which node holds the leader's lock, and under which fence, as this process has read it. Fence 0: none does."""

    fence: int
    node: int


class JudgeState(msgspec.Struct, frozen=True):
    """The last frame that was accepted, the leader that sent it, and the phases of its bar."""

    fence: int = 0
    leader: int = 0
    last: BeatFrame | None = None
    phases: dict[str, int] | None = None


def judge_frame(
    policy: TempoPolicy,
    state: JudgeState,
    message: PulseMessage,
    sender: int,
    now_ms: int,
    skew_ms: int,
    ahead_ms: int | None = None,
    lead: Lead | None = None,
) -> JudgeState | FrameRefusal:
    """The state after an accepted frame, or why the frame is refused. `skew_ms` is by how much clocks may differ, and
    `ahead_ms` how far ahead a frame may begin, if that is less. Without a `lead`, who leads cannot be read here, and
    the frame is believed.
    """
    frame = message.frame
    if frame.cluster_id != policy.cluster_id:
        return FrameRefusal.WRONG_CLUSTER
    if message.degraded or message.fence == 0:
        return FrameRefusal.LEADERLESS
    if not policy.min_bpm <= frame.tempo_bpm <= policy.max_bpm or frame.policy_hash != policy_hash(policy, frame.tempo):
        return FrameRefusal.FOREIGN_POLICY
    phases = policy.phases if message.phases is None else redistributed(message.phases, policy.phases)
    if phases is None or not _is_consistent(policy, frame, phases):
        return FrameRefusal.INCONSISTENT
    if frame.epoch_ms > now_ms + min(skew_ms, skew_ms if ahead_ms is None else ahead_ms):
        return FrameRefusal.FROM_THE_FUTURE
    if frame.epoch_ms + frame.beat_ms < now_ms - skew_ms:
        return FrameRefusal.FROM_THE_PAST
    if message.fence < state.fence:
        return FrameRefusal.DEPOSED
    if message.fence == state.fence and sender != state.leader:
        return FrameRefusal.SECOND_LEADER
    if state.last is not None and frame.epoch_ms < state.last.epoch_ms + state.last.beat_ms:
        return FrameRefusal.FROM_THE_PAST
    if state.last is not None and not _may_follow(state.last.tempo, state.last.epoch_ms, frame.tempo, frame.epoch_ms):
        return FrameRefusal.MID_BAR
    is_same_bar = state.last is not None and sender == state.leader and state.last.window_ms == frame.window_ms
    if is_same_bar and state.phases is not None and phases != state.phases:
        return FrameRefusal.MID_BAR
    if lead is not None and message.fence > state.fence and lead != (message.fence, sender):
        return FrameRefusal.UNCONFIRMED
    return JudgeState(message.fence, sender, frame, phases)


def with_local_beat(state: JudgeState, frame: BeatFrame) -> JudgeState:
    """The state after a beat that the agent has counted itself, without a leader: no frame goes back behind it."""
    return JudgeState(state.fence, state.leader, frame, state.phases)


def _is_consistent(policy: TempoPolicy, frame: BeatFrame, phases: Phases) -> bool:
    tempo, sent_ms = frame.tempo, parse_wall(frame.deadline_at) - frame.beat_ms
    return (
        frame.bar_len_beats == policy.bar_len_beats
        and frame.beat_ms == tempo.beat_ms
        and frame.phase == phase_at(phases, tempo.bar_len, frame.beat_index).name
        and beat_at(tempo, sent_ms).epoch_ms == frame.epoch_ms
    )


def _may_follow(old: Tempo, old_epoch_ms: int, new: Tempo, new_epoch_ms: int) -> bool:
    """A new tempo begins on a downbeat of the old one, which the agent may have missed. An agent that has missed more
    than a bar cannot tell: the tempo may have changed twice.
    """
    if old == new or new_epoch_ms - old_epoch_ms > old.bar_ms:
        return True
    downbeat_ms = next_downbeat(old, old_epoch_ms + 1)
    return downbeat_ms <= new_epoch_ms and is_downbeat(new, downbeat_ms)


class HeardPulse(NamedTuple):
    """A message of a pulse: the time that it told, minus the local monotonic time at which it came."""

    offset_ms: int
    heard_ms: int


class DegradedTempo(msgspec.Struct, frozen=True):
    """`tempo` is that of the last accepted frame, `epoch_ms` the last beat, and `offset_ms` the cluster's time minus
    the local monotonic clock.
    """

    tempo: Tempo
    offset_ms: int
    epoch_ms: int


def is_leaderless(tempo: Tempo, last_frame_ms: int, now_ms: int) -> bool:
    """Both times are of the local monotonic clock."""
    return now_ms - last_frame_ms > LEADERLESS_BEATS * tempo.beat_ms


def degraded_beat(
    state: DegradedTempo, heard: Mapping[int, HeardPulse], now_ms: int
) -> tuple[DegradedTempo, Beat | None]:
    """The beat that has begun since the last one, or None. `heard` has the last message of each pulse, and `now_ms` is
    the local monotonic time. No beat comes twice: if the median falls, beats wait for it.
    """
    tempo = state.tempo
    fresh = [each.offset_ms for each in heard.values() if now_ms - each.heard_ms <= HEARD_BARS * tempo.bar_ms]
    offset_ms = median(fresh) if fresh else state.offset_ms
    beat = beat_at(tempo, now_ms + offset_ms)
    if beat.epoch_ms <= state.epoch_ms:
        return DegradedTempo(tempo, offset_ms, state.epoch_ms), None
    return DegradedTempo(tempo, offset_ms, beat.epoch_ms), beat


def median(values: Iterable[int]) -> int:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) // 2
