"""The windows of reverb: the messages of agents between two downbeats, and the report of each. A message belongs to the
window in which its HLC lies, however late it comes, and the newest about a task counts. So any order, any repetition
and any partition of the same messages leads to the same report, byte for byte. Memory is bounded: the newest windows
are kept, and of each as many tasks, promises and nodes as fit.

Where there are more, the keys with the smallest hashes are kept. A key that was dropped never comes back, because those
that displaced it stay. So two windows that were filled apart and are joined have the same content as one that was
filled with everything.
"""

import math
from collections import Counter
from collections.abc import Callable, ItemsView, Iterable, Sequence, ValuesView
from heapq import heappop, heappush
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

import msgspec
from blake3 import blake3
from msgspec import Meta

from hocket.extensions.tempo.beats import Tempo, Timeline
from hocket.extensions.tempo.messages import (
    NAME_CHARS_MAX,
    ROLES_MAX,
    BarReport,
    BeatsLeft,
    ClaimState,
    Count,
    Name,
    NodeLoad,
    PromiseOutcome,
    PromiseResult,
    Roles,
    Share,
    StatusClaim,
    from_json,
    to_json,
)
from hocket.extensions.tempo.policy import TempoPolicy, load_error, suggested_bpm
from hocket.kernel.clock import U32_MAX, Hlc, hlc_text, parse_hlc, wall_text

# A window goes from one reverb to another in messages of the bus.
CONTENT_BYTES_MAX = 48 * 1024
DIGEST_BYTES = 16
WindowMessage = StatusClaim | PromiseResult | NodeLoad
Wall = Annotated[int, Meta(ge=0, le=2**53 - 1)]
Logical = Annotated[int, Meta(ge=0, le=U32_MAX)]
Key = Annotated[str, Meta(max_length=2 * NAME_CHARS_MAX + 4)]
# One bit for each beat of the bar, the first beat's the lowest.
BeatSet = Annotated[int, Meta(ge=0)]
Digest = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
# More windows than any reverb keeps.
DIGESTS_MAX = 1_024
V = TypeVar("V")


class WindowLimits(NamedTuple):
    """How many windows are kept, and of each how many tasks, promises and nodes."""

    windows: int = 32
    tasks: int = 20_000
    promises: int = 20_000
    nodes: int = 4_096


class TaskSeen(msgspec.Struct, frozen=True, array_like=True):
    """The last state of a task, the fewest beats that it had left, and its state then, `worst`. `beats` are the beats
    of the bar in which it was claimed, and `waits` those in which it was claimed as waiting.
    """

    wall: Wall
    logical: Logical
    state: ClaimState
    beats_left: BeatsLeft
    agent_id: Name
    beats: BeatSet
    waits: BeatSet
    worst: ClaimState = ClaimState.EXECUTING


class PromiseSeen(msgspec.Struct, frozen=True, array_like=True):
    wall: Wall
    logical: Logical
    outcome: PromiseOutcome


class LoadSeen(msgspec.Struct, frozen=True, array_like=True):
    wall: Wall
    logical: Logical
    queue_depth: Count
    busy: Count
    slots: Count
    roles: Roles = {}
    cpu: Share = 0.0
    gpu: Share | None = None

    def __post_init__(self) -> None:
        if self.busy > self.slots:
            raise ValueError(f"{self.busy} of {self.slots} slots cannot be busy")


class WindowContent(msgspec.Struct, frozen=True):
    """The content of a window, or a part of it, as one reverb sends it to another."""

    window_ms: Wall
    tasks: dict[Key, TaskSeen]
    promises: dict[Key, PromiseSeen]
    loads: dict[Key, LoadSeen]
    truncated: bool
    newest: tuple[Wall, Logical]


class WindowDigests(msgspec.Struct, frozen=True):
    """What a reverb has of each of its windows, by the time of the downbeat. Another reverb whose digest of a window
    differs sends its content.
    """

    digests: Annotated[dict[Annotated[str, Meta(pattern="^[0-9]{1,16}$")], Digest], Meta(max_length=DIGESTS_MAX)]


