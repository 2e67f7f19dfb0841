"""Messages between machines without NATS: over the nodes' own servers and streams, each checked where it arrives and
passed on once.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

import hocket
from hocket.bus.envelope import PROCESS_BYTES, Drop, Envelope, read_envelope, seal
from hocket.bus.messages import BusMessage, MessageQueue, subject_name, subject_pattern
from hocket.bus.process_messages import ProcessMessages
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import node_text
from hocket.kernel.postcard import BYTES, encode, seq
from hocket.mesh import membership, wire
from hocket.mesh.bus_sharing import BATCH_MAX, LISTENERS_OF_NODE_MAX, MessageRelay
from hocket.mesh.wire import Request
from hocket.node.message_bus import NodeMessages
from tests.mesh.test_relayed_work import machines
from tests.mesh.world import Guest, Place, introduced, until, world

pytestmark = pytest.mark.touches("GR-05")

PATIENCE_S = 60.0
SHORT_S = 0.2


class Member:
    """A place with a bus of its own and a relay."""

    def __init__(self, place: Place, bus: NodeMessages) -> None:
        self.place, self.bus = place, bus
        self.relay = place.services.relay = MessageRelay(bus, place.id)

    def subject(self, kind: str) -> str:
        return subject_name(self.place.log.user, "test", kind)

    async def listen(self, since_s: float = 0.0) -> MessageQueue:
        return await self.bus.subscribe(subject_pattern(self.place.log.user, "test"), since_s=since_s)

    async def serve(self) -> None:
        self.place.gate = self.place.services.gate()
        await self.place.serve()


@asynccontextmanager
async def members(directory: Path, *names: str, links: dict[str, str]) -> AsyncIterator[dict[str, Member]]:
    """Nodes that know each other; each link is from a node to the server that it has as a peer."""
    async with AsyncExitStack() as stack:
        places = await stack.enter_async_context(world(directory, *names))
        first = places[0]
        for place in places[1:]:  # so that every node knows the keys of all
            place.befriend(first.address)
            await place.exchanges.exchange(first.address)
        for place in places[1:]:
            await place.exchanges.exchange(first.address)
            with place.runtime.store.write() as session:
                session.drop_peer(first.address)
        found = {}
        for name, place in zip(names, places, strict=True):
            raw = ProcessMessages(place.runtime.home.messages)
            bus = await NodeMessages.open(place.node, raw, place.key, place.node.environment)
            stack.push_async_callback(bus.close)
            await place.stop_serving()
            found[name] = Member(place, bus)
            await found[name].serve()
        for one, other in links.items():
            found[one].place.befriend(found[other].place.address)
            found[one].place.keep_in_touch()
        yield found


def run(directory: Path, test: Callable[..., Awaitable[None]], *names: str, links: dict[str, str]) -> None:
    async def body() -> None:
        async with asyncio.timeout(100), members(directory, *names, links=links) as found:
            await test(*found.values())

    asyncio.run(body())


async def carried(sender: Member, queue: MessageQueue, kind: str = "ready") -> None:
    """Sends until it arrives: a connection may not be up yet, and a message may be lost."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            await sender.bus.publish(sender.subject(kind), b"ready")
            while (message := await queue.get(SHORT_S)) is not None:
                if message.data == b"ready" and message.at is not None and message.at.node == sender.place.id:
                    return


async def drained(queue: MessageQueue) -> list[BusMessage]:
    got = []
    while (message := await queue.get(SHORT_S)) is not None:
        got.append(message)
    return got


STAR = {"b": "hub", "c": "hub"}


def test_a_message_reaches_every_node_over_a_server_once_and_with_its_author(tmp_path: Path) -> None:
    async def test(hub: Member, b: Member, c: Member) -> None:
        queues = {member: await member.listen() for member in (hub, b, c)}
        for sender in queues:
            for receiver in queues:
                if sender is not receiver:
                    await carried(sender, queues[receiver])
        for queue in queues.values():
            await drained(queue)
        for sender in queues:
            sent = [b"%d" % number for number in range(100)]
            for data in sent:
                await sender.bus.publish(sender.subject("k"), data, reply_to="hocket.x")
            for queue in queues.values():
                got = []
                while len(got) < len(sent):
                    message = await queue.get(PATIENCE_S)
                    assert message is not None, len(got)
                    got.append(message)
                assert [each.data for each in got] == sent
                assert {each.at.node for each in got if each.at is not None} == {sender.place.id}
                assert {each.reply_to for each in got} == {"hocket.x"}
                assert await drained(queue) == []
        for member in queues:
            assert member.bus.counts.get(Drop.UNKNOWN, 0) == 0
            assert member.relay.lost == 0

    run(tmp_path, test, "hub", "b", "c", links=STAR)


