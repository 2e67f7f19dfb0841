"""Workers of ranked jobs that are killed and replaced all the time, and a NATS server that restarts."""

import asyncio
import random
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from tests.work.fleet import SLOW_MS, Fleet, fleet

pytestmark = pytest.mark.slow

ROUND_S = 10
LEASE_MS = 10_000
RUN_MS = 300
# The jobs of each second.
JOBS = 4


def killed_at_once(workers: int) -> int:
    return -(-workers // 3)


async def submitting(at: Fleet, seconds: int) -> list[str]:
    made = []
    for _ in range(seconds):
        made += await at.submit(JOBS, RUN_MS, lease=f"{LEASE_MS}ms")
        await asyncio.sleep(1)
    return made


async def disturbing(at: Fleet, seconds: int, chance: random.Random) -> None:
    """Kills and replaces a third of the workers in each round, and restarts the server in two of them."""
    rounds = seconds // ROUND_S
    for number in range(rounds):
        workers = [node for node, processes in at.processes.items() for _ in processes]
        for node in chance.sample(workers, killed_at_once(len(workers))):
            at.kill(node)
            at.start(node)
        if number in (0, rounds - 1):
            await asyncio.to_thread(at.server.kill if number else at.server.stop)
            await asyncio.sleep(1)
            await asyncio.to_thread(at.server.start)
        await asyncio.sleep(ROUND_S)


@pytest.mark.req("GR-07", "GR-10")
@pytest.mark.touches("GR-05", "GR-06")
@pytest.mark.parametrize(
    ("nodes", "workers", "seconds"),
    [(3, 2, 12), pytest.param(5, 4, 120, marks=[pytest.mark.soak, pytest.mark.timeout(1200)])],
)
def test_every_job_is_completed_once_while_workers_are_killed_and_the_server_restarts(
    tmp_path: Path, nodes: int, workers: int, seconds: int
) -> None:
    async def test() -> None:
        async with fleet(tmp_path, nodes, workers) as at:
            submitted = asyncio.create_task(submitting(at, seconds))
            await disturbing(at, seconds, random.Random(seconds))
            told = await at.finished(await submitted)
            assert len(told) == JOBS * seconds
            assert {at.completions(each.job_id) for each in told} == {1}
            # Ranks are those of the living and of the killed ones that still count.
            ranks = nodes * workers + killed_at_once(nodes * workers)
            for each in told:
                (wait_ms,) = [one.after_ms for one in each.tried if one.result.startswith("accepted")][-1:]
                assert wait_ms <= ranks * each.claim_timeout_ms + LEASE_MS + SLOW_MS, each
            starts = [msgspec.json.decode(line) for line in at.journal.read_bytes().splitlines() if b'"start"' in line]
            runs = Counter((line["job"], line["fence"]) for line in starts)
            assert set(runs.values()) == {1}, "two processes ran a job under one fence"
            assert {job for job, _ in runs} == {each.job_id for each in told}

    asyncio.run(test())
