"""Signed messages over each bus: what members seal arrives with its author; everything else is dropped and counted. And
the lossy bus: it loses, repeats and reorders, and a signed receiver sees no message twice.
"""

import asyncio
import random
from pathlib import Path

import pytest

from hocket.bus.envelope import (
    DATA_BYTES_MAX,
    KEPT_MS,
    LIFE_MS,
    PROCESS_BYTES,
    SEALED_BYTES_MAX,
    Drop,
    Envelope,
    seal,
)
from hocket.bus.messages import BusMessage, MemoryMessages, MemoryServer, MessageBus, MessageQueue, subject_name
from hocket.bus.process_messages import ProcessMessages
from hocket.bus.signed import EARLY_MAX, EARLY_MS, LOOK_S, SignedMessages
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import node_id
from hocket.kernel.keys import SigningKey
from hocket.kernel.postcard import NODE, encode
from hocket.testing.lossy_messages import LossyMessages

PATIENCE_S = 60.0
MESH = "did:key:zMesh"
SUBJECT = subject_name(MESH, "claims", "acme.render")
NOW = 1_756_865_547_183
ALICE, BOB, MALLORY = (SigningKey(bytes(31) + letter) for letter in (b"a", b"b", b"m"))
KEYS = {node_id(key.public): key.public for key in (ALICE, BOB)}


class Clock:
    def __init__(self) -> None:
        self.now_ms = NOW

    def __call__(self) -> int:
        return self.now_ms


def member(messages: MessageBus, key: SigningKey, clock: Clock, cluster: str = MESH) -> SignedMessages:
    return SignedMessages(messages, key, cluster, KEYS.get, clock)


async def all_of(queue: MessageQueue) -> list[BusMessage]:
    got = []
    while (message := await queue.get(0.02)) is not None:
        got.append(message)
    return got


@pytest.mark.touches("GR-08")
def test_a_message_arrives_with_its_author_and_its_time() -> None:
    async def test() -> None:
        server, clock = MemoryServer(), Clock()
        alice, bob = (member(MemoryMessages(server), key, clock) for key in (ALICE, BOB))
        first, second = await bob.subscribe(SUBJECT), await bob.subscribe("hocket.>")
        await alice.publish(SUBJECT, b"mine", reply_to="hocket.x")
        await alice.publish(SUBJECT, b"mine", reply_to="hocket.x")
        for queue in (first, second):
            one, two = await all_of(queue)
            assert one.at is not None and two.at is not None
            assert one == BusMessage(SUBJECT, b"mine", "hocket.x", Hlc(NOW, 0, node_id(ALICE.public)))
            assert two.at > one.at, "the same words twice are two messages"
        assert not bob.counts

    asyncio.run(test())


@pytest.mark.touches("GR-08")
@pytest.mark.parametrize("kind", ["memory", "processes"])
def test_bad_messages_are_dropped_and_counted_by_reason(kind: str, tmp_path: Path) -> None:
    async def test() -> None:
        clock, server = Clock(), MemoryServer()
        raw: MessageBus = MemoryMessages(server) if kind == "memory" else ProcessMessages(tmp_path)
        over: MessageBus = MemoryMessages(server) if kind == "memory" else ProcessMessages(tmp_path)
        bob, tap = member(over, BOB, clock), await raw.subscribe("hocket.>")
        alice = member(raw, ALICE, clock)
        queue = await bob.subscribe("hocket.>")
        await alice.publish(SUBJECT, b"good")
        sealed = await tap.get(PATIENCE_S)
        assert sealed is not None

        async def spoofed(envelope: Envelope, key: SigningKey) -> None:
            await raw.publish(SUBJECT, seal(envelope, key))

        mallory = Envelope(MESH, Hlc(NOW, 0, node_id(MALLORY.public)), bytes(PROCESS_BYTES), SUBJECT, b"evil")
        await raw.publish(SUBJECT, sealed.data)  # REPLAYED
        await raw.publish(SUBJECT + ".other", sealed.data)  # FOREIGN
        await raw.publish(SUBJECT, sealed.data[:-64])  # UNSIGNED
        await raw.publish(
            SUBJECT, sealed.data[:-1] + bytes([sealed.data[-1] ^ 1])
        )  # REPLAYED: known before it is checked
        await raw.publish(SUBJECT, b"")  # MALFORMED
        await raw.publish(SUBJECT, b"{}")  # MALFORMED
        await raw.publish(SUBJECT, bytes(SEALED_BYTES_MAX))  # MALFORMED
        await spoofed(mallory, MALLORY)  # UNKNOWN
        await member(raw, ALICE, clock, "did:key:zOther").publish(SUBJECT, b"of another mesh")  # FOREIGN
        for off_ms in (-LIFE_MS - 1, LIFE_MS + 1, -3_600_000, 3_600_000):  # STALE
            clock.now_ms = NOW + off_ms
            late = member(raw, ALICE, clock)
            await late.publish(SUBJECT, b"an hour off")
        clock.now_ms = NOW
        await alice.publish(SUBJECT, b"good too")
        assert [each.data for each in await all_of(queue)] == [b"good", b"good too"]
        assert bob.counts == {
            Drop.REPLAYED: 2,
            Drop.FOREIGN: 2,
            Drop.UNSIGNED: 1,
            Drop.MALFORMED: 3,
            Drop.UNKNOWN: 1,
            Drop.STALE: 4,
        }
        with pytest.raises(ValueError):
            await alice.publish(SUBJECT, bytes(DATA_BYTES_MAX + 1))
        await raw.close()
        await over.close()

    asyncio.run(test())


