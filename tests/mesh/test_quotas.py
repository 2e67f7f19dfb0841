"""Quotas where nodes bring their ops: over a real server, by members that push as fast as they can."""

import asyncio
import time
from itertools import pairwise
from pathlib import Path

import pytest

from hocket.events import sentences
from hocket.kernel.arbitration import Reason
from hocket.kernel.ids import content_hash
from hocket.kernel.mesh_rules import READERS_DEFAULT
from hocket.kernel.ops import Op, encode_sequence
from hocket.kernel.ucan import NO_QUOTA, Capability, Quota, issue
from hocket.kernel.vocabulary import DelegateUcan, IngestEvidence
from hocket.log import Admission
from hocket.log.intake import Intake
from hocket.log.limits import SLICE_STEP
from hocket.mesh import membership, wire
from hocket.mesh.gate_requests import Turns
from hocket.mesh.quotas import BURST_S, FULL_RETRY_S, WORK_MS_PER_S, Quotas
from hocket.mesh.wire import Reply
from hocket.store import WrittenTotals
from tests.mesh.world import WORKER, Place, enrolled, run
from tests.trust.members import Forger

READER = (Capability("Job", "Read", {}), Capability("Registration", "Read", {}))


class Time:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def token(owner: Place, forger: Forger, grants: tuple[Capability, ...], quota: Quota = NO_QUOTA) -> bytes:
    """The owner's node lets the forger in."""
    parent = next(each for each in owner.log.permissions().delegations if each.node == owner.id)
    made = issue(owner.key, forger.key.public, grants, parent.not_before, None, [parent.cid], forger.name, quota)
    owner.log.run(lambda tx: tx.author(DelegateUcan(content_hash(made), made)))
    return made


def evidence(forger: Forger, wall: int, logical: int, size: int) -> bytes:
    return forger.say(IngestEvidence(bytes(16), bytes(32), "note", "x" * size), wall, logical)[0]


async def push(owner: Place, forger: Forger, bodies: list[bytes]) -> Reply:
    headers = owner.headers(owner.id, key=forger.key) | {"content-type": wire.OCTETS}
    return await owner.ask(owner, "POST", wire.OPS, "", encode_sequence(bodies), headers)


def written(place: Place, node: int) -> WrittenTotals:
    key = node.to_bytes(8, "big")
    with place.runtime.store.read() as session:
        return session.written((key,)).get(key, WrittenTotals())


@pytest.mark.req("LW-45")
def test_a_reader_that_pushes_as_fast_as_it_can_stays_within_its_quota(tmp_path: Path) -> None:
    """A node that may only read once stored 46 MiB in 2.4 seconds. What it may not write still cost everybody."""

    async def test(a: Place) -> None:
        forger, size = Forger("reader"), 20_000
        made = token(a, forger, READER)
        worker = await enrolled(tmp_path / "worker", a, WORKER)
        worker.submit(20)
        wall = a.log.physical()
        first = [raw for raw, _ in forger.enter(made, wall=wall)]
        bodies = [evidence(forger, wall, 10 + n, size) for n in range(40 * 30)]
        began = time.monotonic()
        replies = [await push(a, forger, first)]

        async def flood() -> None:
            for start in range(0, len(bodies), 40):
                replies.append(await push(a, forger, bodies[start : start + 40]))

        async def work() -> None:
            done = await worker.exchanges.exchange(a.address)
            assert done.pushed > 20 and done.retry_s == 0

        await asyncio.gather(flood(), work())
        lasted = time.monotonic() - began
        assert READERS_DEFAULT.bytes_per_s is not None
        stored = written(a, forger.node)
        assert 0 < stored.bytes <= READERS_DEFAULT.bytes_per_s * (BURST_S + lasted) + size + 1_000
        assert worker.ids() <= a.ids()
        # It is told when to come back, then not even listened to; and the operator hears of it once.
        assert {reply.status for reply in replies} == {200, 429}
        assert all(int(reply.headers["retry-after"]) >= 1 for reply in replies if reply.status == 429)
        assert a.gate.refusals["ops beyond a quota"] > 0 and a.gate.refusals["over its quota"] > 0
        assert sum("is over its quota" in text for text in a.notices) == 1
        with a.runtime.read() as session:
            member = membership.find(membership.members(a.log, session), "reader")
        assert member.over is not None and member.over.ops > 0 and member.written == stored
        await worker.close()

    run(tmp_path, test, "a")