class BoundedMap(Generic[V]):
    """`join` makes one value of two; it must not matter in which order, or how often."""

    def __init__(self, limit: int, join: Callable[[V, V], V]) -> None:
        self._limit, self._join = limit, join
        self._values: dict[str, V] = {}
        self._largest: list[tuple[int, str]] = []
        self.is_truncated = False

    def add(self, key: str, value: V) -> None:
        if (known := self._values.get(key)) is not None:
            self._values[key] = self._join(known, value)
            return
        self._values[key] = value
        heappush(self._largest, (-int.from_bytes(blake3(key.encode()).digest(8), "big"), key))
        if len(self._values) > self._limit:
            self.is_truncated = True
            del self._values[heappop(self._largest)[1]]

    def items(self) -> ItemsView[str, V]:
        return self._values.items()

    def values(self) -> ValuesView[V]:
        return self._values.values()

    def __len__(self) -> int:
        return len(self._values)


LIMITS = WindowLimits()


class BarWindow:
    """`start_ms` is its downbeat."""

    def __init__(self, limits: WindowLimits, start_ms: int, tempo: Tempo) -> None:
        self.tasks = BoundedMap(limits.tasks, _joined_task)
        self.promises = BoundedMap(limits.promises, _newer)
        self.loads = BoundedMap(limits.nodes, _newer)
        self._start_ms, self._beat_ms, self._tempo = start_ms, tempo.beat_ms, tempo
        self._was_truncated = False
        self._newest = (start_ms, 0)
        self._digest: str | None = None

    @property
    def is_truncated(self) -> bool:
        return any((self._was_truncated, *(each.is_truncated for each in (self.tasks, self.promises, self.loads))))

    def add(self, message: WindowMessage, at: Hlc) -> None:
        self._newest = max(self._newest, at[:2])
        self._digest = None
        match message:
            case StatusClaim():
                beat = 1 << (at.wall - self._start_ms) // self._beat_ms
                waits = beat if message.state is ClaimState.WAITING else 0
                state, left = message.state, message.beats_left
                seen = TaskSeen(at.wall, at.logical, state, left, message.agent_id, beat, waits, state)
                self.tasks.add(_pair(message.agent_id, message.task_id), seen)
            case PromiseResult():
                promise = PromiseSeen(at.wall, at.logical, message.outcome)
                self.promises.add(_pair(message.agent_id, message.thread_id), promise)
            case NodeLoad():
                told = message.queue_depth, message.busy, message.slots, message.roles, message.cpu, message.gpu
                load = LoadSeen(at.wall, at.logical, *told)
                self.loads.add(message.node_id, load)

    @property
    def content(self) -> WindowContent:
        tasks, promises, loads = dict(self.tasks.items()), dict(self.promises.items()), dict(self.loads.items())
        return WindowContent(self._start_ms, tasks, promises, loads, self.is_truncated, self._newest)

    @property
    def digest(self) -> str:
        if self._digest is None:
            self._digest = blake3(to_json(self.content)).hexdigest(DIGEST_BYTES)
        return self._digest

    def absorb(self, content: WindowContent) -> None:
        self._digest = None
        for key, task in content.tasks.items():
            self.tasks.add(key, task)
        for key, promise in content.promises.items():
            self.promises.add(key, promise)
        for key, load in content.loads.items():
            self.loads.add(key, load)
        self._was_truncated = self._was_truncated or content.truncated
        self._newest = max(self._newest, content.newest)

    def report(self, policy: TempoPolicy) -> BarReport:
        states = Counter(task.state for task in self.tasks.values())
        outcomes = Counter(promise.outcome for promise in self.promises.values())
        slots = sum(load.slots for load in self.loads.values())
        busy = sum(load.busy for load in self.loads.values())
        report = BarReport(
            cluster_id=policy.cluster_id,
            window=wall_text(self._start_ms),
            tempo_bpm=self._tempo.bpm,
            bar_len_beats=self._tempo.bar_len,
            agents=len({task.agent_id for task in self.tasks.values()}),
            tasks=len(self.tasks),
            states={state: states[state] for state in ClaimState},
            overruns=sum(task.beats_left < 0 for task in self.tasks.values()),
            kept_promises=outcomes[PromiseOutcome.KEPT],
            late_promises=outcomes[PromiseOutcome.LATE],
            broken_promises=outcomes[PromiseOutcome.BROKEN],
            # Nodes of one mesh see one queue, some of them sooner.
            queue_depth=max((load.queue_depth for load in self.loads.values()), default=0),
            utilisation=round(busy / slots, 6) if slots else 0.0,
            suggested_tempo_bpm=self._tempo.bpm,
            truncated=self.is_truncated,
            hlc=hlc_text(Hlc(*self._newest, 0)),
            nodes=len(self.loads),
            task_beats=sum(task.beats.bit_count() for task in self.tasks.values()),
            wait_beats=sum(task.waits.bit_count() for task in self.tasks.values()),
            lost_beats=sum(
                (task.beats & ~task.waits).bit_count()
                for task in self.tasks.values()
                if task.state is ClaimState.FAILED
            ),
            queue_by_role=_by_role(self.loads.values()),
            cpu_utilisation=_mean([load.cpu for load in self.loads.values()]) or 0.0,
            gpu_utilisation=_mean([load.gpu for load in self.loads.values() if load.gpu is not None]),
            overruns_by_phase=dict(
                sorted(Counter(_phase(task.worst) for task in self.tasks.values() if task.beats_left < 0).items())
            ),
        )
        suggested = suggested_bpm(policy, self._tempo.bpm, load_error(report))
        return msgspec.structs.replace(report, suggested_tempo_bpm=suggested)


