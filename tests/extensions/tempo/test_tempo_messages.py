"""Messages of tempo over a signed bus: what members send arrives as its type with its author, and nothing else does."""

import asyncio

import msgspec
import pytest

from hocket.bus.envelope import DATA_BYTES_MAX, Drop
from hocket.bus.messages import MemoryMessages, MemoryServer, subject_name
from hocket.bus.signed import SignedMessages
from hocket.extensions.tempo.beats import timeline
from hocket.extensions.tempo.frame_judge import JudgeState, judge_frame
from hocket.extensions.tempo.messages import (
    ClaimState,
    HelpPromise,
    NodeLoad,
    PromiseOutcome,
    PromiseResult,
    PulseMessage,
    StatusClaim,
    make_frame,
    to_json,
)
from hocket.extensions.tempo.policy import make_policy, policy_hash
from hocket.extensions.tempo.tempo_messages import ARRAY_BYTES_MAX, TOPICS, TempoMessages
from hocket.extensions.tempo.windows import BarWindows
from hocket.kernel.clock import Hlc, hlc_text
from hocket.kernel.ids import node_id, node_text
from hocket.kernel.keys import SigningKey

PATIENCE_S = 60.0
MESH = "did:key:zMesh"
NOW = 1_756_865_547_183
ALICE, BOB, MALLORY = (SigningKey(bytes(31) + letter) for letter in (b"a", b"b", b"m"))
NODE = node_id(ALICE.public)
KEYS = {node_id(key.public): key.public for key in (ALICE, BOB)}
POLICY = make_policy("one", 60, 4)
TEMPO = POLICY.initial_tempo
HLC = hlc_text(Hlc(NOW, 0, 0))
PULSE = PulseMessage(make_frame("one", TEMPO, POLICY.phases, policy_hash(POLICY, TEMPO), NOW, Hlc(NOW, 0, 0)), 1)
CLAIM = StatusClaim("a", "t", 1, ClaimState.DONE, 0, 1.0, "", HLC)


def member(server: MemoryServer, key: SigningKey) -> tuple[SignedMessages, TempoMessages]:
    signed = SignedMessages(MemoryMessages(server), key, MESH, KEYS.get, lambda: NOW)
    return signed, TempoMessages(signed, MESH)


def windows() -> BarWindows:
    found = BarWindows(POLICY, timeline(TEMPO))
    found.add(CLAIM, NOW)
    return found


@pytest.mark.req("BB-02")
@pytest.mark.parametrize(
    "message",
    [
        PULSE,
        CLAIM,
        HelpPromise("t", 2, 0.7, 3, "plan-a"),
        PromiseResult("t", "h", PromiseOutcome.LATE, HLC),
        NodeLoad(node_text(NODE), 3, 1, 2, HLC),
        windows().reports()[0],
        windows().contents()[0],
        windows().digests(NOW + 1),
    ],
    ids=lambda message: type(message).__name__,
)
def test_each_message_arrives_as_its_type_with_its_author(message: msgspec.Struct) -> None:
    async def test() -> None:
        server = MemoryServer()
        (_, alice), (_, bob) = member(server, ALICE), member(server, BOB)
        here, all_lanes = await bob.subscribe(type(message), "acme"), await bob.subscribe(type(message))
        elsewhere = await bob.subscribe(type(message), "other")
        await alice.publish(message, "acme")
        for queue in (here, all_lanes):
            heard = await queue.get(PATIENCE_S)
            assert heard is not None and heard.message == message and heard.at.node == NODE
        assert await elsewhere.get(0.01) is None
        here.close()
        assert await here.get(PATIENCE_S) is None

    asyncio.run(test())


@pytest.mark.req("BB-02")
def test_messages_that_are_published_together_are_signed_together() -> None:
    async def test() -> None:
        server = MemoryServer()
        (_, alice), (bob_bus, bob) = member(server, ALICE), member(server, BOB)
        queue = await bob.subscribe(StatusClaim, "acme")
        sealed = await bob_bus.subscribe(subject_name(MESH, "status", "acme"))
        claims = [msgspec.structs.replace(CLAIM, task_id=f"{n}", notes="é" * 500) for n in range(100)]
        await alice.publish_all(claims, "acme")
        heard = [await queue.get(PATIENCE_S) for _ in claims]
        assert [each and each.message for each in heard] == claims
        assert {each.at.node for each in heard if each is not None} == {NODE}
        sizes = []
        while (found := await sealed.get(0.01)) is not None:
            sizes.append(len(found.data))
        assert max(sizes) <= ARRAY_BYTES_MAX and len(sizes) == 100 // 14 + 1
        await alice.publish_all([], "acme")
        assert await queue.get(0.01) is None
        await alice.publish_all(claims[:2], "acme")
        assert await queue.get(PATIENCE_S) is not None
        queue.close()
        assert await queue.get(PATIENCE_S) is None

    asyncio.run(test())


@pytest.mark.req("BB-02")
def test_of_messages_that_come_together_all_count_or_none() -> None:
    async def test() -> None:
        server = MemoryServer()
        (alice_bus, alice), (_, bob) = member(server, ALICE), member(server, BOB)
        claims, loads = await bob.subscribe(StatusClaim), await bob.subscribe(NodeLoad)
        good = to_json(CLAIM)
        for data in (b"[]", b"[" + good, b"[" + good + b",{}]", b"[[" + good + b"]]", b"[" + good + b",null]"):
            await alice_bus.publish(subject_name(MESH, "status", "one"), data)
        own, other = (NodeLoad(node_text(node_id(key.public)), 3, 1, 2, HLC) for key in (ALICE, BOB))
        await alice.publish_all([own, other], "one")
        assert await claims.get(0.01) is None and claims.refused == 5
        assert await loads.get(0.01) is None and loads.refused == 1

    asyncio.run(test())


def test_every_type_has_its_topic() -> None:
    assert len({*TOPICS.values()}) == len(TOPICS)


@pytest.mark.touches("BB-03")
def test_unsigned_foreign_and_damaged_messages_do_not_arrive() -> None:
    async def test() -> None:
        server = MemoryServer()
        (alice_bus, alice), (bob_bus, bob), (_, mallory) = (member(server, key) for key in (ALICE, BOB, MALLORY))
        beats, loads = await bob.subscribe(PulseMessage), await bob.subscribe(NodeLoad)
        subject = subject_name(MESH, "beats", "one")
        await MemoryMessages(server).publish(subject, to_json(PULSE))  # not sealed
        await mallory.publish(PULSE, "one")  # no member
        for data in (b"", b"{}", to_json(CLAIM), b"[" * DATA_BYTES_MAX):
            await alice_bus.publish(subject, data)
        await alice.publish(NodeLoad(node_text(node_id(BOB.public)), 3, 1, 2, HLC), "one")  # another node's load
        await alice.publish(PULSE, "one")
        heard = await beats.get(PATIENCE_S)
        assert heard is not None and heard.message == PULSE and beats.refused == 4
        assert await loads.get(0.01) is None and loads.refused == 1
        assert bob_bus.counts[Drop.UNKNOWN] == 1 and bob_bus.counts[Drop.MALFORMED] == 1
        # What arrived can be judged: the author is known.
        assert isinstance(judge_frame(POLICY, JudgeState(), heard.message, heard.at.node, NOW, 1000), JudgeState)

    asyncio.run(test())
