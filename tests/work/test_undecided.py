"""What a node says about offers on which the arbiter has not decided: how many there are now, and once."""

import asyncio

import pytest

from hocket.events.jobs import JobsReclaimed
from hocket.families.jobs import claiming
from hocket.kernel.arbitration import Reason
from hocket.work.maintenance import SweepLoop
from tests.work.test_offers import Mesh, Work, until, virtually


def open_offers(mesh: Mesh) -> int:
    with mesh.home.store.read() as session:
        return session.open_offers(Reason.OFFERED)


@pytest.mark.req("LW-39")
@virtually
async def test_only_offers_that_are_open_now_are_counted() -> None:
    work = Work(seconds=5, lease_ms=3_000)
    mesh = Mesh([work.type])
    for _ in range(3):
        mesh.home.submit("w.job")
    await until(lambda: len(work.ended) == 3)
    await mesh.stop()
    assert open_offers(mesh) == 0
    job_id = mesh.home.submit("w.job")
    mesh.home.log.run(lambda tx: claiming.claim(tx, 1, 1, lambda kind: 1_000, offering=True))
    assert open_offers(mesh) == 1
    mesh.exchange()
    assert open_offers(mesh) == 0 and mesh.home.job(job_id).claimer == mesh.home.log.node


@pytest.mark.req("VX-02")
@virtually
async def test_jobs_of_a_dead_worker_are_reported_once_while_the_arbiter_is_away() -> None:
    work = Work(seconds=600, lease_ms=600_000)
    mesh = Mesh([work.type])
    for _ in range(4):
        mesh.home.submit("w.job")
    await until(lambda: len(work.began) == 4)
    mesh.line.is_cut = True
    with mesh.home.store.write() as session:
        session.drop_worker(mesh.worker._number)
    # Cancelled once, a worker hands its jobs back; cancelled twice, it leaves them as if it were dead.
    mesh.running.cancel()
    await asyncio.sleep(0)
    mesh.running.cancel()
    await asyncio.wait([mesh.running])
    said: list[object] = []
    sweep = SweepLoop(mesh.line, mesh.home.environment, said.append)  # type: ignore[arg-type]
    for _ in range(20):
        await sweep.look()
    assert [each for each in said if isinstance(each, JobsReclaimed)] == [JobsReclaimed(4)]