@pytest.mark.req("LW-45")
def test_an_honest_author_is_slowed_down_and_loses_nothing(tmp_path: Path) -> None:
    async def test(a: Place) -> None:
        clock = Time()
        a.gate._quotas = Quotas(clock, sentences(a.notices.append))
        b = await enrolled(tmp_path / "b", a, WORKER, Quota(ops_per_s=10))
        await b.exchanges.exchange(a.address)
        b.submit(350)
        seen = []
        for _ in range(8):
            done = await b.exchanges.visit(a.address)
            assert done.state == "ok"
            seen.append(written(a, b.id).ops)
            if not done.retry_s:
                break
            assert "quota" in done.detail and done.retry_s <= BURST_S
            # A visit that comes too early changes nothing.
            early = await b.exchanges.visit(a.address)
            assert early.retry_s > 0 and written(a, b.id).ops == seen[-1]
            clock.now += done.retry_s
        assert len(seen) > 3 and all(later - before <= 100 for before, later in pairwise(seen))
        assert b.ids() <= a.ids()
        assert a.digest() == b.digest()
        await b.close()

    run(tmp_path, test, "a")


@pytest.mark.req("LW-45")
def test_the_ops_of_a_bundle_count_one_by_one(tmp_path: Path) -> None:
    """A bundle goes in whole, however little of the quota is left, and its author waits for all of it afterwards."""

    async def test(a: Place) -> None:
        clock = Time()
        a.gate._quotas = Quotas(clock, sentences(a.notices.append))
        began = clock.now
        b = await enrolled(tmp_path / "b", a, WORKER, Quota(ops_per_s=10))
        await b.exchanges.exchange(a.address)
        for _ in range(4):
            b.submit_bundle(350)
        while b.ids() - a.ids():
            done = await b.exchanges.visit(a.address)
            assert written(a, b.id).ops <= (BURST_S + clock.now - began) * 10 + 350
            clock.now += done.retry_s
        assert clock.now - began >= 3 * 350 / 10 - BURST_S
        assert a.digest() == b.digest()
        await b.close()

    run(tmp_path, test, "a")


@pytest.mark.req("LW-45")
def test_what_a_node_may_store_in_all_ends(tmp_path: Path) -> None:
    async def test(a: Place) -> None:
        forger = Forger("small")
        made = token(a, forger, WORKER, Quota(ops=10))
        wall = a.log.physical()
        ops = [raw for raw, _ in forger.enter(made, wall=wall)]
        ops += [evidence(forger, wall, 10 + n, 10) for n in range(30)]
        reply = await push(a, forger, ops)
        assert b'"over_quota":21,"retry_s":%d' % FULL_RETRY_S in reply.body
        assert written(a, forger.node).ops == 10
        assert b'"over_quota":21' in (await push(a, forger, ops[10:])).body
        # It may store more by a further delegation.
        token(a, forger, WORKER, Quota(ops=25))
        assert b'"over_quota":6' in (await push(a, forger, ops[10:])).body
        assert written(a, forger.node).ops == 25
        assert a.runtime.rebuild().unchanged and written(a, forger.node).ops == 25

    run(tmp_path, test, "a")


@pytest.mark.req("LW-45")
def test_garbage_and_others_ops_that_cannot_be_verified_cost_their_bringer(tmp_path: Path) -> None:
    async def test(a: Place) -> None:
        clock = Time()
        a.gate._quotas = Quotas(clock, sentences(a.notices.append))
        forger = Forger("whole")
        made = token(a, forger, (Capability("Ops", "Read", {}),))
        wall = a.log.physical()
        await push(a, forger, [raw for raw, _ in forger.enter(made, wall=wall)])
        # Ops in the owner's name, which the owner has not signed.
        other = Forger("nobody")
        other.node = a.id
        bad = [evidence(other, wall, n, 10) for n in range(300)]
        assert (await push(a, forger, bad)).status == 200
        assert (await push(a, forger, bad)).status == 429
        clock.now += BURST_S * 3
        assert (await push(a, forger, [b"\xff" * 200] * 50)).status == 200

    run(tmp_path, test, "a")


def test_a_worker_drains_under_the_default_quota(tmp_path: Path) -> None:
    async def test(a: Place) -> None:
        b = await enrolled(tmp_path / "b", a, WORKER)
        await b.exchanges.exchange(a.address)
        b.submit(3_000)
        done = await b.exchanges.visit(a.address)
        assert (done.retry_s, done.detail) == (0.0, "")
        assert b.ids() <= a.ids()
        await b.close()

    run(tmp_path, test, "a")


@pytest.mark.req("LW-45")
def test_what_is_fetched_from_its_author_counts_against_its_quota_too(tmp_path: Path) -> None:
    async def test(a: Place) -> None:
        clock = Time()
        a.exchanges._quotas = Quotas(clock, sentences(a.notices.append))
        reads = (*WORKER, Capability("Ops", "Read", {}))
        b = await enrolled(tmp_path / "b", a, reads, Quota(ops_per_s=10))
        await b.exchanges.exchange(a.address)
        await b.serve()
        b.submit(250)
        seen = [written(a, b.id).ops]
        for _ in range(8):
            done = await a.exchanges.visit(b.address)
            assert done.state == "ok"
            seen.append(written(a, b.id).ops)
            if not done.retry_s:
                break
            clock.now += done.retry_s
        assert len(seen) > 3 and all(later - before <= 10 * BURST_S for before, later in pairwise(seen))
        assert b.ids() <= a.ids()
        assert sum("is over its quota" in text for text in a.notices) == 1
        await b.close()

    run(tmp_path, test, "a")


