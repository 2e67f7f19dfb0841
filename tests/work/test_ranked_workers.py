"""Real workers on several nodes, with a coordinator as the arbiter, whose jobs go by rank."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hocket.bus.messages import MemoryMessages, MemoryServer, MessageBus
from hocket.families.jobs import requests as jobs
from hocket.kernel.ids import parse_ulid, ulid_text
from hocket.kernel.ops import decode
from hocket.kernel.vocabulary import AcceptWork, ClaimWork, CompleteJob
from hocket.node.message_bus import NodeMessages
from hocket.store import Stage
from hocket.testing.lossy_messages import LossyMessages
from hocket.work.context import Context
from hocket.work.environment import WorkerOptions
from hocket.work.handlers import Handlers, JobType, kind
from hocket.work.presence import read_presence
from hocket.work.worker import Worker
from tests.mesh.world import Place, world

KIND = "test.ranked"
NODES = 4
JOBS = 40
PATIENCE_S = 90.0
# A job with this number never ends.
BLOCKS = 1_000

pytestmark = pytest.mark.touches("GR-10")


class Grid(NamedTuple):
    owner: Place
    places: list[Place]
    runs: list[tuple[int, str]]

    async def submit(self, count: int, first: int = 0, **options: Any) -> list[str]:
        drafts = [kind(KIND, **options).draft({"n": first + number}) for number in range(count)]
        made = [await self.owner.node.run(lambda tx, draft=draft: jobs.submit(tx, [draft])) for draft in drafts]
        return [ulid_text(each.job_id) for (each,) in made]

    async def done(self, count: int) -> None:
        def all_done() -> bool:
            with self.owner.log.store.read() as session:
                return sum(each for (stage, _), each in session.counts().items() if stage is Stage.DONE) >= count

        async with asyncio.timeout(PATIENCE_S):
            while not all_done():
                await asyncio.sleep(0.02)

    def ops(self) -> list[Any]:
        with self.owner.log.store.read() as session:
            rows = session.ops_after(0, 1_000_000)
        return [(row.reason, decode(row.body)) for row in rows]

    def refused(self) -> int:
        """The offered claims that the arbiter did not accept."""
        ops = self.ops()
        accepted = {op.payload.offer for _, op in ops if isinstance(op.payload, AcceptWork)}
        claims = [op.id for _, op in ops if isinstance(op.payload, ClaimWork) and op.node_id != self.owner.id]
        return sum(each not in accepted for each in claims)


@asynccontextmanager
async def grid(
    directory: Path, nodes: int = NODES, wrap: Callable[[MessageBus], MessageBus] = lambda bus: bus, slots: int = 8
) -> AsyncIterator[Grid]:
    """A coordinator that runs no jobs, and nodes with a worker each, which all know of each other."""
    names = [f"n{number}" for number in range(nodes)]
    async with world(directory, "owner", *names) as (owner, *places):
        server, tasks, buses, workers = MemoryServer(), [], [], []
        runs: list[tuple[int, str]] = []
        for place in places:
            place.befriend(owner.address, owner.id)
            await place.exchanges.visit(owner.address)
        for place in places:
            await place.exchanges.visit(owner.address)
        for place in (owner, *places):
            messages = wrap(MemoryMessages(server))
            bus = await NodeMessages.open(place.node, messages, place.key, place.node.environment)
            buses.append(bus)
            place.services.messages = bus
            place.keep_in_touch()
            if place is not owner:
                place.node.reach = place.exchanges.consult

                async def work(ctx: Context, n: int, place: Place = place) -> int:
                    runs.append((place.id, ctx.job_id))
                    await (asyncio.sleep(0.01) if n < BLOCKS else asyncio.Event().wait())
                    return n

                handlers = Handlers([JobType(KIND, function=work, lease_ms=30_000)])
                options = WorkerOptions(handlers, concurrency=slots, ahead=None if slots > 1 else 0, messages=bus)
                workers.append(Worker(place.node, place.node.environment, options))
                tasks.append(asyncio.create_task(workers[-1].run()))
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not all(_others(place) == nodes - 1 for place in places):
                    await asyncio.sleep(0.02)
            yield Grid(owner, places, runs)
        finally:
            for worker in workers:
                worker.stop()
                worker.stop()
            await asyncio.wait(tasks)
            for place in (owner, *places):
                assert place._syncing is not None
                place._syncing.cancel()
                await asyncio.wait([place._syncing])
            for each in buses:
                await each.close()


def _others(place: Place) -> int:
    with place.log.store.read() as session:
        return sum(len(read_presence(each).workers) for each in session.presence())


@pytest.mark.req("GR-10")
def test_rendezvous_lowers_the_number_of_refused_claims(tmp_path: Path) -> None:
    async def refused(how: str) -> int:
        async with grid(tmp_path / how) as at:
            await at.submit(JOBS, claim=how)
            await at.done(JOBS)
            assert sorted(Counter(job for _, job in at.runs).values()) == [1] * JOBS
            return at.refused()

    async def test() -> tuple[int, int]:
        return await refused("first"), await refused("rendezvous")

    first, ranked = asyncio.run(test())
    print(f"refused claims for {JOBS} jobs: {first} with first, {ranked} with rendezvous")
    assert ranked < first / 4


@pytest.mark.touches("GR-02")
def test_a_bus_that_loses_half_of_everything_costs_no_job(tmp_path: Path) -> None:
    chance = random.Random(5)

    async def test() -> None:
        async with grid(tmp_path, 3, lambda bus: LossyMessages(bus, chance)) as at:
            sole = await at.submit(20, claim="rendezvous", claim_timeout="500ms")
            open_ = await at.submit(10, claim="rendezvous", claim_timeout="500ms", open=True)
            await at.done(30)
            runs = Counter(job for _, job in at.runs)
            assert {job: runs[job] for job in sole} == dict.fromkeys(sole, 1)
            assert runs.keys() == {*sole, *open_}
            ended = Counter(
                ulid_text(op.payload.job_id)
                for reason, op in at.ops()
                if isinstance(op.payload, CompleteJob) and op.payload.job_id in map(parse_ulid, sole)
            )
            assert ended == dict.fromkeys(sole, 1)

    asyncio.run(test())


def test_a_worker_without_a_free_slot_leaves_its_jobs_to_the_next(tmp_path: Path) -> None:
    """Nobody waits for the claim timeout, which is an hour."""

    async def test() -> None:
        async with grid(tmp_path, 2, slots=1) as at:
            await at.submit(1, BLOCKS)
            async with asyncio.timeout(PATIENCE_S):
                while not at.runs:
                    await asyncio.sleep(0.02)
            full = at.runs[0][0]
            for number in range(8):  # one after the other, so that the other worker has its slot free
                await at.submit(1, claim="rendezvous", claim_timeout="1h")
                await at.done(number + 1)
            assert {node for node, _ in at.runs[1:]} == {place.id for place in at.places} - {full}

    asyncio.run(test())
