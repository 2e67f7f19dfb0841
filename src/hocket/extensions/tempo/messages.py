"""The messages of tempo, with the field names of the addendum, as JSON. Unknown members are ignored, among them `bar`
and `beat` of older programs. The envelope of the bus says who sent a message and proves it. `extensions/tempo/schemas`
has a JSON Schema of each type, made from it; `__post_init__` checks what a schema cannot say.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from hocket.extensions.tempo.beats import BEATS_MAX, BPM_MAX, BPM_MIN, Phases, Tempo, beat_at, make_tempo, phase_at
from hocket.kernel.clock import Hlc, hlc_text, parse_hlc, parse_wall, wall_text
from hocket.kernel.decoding import decode_json, json_decoder
from hocket.kernel.policy import BAR_LEN_MAX
from hocket.kernel.postcard import Malformed

NAME_CHARS_MAX = 255
NOTES_CHARS_MAX = 1_024

_TIME = r"^[0-9]{4,9}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z"
Moment = Annotated[str, Meta(pattern=_TIME + "$", max_length=40)]
HlcText = Annotated[str, Meta(pattern=_TIME + r"\+(0|[1-9][0-9]{0,9})$", max_length=40)]
Name = Annotated[str, Meta(min_length=1, max_length=NAME_CHARS_MAX)]
Bpm = Annotated[int, Meta(ge=BPM_MIN, le=BPM_MAX)]
BarLength = Annotated[int, Meta(ge=1, le=BAR_LEN_MAX)]
BeatMs = Annotated[int, Meta(ge=60_000 // BPM_MAX, le=60_000 // BPM_MIN)]
Beats = Annotated[int, Meta(ge=0, le=BEATS_MAX)]
# Negative after an overrun: by so many beats the phase has run over.
BeatsLeft = Annotated[int, Meta(ge=-BEATS_MAX, le=BEATS_MAX)]
Share = Annotated[float, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=0, le=2**53 - 1)]
PolicyHash = Annotated[str, Meta(pattern="^sha256:[0-9a-f]{64}$", max_length=71)]


class BeatFrame(msgspec.Struct, frozen=True):
    """One beat. `deadline_at` is a beat after the time of the frame: a pulse that sends nothing until then is late."""

    cluster_id: Name
    tempo_bpm: Bpm
    beat_ms: BeatMs
    bar_len_beats: BarLength
    beat_index: BarLength
    beat_epoch: Moment
    downbeat: bool
    phase: Name
    hlc: HlcText
    policy_hash: PolicyHash
    deadline_at: Moment

    def __post_init__(self) -> None:
        parse_wall(self.beat_epoch)
        parse_wall(self.deadline_at)
        parse_hlc(self.hlc, 0)
        if self.downbeat != (self.beat_index == 1):
            raise ValueError("the downbeat is beat 1 of the bar, and no other")
        if self.beat_index > self.bar_len_beats:
            raise ValueError(f"the bar has {self.bar_len_beats} beats, and this is beat {self.beat_index}")

    @property
    def epoch_ms(self) -> int:
        return parse_wall(self.beat_epoch)

    @property
    def window_ms(self) -> int:
        """The downbeat of the frame's bar."""
        return self.epoch_ms - (self.beat_index - 1) * self.beat_ms

    @property
    def tempo(self) -> Tempo:
        return make_tempo(self.tempo_bpm, self.bar_len_beats, self.window_ms)


class PulseMessage(msgspec.Struct, frozen=True):
    """A frame as a pulse sends it. `fence` is that of its leadership. A pulse without a leader sends its own beat
    as `degraded`, for agents that take the median. `phases` has the beats of each phase of this bar, where they are not
    the policy's.
    """

    frame: BeatFrame
    fence: Count
    degraded: bool = False
    phases: dict[Name, BarLength] | None = None


# The things that a task says it waits for, and the kinds of jobs whose queues a node tells.
WAITS_MAX = 16
ROLES_MAX = 64


class ClaimState(StrEnum):
    PLANNING = "planning"
    EXECUTING = "executing"
    WAITING = "waiting"
    REVIEW = "review"
    DONE = "done"
    FAILED = "failed"