def test_messages_pass_a_chain_of_servers(tmp_path: Path) -> None:
    async def test(a: Member, b: Member, c: Member) -> None:
        first, last = await a.listen(), await c.listen()
        await carried(a, last)
        await carried(c, first)

    run(tmp_path, test, "a", "b", "c", links={"a": "b", "b": "c"})


def test_a_late_joiner_gets_announcements_and_a_request_its_reply(tmp_path: Path) -> None:
    async def test(hub: Member, b: Member) -> None:
        await hub.bus.announce(hub.subject("k"), b"a job")
        queue = await b.listen(since_s=60)
        b.place.befriend(hub.place.address)
        b.place.keep_in_touch()
        message = await queue.get(PATIENCE_S)
        assert message is not None and message.data == b"a job"
        late = await (await b.listen(since_s=60)).get(PATIENCE_S)
        assert late is not None and late.data == b"a job", "it is kept here, too"
        questions = await hub.listen()
        await carried(b, questions)

        async def answer() -> None:
            while (question := await questions.get(PATIENCE_S)) is not None:
                if question.reply_to:
                    await hub.bus.publish(question.reply_to, b"re: " + question.data)
                    return

        answering = asyncio.create_task(answer())
        reply = await b.bus.request(b.subject("ask"), b"?", PATIENCE_S)
        assert reply is not None and reply.data == b"re: ?"
        await answering

    run(tmp_path, test, "hub", "b", links={})


def test_after_a_restart_of_the_server_messages_pass_again(tmp_path: Path) -> None:
    async def test(hub: Member, b: Member) -> None:
        there, here = await hub.listen(), await b.listen()
        await carried(b, there)
        port = int(hub.place.address.rpartition(":")[2])
        await hub.place.gate.close()
        await hub.place.stop_serving()
        await b.bus.publish(b.subject("k"), b"while it is away")
        hub.place.gate = hub.place.services.gate()
        await hub.place.serve(port=port)
        await carried(b, there)
        await carried(hub, here)

    run(tmp_path, test, "hub", "b", links={"b": "hub"})


def batch(*sealed: bytes) -> bytes:
    return encode(seq(BYTES), sealed)


@pytest.mark.touches("GR-08")
def test_what_does_not_count_is_not_passed_on(tmp_path: Path) -> None:
    async def test(hub: Member, b: Member) -> None:
        queue = await hub.listen()
        now, mesh = hub.place.log.physical(), hub.place.log.user
        good = Envelope(mesh, Hlc(now, 0, b.place.id), bytes(PROCESS_BYTES), hub.subject("k"), b"good")
        stranger = Guest(7)
        foreign = Envelope(mesh, Hlc(now, 0, stranger.id), bytes(PROCESS_BYTES), hub.subject("k"), b"evil")
        own = Envelope(mesh, Hlc(now, 0, hub.place.id), bytes(PROCESS_BYTES), hub.subject("k"), b"mine")
        sealed = seal(good, b.place.key)
        bodies = [
            batch(sealed, sealed, sealed[:-1], seal(foreign, stranger.key), seal(own, hub.place.key)),
            batch(sealed),
        ]
        for body in bodies:
            assert (await b.place.ask(hub.place, "POST", wire.BUS, "", body)).status == 200
        assert [each.data for each in await drained(queue)] == [b"good"]
        assert hub.bus.counts == {Drop.REPLAYED: 2, Drop.MALFORMED: 1, Drop.UNKNOWN: 1}
        for body in (b"", b"\xff", batch(), batch(*[b"x"] * (BATCH_MAX + 1))):
            assert (await b.place.ask(hub.place, "POST", wire.BUS, "", body)).status == 400
        headers = hub.place.headers(hub.place.id, key=stranger.key) | {"content-type": wire.OCTETS}
        for method in ("GET", "POST"):
            reply = await hub.place.ask(hub.place, method, wire.BUS, "", batch(sealed), headers)
            assert reply.status == 401

    run(tmp_path, test, "hub", "b", links={})


