"""Under a bus that drops, repeats and reorders: no job is lost, and nobody waits for ever. The workers and handles are
the real ones. On virtual time the looks behind the hints cost nothing, so that many runs can be made.
"""

import asyncio
import random
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from hocket.bus.hints import ANYTHING, Changes
from hocket.bus.memory import MemoryBus
from hocket.extensions import sim
from hocket.extensions.sim.loop import run as run_virtually
from hocket.extensions.sim.node import Clocks, SimEnvironment, SimHost, _SimRuntime
from hocket.families.jobs.drafts import policy
from hocket.kernel.ids import content_hash
from hocket.kernel.keys import SigningKey, did_key
from hocket.kernel.ucan import ROOT, issue
from hocket.kernel.vocabulary import DelegateUcan
from hocket.log import Log, Transaction
from hocket.log.machine_clock import SteadyWall
from hocket.node.handles import JobCancelled, JobFailed
from hocket.node.node import Node
from hocket.node.process_loop import INLINE
from hocket.store import MEMORY, Place
from hocket.store import open as open_store
from hocket.work.context import Context
from hocket.work.environment import WorkerOptions
from hocket.work.handlers import Handlers, JobType
from hocket.work.worker import Worker
from tests.work.mesh import Mesh, mesh_in

pytestmark = pytest.mark.touches("LW-18")

T = TypeVar("T")

USER = SigningKey(bytes(31) + b"u")
# On virtual time. Whoever waits in vain waits this long.
PATIENCE_S = 600.0
FOREVER_S = 100_000.0


class Lossy(MemoryBus):
    """Of all messages it drops a share; the others it tells once or more, at once or later, in any order."""

    def __init__(self, seed: int, dropped: float) -> None:
        super().__init__()
        self._chance, self._dropped = random.Random(seed), dropped
        self._kept: list[Changes] = []
        self.lost = self.told = 0

    def publish(self, changes: Changes) -> None:
        if self._chance.random() < self._dropped:
            self.lost += 1
        else:
            self._kept += [changes] * self._chance.randint(1, 3)
        self._chance.shuffle(self._kept)
        for _ in range(self._chance.randint(0, len(self._kept))):
            self.told += 1
            super().publish(self._kept.pop())


