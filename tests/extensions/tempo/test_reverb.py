"""A reverb over a signed bus and a real log: windows are reported when their bar is over, late messages correct their
own window, and both sides of a partition come to the same reports.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

import hocket
from hocket.bus.messages import MemoryMessages, MemoryServer
from hocket.bus.signed import SignedMessages
from hocket.events import Event
from hocket.extensions.tempo import reports
from hocket.extensions.tempo.beats import timeline
from hocket.extensions.tempo.events import AlarmEnded, AlarmRaised, BarReported
from hocket.extensions.tempo.heard_beats import BeatNow, beat_now
from hocket.extensions.tempo.messages import (
    BarReport,
    ClaimState,
    NodeLoad,
    PromiseOutcome,
    PromiseResult,
    StatusClaim,
    to_json,
)
from hocket.extensions.tempo.policy import make_policy
from hocket.extensions.tempo.reports import Alarm, kept_report, kept_reports, kept_window
from hocket.extensions.tempo.reverb import Reverb
from hocket.extensions.tempo.tempo_messages import TempoMessages
from hocket.extensions.tempo.windows import LIMITS, BarWindows, WindowLimits
from hocket.kernel.clock import Hlc, hlc_text, wall_text
from hocket.kernel.ids import node_id, node_text
from hocket.kernel.keys import SigningKey
from hocket.node.node import Node

PATIENCE_S = 60.0
MESH = "did:key:zMesh"
POLICY = make_policy("one", 60, 4)
BAR_MS = POLICY.initial_tempo.bar_ms
KEYS = [SigningKey(bytes(31) + letter) for letter in (b"a", b"b")]
PUBLIC = {node_id(key.public): key.public for key in KEYS}


class SteppedBeats:
    """Beats that come when the test says so."""

    def __init__(self, start_ms: int) -> None:
        self.policy, self.timeline = POLICY, timeline(POLICY.initial_tempo)
        self.at_ms = start_ms
        self._beats: asyncio.Queue[int] = asyncio.Queue()

    def now(self) -> BeatNow:
        return beat_now(self.policy, self.policy.initial_tempo, self.at_ms, is_degraded=False)

    async def next_beat(self) -> BeatNow:
        self.at_ms = await self._beats.get()
        return self.now()

    def step_to(self, at_ms: int) -> None:
        self._beats.put_nowait(at_ms)


class CutServer(MemoryServer):
    """A bus in memory that can be cut in two: `sides` has the members of one side."""

    def __init__(self) -> None:
        super().__init__()
        self.side: list[MemoryMessages] = []

    def carry(self, sender: MemoryMessages, receiver: MemoryMessages, put: Callable[[], None]) -> None:
        if (sender in self.side) == (receiver in self.side):
            put()


class Member:
    """A node with a reverb and its own log."""

    def __init__(self, server: CutServer, key: SigningKey, node: Node, start_ms: int, limits: WindowLimits) -> None:
        self.bus, self.node, self.beats = MemoryMessages(server), node, SteppedBeats(start_ms)
        signed = SignedMessages(self.bus, key, MESH, PUBLIC.get, lambda: self.beats.at_ms)
        self.id = node_text(node_id(key.public))
        self.messages = TempoMessages(signed, MESH)
        self.told: list[Event] = []
        self.reverb = Reverb(node, self.messages, self.beats, self.told.append, limits=limits)

    async def say(self, message: StatusClaim | PromiseResult | NodeLoad) -> None:
        await self.messages.publish(message, "acme")

    def reports(self) -> list[BarReport]:
        return [each.report for each in self.told if isinstance(each, BarReported)]

    async def kept(self) -> list[bytes]:
        now_ms = self.beats.at_ms
        found = await self.node.read(lambda session: kept_reports(session, now_ms, 100))
        return [to_json(each) for each in found]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.005)


async def until_kept(member: Member, expected: Callable[[list[bytes]], bool]) -> list[bytes]:
    async with asyncio.timeout(PATIENCE_S):
        while not expected(found := await member.kept()):
            await asyncio.sleep(0.01)
    return found


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The logs of the two are of different meshes, so each writes its own."""
    monkeypatch.setattr(Reverb, "_is_first", lambda self, now: True)


@pytest.fixture
def homes(tmp_path: Path) -> list[Path]:
    made = [tmp_path / "one", tmp_path / "other"]
    for home in made:
        hocket.init(home)
    return made


