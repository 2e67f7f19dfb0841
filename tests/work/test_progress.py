"""Progress notes: presence while the job runs, and on the log once a minute at most."""

import asyncio
from typing import Any

import pytest

from hocket.extensions.sim.environment import Clocks
from hocket.families.jobs import claiming, view
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.progress import LOGGED_S, STORED_S
from hocket.families.jobs.requests import Held
from hocket.kernel.ids import ulid_text
from hocket.kernel.vocabulary import DesignateCoordinator
from hocket.work.context import Context
from hocket.work.handlers import JobType
from tests.work.test_beats import ELSEWHERE, HERE, HOUR_MS, Cluster
from tests.work.test_offers import Home, Work, until, virtually

REPORTS = 1_000


class Reporter(Work):
    """A handler that reports `reports` times in `seconds`, then waits until the test lets it go."""

    def __init__(self, seconds: float, reports: int = REPORTS) -> None:
        super().__init__()
        self.go_on, self.has_reported = asyncio.Event(), asyncio.Event()

        async def work(ctx: Context) -> None:
            self.began.append(0.0)
            for number in range(1, reports + 1):
                ctx.progress({"done": number})
                await asyncio.sleep(seconds / reports)
            self.has_reported.set()
            await self.go_on.wait()

        self.type = JobType("w.job", function=work, lease_ms=HOUR_MS)


def shown(home: Home, job_id: bytes) -> Any:
    with home.store.read() as session:
        return view.brief(session, view.find(session, ulid_text(job_id)))["progress"]


def reported(home: Home, job_id: bytes) -> int:
    return [name for name, _ in home.ops(job_id)].count("ReportProgress")


@virtually
async def test_a_thousand_reports_within_a_minute_leave_one_op_at_most() -> None:
    async with Cluster() as cluster:
        work = Reporter(LOGGED_S - 1.0)
        cluster.start(HERE, work)
        job_id = cluster.home.submit("w.job")
        await until(lambda: work.has_reported.is_set(), 2 * LOGGED_S)
        await until(lambda: shown(cluster.home, job_id) == {"done": REPORTS})
        assert reported(cluster.home, job_id) <= 1


@virtually
async def test_the_log_gets_the_newest_note_once_a_minute() -> None:
    async with Cluster() as cluster:
        work = Reporter(10 * LOGGED_S)
        cluster.start(HERE, work)
        job_id = cluster.home.submit("w.job")
        await until(lambda: work.has_reported.is_set(), 20 * LOGGED_S)
        assert 8 <= reported(cluster.home, job_id) <= 10
        await asyncio.sleep(2 * LOGGED_S)
        assert cluster.home.job(job_id).progress == b'{"done":1000}'  # although no further note has come
        assert reported(cluster.home, job_id) <= 11
        work.go_on.set()
        await until(lambda: cluster.home.job(job_id).outcome is not None)
        assert shown(cluster.home, job_id) == {"done": REPORTS}


@virtually
async def test_a_note_is_shown_at_once_and_a_new_one_within_a_second() -> None:
    async with Cluster() as cluster:
        work = Reporter(10.0, 10)
        cluster.start(HERE, work)
        job_id = cluster.home.submit("w.job")
        await until(lambda: work.began)
        await asyncio.sleep(STORED_S)
        assert shown(cluster.home, job_id) == {"done": 1}
        await asyncio.sleep(1.0 + STORED_S)
        assert shown(cluster.home, job_id) in ({"done": 2}, {"done": 3})


@virtually
async def test_the_progress_of_a_dead_worker_ends_with_its_lease() -> None:
    async with Cluster() as cluster:
        first, second = Reporter(1.0, 1), Work(seconds=HOUR_MS)
        host = cluster.start(HERE, first)
        job_id = cluster.home.submit("w.job")
        await until(lambda: shown(cluster.home, job_id) == {"done": 1})
        await host.crash()
        assert shown(cluster.home, job_id) == {"done": 1}
        cluster.start(ELSEWHERE, second)
        await until(lambda: cluster.home.job(job_id).fence == 2)
        assert shown(cluster.home, job_id) is None


@virtually
async def test_a_note_of_an_earlier_run_is_forgotten() -> None:
    async with Cluster() as cluster:
        work = Reporter(1.0, 1)
        cluster.start(HERE, work)
        first = cluster.home.submit("w.job")
        await until(lambda: shown(cluster.home, first) == {"done": 1})
        work.go_on.set()
        await until(lambda: cluster.home.job(first).outcome is not None)
        assert shown(cluster.home, first) is None
        work.go_on.clear()
        second = cluster.home.submit("w.job")
        await until(lambda: shown(cluster.home, second) == {"done": 1})
        rows = cluster.home.store._writer.execute("SELECT job FROM progress").fetchall()
        assert rows == [(second,)]


@pytest.mark.touches("LW-41")
@virtually
async def test_notes_that_an_older_program_put_on_the_log_are_read() -> None:
    home = Home(1, Clocks(1.0, 0.0))
    home.log.run(lambda tx: tx.author(DesignateCoordinator(tx.node)))
    job_id = home.submit("w.job")
    home.log.run(lambda tx: claiming.claim(tx, 1, 1, {"w.job": HOUR_MS}.get))
    held = Held(job_id, home.job(job_id).claim_op or b"")
    for number in range(3):
        home.log.run(lambda tx, number=number: jobs.report(tx, held, b"%d" % number))
    assert shown(home, job_id) == 2 and reported(home, job_id) == 3
