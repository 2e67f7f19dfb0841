"""A reverb: hears what agents and nodes say, sorts it into windows, and reports each window when its bar is over, on
the bus and on the log. Several may run. Each tells the others the digests of its windows once a bar; who has something
else sends it, and so all come to the same reports, also after a partition. The one with the lowest node id writes them
on the log; the others wait for that, and write what is not there then. The rules are in `windows`.
"""

import asyncio
from typing import Any

from hocket.errors import HocketError
from hocket.events import Emit, ignore
from hocket.events.workers import StepFailed
from hocket.extensions.tempo.events import AlarmEnded, AlarmRaised, BarReported
from hocket.extensions.tempo.heard_beats import BeatNow, BeatSource
from hocket.extensions.tempo.messages import BarReport, NodeLoad, PromiseResult, StatusClaim
from hocket.extensions.tempo.reports import Alarm, alarms, keep, kept_reports, kept_window, packed_window
from hocket.extensions.tempo.tempo_messages import TempoMessages, TempoQueue
from hocket.extensions.tempo.windows import (
    LIMITS,
    BarWindows,
    WindowContent,
    WindowDigests,
    WindowLimits,
    WindowMessage,
    content_parts,
)
from hocket.families.access import NodeAccess
from hocket.kernel.clock import wall_text
from hocket.kernel.mesh_rules import SKEW_MS_DEFAULT
from hocket.log import Transaction
from hocket.store import Session

# How many messages with claims may wait to be counted; more than the workers of a large fleet send in a beat.
CLAIMS_WAITING_MAX = 20_000
# At a tempo with bars shorter than this, one transaction has the reports of several.
KEEP_MS_MIN = 1_000
# How long a reverb leaves a window to the one that writes first, if a bar is shorter; how many bars without a word from
# it are enough to take its place.
LEFT_MS = 5_000
GONE_BARS = 3
_LONG_S = 3600.0