@asynccontextmanager
async def running(member: Member) -> AsyncIterator[None]:
    task = asyncio.create_task(member.reverb.run())
    await asyncio.sleep(0)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def with_members(
    homes: list[Path], test: Callable[[CutServer, list[Member], int], Awaitable[None]], limits: WindowLimits = LIMITS
) -> None:
    async def body() -> None:
        async with asyncio.timeout(60), hocket.open(homes[0]) as one, hocket.open(homes[1]) as other:
            # No reverb may be ahead of its log's clock.
            start_ms = one.log.physical() // BAR_MS * BAR_MS - 100 * BAR_MS
            server = CutServer()
            members = [
                Member(server, key, node, start_ms, limits) for key, node in zip(KEYS, (one, other), strict=True)
            ]
            async with running(members[0]), running(members[1]):
                await test(server, members, start_ms)

    asyncio.run(body())


def claim(at_ms: int, state: ClaimState, task: str = "t", agent: str = "a", beats_left: int = 1) -> StatusClaim:
    return StatusClaim(agent, task, 1, state, beats_left, 0.5, "", hlc_text(Hlc(at_ms, 0, 0)))


@pytest.mark.req("BB-06")
def test_a_window_is_reported_when_its_bar_is_over(homes: list[Path]) -> None:
    async def test(server: CutServer, members: list[Member], start_ms: int) -> None:
        member = members[0]
        heard = await member.messages.subscribe(BarReport, "one")
        await member.say(claim(start_ms, ClaimState.EXECUTING))
        await member.say(claim(start_ms + 10, ClaimState.WAITING, beats_left=-1))
        await member.say(claim(start_ms + 20, ClaimState.DONE, "u"))
        await member.say(PromiseResult("thread", "h", PromiseOutcome.BROKEN, hlc_text(Hlc(start_ms, 0, 0))))
        await member.say(NodeLoad(member.id, 7, 2, 4, hlc_text(Hlc(start_ms, 0, 0))))
        member.beats.step_to(start_ms + 3000)
        await until(lambda: bool(member.reverb.windows.reports()) and member.beats.at_ms == start_ms + 3000)
        assert member.reports() == [], "the bar is not over"
        member.beats.step_to(start_ms + BAR_MS)
        await until(lambda: len(member.reports()) == 1)
        (report,) = member.reports()
        assert report.window == wall_text(start_ms)
        assert (report.tasks, report.overruns, report.broken_promises) == (2, 1, 1)
        assert report.states[ClaimState.WAITING] == report.states[ClaimState.DONE] == 1
        assert (report.queue_depth, report.utilisation) == (7, 0.5)
        told = await heard.get(PATIENCE_S)
        assert told is not None and told.message == report
        assert await until_kept(member, bool) == [to_json(report)]
        window = await member.node.read(lambda session: kept_window(session, member.node.blobs, start_ms))
        again = BarWindows(POLICY, timeline(POLICY.initial_tempo))
        assert window is not None and again.absorb(window, start_ms + BAR_MS)
        assert again.reports() == [report], "the window on the log gives the report on the log"
        # A late message corrects its own window, with the next bar.
        await member.say(claim(start_ms + 30, ClaimState.FAILED, "late"))
        await until(lambda: member.reverb.windows.report(start_ms).tasks == 3)
        member.beats.step_to(start_ms + 2 * BAR_MS)
        await until(lambda: len(member.reports()) == 3)
        corrected, silent = member.reports()[1:]
        assert (corrected.window, corrected.tasks) == (wall_text(start_ms), 3)
        assert (silent.window, silent.tasks) == (wall_text(start_ms + BAR_MS), 0)
        await until_kept(member, lambda found: found == [to_json(corrected)])
        assert await member.node.read(lambda session: kept_report(session, start_ms)) == corrected

    with_members(homes, test)


@pytest.mark.req("BB-15")
def test_alarms_are_told_when_they_begin_and_end(homes: list[Path]) -> None:
    async def test(server: CutServer, members: list[Member], start_ms: int) -> None:
        member = members[0]
        for bar in (1, 2):
            member.beats.step_to(start_ms + bar * BAR_MS)
        await until(lambda: len(member.reports()) == 2)
        await member.say(claim(start_ms + 2 * BAR_MS, ClaimState.DONE))
        await until(lambda: member.reverb.windows.has(start_ms + 2 * BAR_MS))
        member.beats.step_to(start_ms + 3 * BAR_MS)
        await until(lambda: len(member.reports()) == 3)
        alarms = [each for each in member.told if isinstance(each, AlarmRaised | AlarmEnded)]
        assert alarms == [
            AlarmRaised(Alarm.NO_STATUS_CLAIMS, wall_text(start_ms)),
            AlarmEnded(Alarm.NO_STATUS_CLAIMS, wall_text(start_ms + 2 * BAR_MS)),
        ]

    with_members(homes, test)


