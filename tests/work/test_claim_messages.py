"""What workers tell each other about claims, signed, over a bus in memory."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from hocket.bus.envelope import DATA_BYTES_MAX, LIFE_MS, PROCESS_BYTES, Drop, Envelope, seal
from hocket.bus.messages import MemoryMessages, MemoryServer, subject_name, subject_pattern
from hocket.bus.signed import SignedMessages
from hocket.families.jobs.candidates import WORKER_NAME_CHARS_MAX, worker_id
from hocket.families.jobs.rules import Job
from hocket.kernel.clock import Hlc, hlc_text
from hocket.kernel.ids import node_id, ulid_text
from hocket.kernel.keys import SIGNATURE_BYTES, SigningKey
from hocket.kernel.policy import Policy
from hocket.work.claim_order import HeardClaims
from hocket.work.ranked_claims import (
    CLAIMS,
    PASSES,
    SAID_AT_ONCE_MAX,
    TIMESTAMP_CHARS_MAX,
    UNSENT_MAX,
    ClaimMessages,
    ClaimSaid,
    read_claims_said,
)

MESH, KIND = "did:key:z6MkTest", "acme.render"
KEYS = [SigningKey(bytes([number]) * 32) for number in (1, 2)]
NODES = [node_id(key.public) for key in KEYS]
KNOWN = dict(zip(NODES, (key.public for key in KEYS), strict=True))
AT = Hlc(1, 0, 1)
JOB = Job(b"j" * 16, KIND, b"o" * 16, AT, Policy(claim="rendezvous"), AT)
TIMEOUT_MS = 5_000


class Side:
    """One worker."""

    def __init__(self, number: int, server: MemoryServer) -> None:
        self.server = server
        self.bus = SignedMessages(MemoryMessages(server), KEYS[number], MESH, KNOWN.get, lambda: 1_000_000)
        self.heard = HeardClaims(lambda: 1_000_000)
        self.woken = asyncio.Event()
        self.worker = worker_id(NODES[number], "w")
        self.talk = ClaimMessages(self.bus, MESH, self.worker, [KIND, "other."], self.heard, self.woken.set)


async def until(look: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not look():
            await asyncio.sleep(0)


@asynccontextmanager
async def two() -> AsyncIterator[tuple[Side, Side]]:
    server = MemoryServer()
    sides = Side(0, server), Side(1, server)
    tasks = [asyncio.create_task(each.talk.run()) for each in sides]
    await until(lambda: len(server._queues) == 8)
    try:
        yield sides
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


@pytest.mark.req("GR-02")
def test_a_claim_reaches_the_others_and_tells_who_won() -> None:
    async def test() -> None:
        async with two() as (one, two_):
            one.talk.tell_claim(JOB, 0)
            await until(lambda: two_.heard.claimed_until(JOB.id, 0, two_.worker, TIMEOUT_MS))
            (claim,) = two_.heard._said[JOB.id, 0].claims.values()
            assert (claim.job, claim.worker) == (ulid_text(JOB.id), one.worker)
            assert claim.timestamp.wall == 1_000_000 and claim.timestamp.node == NODES[0]
            assert two_.heard.claimed_until(JOB.id, 1, two_.worker, TIMEOUT_MS) == 0  # another hold
            assert not one.heard._said  # not from itself

    asyncio.run(test())


def test_a_pass_is_told_once_and_wakes_the_others() -> None:
    async def test() -> None:
        async with two() as (one, two_):
            heard = await two_.bus.subscribe(subject_name(MESH, PASSES, KIND))
            one.talk.tell_pass(JOB)
            one.talk.tell_pass(JOB)
            await until(two_.woken.is_set)
            assert two_.heard.passed(JOB.id, 0) == one.heard.passed(JOB.id, 0) == {one.worker}
            one.talk.tell_pass(msgspec.structs.replace(JOB, fence=1))
            first, second = await heard.get(5), await heard.get(5)
            assert first is not None and second is not None
            told = [said for each in (first, second) for said in msgspec.json.decode(each.data)]
            assert [said["fence"] for said in told] == [0, 1]

    asyncio.run(test())


@pytest.mark.touches("GR-02")
def test_the_claims_of_a_turn_are_one_message_for_each_kind() -> None:
    async def test() -> None:
        async with two() as (one, two_):
            queue = await two_.bus.subscribe(subject_pattern(MESH, CLAIMS, ""))
            jobs = [msgspec.structs.replace(JOB, id=number.to_bytes(16)) for number in range(SAID_AT_ONCE_MAX + 1)]
            for job in jobs:
                one.talk.tell_claim(job, 0)
            one.talk.tell_claim(msgspec.structs.replace(JOB, kind="other.kind"), 0)
            found = [await queue.get(5) for _ in range(3)]
            assert [each and len(msgspec.json.decode(each.data)) for each in found] == [SAID_AT_ONCE_MAX, 1, 1]
            await until(lambda: all(two_.heard.claimed_until(job.id, 0, two_.worker, TIMEOUT_MS) for job in jobs))

    asyncio.run(test())


def test_one_message_says_only_so_much() -> None:
    said = ClaimSaid(ulid_text(JOB.id), worker_id(NODES[0], "w"), 0)
    longest = ClaimSaid(
        ulid_text(JOB.id),
        worker_id(NODES[0], "\N{MUSICAL SYMBOL G CLEF}" * WORKER_NAME_CHARS_MAX),
        2**53,
        "1" * TIMESTAMP_CHARS_MAX,
    )
    assert len(msgspec.json.encode([longest] * SAID_AT_ONCE_MAX)) <= DATA_BYTES_MAX
    assert len(read_claims_said(msgspec.json.encode([said] * SAID_AT_ONCE_MAX), NODES[0])) == SAID_AT_ONCE_MAX
    for claims in ([], [said] * (SAID_AT_ONCE_MAX + 1)):
        with pytest.raises(msgspec.ValidationError):
            read_claims_said(msgspec.json.encode(claims), NODES[0])


def test_nobody_speaks_for_the_workers_of_another_node() -> None:
    async def test() -> None:
        async with two() as (one, two_):
            subject = subject_name(MESH, CLAIMS, KIND)
            for worker in (worker_id(NODES[1], "other"), worker_id(99, "w"), "nonsense", ""):
                said = ClaimSaid(ulid_text(JOB.id), worker, 0)
                await one.bus.publish(subject, msgspec.json.encode([said]))
            for data in (b"", b"{}", b"[1]", b'[{"job_id": "x", "worker_id": 3}]', b"\xff", b"[" * 10_000):
                await one.bus.publish(subject, data)
            await one.bus.publish(subject, msgspec.json.encode([ClaimSaid("no ulid", one.worker, 0)]))
            for timestamp in ("now", hlc_text(Hlc(1_000_000 - LIFE_MS - 1, 0, 0)), "1" * 65):
                said = ClaimSaid(ulid_text(JOB.id), one.worker, 0, timestamp)
                await one.bus.publish(subject, msgspec.json.encode([said]))
            await until(lambda: two_.talk.refused == 14)
            assert not two_.heard._said

    asyncio.run(test())


class PublishedResolver:
    """The published rule for claims: every claim counts, whoever sent it, and the earliest wins."""

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self.claims: list[tuple[int, str]] = []

    def hear(self, data: bytes) -> None:
        claim = msgspec.json.decode(data)
        self.claims.append((claim["timestamp"], claim["worker_id"]))

    def leaves_the_job(self) -> bool:
        return min(self.claims)[1] != self._worker


@pytest.mark.req("GR-08")
def test_an_unsigned_claim_takes_the_job_by_the_published_rule_and_nothing_by_ours() -> None:
    """The outsider has no key. It claims in the name of a worker that is there, and never runs the job."""

    async def test() -> None:
        async with two() as (one, two_):
            published = PublishedResolver(one.worker)
            for worker, timestamp in ((two_.worker, 0), (one.worker, 1_000_000)):
                claim = {"job_id": ulid_text(JOB.id), "worker_id": worker, "timestamp": timestamp}
                published.hear(msgspec.json.encode(claim))
            assert published.leaves_the_job(), "for ever"
            subject = subject_name(MESH, CLAIMS, KIND)
            said = msgspec.json.encode([ClaimSaid(ulid_text(JOB.id), two_.worker, 0)])
            envelope = Envelope(MESH, Hlc(1_000_000, 0, NODES[1]), bytes(PROCESS_BYTES), subject, said)
            body = seal(envelope, KEYS[1])[:-SIGNATURE_BYTES]
            outsider = MemoryMessages(one.server)
            for data in (said, body, body + bytes(SIGNATURE_BYTES)):
                await outsider.publish(subject, data)
            await until(lambda: one.bus.counts.total() == 3)
            assert one.bus.counts[Drop.UNSIGNED] >= 1
            assert one.heard.claimed_until(JOB.id, 0, one.worker, TIMEOUT_MS) == 0

    asyncio.run(test())


def test_what_cannot_be_sent_is_lost_and_counted() -> None:
    async def test() -> None:
        side = Side(0, MemoryServer())
        for _ in range(UNSENT_MAX + 3):
            side.talk.tell_claim(JOB, 0)
        side.talk.tell_claim(msgspec.structs.replace(JOB, kind="\ud800"), 0)
        assert side.talk.lost == 4

    asyncio.run(test())
