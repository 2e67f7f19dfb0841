"""Beats on virtual time: how often a worker renews its row, and when workers on other hosts find it dead. The workers
and the log are real; each worker has a simulated host of its own, and all share one store.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from hocket.extensions.sim.environment import Clocks, SimEnvironment, SimHost
from hocket.families.jobs import requests as jobs
from hocket.families.liveness import BEAT_S, SILENT_S
from hocket.kernel.vocabulary import DesignateCoordinator
from hocket.log import Transaction
from hocket.store import Place
from hocket.work.environment import WorkerOptions
from hocket.work.handlers import Handlers
from hocket.work.maintenance import SweepLoop
from hocket.work.worker import Worker
from tests.work.test_offers import Home, Line, Work, now, until, virtually

HOUR_MS = 3_600_000
HERE = Place("machine", "start", "namespace", "directory")
ELSEWHERE = Place("another machine", "its start", "its namespace", "directory")


class Host(Line):
    """A host with one worker."""

    def __init__(self, home: Home, place: Place, *work: Work, after: "Host | None" = None) -> None:
        super().__init__(home, home)
        self.machine = after.machine if after else SimHost(place)
        self.machine.place = place
        environment = SimEnvironment(Clocks(1.0, 0.0), home.chance, self.machine)
        options = WorkerOptions(Handlers([each.type for each in work]))
        self._is_over = False
        self._running = [
            asyncio.create_task(Worker(self, environment, options).run()),
            asyncio.create_task(SweepLoop(self, environment, lambda text: None).run()),
        ]

    async def run(self, request: Callable[[Any], Any], *, beside: bool = False) -> Any:
        if self._is_over:
            raise asyncio.CancelledError
        return await super().run(request)

    async def crash(self) -> None:
        self.machine.crash()
        self._is_over = True
        for task in self._running:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


class Cluster:
    """One store, and the hosts that share it."""

    def __init__(self) -> None:
        self.home = Home(1, Clocks(1.0, 0.0))
        self.home.log.run(lambda tx: tx.author(DesignateCoordinator(tx.node)))
        self._hosts: list[Host] = []

    def start(self, place: Place, *work: Work, after: Host | None = None) -> Host:
        host = Host(self.home, place, *work, after=after)
        self._hosts.append(host)
        return host

    async def __aenter__(self) -> "Cluster":
        return self

    async def __aexit__(self, *_: object) -> None:
        for host in self._hosts:
            await host.crash()


@pytest.mark.touches("LW-18")
@virtually
async def test_an_idle_worker_writes_once_in_each_beat() -> None:
    async with Cluster() as cluster:
        cluster.start(HERE, Work())
        await asyncio.sleep(BEAT_S / 2)
        writer = cluster.home.store._writer
        before, rounds = writer.total_changes(), 30
        await asyncio.sleep(rounds * BEAT_S)
        assert rounds * 0.75 <= writer.total_changes() - before <= rounds


@pytest.mark.touches("LW-18")
@virtually
async def test_a_busy_worker_beats_too_and_keeps_its_job() -> None:
    """Its slots are full and its lease is long: it has nothing else to write."""
    async with Cluster() as cluster:
        work = Work(seconds=20 * SILENT_S, lease_ms=HOUR_MS)
        cluster.start(HERE, work)
        cluster.start(ELSEWHERE)
        job_id = cluster.home.submit("w.job")
        await until(lambda: work.ended, 30 * SILENT_S)
        await until(lambda: cluster.home.job(job_id).outcome is not None)
        assert work.fences == [1] and cluster.home.job(job_id).returns == 0


@pytest.mark.touches("LW-18")
@virtually
async def test_a_worker_that_was_taken_for_dead_has_a_row_again_before_it_claims() -> None:
    """Otherwise the others would hand back what it claims, every round."""
    async with Cluster() as cluster:
        work = Work(seconds=10.0, lease_ms=HOUR_MS)
        cluster.start(HERE, work)
        cluster.start(ELSEWHERE)
        await asyncio.sleep(1.0)
        with cluster.home.store.write() as session:
            for worker in session.workers():
                session.drop_worker(worker.number)
        cluster.home.submit("w.job")
        await until(lambda: work.ended)
        assert work.fences == [1]


async def second_start(cluster: Cluster, work: Work, first: Host, then: Callable[[], Any]) -> float:
    """How long after a crash the job starts again."""
    cluster.home.submit("w.job")
    await until(lambda: work.began)
    await asyncio.sleep(1.0)
    await first.crash()
    crashed_at = now()
    then()
    await until(lambda: len(work.began) == 2)
    await until(lambda: work.ended)
    assert work.fences == [1, 2]
    return work.began[1] - crashed_at


@pytest.mark.touches("LW-37")
@virtually
async def test_the_job_of_a_crashed_host_comes_back_after_its_silence() -> None:
    async with Cluster() as cluster:
        work = Work(seconds=10.0, lease_ms=HOUR_MS)
        first = cluster.start(HERE, work)
        await asyncio.sleep(1.0)
        took = await second_start(cluster, work, first, lambda: cluster.start(ELSEWHERE, work))
        assert SILENT_S <= took <= SILENT_S + 5


@pytest.mark.touches("LW-37")
@virtually
async def test_the_job_of_a_rebooted_host_comes_back_after_its_silence() -> None:
    async with Cluster() as cluster:
        work = Work(seconds=10.0, lease_ms=HOUR_MS)
        first = cluster.start(HERE, work)
        rebooted = HERE._replace(boot="next start")
        took = await second_start(cluster, work, first, lambda: cluster.start(rebooted, work, after=first))
        assert SILENT_S <= took <= SILENT_S + 5


@pytest.mark.touches("LW-37")
@virtually
async def test_the_job_of_a_crashed_process_comes_back_at_once_on_its_own_host() -> None:
    async with Cluster() as cluster:
        work = Work(seconds=10.0, lease_ms=HOUR_MS)
        first = cluster.start(HERE, work)
        assert await second_start(cluster, work, first, lambda: cluster.start(HERE, work, after=first)) < 5


@pytest.mark.touches("LW-08")
@virtually
async def test_a_renewal_that_fails_is_tried_again_while_the_lease_lasts() -> None:
    real, tries = jobs.renew, []

    def renew(tx: Transaction, held: jobs.Held, lease_ms: int) -> jobs.Result:
        tries.append(asyncio.get_running_loop().time())
        if len(tries) <= 2:  # once in the batch, and once alone
            raise RuntimeError("planted")
        return real(tx, held, lease_ms)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "renew", renew)
        async with Cluster() as cluster:
            work = Work(seconds=30.0, lease_ms=10_000)
            cluster.start(HERE, work)
            job_id = cluster.home.submit("w.job")
            await until(lambda: cluster.home.job(job_id).outcome is not None, 60)
            assert work.fences == [1] and cluster.home.job(job_id).returns == 0
            assert tries[1] < tries[2]