def costly(monkeypatch: pytest.MonkeyPatch, place: Place, node: int, seconds: float) -> None:
    """Each op of this node takes so long in the write transaction of the place; those of others take no time."""
    watch, take = Time(), Intake.take
    place.log.stopwatch = watch

    def slowly(self: Intake, raw: bytes, op: Op, reason: Reason | None) -> None:
        take(self, raw, op, reason)
        watch.now += seconds if op.node_id == node else 0.0

    monkeypatch.setattr(Intake, "take", slowly)


@pytest.mark.req("LW-49")
def test_an_author_whose_ops_take_long_waits_and_others_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty small ops once held the store for 26 seconds, and no quota counted that."""

    async def test(a: Place) -> None:
        clock = Time()
        a.gate._quotas = Quotas(clock, sentences(a.notices.append))
        b = await enrolled(tmp_path / "b", a, WORKER)
        c = await enrolled(tmp_path / "c", a, WORKER)
        for place in (b, c):
            await place.exchanges.exchange(a.address)
        costly(monkeypatch, a, b.id, 0.4)
        b.submit(80)
        before, seen = written(a, b.id).ops, []
        for _ in range(40):
            done = await b.exchanges.visit(a.address)
            assert done.state == "ok"
            seen.append(written(a, b.id).ops - before)
            # Others are admitted at once, whatever b has used.
            c.submit(5)
            others = await c.exchanges.visit(a.address)
            assert others.retry_s == 0 and c.ids() <= a.ids()
            if not done.retry_s:
                break
            assert (await b.exchanges.visit(a.address)).retry_s > 0, "it is not even listened to"
            assert written(a, b.id).ops - before == seen[-1]
            clock.now += done.retry_s
        steps = [later - earlier for earlier, later in pairwise([0, *seen])]
        assert len(steps) > 2 and (max(steps) - SLICE_STEP) * 400 <= WORK_MS_PER_S * BURST_S
        assert b.ids() <= a.ids(), "it only waited"
        worked_s = 80 * 0.4
        assert clock.now - Time().now >= (worked_s * 1000 - WORK_MS_PER_S * BURST_S) / WORK_MS_PER_S - SLICE_STEP * 0.4
        assert any("share of the store's time" in text for text in a.notices)
        await b.close()
        await c.close()

    run(tmp_path, test, "a")


@pytest.mark.req("LW-49")
def test_ops_of_a_costly_author_that_others_pass_on_come_last_and_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(a: Place) -> None:
        quotas = a.exchanges._quotas = Quotas(Time())
        reader = await enrolled(tmp_path / "reader", a, (*WORKER, Capability("Ops", "Read", {})))
        b = await enrolled(tmp_path / "b", a, WORKER)
        costly(monkeypatch, reader, b.id, 0.4)
        reader.exchanges._quotas = quotas
        batches: list[set[int]] = []
        taken = Intake.admission

        def noted(self: Intake) -> Admission:
            batches.append({op.node_id for op in self.taken})
            return taken(self)

        monkeypatch.setattr(Intake, "admission", noted)
        for _ in range(2):
            b.submit(100)
            a.submit(20)
            await b.exchanges.exchange(a.address)
            batches.clear()
            await reader.exchanges.visit(a.address)
        assert batches[0] == {a.id} and set(map(frozenset, batches[1:])) == {frozenset((b.id,))}
        assert len(batches) > 2, "in slices, between which others may write"
        assert b.ids() <= reader.ids()
        await reader.close()
        await b.close()

    run(tmp_path, test, "a")


@pytest.mark.req("LW-49")
def test_the_turn_goes_to_the_node_that_has_used_the_least() -> None:
    async def test() -> None:
        used = {1: 5_000.0, 2: 0.0, 3: 100.0}
        turns = Turns(1, lambda node: used[node])
        done: list[int] = []
        release = asyncio.Event()

        async def ask(node: int) -> None:
            async with turns.turn(node):
                await release.wait()
                done.append(node)

        first = asyncio.create_task(ask(1))
        await asyncio.sleep(0)
        assert not turns.is_awaited(1)
        rest = [asyncio.create_task(ask(node)) for node in (1, 3, 2, 3)]
        await asyncio.sleep(0)
        assert turns.is_awaited(1)
        rest[1].cancel()
        release.set()
        await asyncio.gather(first, *rest, return_exceptions=True)
        assert done == [1, 2, 3, 1]
        async with turns.turn(1):
            assert not turns.is_awaited(1)

    asyncio.run(test())