class StatusClaim(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of one task, as its agent reports it. `wait_for` has what it waits for, such as the thread of a request
    for help; the message of a task that waits for nothing has no such member.
    """

    agent_id: Name
    task_id: Name
    beat_index: BarLength
    state: ClaimState
    beats_left: BeatsLeft
    progress: Share
    notes: Annotated[str, Meta(max_length=NOTES_CHARS_MAX)]
    hlc: HlcText
    wait_for: Annotated[tuple[Name, ...], Meta(max_length=WAITS_MAX)] = ()

    def __post_init__(self) -> None:
        parse_hlc(self.hlc, 0)


class HelpPromise(msgspec.Struct, frozen=True):
    """A helper expects to answer within `promise_beats`. After `fail_after_beats` the thread closes, and the requester
    goes on with `on_fail`.
    """

    thread_id: Name
    promise_beats: Beats
    confidence: Share
    fail_after_beats: Beats
    on_fail: Name

    def __post_init__(self) -> None:
        if self.fail_after_beats < self.promise_beats:
            raise ValueError("a promise cannot fail before it is due: fail_after_beats is less than promise_beats")


Roles = Annotated[dict[Name, Count], Meta(max_length=ROLES_MAX)]


class BarReport(msgspec.Struct, frozen=True):
    """One window. `states` counts tasks by their last state, and `overruns` those that ran over a phase. `truncated`
    means that there were more of something than could be counted. `hlc` is that of the newest message. `nodes` have
    told their load; a role is a kind of jobs. `overruns_by_phase` has the overruns by the phase that was over.
    `task_beats` are the beats in which tasks were claimed, summed over the tasks: of these, `wait_beats` were spent
    waiting, and `lost_beats` otherwise on tasks that failed.
    """

    cluster_id: Name
    window: Moment
    tempo_bpm: Bpm
    bar_len_beats: BarLength
    agents: Count
    tasks: Count
    states: dict[ClaimState, Count]
    overruns: Count
    kept_promises: Count
    late_promises: Count
    broken_promises: Count
    queue_depth: Count
    utilisation: Share
    suggested_tempo_bpm: Bpm
    truncated: bool
    hlc: HlcText
    nodes: Count = 0
    task_beats: Count = 0
    wait_beats: Count = 0
    lost_beats: Count = 0
    queue_by_role: Roles = {}
    cpu_utilisation: Share = 0.0
    gpu_utilisation: Share | None = None
    overruns_by_phase: dict[Name, Count] = {}

    def __post_init__(self) -> None:
        if self.wait_beats + self.lost_beats > self.task_beats:
            raise ValueError("tasks cannot have waited and lost more beats than they had")
        parse_wall(self.window)
        parse_hlc(self.hlc, 0)

    @property
    def window_ms(self) -> int:
        return parse_wall(self.window)

    @property
    def promises(self) -> int:
        return self.kept_promises + self.late_promises + self.broken_promises


class NodeLoad(msgspec.Struct, frozen=True):
    """The load of a node: ready jobs that it knows of, in all and by kind, how many of its slots are busy, and how busy
    its processors and GPUs are.
    """

    node_id: Name
    queue_depth: Count
    busy: Count
    slots: Count
    hlc: HlcText
    roles: Roles = {}
    cpu: Share = 0.0
    gpu: Share | None = None

    def __post_init__(self) -> None:
        parse_hlc(self.hlc, 0)
        if self.busy > self.slots:
            raise ValueError(f"{self.busy} of {self.slots} slots cannot be busy")


class PromiseOutcome(StrEnum):
    KEPT = "kept"
    LATE = "late"
    BROKEN = "broken"


class PromiseResult(msgspec.Struct, frozen=True):
    """How a HelpPromise ended, as its requester reports it."""

    thread_id: Name
    agent_id: Name
    outcome: PromiseOutcome
    hlc: HlcText

    def __post_init__(self) -> None:
        parse_hlc(self.hlc, 0)


MESSAGES = (BeatFrame, PulseMessage, StatusClaim, HelpPromise, BarReport, NodeLoad, PromiseResult)
T = TypeVar("T")
_encoder = msgspec.json.Encoder(order="sorted")


def to_json(message: msgspec.Struct) -> bytes:
    """JSON with sorted keys: the same message has the same bytes."""
    return _encoder.encode(message)


def from_json(data: bytes, kind: type[T]) -> T:
    """Raises Malformed."""
    try:
        return decode_json(data, kind)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"not a {kind.__name__}: {error}") from None


def batch_decoder(kind: type[T]) -> Callable[[bytes], list[T]]:
    """Reads a message of this type, or a JSON array of them. Raises Malformed."""
    decoder: msgspec.json.Decoder[T | list[T]] = json_decoder(kind | list[kind])  # type: ignore[valid-type]

    def decode(data: bytes) -> list[T]:
        try:
            found = decoder.decode(data)
        except (ValueError, RecursionError) as error:
            raise Malformed(f"not a {kind.__name__}, nor an array of them: {error}") from None
        return found if isinstance(found, list) else [found]

    return decode


def make_frame(cluster_id: str, tempo: Tempo, phases: Phases, policy_hash: str, at_ms: int, hlc: Hlc) -> BeatFrame:
    """The frame of the beat in which this time lies. The HLC may be ahead of it: other nodes move that."""
    beat = beat_at(tempo, at_ms)
    return BeatFrame(
        cluster_id=cluster_id,
        tempo_bpm=tempo.bpm,
        beat_ms=tempo.beat_ms,
        bar_len_beats=tempo.bar_len,
        beat_index=beat.index,
        beat_epoch=wall_text(beat.epoch_ms),
        downbeat=beat.is_downbeat,
        phase=phase_at(phases, tempo.bar_len, beat.index).name,
        hlc=hlc_text(hlc),
        policy_hash=policy_hash,
        deadline_at=wall_text(at_ms + tempo.beat_ms),
    )
