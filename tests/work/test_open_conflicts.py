"""Two workers of two real nodes that run the same open job: the one that claimed later learns of the earlier claim,
stops its run and hands the job back.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hocket.bus.messages import MemoryMessages, MemoryServer
from hocket.events import Event
from hocket.events.jobs import LeaseLost, RunFinished
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.candidates import worker_id
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import parse_ulid, ulid_text
from hocket.kernel.ops import decode
from hocket.kernel.vocabulary import JOB, ClaimWork, CompleteJob, Subject, YieldWork
from hocket.node.message_bus import NodeMessages
from hocket.work.claim_order import HeardClaims
from hocket.work.context import Context
from hocket.work.environment import WorkerOptions
from hocket.work.handlers import Handlers, JobType, kind
from hocket.work.ranked_claims import ClaimMessages
from hocket.work.worker import Worker
from tests.mesh.world import Place, until, world

pytestmark = pytest.mark.touches("GR-10")

KIND = "test.open"


class SlowMessages(MemoryMessages):
    """What is published before `arrive` is called reaches nobody until then."""

    def __init__(self, server: MemoryServer) -> None:
        super().__init__(server)
        self._held: list[tuple[str, bytes, str]] | None = []

    async def publish(self, subject: str, data: bytes, *, reply_to: str = "") -> None:
        if self._held is None:
            await super().publish(subject, data, reply_to=reply_to)
        else:
            self._held.append((subject, data, reply_to))

    async def arrive(self) -> None:
        held, self._held = self._held, None
        for subject, data, reply_to in held or ():
            await super().publish(subject, data, reply_to=reply_to)


class Side:
    """A node with a worker, whose handler runs until it is let go."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.events: list[Event] = []
        self.runs = 0
        self.let_go = asyncio.Event()
        self.messages: SlowMessages | None = None
        self.worker: Worker

    async def work(self, ctx: Context) -> None:
        self.runs += 1
        while not self.let_go.is_set():
            await asyncio.sleep(0.01)

    def lost(self) -> list[str]:
        return [each.reason for each in self.events if isinstance(each, LeaseLost)]

    def ops(self, job_id: bytes, payload: type) -> list[tuple[int, Any]]:
        """The reason and the op of each op about the job of that sort, as this node knows it."""
        with self.place.log.store.read() as session:
            rows = session.ops_about(Subject(JOB, job_id))
        found = [(row.reason, decode(row.body)) for row in rows]
        return [(reason, op) for reason, op in found if isinstance(op.payload, payload)]


@asynccontextmanager
async def two_that_run(directory: Path, with_bus: bool, **options: Any) -> AsyncIterator[tuple[bytes, Side, Side]]:
    """An open job that both nodes have claimed, neither knowing of the other: first the one, then the other."""
    async with AsyncExitStack() as stack:
        places = await stack.enter_async_context(world(directory, "a", "b"))
        sides = [Side(each) for each in places]
        server = MemoryServer()
        draft = kind(KIND, open=True, **options).draft({})
        made = await places[0].node.run(lambda tx: jobs.submit(tx, [draft]))
        places[1].befriend(places[0].address, places[0].id)
        for _ in range(2):
            await places[1].exchanges.exchange(places[0].address)
        for side in sides:
            bus = None
            if with_bus:
                side.messages = SlowMessages(server)
                environment = side.place.node.environment
                bus = await NodeMessages.open(side.place.node, side.messages, side.place.key, environment)
                stack.push_async_callback(bus.close)
            handlers = Handlers([JobType(KIND, function=side.work, lease_ms=30_000)])
            worker = side.worker = Worker(
                side.place.node,
                side.place.node.environment,
                WorkerOptions(handlers, emit=side.events.append, messages=bus),
            )
            task = asyncio.create_task(worker.run())
            stack.push_async_callback(asyncio.wait, [task])
            stack.callback(lambda worker=worker: (worker.stop(), worker.stop()))
            await until(lambda side=side: side.runs)
        yield made[0].job_id, *sides