class Reverb:
    """`skew_ms` is by how much the clocks of the mesh may differ."""

    def __init__(
        self,
        access: NodeAccess,
        messages: TempoMessages,
        beats: BeatSource,
        emit: Emit = ignore,
        *,
        limits: WindowLimits = LIMITS,
        skew_ms: int = SKEW_MS_DEFAULT,
    ) -> None:
        self._access, self._messages, self._beats, self._emit = access, messages, beats, emit
        self._skew_ms, self._node = skew_ms, access.log.node
        self.windows = BarWindows(beats.policy, beats.timeline, limits)
        self._lane = beats.policy.cluster_id
        self._bar_ms = self._digested_ms = beats.now().beat.window_ms
        self._kept_at_ms = 0
        self._reported: dict[int, str] = {}
        self._to_keep: dict[int, int] = {}
        self._others: dict[int, int] = {}
        self._greets = True
        """Whether there may be a reverb that does not know of this one."""
        self._wanted: set[int] = set()
        self._alarms: list[Alarm] = []

    async def run(self) -> None:
        """Until it is cancelled."""
        claims = await self._messages.subscribe(StatusClaim, capacity=CLAIMS_WAITING_MAX)
        promises = await self._messages.subscribe(PromiseResult, capacity=CLAIMS_WAITING_MAX)
        loads = await self._messages.subscribe(NodeLoad)
        contents = await self._messages.subscribe(WindowContent, self._lane)
        digests = await self._messages.subscribe(WindowDigests, self._lane)
        queues: list[TempoQueue[Any]] = [claims, promises, loads, contents, digests]
        try:
            async with asyncio.TaskGroup() as tasks:
                for queue in queues:
                    tasks.create_task(self._hear(queue))
                await self._remember()
                while True:
                    await self._on_beat(await self._beats.next_beat())
        finally:
            for queue in queues:
                queue.close()

    async def _hear(self, queue: TempoQueue[Any]) -> None:
        while True:
            if (heard := await queue.get(_LONG_S)) is not None:
                self._take(heard.message, heard.at.node)

    def _take(self, message: WindowMessage | WindowContent | WindowDigests, sender: int) -> None:
        latest_ms = self._beats.now().at_ms + self._skew_ms
        match message:
            case WindowDigests():
                self._greets = self._greets or sender not in self._others
                self._others[sender] = self._beats.now().at_ms
                self._wanted.update(self.windows.differing(message, self._bar_ms))
            case WindowContent():
                self.windows.absorb(message, latest_ms)
            case _:
                self.windows.add(message, latest_ms)

    async def _remember(self) -> None:
        """A reverb that starts again goes on with the windows that are on the log."""
        now_ms, limit, blobs = self._beats.now().at_ms, self.windows.limits.windows, self._access.blobs

        def read(session: Session) -> list[WindowContent | None]:
            reports = kept_reports(session, now_ms, limit)
            return [kept_window(session, blobs, report.window_ms) for report in reports]

        try:
            for content in await self._access.peek(read):
                if content is not None and self.windows.absorb(content, now_ms + self._skew_ms):
                    self._reported[content.window_ms] = self.windows.digest(content.window_ms)
        except HocketError as error:
            self._emit(StepFailed("reading the windows on the log", str(error)))

    async def _on_beat(self, now: BeatNow) -> None:
        self.windows.timeline = self._beats.timeline
        wanted, self._wanted = sorted(self._wanted), set()
        for window_ms in wanted:
            await self._send(window_ms)
        beat = now.beat
        if beat.window_ms != self._bar_ms:
            self._bar_ms = beat.window_ms
            await self._report(now)
        # On the second beat, when the messages of the last bar have arrived everywhere.
        if self._greets or (beat.index >= min(2, now.tempo.bar_len) and self._digested_ms != beat.window_ms):
            self._digested_ms, self._greets = beat.window_ms, False
            await self._messages.publish(self.windows.digests(beat.window_ms), self._lane)

    async def _send(self, window_ms: int) -> None:
        if self.windows.has(window_ms):
            for part in content_parts(self.windows.content(window_ms)):
                await self._messages.publish(part, self._lane)

    async def _report(self, now: BeatNow) -> None:
        """Reports every window that is over and has changed."""
        last_ms = self.windows.timeline.window_at(now.beat.window_ms - 1).start_ms
        self.windows.open(last_ms)
        changed = self.windows.take_changed(now.beat.window_ms)
        self._reported = {ms: digest for ms, digest in self._reported.items() if self.windows.has(ms)}
        for window_ms in changed:
            if self._reported.get(window_ms) == (digest := self.windows.digest(window_ms)):
                continue
            self._reported[window_ms] = digest
            report = self.windows.report(window_ms)
            self._tell(report, is_last=window_ms == last_ms)
            if self._beats.policy.emit_bar_reports:
                await self._messages.publish(report, self._lane)
            if report.tasks or report.nodes or report.promises:
                self._to_keep.setdefault(window_ms, now.at_ms + self._left_ms(now))
        if now.at_ms - self._kept_at_ms >= KEEP_MS_MIN and (due := self._due(now.at_ms)):
            self._kept_at_ms = now.at_ms
            await self._keep(due)

    def _left_ms(self, now: BeatNow) -> int:
        """How long it leaves a window to another reverb. Its own memory has the window for longer."""
        most_ms = self.windows.limits.windows // 4 * now.tempo.bar_ms
        return 0 if self._is_first(now) else min(max(LEFT_MS, now.tempo.bar_ms), most_ms)

    def _is_first(self, now: BeatNow) -> bool:
        """Whether no other reverb was heard of late that writes before this one."""
        since_ms = now.at_ms - GONE_BARS * now.tempo.bar_ms
        self._others = {node: at_ms for node, at_ms in self._others.items() if at_ms >= since_ms}
        return min(self._others, default=self._node) >= self._node

    def _due(self, now_ms: int) -> list[int]:
        due = sorted(window_ms for window_ms, at_ms in self._to_keep.items() if at_ms <= now_ms)
        for window_ms in due:
            del self._to_keep[window_ms]
        return due

    def _tell(self, report: BarReport, *, is_last: bool) -> None:
        raised = alarms(report)
        self._emit(BarReported(report, tuple(raised)))
        if is_last:
            for alarm in raised:
                if alarm not in self._alarms:
                    self._emit(AlarmRaised(alarm, report.window))
            for alarm in self._alarms:
                if alarm not in raised:
                    self._emit(AlarmEnded(alarm, report.window))
            self._alarms = raised

    async def _keep(self, found: list[int]) -> None:
        """A window that cannot be kept now is kept when it changes again."""
        kept = [(self.windows.report(ms), self.windows.content(ms)) for ms in found if self.windows.has(ms)]
        blobs = self._access.blobs

        def write(tx: Transaction) -> None:
            for each in packed:
                keep(tx, blobs, each)

        try:
            packed = await self._access.call(lambda: [packed_window(blobs, *each) for each in kept])
            await self._access.run(write)
        except HocketError as error:
            self._emit(StepFailed(f"keeping the windows since {wall_text(found[0])}", str(error)))