class SmallNode:
    """One node on virtual time, with that bus."""

    def __init__(self, bus: MemoryBus) -> None:
        chance, clocks = random.Random(1), Clocks(1.0, 0.0)
        self.environment = SimEnvironment(clocks, chance, SimHost(Place()))
        self.environment.bus = bus
        self.key = SigningKey(chance.randbytes(32))
        log = Log(
            open_store(MEMORY),
            self.key,
            did_key(USER.public),
            wall=SteadyWall(clocks.day, clocks.monotonic),
            physical=self.environment.physical_ms,
            randomness=chance.randbytes,
            bus=bus,
        )
        log.run(self._introduce)
        self.node = Node(_SimRuntime(log), INLINE, environment=self.environment)

    def _introduce(self, tx: Transaction) -> None:
        token = issue(USER, self.key.public, ROOT, tx.now // 1000, None)
        tx.author(DelegateUcan(content_hash(token), token))

    def worker(self, *types: JobType, concurrency: int = 2) -> Worker:
        return Worker(self.node, self.environment, WorkerOptions(Handlers(types), concurrency))


class Work:
    def __init__(self) -> None:
        self.stopped: list[str] = []
        self.began = asyncio.Event()
        self.quick = JobType("w.quick", function=self._quick)
        self.other = JobType("x.other", function=self._quick)
        self.failing = JobType("w.failing", function=self._failing, retries=2)
        # A lease so long that no renewal shows in time that the job was called off.
        self.long = JobType("w.long", function=self._long, lease_ms=86_400_000)

    async def _quick(self, ctx: Context, n: int) -> int:
        await asyncio.sleep(0.1)
        return n

    async def _failing(self, ctx: Context) -> None:
        raise ValueError("always")

    async def _long(self, ctx: Context) -> None:
        self.began.set()
        try:
            await asyncio.sleep(FOREVER_S)
        except asyncio.CancelledError:
            self.stopped.append(ctx.job_id)
            raise


async def life(bus: MemoryBus) -> None:
    place, work = SmallNode(bus), Work()
    node = place.node
    workers = [place.worker(work.quick, work.failing, work.long), place.worker(work.other)]
    running = [asyncio.create_task(each.run()) for each in workers]
    limited = JobType("x.other", function=None, policy=policy(work.other.policy, concurrency=1))
    long = await node.submit(work.long)
    quick = [await node.submit(work.quick if n % 2 else limited, n=n) for n in range(12)]
    late = JobType("w.quick", function=None, policy=policy(work.quick.policy, after=quick[4]))
    then = await node.submit(late, n=99)
    failing = await node.submit(work.failing)
    seen = [event["type"] async for event in quick[0].events()]
    assert seen[0] == "ScheduleJob" and seen[-1] == "CompleteJob"
    waiting = [asyncio.create_task(each.result(PATIENCE_S)) for each in (*quick, then)]
    assert await asyncio.gather(*waiting) == [*range(12), 99]
    with pytest.raises(JobFailed):
        await failing.result(PATIENCE_S)
    await work.began.wait()
    await long.cancel()
    with pytest.raises(JobCancelled):
        await long.result(PATIENCE_S)
    async with asyncio.timeout(PATIENCE_S):
        while not work.stopped:
            await asyncio.sleep(0.1)
    assert work.stopped == [long.job_id]
    for each in workers:
        each.stop()
    await asyncio.gather(*running)
    await node.finish()


def virtually(test: Coroutine[Any, Any, T]) -> T:
    """Not from the beginning of time: a monotonic clock shows zero only in theory."""

    async def later() -> T:
        await asyncio.sleep(1)
        return await test

    return run_virtually(later())


@pytest.mark.parametrize("dropped", [0.0, 0.3, 0.9])
def test_everything_ends_whatever_the_bus_does(dropped: float) -> None:
    for seed in range(20):
        bus = Lossy(seed, dropped)
        virtually(life(bus))
        assert bus.told and (bus.lost or not dropped)


def test_everything_ends_without_a_single_hint() -> None:
    bus = Lossy(1, 1.0)
    virtually(life(bus))
    assert bus.lost and not bus.told


def test_hints_are_what_makes_it_quick() -> None:
    """One job after the other, on a bus that carries everything and on one that carries nothing, in virtual seconds."""

    async def timed(bus: MemoryBus) -> float:
        place, work = SmallNode(bus), Work()
        worker = place.worker(work.quick)
        running = asyncio.create_task(worker.run())
        begun = asyncio.get_running_loop().time()
        for n in range(10):
            assert await (await place.node.submit(work.quick, n=n)).result(PATIENCE_S) == n
        took = asyncio.get_running_loop().time() - begun
        worker.stop()
        await running
        await place.node.finish()
        return took

    assert virtually(timed(MemoryBus())) < virtually(timed(Lossy(1, 1.0))) / 5


@pytest.mark.req("LW-40")
@pytest.mark.parametrize("seed", range(3))
def test_a_mesh_breaks_no_rule_on_such_a_bus(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    buses: list[Lossy] = []

    def lossy() -> Lossy:
        buses.append(Lossy(seed * 1_000 + len(buses), 0.5))
        return buses[-1]

    monkeypatch.setattr("hocket.extensions.sim.node.MemoryBus", lossy)
    report = sim.run(seed, nodes=3, minutes=0.7, jobs=12)
    assert not report.violations, report
    assert report.settled_s is not None
    assert any(bus.lost for bus in buses) and any(bus.told for bus in buses)


# Real processes, between which every hint of the submitter is lost.


@pytest.fixture
def mesh(tmp_path: Path) -> Any:
    with mesh_in(tmp_path) as made:
        yield made


def test_a_worker_finds_what_nobody_told_it_of(mesh: Mesh) -> None:
    mesh.runtime.log._bus = MemoryBus()
    mesh.worker(constants={"CHECK_S": 0.2}).up()
    handle = mesh.node.submit("step.rest", n=1)
    assert handle.result(60) == 1
    running = mesh.node.submit("step.watch")
    mesh.wait_journal("start", 2)
    running.cancel()
    mesh.wait_journal("flag")
    with pytest.raises(JobCancelled):
        running.result(60)


# What hints spare.


def test_a_worker_is_woken_for_its_kinds_alone() -> None:
    async def test() -> None:
        place, work = SmallNode(MemoryBus()), Work()
        quick, other = place.worker(work.quick), place.worker(work.other)
        heard: dict[str, list[Changes]] = {"quick": [], "other": []}
        quick._hinted, other._hinted = heard["quick"].append, heard["other"].append  # type: ignore[method-assign]
        running = [asyncio.create_task(each.run()) for each in (quick, other)]
        await asyncio.sleep(0.05)
        for n in range(5):
            await place.node.submit(work.quick, n=n)
            await asyncio.sleep(0.001)
        # A job that the worker claims in the transaction that submits it needs no hint.
        assert 1 <= len(heard["quick"]) <= 5
        assert heard["other"] == []
        place.environment.bus.publish(ANYTHING)
        await asyncio.sleep(0.001)
        assert heard["other"] == [ANYTHING]
        for each in (quick, other):
            each.stop()
        await asyncio.gather(*running)
        await place.node.finish()

    virtually(test())


def test_a_handle_looks_when_its_job_changes_and_not_when_others_do() -> None:
    async def test() -> None:
        place, work = SmallNode(MemoryBus()), Work()
        node, looks = place.node, 0
        mine = await node.submit(work.quick, n=1)
        read = node.read

        async def counted(query: Any) -> Any:
            nonlocal looks
            looks += 1
            return await read(query)

        node.read = counted  # type: ignore[method-assign]
        waiting = asyncio.create_task(mine.result(PATIENCE_S))
        await asyncio.sleep(0.01)
        before = looks
        for n in range(20):
            await node.submit(work.other, n=n)
        await asyncio.sleep(0.01)
        # The first look folds the job, which is a change of it.
        assert (before, looks) == (2, 2)
        worker = place.worker(work.quick)
        running = asyncio.create_task(worker.run())
        assert await waiting == 1
        assert looks > before
        worker.stop()
        await running
        await node.finish()

    virtually(test())


def test_a_worker_checks_its_runs_when_one_of_them_is_called_off_and_not_for_others() -> None:
    async def test() -> None:
        place, work = SmallNode(MemoryBus()), Work()
        others = JobType("x.long", function=work._long)
        workers = [place.worker(work.long), place.worker(others)]
        running = [asyncio.create_task(each.run()) for each in workers]
        mine, another = await place.node.submit(work.long), await place.node.submit(others)
        await asyncio.sleep(1)
        await another.cancel()
        await place.node.submit(work.long)
        await asyncio.sleep(0.1)
        assert [each._lost_at > 0 for each in workers] == [False, True]
        assert work.stopped == [another.job_id]
        await mine.cancel()
        await asyncio.sleep(0.1)
        assert [each._lost_at > 0 for each in workers] == [True, True]
        assert work.stopped == [another.job_id, mine.job_id]
        for each in (*workers, *workers):
            each.stop()
        await asyncio.gather(*running)
        await place.node.finish()

    virtually(test())