class BarWindows:
    """The newest windows of a cluster. `dropped` counts messages that came too late for them or too early."""

    def __init__(self, policy: TempoPolicy, timeline: Timeline, limits: WindowLimits = LIMITS) -> None:
        self.policy, self.timeline, self.limits = policy, timeline, limits
        self.dropped = 0
        self._windows: dict[int, BarWindow] = {}
        self._changed: set[int] = set()

    def add(self, message: WindowMessage, latest_ms: int) -> bool:
        """Whether the message counts. `latest_ms` is the latest time that a clock of the mesh may show now."""
        at = parse_hlc(message.hlc, 0)
        window = None if at.wall > latest_ms else self._window(self.timeline.window_at(at.wall).start_ms)
        if window is None:
            self.dropped += 1
            return False
        window.add(message, at)
        return True

    def absorb(self, content: WindowContent, latest_ms: int) -> bool:
        """Merges the content of another reverb's window. False if it does not fit the windows of this one."""
        start_ms, end_ms = self.timeline.window_at(content.window_ms)
        tasks, promises, loads = content.tasks.values(), content.promises.values(), content.loads.values()
        walls = [content.newest[0], *(each.wall for each in tasks)]
        walls += [*(each.wall for each in promises), *(each.wall for each in loads)]
        beats_end = 1 << self.timeline.at(start_ms).bar_len
        is_good = (
            start_ms == content.window_ms
            and all(start_ms <= wall < end_ms for wall in walls)
            and all(each.waits | each.beats == each.beats < beats_end for each in tasks)
        )
        window = self._window(start_ms) if is_good and max(walls) <= latest_ms else None
        if window is None:
            self.dropped += 1
            return False
        window.absorb(content)
        return True

    def open(self, start_ms: int) -> None:
        """A window in which nothing is heard has a report, too."""
        self._window(start_ms)

    def contents(self) -> list[WindowContent]:
        """All windows, for another reverb."""
        return [self._windows[start_ms].content for start_ms in sorted(self._windows)]

    def has(self, window_ms: int) -> bool:
        return window_ms in self._windows

    def digest(self, window_ms: int) -> str:
        return self._windows[window_ms].digest

    def content(self, window_ms: int) -> WindowContent:
        return self._windows[window_ms].content

    def reports(self) -> list[BarReport]:
        return [self.report(start_ms) for start_ms in sorted(self._windows)]

    def report(self, window_ms: int) -> BarReport:
        return self._windows[window_ms].report(self.policy)

    def digests(self, until_ms: int) -> WindowDigests:
        """Of the windows that begin before that time."""
        starts = [start_ms for start_ms in sorted(self._windows) if start_ms < until_ms]
        return WindowDigests({str(start_ms): self._windows[start_ms].digest for start_ms in starts})

    def differing(self, heard: WindowDigests, until_ms: int) -> list[int]:
        """The windows before that time of which another reverb has something else, or nothing."""
        earlier = [(ms, window) for ms, window in self._windows.items() if ms < until_ms]
        return [ms for ms, window in earlier if heard.digests.get(str(ms)) != window.digest]

    def take_changed(self, until_ms: int) -> list[int]:
        """The windows before that time that have changed since this was last asked."""
        found = sorted(start_ms for start_ms in self._changed if start_ms < until_ms)
        self._changed.difference_update(found)
        return found

    def _window(self, start_ms: int) -> BarWindow | None:
        """The window that begins then. Of more than fit, the oldest goes, and never comes back."""
        if start_ms not in self._windows:
            if len(self._windows) >= self.limits.windows:
                oldest = min(self._windows)
                if start_ms < oldest:
                    return None
                del self._windows[oldest]
                self._changed.discard(oldest)
            self._windows[start_ms] = BarWindow(self.limits, start_ms, self.timeline.at(start_ms))
        self._changed.add(start_ms)
        return self._windows[start_ms]


