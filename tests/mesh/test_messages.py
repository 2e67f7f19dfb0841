"""Messages between real nodes over loopback: delivered at once, stored before they are acknowledged, decided by the
arbiter, refused without a grant.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from itertools import permutations
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from hocket.bus.hints import Changes
from hocket.errors import Conflict, NotAuthorised, Unreachable, Usage
from hocket.families.inbox.facts import SendMessage
from hocket.families.inbox.rules import Message
from hocket.kernel.ids import parse_ulid
from hocket.kernel.ops import NO_ID, decode, encode, encode_sequence, sign
from hocket.kernel.retrying import PEER_RETRIES
from hocket.kernel.ucan import Capability
from hocket.mesh import loop, sync, wire
from hocket.mesh.grants import parse_grants
from hocket.mesh.wire import Reply, Request, Transport
from tests.mesh.world import WORKER, Guest, Place, ask, enrolled, joined, run, until


class Recording:
    """A transport that notes the paths of all requests, and fails the posts that a test forbids."""

    def __init__(self, inner: Transport, *forbidden: str) -> None:
        self._inner, self.forbidden = inner, set(forbidden)
        self.paths: list[str] = []

    async def send(self, address: str, request: Request) -> Reply:
        self.paths.append(request.path)
        if request.method == "POST" and request.path in self.forbidden:
            raise Unreachable("the cable is cut")
        return await self._inner.send(address, request)

    async def hasten(self, address: str) -> None:
        """It has no breaker."""

    def hints(self, address: str, headers: Mapping[str, str]) -> AsyncIterator[Changes]:
        return self._inner.hints(address, headers)


def message(place: Place, message_id: str) -> Message | None:
    with place.runtime.read() as session:
        return session.message(parse_ulid(message_id))


async def know_each_other(a: Place, b: Place) -> None:
    a.befriend(b.address, b.id)
    b.befriend(a.address, a.id)
    for one, other in ((a, b), (b, a)):
        assert (await one.exchanges.visit(other.address)).state == "ok"
        one.node.reach = one.exchanges.consult


def at(place: Place, agent: str = "editor") -> str:
    return f"{agent}@{place.id:016x}"


@pytest.mark.req("VX-09")
def test_a_message_is_delivered_at_once_to_the_node_that_it_is_for(tmp_path: Path) -> None:
    async def test(a: Place, b: Place) -> None:
        await know_each_other(a, b)
        # Ordinary exchanges would bring it, too.
        a.exchanges.transport = recording = Recording(a.transport, wire.EXCHANGE, wire.OPS)
        a.exchanges._peers.clear()
        syncing = a.keep_in_touch()
        await until(lambda: syncing.is_on)
        sent = await a.node.send(at(b), "hello", agent="writer", type="greeting")
        await until(lambda: message(b, sent) is not None)
        await until(lambda: wire.DELIVER in recording.paths)
        (received,) = await b.node.inbox("editor").claim(lease="5s")
        assert (received.id, received.text, received.data.type) == (sent, "hello", "greeting")
        await received.ack()
        assert await b.node.inbox("editor").claim() == []

    run(tmp_path, test)


@pytest.mark.req("VX-09")
def test_after_three_tries_the_next_exchange_brings_the_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sync.RETRY_S == (0.5, 1.0, 2.0)
    monkeypatch.setattr(sync, "RETRY_S", (0.01, 0.02, 0.04))

    async def test(a: Place, b: Place) -> None:
        await know_each_other(a, b)
        a.exchanges.transport = recording = Recording(a.transport, wire.DELIVER)
        a.exchanges._peers.clear()
        sent = await a.node.send(at(b), "hello")
        assert not await sync.DirectDelivery(a.node, a.exchanges).deliver_all([b.id])
        assert recording.paths.count(wire.DELIVER) == 3
        assert message(b, sent) is None
        await a.exchanges.visit(b.address)
        assert message(b, sent) is not None
        assert PEER_RETRIES.cap_s <= 60.0 and loop.CADENCE_S <= 60.0

    run(tmp_path, test)


@pytest.mark.req("VX-09")
def test_three_tries_go_out_although_the_receivers_breaker_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the place of the receiver something counts requests, and answers each with an error."""
    monkeypatch.setattr(sync, "RETRY_S", (0.01, 0.02, 0.04))
    requests = 0

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        await reader.readuntil(b"\r\n\r\n")
        requests += 1
        writer.write(b"HTTP/1.1 500 Broken\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    async def test(a: Place, b: Place) -> None:
        await know_each_other(a, b)
        address = b.address
        await b.stop_serving()
        for _ in range(6):
            await a.exchanges.visit(address)
        assert "the next try is in" in (await a.exchanges.visit(address)).detail
        port = int(address.rpartition(":")[2])
        async with await asyncio.start_server(count, "127.0.0.1", port):
            await a.node.send(at(b), "hello")
            assert not await sync.DirectDelivery(a.node, a.exchanges).deliver(b.id)
        await b.serve()
        assert requests == 3

    run(tmp_path, test)


@pytest.mark.req("VX-09")
def test_a_message_waits_for_a_receiver_that_is_offline(tmp_path: Path) -> None:
    async def test(a: Place, b: Place) -> None:
        await know_each_other(a, b)
        await b.stop_serving()
        sent = await a.node.send(at(b), "are you there?")
        assert not await sync.DirectDelivery(a.node, a.exchanges).deliver(b.id)
        # It comes back at another address, and asks.
        await b.serve()
        await b.exchanges.visit(a.address)
        (received,) = await b.node.inbox("editor").claim()
        assert received.id == sent

    run(tmp_path, test)


@pytest.mark.req("VX-10")
@pytest.mark.parametrize("paths", [*permutations((wire.DELIVER, wire.DELIVER_ANEW))])
def test_a_message_that_is_delivered_twice_is_there_once_and_its_answer_says_stored(
    tmp_path: Path, paths: tuple[str, str]
) -> None:
    async def test(a: Place, b: Place) -> None:
        await know_each_other(a, b)
        sent = await a.node.send(at(b), "once")
        with a.runtime.read() as session:
            row = session.op(parse_ulid(sent))
        assert row is not None
        body = encode_sequence([a.log.signed(row.body)])
        for expected, path in zip((1, 0), paths, strict=True):
            reply = await a.ask(b, "POST", path, "", body)
            answer = msgspec.json.decode(reply.body)
            assert (answer["appended"], answer["stored"]) == (expected, [sent])
        assert [each.id for each in await b.node.inbox("editor").claim(10)] == [sent]

    run(tmp_path, test)


@pytest.mark.req("VX-10")
def test_the_arbiter_gives_a_message_to_one_consumer_of_all_nodes(tmp_path: Path) -> None:
    async def test(a: Place, b: Place, c: Place) -> None:
        await know_each_other(a, b)
        await know_each_other(a, c)
        sent = [await b.node.send("editor", f"number {n}") for n in range(20)]
        for place in (b, a, c):
            await place.exchanges.visit(a.address if place is not a else b.address)

        async def consume(place: Place) -> list[str]:
            found = []
            while received := await place.node.inbox("editor").claim(3):
                found += [each.id for each in received]
                for each in received:
                    await each.ack()
            return found

        got = await asyncio.gather(*map(consume, (a, b, c)))
        assert sorted(each for found in got for each in found) == sorted(sent)

    run(tmp_path, test, "a", "b", "c")


@pytest.mark.req("VX-10")
def test_a_stranger_cannot_acknowledge_a_message(tmp_path: Path) -> None:
    async def test(a: Place, b: Place) -> None:
        await know_each_other(a, b)
        await a.node.send("editor", "hello")
        await b.exchanges.visit(a.address)
        (held,) = await b.node.inbox("editor").claim()
        await a.exchanges.visit(b.address)
        with pytest.raises(Conflict, match="holds the message; editor on node"):
            held._node = a.node
            await held.ack()
        # Neither does it help to say nothing of the claim, or to be another agent of the same node.
        held._node, held.agent = b.node, "reviewer"
        with pytest.raises(Conflict, match="holds"):
            await held.ack()
        held.agent = "editor"
        await held.ack()
        with pytest.raises(Conflict, match="is acknowledged"):
            await held.nack()

    run(tmp_path, test)


@pytest.mark.req("VX-10")
def test_a_node_without_a_grant_neither_sends_nor_receives(tmp_path: Path) -> None:
    async def test(a: Place) -> None:
        plain = await enrolled(tmp_path / "plain", a, WORKER)
        granted = await enrolled(
            tmp_path / "granted", a, parse_grants(["inbox:write:team/", "inbox:claim:team/", "inbox:read:all"])
        )
        try:
            for place in (plain, granted):
                place.befriend(a.address, a.id)
                assert (await place.exchanges.visit(a.address)).state == "ok"
                place.node.reach = place.exchanges.consult
            with pytest.raises(NotAuthorised):
                await plain.node.send("team/writer", "hello")
            with pytest.raises(NotAuthorised):
                await granted.node.send("editor", "hello")
            await granted.node.send("team/writer", "from one with a grant")
            await a.node.send("team/editor", "for one with a grant")
            await a.node.send("boss", "a secret")
            await a.node.send("all", "news")
            for place in (granted, plain):
                await place.exchanges.visit(a.address)
            with plain.runtime.read() as session:
                assert list(session.each_message()) == []
            with granted.runtime.read() as session:
                assert "boss" not in {each.to for each in session.each_message()}
            received = await granted.node.inbox("team/editor").claim(5)
            assert {each.text for each in received} == {"for one with a grant", "news"}
            for each in received:
                await each.ack()
            await a.exchanges.visit(a.address)
            assert [each.text for each in await a.node.inbox("team/writer").claim(5)] == [
                "from one with a grant",
                "news",
            ]
        finally:
            await plain.close()
            await granted.close()

    run(tmp_path, test, "a")


MAY_WRITE = (*WORKER, Capability("Inbox", "Write", {}), Capability("Inbox", "Read", {}))


@pytest.mark.req("VX-10")
def test_a_node_that_says_it_is_somebody_else_is_not_believed(tmp_path: Path) -> None:
    async def test(a: Place) -> None:
        guest, victim = Guest(7), Guest(8)
        joined(a, guest, MAY_WRITE)
        joined(a, victim, MAY_WRITE)
        letter = SendMessage(NO_ID, "editor", "boss", "", None, None, 0, 60_000, 5, b"pay the guest")
        now = a.log.physical()
        before = victim.last
        forged = decode(victim.op(letter, now))
        stolen = encode(sign(replace(forged, signature=None), guest.key))
        victim.last = before
        reply = await ask(a, guest, method="POST", path=wire.DELIVER, query="", body=encode_sequence([stolen]))
        answer = msgspec.json.decode(reply.body)
        assert (answer["appended"], answer["rejected"], answer["stored"]) == (0, 1, [])
        # Under its own name it may write, and the receiver sees whose it is, whatever agent it claims to be.
        own = guest.op(letter, now + 1)
        reply = await ask(a, guest, method="POST", path=wire.DELIVER, query="", body=encode_sequence([own]))
        assert len(msgspec.json.decode(reply.body)["stored"]) == 1
        (received,) = await a.node.inbox("editor").claim(5)
        assert received.sender == f"boss@{guest.id:016x}"

    run(tmp_path, test, "a")


def test_a_message_for_a_node_that_is_not_in_the_mesh_is_refused(tmp_path: Path) -> None:
    async def test(a: Place) -> None:
        for to in ("editor@nowhere", "editor@", "", "@", "team//"):
            with pytest.raises(Usage):
                await a.node.send(to, "hello")
        with a.runtime.read() as session:
            assert list(session.each_message()) == []

    run(tmp_path, test, "a")


@pytest.mark.req("VX-10")
def test_a_question_gets_its_answer_from_another_node(tmp_path: Path) -> None:
    async def test(a: Place, b: Place) -> None:
        await know_each_other(a, b)
        for place in (a, b):
            place.keep_in_touch()

        async def answer() -> None:
            async for received in b.node.inbox("oracle"):
                await received.reply({"sum": sum(received.json())})
                await received.ack()

        answering = asyncio.create_task(answer())
        reply = await a.node.ask(at(b, "oracle"), [1, 2, 3], wait="20s")
        assert reply.json() == {"sum": 6} and reply.sender.startswith("oracle@")
        with pytest.raises(TimeoutError, match=r"no reply from nobody within 0\.3 seconds"):
            await a.node.ask("nobody", "hello?", wait="300ms")
        answering.cancel()
        await asyncio.wait([answering])

    run(tmp_path, test)
