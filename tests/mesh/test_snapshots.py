"""Snapshots between nodes: a server that has let go of ops never answers with a gap, and a node that lacks them takes
the server's snapshot, in parts, and goes on from there.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hocket.families.jobs import requests as jobs
from hocket.families.retention import rules
from hocket.families.retention.facts import Retained, SetRetention
from hocket.kernel.frontier import frontier_text
from hocket.kernel.ops import Op, decode, link_to, read_sequence
from hocket.kernel.snapshots import chunks
from hocket.kernel.ucan import Capability
from hocket.log.rebuild import family_digests
from hocket.log.retention import horizons
from hocket.log.snapshots.folder import SnapshotFolder
from hocket.mesh import peers, wire
from hocket.mesh.snapshots.fetching import FETCHED
from hocket.mesh.wire import Reply, Request
from tests.mesh.world import WORKER, Place, enrolled, run, until

HOUR = 3_600_000
DAY = 24 * HOUR


class Days:
    """Lets the logs of places run ahead of the machine's clock."""

    def __init__(self, *places: Place) -> None:
        self.ahead_ms = 0
        for place in places:
            self.add(place)

    def add(self, place: Place) -> None:
        log, physical = place.log, place.log.physical
        log.physical = lambda: physical() + self.ahead_ms
        log.wall = lambda floor: max(floor, physical() + self.ahead_ms)


def run_jobs(place: Place, count: int) -> None:
    """Jobs that are cancelled have ended."""
    place.submit(count)
    with place.runtime.read() as session:
        ids = [entry.job.id for entry in session.each_job() if entry.job.done is None]
    place.log.run(lambda tx: [jobs.cancel(tx, each, "done") for each in ids])


def retain(place: Place, witnesses: int = 0) -> None:
    place.log.run(lambda tx: tx.author(SetRetention(Retained.JOBS, "", DAY, None, True, witnesses)))


def prune(place: Place) -> None:
    with place.log.store.read() as session:
        plan = place.log.horizons.plan(session)
    assert plan is not None and place.log.horizons.move(plan)
    follow(place)


def follow(place: Place) -> None:
    while place.log.horizons.step().has_more:
        pass


def digests(place: Place) -> dict[str, bytes]:
    place.log.settle()
    with place.log.store.read() as session:
        return family_digests(session)


def entries(place: Place) -> int:
    with place.log.store.read() as session:
        return session.entry_count()


def pruned_server(a: Place, witnesses: int = 0) -> Days:
    """The owner's node has let go of 30 jobs, and has 12 others."""
    days = Days(a)
    run_jobs(a, 30)
    a.submit(12)
    retain(a, witnesses)
    days.ahead_ms = 3 * DAY
    a.submit(3)
    prune(a)
    return days


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_LEAVES_MAX", 4)


def test_a_new_node_takes_the_snapshot_and_goes_on(tmp_path: Path) -> None:
    async def test(a: Place, b: Place) -> None:
        b.submit(2)
        pruned_server(a).add(b)
        b.submit(1)
        done = await b.exchanges.visit(a.address)
        assert done.state == peers.OK, done
        assert any("took a snapshot" in each and "3 ops of this node were written again" in each for each in b.notices)
        await b.exchanges.visit(a.address)
        assert digests(a) == digests(b) and len(b.ids()) < 60
        assert entries(b) < 40
        assert not (b.runtime.home.processes / FETCHED).exists()
        a.submit(1)
        await b.exchanges.visit(a.address)
        assert digests(a) == digests(b)

    run(tmp_path, test, "a", "b")


def test_a_server_never_answers_with_a_gap(tmp_path: Path) -> None:
    async def test(a: Place, b: Place) -> None:
        await b.exchanges.visit(a.address)
        pruned_server(a)
        reply = await b.ask(a)
        assert reply.status == 410 and reply.body == b""
        with a.log.store.read() as session:
            rows = session.entries_since({}, 1_000)
        for row in rows:
            # From any entry on, what comes follows it, or nothing does.
            at = decode(row.body).timestamp
            reply = await b.ask(a, query=f"since={frontier_text({at.node: at})}")
            if reply.status == 410:
                continue
            sent = [op for _, op in read_sequence(reply.body) if isinstance(op, Op) and op.node_id == at.node]
            for before, op in zip([decode(row.body), *sent], sent, strict=False):
                assert op.link == link_to(before.id)

    run(tmp_path, test, "a", "b")


def test_a_fetch_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    async def test(a: Place, b: Place) -> None:
        pruned_server(a).add(b)
        transport = Tampered(b, lambda request, reply: Reply(500) if "chunk=2" in request.query else reply)
        done = await b.exchanges.visit(a.address)
        assert done.state != peers.OK
        (place,) = (b.runtime.home.processes / FETCHED).iterdir()
        folder = SnapshotFolder(place)
        assert not folder.is_complete() and len(list(folder.path.iterdir())) == 2
        transport.change = lambda request, reply: reply
        transport.asked.clear()
        await transport.again(a)
        assert digests(a) == digests(b)
        assert not any("chunk=0" in each or "chunk=1" in each for each in transport.asked)

    run(tmp_path, test, "a", "b")