def content_parts(content: WindowContent) -> list[WindowContent]:
    """As messages that the bus can carry. They may be lost, come twice or come in any order."""
    if len(to_json(content)) <= CONTENT_BYTES_MAX:
        return [content]
    return [part for half in _halves(content) for part in content_parts(half)]


def decode_content(data: bytes) -> WindowContent:
    """Raises Malformed."""
    return from_json(data, WindowContent)


def _pair(first: str, second: str) -> str:
    return f"{len(first)}:{first}{second}"


def read_pair(key: str) -> tuple[str, str]:
    """The two names of a key; the first is empty if the key is not one of ours."""
    size, _, names = key.partition(":")
    length = int(size) if size.isascii() and size.isdigit() else 0
    return names[:length], names[length:]


def _halves(content: WindowContent) -> list[WindowContent]:
    tasks, promises, loads = _split(content.tasks), _split(content.promises), _split(content.loads)
    return [
        msgspec.structs.replace(content, tasks=tasks[half], promises=promises[half], loads=loads[half])
        for half in (0, 1)
    ]


def _split(members: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    items = [*members.items()]
    return dict(items[: len(items) // 2]), dict(items[len(items) // 2 :])


def _joined_task(one: TaskSeen, other: TaskSeen) -> TaskSeen:
    is_one = (one.wall, one.logical, one.state, one.agent_id) >= (
        other.wall,
        other.logical,
        other.state,
        other.agent_id,
    )
    newest = one if is_one else other
    worst = min(one, other, key=lambda each: (each.beats_left, each.worst))
    return TaskSeen(
        newest.wall,
        newest.logical,
        newest.state,
        worst.beats_left,
        newest.agent_id,
        one.beats | other.beats,
        one.waits | other.waits,
        worst.worst,
    )


def _newer(one: Any, other: Any) -> Any:
    return max(one, other, key=lambda each: (each.wall, each.logical, to_json(each)))


def _phase(state: ClaimState) -> str:
    """The phase of a task in this state. One that has ended was in its last."""
    if state is ClaimState.PLANNING:
        return "plan"
    return "work" if state in (ClaimState.EXECUTING, ClaimState.WAITING) else "review"


def _by_role(loads: Iterable[LoadSeen]) -> dict[str, int]:
    """The deepest queues. Nodes of one mesh see one queue, some of them sooner."""
    found: dict[str, int] = {}
    for load in loads:
        for role, depth in load.roles.items():
            found[role] = max(depth, found.get(role, 0))
    return dict(sorted(sorted(found.items(), key=lambda each: (-each[1], each[0]))[:ROLES_MAX]))


def _mean(shares: Sequence[float]) -> float | None:
    return round(math.fsum(shares) / len(shares), 6) if shares else None
