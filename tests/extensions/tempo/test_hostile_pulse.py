"""A pulse in a real home, and members that send frames though they do not lead: over the bus of the machine, where the
log has the leader's lock, and over a real NATS server, where a register has it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from pathlib import Path

import pytest

import hocket
from hocket.bus.messages import MessageBus, cluster_root
from hocket.bus.nats_messages import NatsMessages
from hocket.bus.nats_register import NatsRegister
from hocket.bus.process_messages import ProcessMessages
from hocket.bus.signed import SignedMessages
from hocket.events import Event
from hocket.extensions.tempo.events import FrameRefused, PulseLeads, RegisterReplaced, ReportRefused
from hocket.extensions.tempo.heard_beats import HeardBeats, local_frame
from hocket.extensions.tempo.messages import BarReport, PulseMessage
from hocket.extensions.tempo.node_tempo import heard_beats, pulsing
from hocket.extensions.tempo.policy import make_policy
from hocket.extensions.tempo.tempo_messages import TempoMessages
from hocket.kernel.ids import content_hash, node_text
from hocket.kernel.ucan import Capability, issue
from hocket.kernel.vocabulary import DelegateUcan
from hocket.node.node import Node
from hocket.node.variables import BUS
from tests.bus.nats_server import NatsServer, connected
from tests.extensions.tempo.test_pulse import report
from tests.mesh.world import Guest, until

POLICY = make_policy("one", 120, 4)
READER, PULSE = Guest(3), Guest(4)
GRANTS = {
    READER: (Capability("Job", "Read", {}), Capability("Lock", "Read", {})),
    PULSE: (Capability("Lock", "Acquire", {"key_prefix": ["pulse:"]}), Capability("Lock", "Read", {})),
}
FENCE_MAX = 2**53 - 1


class Led:
    """A node with a pulse that leads, and what it and its listeners told."""

    def __init__(self, node: Node, raw: MessageBus, beats: HeardBeats, told: list[Event]) -> None:
        self.node, self.raw, self.beats, self.told = node, raw, beats, told

    async def leads(self) -> None:
        """Waits until two more frames are accepted."""
        for _ in range(2):
            last_ms = self.beats.epoch_ms
            await until(lambda last_ms=last_ms: self.beats.epoch_ms > last_ms and not self.beats.now().is_degraded)

    def messages(self, guest: Guest) -> TempoMessages:
        keys = {each.id: each.key.public for each in GRANTS}
        bus = SignedMessages(self.raw, guest.key, self.node.log.user, keys.get, self.node.environment.physical_ms)
        return TempoMessages(bus, self.node.log.user)

    async def publish(self, guest: Guest, message: BarReport) -> None:
        await self.messages(guest).publish(message, POLICY.cluster_id)

    async def send(self, guest: Guest, fence: int) -> None:
        """A frame for each of four beats, which nobody but the leader may send."""
        messages = self.messages(guest)
        for beat in range(4):
            at_ms = self.beats.clock.now_ms() + beat * POLICY.initial_tempo.beat_ms
            frame = local_frame(POLICY, POLICY.initial_tempo, at_ms)
            await messages.publish(PulseMessage(frame, fence), POLICY.cluster_id)

    def refusals(self, guest: Guest) -> set[str]:
        return {
            each.reason for each in self.told if isinstance(each, FrameRefused) and each.node == node_text(guest.id)
        }


@asynccontextmanager
async def led(directory: Path, monkeypatch: pytest.MonkeyPatch, is_nats: bool) -> AsyncIterator[Led]:
    home = directory / "home"
    hocket.init(home)
    async with AsyncExitStack() as stack:
        server = stack.enter_context(NatsServer(directory) if is_nats else nullcontext(None))
        if server is not None:
            monkeypatch.setenv(BUS, server.url)
        node = await stack.enter_async_context(hocket.open(home))
        for guest, capabilities in GRANTS.items():
            now_s = node.log.physical() // 1000
            token = issue(node.runtime.home.user_key(), guest.key.public, capabilities, now_s, None)
            await node.run(lambda tx, token=token: tx.author(DelegateUcan(content_hash(token), token)))  # type: ignore[misc]
        told: list[Event] = []
        raw: MessageBus
        if server is not None:
            raw = NatsMessages([server.url], root=cluster_root(node.log.user))
            await connected(raw)
        else:
            raw = ProcessMessages(node.runtime.home.messages, told.append)
        stack.push_async_callback(raw.close)
        beats = await stack.enter_async_context(heard_beats(node, POLICY, told.append))
        await stack.enter_async_context(pulsing(node, POLICY, told.append))
        made = Led(node, raw, beats, told)
        await made.leads()
        yield made


@pytest.mark.req("LW-49")
@pytest.mark.touches("BB-03")
@pytest.mark.parametrize("is_nats", [False, True], ids=["log", "nats"])
def test_no_message_of_another_member_ends_leadership(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_nats: bool
) -> None:
    async def test() -> None:
        async with led(tmp_path, monkeypatch, is_nats) as at:
            for guest in (READER, PULSE):
                await at.send(guest, FENCE_MAX)
                await until(lambda guest=guest: at.refusals(guest), "a refusal")
                await at.leads()
                assert at.beats.fence < FENCE_MAX
            assert at.refusals(READER) == {"not a pulse"}

    asyncio.run(test())


@pytest.mark.req("LW-49")
def test_the_tempo_follows_no_report_of_a_member_that_may_only_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with led(tmp_path, monkeypatch, is_nats=False) as at:
            at_ms = at.beats.clock.now_ms()
            await at.publish(READER, report(at_ms, 1_000))
            await until(lambda: [each for each in at.told if isinstance(each, ReportRefused)], "a refusal")
            (refused,) = [each for each in at.told if isinstance(each, ReportRefused)]
            assert refused.node == node_text(READER.id)

    asyncio.run(test())


@pytest.mark.req("LW-48")
def test_a_stranger_that_writes_into_the_register_does_not_end_leadership(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with led(tmp_path, monkeypatch, True) as at:
            assert isinstance(at.raw, NatsMessages)
            register = NatsRegister(at.raw, at.node.log.user, POLICY.cluster_id)
            found = await register.read()
            while await register.swap(found.revision, b'{"holder":"evil","fence":9007199254740991}') is None:
                found = await register.read()
            await until(lambda: any(isinstance(each, RegisterReplaced) for each in at.told), "the report")
            await at.leads()
            fences = [each.fence for each in at.told if isinstance(each, PulseLeads)]
            assert at.beats.fence in fences

    asyncio.run(test())