async def completed_once(job_id: bytes, earlier: Side, later: Side) -> None:
    """The earlier run goes on, and its end is the only one, on both nodes."""
    earlier.let_go.set()
    await until(lambda: any(isinstance(each, RunFinished) for each in earlier.events))
    for _ in range(2):
        await later.place.exchanges.exchange(earlier.place.address)
    for side in (earlier, later):
        assert [(reason, op.node_id) for reason, op in side.ops(job_id, CompleteJob)] == [(0, earlier.place.id)]
    assert earlier.lost() == []
    assert earlier.place.digest() == later.place.digest()


@pytest.mark.req("GR-03")
def test_the_later_of_two_runs_stops_when_the_earlier_claim_is_told(tmp_path: Path) -> None:
    """Nothing goes between the logs meanwhile."""

    async def test() -> None:
        async with two_that_run(tmp_path, True, claim="rendezvous", claim_timeout="1h") as (job_id, earlier, later):
            assert later.messages is not None and earlier.messages is not None
            await later.messages.arrive()
            await earlier.messages.arrive()
            await until(later.lost)
            await until(lambda: later.ops(job_id, YieldWork))
            assert later.lost() == [f"worker {earlier.worker.id} claimed it earlier"]
            assert later.runs == 1, "it is held back from claiming the job again"
            await completed_once(job_id, earlier, later)

    asyncio.run(test())


@pytest.mark.req("GR-03")
@pytest.mark.parametrize("claim", ["first", "rendezvous"])
def test_the_later_of_two_runs_stops_when_the_log_has_the_earlier_claim(tmp_path: Path, claim: str) -> None:
    async def test() -> None:
        async with two_that_run(tmp_path, False, claim=claim) as (job_id, earlier, later):
            await later.place.exchanges.exchange(earlier.place.address)
            await until(later.lost)
            counted = {op.node_id: reason == 0 for reason, op in later.ops(job_id, ClaimWork)}
            assert counted == {earlier.place.id: True, later.place.id: False}
            await completed_once(job_id, earlier, later)

    asyncio.run(test())


@pytest.mark.touches("GR-03", "GR-08")
def test_a_liar_that_dates_its_claims_back_stops_a_run_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with two_that_run(tmp_path, True, claim="rendezvous", claim_timeout="10ms") as (job_id, liar, honest):
            assert liar.messages is not None and honest.messages is not None
            await liar.messages.arrive()
            await until(lambda: honest.runs == 2)
            (_, first), (_, second) = honest.ops(job_id, ClaimWork)
            assert first.timestamp < second.timestamp
            bus = await NodeMessages.open(
                liar.place.node, MemoryMessages(liar.messages._server), liar.place.key, liar.place.node.environment
            )
            worker = worker_id(liar.place.id, "liar")
            lies = ClaimMessages(bus, liar.place.log.user, worker, [], HeardClaims(lambda: 0), lambda: None)
            lying = asyncio.create_task(lies.run())
            with honest.place.log.store.read() as session:
                entry = session.job(job_id)
            assert entry is not None
            lies.tell_claim(entry.job, entry.job.fence - 1, Hlc(second.timestamp.wall - 1_000, 0, liar.place.id))
            heard = honest.worker._ranked._order.heard
            await until(lambda: heard.first(job_id, entry.job.fence - 1))
            assert len(honest.lost()) == 1
            honest.let_go.set()
            await until(lambda: any(isinstance(each, RunFinished) for each in honest.events))
            lying.cancel()
            await asyncio.wait([lying])
            await bus.close()

    asyncio.run(test())


@pytest.mark.touches("GR-02")
def test_a_claim_message_has_the_time_of_the_claim_on_the_log(tmp_path: Path) -> None:
    async def test() -> None:
        async with two_that_run(tmp_path, True, claim="rendezvous", claim_timeout="1h") as (job_id, earlier, later):
            assert earlier.messages is not None
            await earlier.messages.arrive()
            heard = later.worker._ranked._order.heard
            claim = await until(lambda: heard.first(job_id, 0))
            ((_, op),) = earlier.ops(job_id, ClaimWork)
            assert claim == (ulid_text(job_id), earlier.worker.id, op.timestamp)
            assert parse_ulid(claim.job) == job_id

    asyncio.run(test())