@pytest.mark.req("BB-06")
def test_both_sides_of_a_partition_come_to_the_same_reports(homes: list[Path]) -> None:
    """Byte for byte, in memory and on both logs, and equal to what one reverb would have reported that heard all."""

    async def test(server: CutServer, members: list[Member], start_ms: int) -> None:
        one, other = members
        everything = BarWindows(POLICY, timeline(POLICY.initial_tempo))

        async def say(member: Member, message: StatusClaim | PromiseResult) -> None:
            everything.add(message, start_ms + 10**6)
            await member.say(message)

        server.side = [one.bus]
        for bar in range(3):
            at_ms = start_ms + bar * BAR_MS
            for number, member in enumerate(members):
                await say(member, claim(at_ms + number, ClaimState.EXECUTING, "shared", "agent"))
                await say(member, claim(at_ms + 5, ClaimState.DONE, f"task{number}", f"agent{number}"))
                thread = PromiseResult(f"p{number}", "h", PromiseOutcome.LATE, hlc_text(Hlc(at_ms, 0, 0)))
                await say(member, thread)
            for member in members:
                await until(lambda member=member, bar=bar: member.reverb.windows.has(start_ms + bar * BAR_MS))
                member.beats.step_to(at_ms + BAR_MS)
                await until(lambda member=member, bar=bar: len(member.reports()) == bar + 1)
        assert [each.tasks for each in one.reports()] == [2, 2, 2]
        expected = [to_json(each) for each in everything.reports()]
        for member in members:
            assert expected[0] not in await until_kept(member, lambda found: len(found) == 3)
        server.side = []

        def is_same(member: Member) -> bool:
            closed = [each for each in member.reverb.windows.reports() if each.tasks]
            return [to_json(each) for each in closed] == expected

        at_ms = start_ms + 3 * BAR_MS
        while not (is_same(one) and is_same(other)):
            assert at_ms < start_ms + 8 * BAR_MS, "the sides do not come together"
            at_ms += 1000
            for member in members:
                member.beats.step_to(at_ms)
            await until(lambda at_ms=at_ms: one.beats.at_ms == other.beats.at_ms == at_ms)
            await asyncio.sleep(0.05)
        for member in members:
            member.beats.step_to(at_ms // BAR_MS * BAR_MS + 2 * BAR_MS)
        healed = [await until_kept(member, lambda found: found[::-1] == expected) for member in members]
        assert healed[0] == healed[1]

    with_members(homes, test)


@pytest.mark.req("BB-06")
def test_a_reverb_that_starts_again_goes_on_with_its_windows(homes: list[Path]) -> None:
    async def test(server: CutServer, members: list[Member], start_ms: int) -> None:
        member = members[0]
        await member.say(claim(start_ms, ClaimState.DONE, "before"))
        await until(lambda: member.reverb.windows.has(start_ms))
        member.beats.step_to(start_ms + BAR_MS)
        await until_kept(member, bool)
        again = Member(server, KEYS[0], member.node, start_ms + BAR_MS, LIMITS)
        async with running(again):
            await until(lambda: again.reverb.windows.has(start_ms))
            assert again.reverb.windows.report(start_ms) == member.reverb.windows.report(start_ms)

    with_members(homes, test)


def test_memory_and_the_log_are_bounded(homes: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(server: CutServer, members: list[Member], start_ms: int) -> None:
        member = members[0]
        for bar in range(6):
            for number in range(9):
                await member.say(claim(start_ms + bar * BAR_MS, ClaimState.EXECUTING, f"task{number}"))
            await until(lambda bar=bar: member.reverb.windows.has(start_ms + bar * BAR_MS))
            member.beats.step_to(start_ms + (bar + 1) * BAR_MS)
            await until(lambda bar=bar: len(member.reports()) == bar + 1)
        assert [each.tasks for each in member.reports()] == [4] * 6 and member.reports()[0].truncated
        assert len(member.reverb.windows.reports()) == 2
        await until_kept(member, lambda found: len(found) == 6)
        monkeypatch.setattr(reports, "KEPT_MS", 3 * BAR_MS)
        assert len(await member.kept()) == 3, "older ones have expired"

    with_members(homes, test, WindowLimits(windows=2, tasks=4))
