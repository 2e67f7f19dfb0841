"""Worker processes on nodes of their own, with a real NATS server between them. One is killed: those behind it take its
jobs by their rank.
"""

import asyncio
from pathlib import Path

import pytest

from hocket.families.availability.facts import Availability
from hocket.families.availability.requests import set_availability
from tests.mesh.world import until
from tests.work.fleet import fleet, places

NODES = 3
JOBS = 12
# So many that a worker ranks first for one of them.
LOST_JOBS = 48
# Longer than a worker on a busy machine takes to claim.
CLAIM_TIMEOUT = "5s"


@pytest.mark.req("GR-07", "GR-10")
def test_the_next_in_rank_takes_the_jobs_of_a_killed_worker(tmp_path: Path) -> None:
    async def test() -> None:
        # A worker with a free slot for every job passes none on.
        async with fleet(tmp_path, NODES, concurrency=LOST_JOBS) as at:

            async def each_gets_its_own() -> bool:
                told = await at.finished(await at.submit(JOBS, claim_timeout="60s"))
                return all(each.holder == places(each)[0] for each in told)

            # As soon as each worker counts the others, its own jobs come to each without a takeover.
            await until(each_gets_its_own, "jobs for the first in rank")
            victim = next(iter(at.processes))
            at.kill(victim)
            made = await at.submit(LOST_JOBS, claim_timeout=CLAIM_TIMEOUT)
            ranked = [places(at.explained(each)) for each in made]  # while the dead one still counts
            told = await at.finished(made)
            assert all(len(each) == NODES for each in ranked)
            lost = [place for place, each in enumerate(ranked) if each[0] == victim]
            assert lost, "the dead worker ranked first for none of the jobs"
            for place, (order, one) in enumerate(zip(ranked, told, strict=True)):
                alive = [each for each in order if each != victim]
                assert one.holder == alive[0], (order, one)
                if place in lost:
                    accepted = [each for each in one.tried if each.result.startswith("accepted")]
                    assert [each.node for each in accepted] == [order[1]]
                    assert accepted[0].after_ms >= one.claim_timeout_ms

    asyncio.run(test())


@pytest.mark.req("GR-06")
def test_a_worker_that_is_restarted_is_another_one_and_a_drained_node_has_none(tmp_path: Path) -> None:
    async def test() -> None:
        async with fleet(tmp_path, 2) as at:
            one, two = at.homes
            (job,) = await at.submit(1, not_before="+1h")
            before = {each.worker for each in at.explained(job).ranking}
            at.kill(one)
            at.start(one)

            def ids() -> set[str]:
                return {each.worker for each in at.explained(job).ranking}

            # The ghost is gone when its node speaks again.
            await until(
                lambda: len(ids()) == 2 and len(ids() & before) == 1 and {each[:16] for each in ids()} == {one, two}
            )
            node = int(two, 16)
            at.owner.log.run(lambda tx: set_availability(tx, node, Availability.DRAINING, ""))
            await at.candidates(one)
            for told in await at.finished(await at.submit(4)):
                assert told.holder == one

    asyncio.run(test())