@pytest.mark.touches("GR-08")
def test_a_forged_author_is_not_believed() -> None:
    """Mallory writes Alice's name, and signs with her own key."""

    async def test() -> None:
        server, clock = MemoryServer(), Clock()
        bob, raw = member(MemoryMessages(server), BOB, clock), MemoryMessages(server)
        queue = await bob.subscribe(SUBJECT)
        mine = Envelope(MESH, Hlc(NOW, 0, node_id(MALLORY.public)), bytes(PROCESS_BYTES), SUBJECT, b"evil")
        forged = seal(mine, MALLORY).replace(
            encode(NODE, node_id(MALLORY.public)), encode(NODE, node_id(ALICE.public)), 1
        )
        await raw.publish(SUBJECT, forged)
        assert await all_of(queue) == [] and bob.counts == {Drop.UNSIGNED: 1}

    asyncio.run(test())


def test_an_announcement_is_good_for_ten_minutes_and_a_message_is_not() -> None:
    async def test() -> None:
        server, clock = MemoryServer(), Clock()
        alice, bob = (member(MemoryMessages(server), key, clock) for key in (ALICE, BOB))
        tap = await MemoryMessages(server).subscribe("hocket.>")
        await alice.announce(SUBJECT, b"a job")
        await alice.publish(SUBJECT, b"a hint")
        clock.now_ms = NOW + KEPT_MS
        late = await bob.subscribe(SUBJECT, since_s=600)
        assert [each.data for each in await all_of(late)] == [b"a job"]
        hint = (await all_of(tap))[1]
        await MemoryMessages(server).publish(SUBJECT, hint.data)
        assert await all_of(late) == [] and bob.counts == {Drop.STALE: 1}
        clock.now_ms += LIFE_MS + 1
        assert await all_of(await bob.subscribe(SUBJECT, since_s=600)) == []

    asyncio.run(test())


def test_a_request_and_its_reply_are_signed() -> None:
    async def test() -> None:
        server, clock = MemoryServer(), Clock()
        alice, bob = (member(MemoryMessages(server), key, clock) for key in (ALICE, BOB))
        raw, questions = MemoryMessages(server), await bob.subscribe(SUBJECT)

        async def answer() -> None:
            question = await questions.get(PATIENCE_S)
            assert question is not None
            await raw.publish(question.reply_to, b"unsigned")
            await bob.publish(question.reply_to, b"signed")

        answering = asyncio.create_task(answer())
        reply = await alice.request(SUBJECT, b"?", PATIENCE_S)
        assert reply is not None and reply.at is not None
        assert (reply.data, reply.at.node) == (b"signed", node_id(BOB.public))
        assert sum(alice.counts.values()) == 1
        await answering

    asyncio.run(test())