@pytest.mark.touches("GR-08")
def test_a_message_of_a_new_member_waits_until_the_log_knows_it(tmp_path: Path) -> None:
    """It is sent once."""

    async def test(hub: Member, b: Member) -> None:
        there, here = await hub.listen(), await b.listen()
        await carried(hub, here)
        newcomer = Guest(7)
        introduced(hub.place, newcomer)
        await hub.bus._refresh()
        at = Hlc(hub.place.log.physical(), 0, newcomer.id)
        sealed = seal(
            Envelope(hub.place.log.user, at, bytes(PROCESS_BYTES), hub.subject("k"), b"here I am"), newcomer.key
        )
        assert newcomer.id not in b.bus._keys
        await hub.bus.messages.publish(hub.subject("k"), sealed)
        for queue in (there, here):
            while (message := await queue.get(PATIENCE_S)) is not None and message.at != at:
                pass
            assert message is not None and message.data == b"here I am"

    run(tmp_path, test, "hub", "b", links={"b": "hub"})


def test_streams_are_bounded_and_end_with_the_gate(tmp_path: Path) -> None:
    async def test(hub: Member, b: Member) -> None:
        streams = []
        for _ in range(LISTENERS_OF_NODE_MAX):
            headers = b.place.headers(hub.place.id)
            reply = await hub.place.gate.answer(Request("GET", wire.BUS, "", headers))
            assert reply.status == 200 and reply.stream is not None
            assert await anext(reply.stream) == b":\n\n"
            streams.append(reply.stream)
        reply = await hub.place.gate.answer(Request("GET", wire.BUS, "", b.place.headers(hub.place.id)))
        assert reply.status == 429
        waiting = [asyncio.ensure_future(anext(each, None)) for each in streams]
        await asyncio.sleep(0)
        await hub.place.gate.close()
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*waiting)
        await until(lambda: not hub.relay._streams)

    run(tmp_path, test, "hub", "b", links={})


def test_the_stream_of_a_revoked_node_ends(tmp_path: Path) -> None:
    async def test(hub: Member, b: Member) -> None:
        reply = await hub.place.gate.answer(Request("GET", wire.BUS, "", b.place.headers(hub.place.id)))
        assert reply.stream is not None and await anext(reply.stream) == b":\n\n"
        now, mesh = hub.place.log.physical(), hub.place.log.user
        own = Envelope(mesh, Hlc(now, 0, b.place.id), bytes(PROCESS_BYTES), hub.subject("k"), b"its own")
        assert (await b.place.ask(hub.place, "POST", wire.BUS, "", batch(seal(own, b.place.key)))).status == 200
        await hub.bus.publish(hub.subject("k"), b"1")
        event = await anext(reply.stream)
        assert event.startswith(b"event: message\n")
        first = read_envelope(wire.read_message(event.partition(b"data:")[2]))
        assert first is not None and first.data == b"1", "it does not hear itself"
        user = hub.place.runtime.home.user_key()
        await asyncio.to_thread(membership.revoke, hub.place.log, node_text(b.place.id), lambda: user)
        await hub.bus._refresh()
        await hub.bus.publish(hub.subject("k"), b"2")
        assert await anext(reply.stream, None) is None

    run(tmp_path, test, "hub", "b", links={})


def test_a_server_without_a_relay_says_so(tmp_path: Path) -> None:
    async def test(hub: Member, b: Member) -> None:
        hub.place.services.relay = None
        gate = hub.place.services.gate()
        reply = await gate.answer(Request("GET", wire.BUS, "", b.place.headers(hub.place.id)))
        assert reply.status == 404

    run(tmp_path, test, "hub", "b", links={})


@pytest.mark.parametrize("how", ["serve", "work"])
def test_two_homes_hear_each_other_through_their_running_commands(tmp_path: Path, how: str) -> None:
    """No NATS, and none of the two programs that talk is connected to anything: a server and a worker carry it."""
    with machines(tmp_path, how) as (a, b):

        async def test() -> None:
            async with asyncio.timeout(60), hocket.open(a.home) as here, hocket.open(b.home) as there:
                buses = [await each.message_bus() for each in (here, there)]
                queues = [await each.subscribe(subject_pattern(here.log.user, "test")) for each in buses]
                for bus, queue, node in (
                    (buses[1], queues[0], there.log.node),
                    (buses[0], queues[1], here.log.node),
                ):
                    message = None
                    while message is None or message.at is None or message.at.node != node:
                        await bus.publish(subject_name(here.log.user, "test", "k"), b"hello")
                        message = await queue.get(SHORT_S)

        asyncio.run(test())