@pytest.mark.parametrize("damage", ["cut", "other", "manifest"])
def test_a_damaged_snapshot_changes_nothing(tmp_path: Path, damage: str) -> None:
    async def test(a: Place, b: Place) -> None:
        pruned_server(a).add(b)
        before = b.ids()

        def change(request: Request, reply: Reply) -> Reply:
            if request.path != wire.SNAPSHOT:
                return reply
            if damage == "cut" and "chunk=1" in request.query:
                return reply._replace(body=reply.body[:-1])
            if damage == "other" and "chunk=1" in request.query:
                return reply._replace(body=reply.body[:20] + bytes((reply.body[20] ^ 1,)) + reply.body[21:])
            return reply._replace(body=reply.body[:-1]) if damage == "manifest" and not request.query else reply

        transport = Tampered(b, change)
        done = await b.exchanges.visit(a.address)
        assert done.state == peers.REFUSED and "does not hold good" in done.detail
        assert b.ids() == before
        transport.change = lambda request, reply: reply
        await transport.again(a)
        assert digests(a) == digests(b)

    run(tmp_path, test, "a", "b")


def test_too_few_witnesses_are_not_enough(tmp_path: Path) -> None:
    async def test(a: Place, b: Place, c: Place) -> None:
        days = Days(a, c)
        for place in (b, c):
            await place.exchanges.visit(a.address)
        run_jobs(a, 10)
        retain(a, witnesses=1)
        await c.exchanges.visit(a.address)
        days.ahead_ms = 3 * DAY
        a.submit(1)
        prune(a)
        with a.log.store.read() as session:
            horizon = session.horizon()
        assert horizon is not None and not horizon.is_deleted, "it waits for a witness"
        assert (await b.ask(a)).status == 200
        await c.exchanges.visit(a.address)
        follow(c)
        for _ in range(2):
            await c.exchanges.share_checkpoints(a.address, 0.0)
        follow(a)
        with a.log.store.read() as session:
            horizon = session.horizon()
        assert horizon is not None and horizon.is_deleted
        assert (await b.ask(a)).status == 410
        days.add(b)
        await b.exchanges.visit(a.address)
        assert any("took a snapshot" in each for each in b.notices)
        await b.exchanges.visit(a.address)
        assert digests(a) == digests(b)

    run(tmp_path, test, "a", "b", "c")


class Tampered:
    """The transport of a place, which changes answers on their way."""

    def __init__(self, place: Place, change: Callable[[Request, Reply], Reply]) -> None:
        self._place, self.change = place, change
        self.asked: list[str] = []
        inner = place.exchanges.transport
        send = inner.send

        async def changed(address: str, request: Request) -> Reply:
            self.asked.append(f"{request.path}?{request.query}")
            return self.change(request, await send(address, request))

        inner.send = changed  # type: ignore[method-assign]

    async def again(self, other: Place) -> Any:
        done = await self._place.exchanges.visit(other.address)
        assert done.state == peers.OK, done
        return await self._place.exchanges.visit(other.address)


def test_only_who_reads_everything_gets_a_snapshot(tmp_path: Path) -> None:
    async def test(a: Place, b: Place) -> None:
        await b.exchanges.visit(a.address)
        pruned_server(a)
        shutil.rmtree(a.runtime.home.processes / "snapshots", ignore_errors=True)
        assert (await b.ask(a, path=wire.SNAPSHOT, query="")).status == 200
        for query in ("chunk=0", "horizon=x&chunk=0", "chunk=a&horizon=01J9ZC0000000000000000000A"):
            assert (await b.ask(a, path=wire.SNAPSHOT, query=query)).status == 400
        unknown = "chunk=0&horizon=01J9ZC0000000000000000000A"
        assert (await b.ask(a, path=wire.SNAPSHOT, query=unknown)).status == 404

    run(tmp_path, test, "a", "b")


def test_a_machine_that_joins_later_takes_the_snapshot_and_a_reader_with_filters_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (rules, horizons):
        monkeypatch.setattr(module, "SETTLED_MS", 0)
    monkeypatch.setattr(rules, "KEEP_MS_MIN", 0)

    async def test(a: Place) -> None:
        run_jobs(a, 30)
        a.submit(12)
        a.log.run(lambda tx: tx.author(SetRetention(Retained.JOBS, "", 0, None, True, 0)))
        before = a.log.physical()
        await until(lambda: a.log.physical() > before + 1)
        prune(a)
        whole = await enrolled(tmp_path / "whole", a, (*WORKER, Capability("Ops", "Read", {})))
        narrow = await enrolled(tmp_path / "narrow", a, WORKER[:3])
        try:
            for place in (whole, narrow, whole, narrow):
                assert (await place.exchanges.visit(a.address)).state == peers.OK
            assert any("took a snapshot" in each for each in whole.notices)
            assert digests(whole) == digests(a)
            assert not any("took a snapshot" in each for each in narrow.notices)
            assert (await narrow.ask(a)).status == 200
            assert (await narrow.ask(a, path=wire.SNAPSHOT, query="")).status == 404
        finally:
            await whole.close()
            await narrow.close()

    run(tmp_path, test, "a")