@pytest.mark.parametrize("seed", range(5))
def test_the_lossy_bus_loses_repeats_and_reorders_and_no_message_counts_twice(seed: int) -> None:
    async def test() -> None:
        server, clock = MemoryServer(), Clock()
        lossy = LossyMessages(MemoryMessages(server), random.Random(seed))
        alice, bob = member(lossy, ALICE, clock), member(MemoryMessages(server), BOB, clock)
        tap = await MemoryMessages(server).subscribe("hocket.>", capacity=10_000)
        queue = await bob.subscribe(SUBJECT, capacity=10_000)
        for number in range(400):
            clock.now_ms += 1
            await (alice.announce if number % 3 else alice.publish)(SUBJECT, b"%d" % number)
        sent = [each.data for each in await all_of(tap)]
        got = [int(each.data) for each in await all_of(queue)]
        assert 150 < lossy.lost < 250, "half of everything"
        assert len(sent) == lossy.sent > len(set(sent)), "some came twice"
        assert got != sorted(got), "and out of order"
        assert len(got) == len(set(got)) == len(set(sent))
        assert bob.counts == {Drop.REPLAYED: len(sent) - len(got)}

    asyncio.run(test())


@pytest.mark.touches("GR-08")
def test_messages_of_a_member_that_is_not_known_yet_count_when_it_is() -> None:
    """The newest few, for a while."""

    async def test() -> None:
        server, clock, keys = MemoryServer(), Clock(), dict(KEYS)
        stranger = member(MemoryMessages(server), MALLORY, clock)
        bob = SignedMessages(MemoryMessages(server), BOB, MESH, keys.get, clock)
        queue, other = await bob.subscribe(SUBJECT), await bob.subscribe(SUBJECT)
        for number in range(EARLY_MAX + 3):
            await stranger.publish(SUBJECT, b"%d" % number)
        waiting = asyncio.create_task(queue.get(PATIENCE_S))
        assert await other.get(0) is None
        assert bob.counts == {Drop.UNKNOWN: 2 * (EARLY_MAX + 3)}
        clock.now_ms += EARLY_MS - 1
        assert await other.get(0) is None and not waiting.done()
        keys[node_id(MALLORY.public)] = MALLORY.public
        first = await waiting
        assert first is not None
        came = [first, *await all_of(queue)]
        assert [each.data for each in came] == [b"%d" % number for number in range(3, EARLY_MAX + 3)]
        assert await other.get(PATIENCE_S) is not None and len(await all_of(other)) == EARLY_MAX - 1
        assert bob.counts == {Drop.UNKNOWN: 2 * 3}, "these were dropped"

    asyncio.run(test())


def test_a_stranger_is_not_waited_for_any_longer() -> None:
    async def test() -> None:
        server, clock, keys = MemoryServer(), Clock(), dict(KEYS)
        stranger = member(MemoryMessages(server), MALLORY, clock)
        bob = SignedMessages(MemoryMessages(server), BOB, MESH, keys.get, clock)
        queue = await bob.subscribe(SUBJECT)
        await stranger.publish(SUBJECT, b"too early")
        assert await queue.get(0) is None
        clock.now_ms += EARLY_MS
        assert await queue.get(2 * LOOK_S) is None
        keys[node_id(MALLORY.public)] = MALLORY.public
        assert await queue.get(2 * LOOK_S) is None

    asyncio.run(test())


def test_messages_of_strangers_do_not_slow_down_those_of_members() -> None:
    """They were judged again whenever any message came."""
    asked = []

    def key_of(node: int) -> bytes | None:
        asked.append(node)
        return KEYS.get(node)

    async def test() -> None:
        server, clock = MemoryServer(), Clock()
        stranger, alice = (member(MemoryMessages(server), key, clock) for key in (MALLORY, ALICE))
        queue = await SignedMessages(MemoryMessages(server), BOB, MESH, key_of, clock).subscribe(SUBJECT)
        for _ in range(EARLY_MAX):
            await stranger.publish(SUBJECT, b"")
        for number in range(500):
            await alice.publish(SUBJECT, b"%d" % number)
        assert len(await all_of(queue)) == 500
        assert asked.count(node_id(MALLORY.public)) < 500

    asyncio.run(test())
