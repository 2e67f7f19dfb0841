"""Ranked jobs whose candidates are odd: none at all, or two machines that say they are the same node."""

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.mesh.world import until
from tests.work.fleet import PATIENCE_S, Fleet, fleet

pytestmark = pytest.mark.slow

JOBS = 8


async def work_is_done(at: Fleet) -> set[str | None]:
    """Gives the nodes that did it."""
    made = await at.submit(JOBS, lease="3s")
    told = await at.finished(made)
    assert {at.completions(each) for each in made} == {1}
    return {each.holder for each in told}


@pytest.mark.req("GR-06")
@pytest.mark.touches("GR-10")
def test_jobs_without_a_candidate_wait_for_the_first_worker_that_comes(tmp_path: Path) -> None:
    async def test() -> None:
        async with fleet(tmp_path, 0) as at:
            made = await at.submit(JOBS)
            for each in map(at.explained, made):
                assert (each.state, each.ranking, each.tried) == ("pending", [], [])
            node = await at.add("late")
            assert {each.holder for each in await at.finished(made)} == {node}
            assert {at.completions(each) for each in made} == {1}

    asyncio.run(test())


@pytest.mark.touches("GR-06", "GR-10")
def test_jobs_are_completed_once_while_two_machines_have_the_same_identity(tmp_path: Path) -> None:
    """A machine is copied with its key, and both copies work. Their ops do not count once the others have noticed."""

    async def test() -> None:
        async with fleet(tmp_path, 2) as at:
            (node, home), (other, _) = at.homes.items()
            at.kill(node)
            copy = shutil.copytree(home, tmp_path / "copy", ignore=shutil.ignore_patterns("processes"))
            at.start(node)
            at.homes[node] = copy
            at.start(node)
            output = tmp_path / f"out-{node}"
            await until(lambda: output.read_text().count("is connected") == 3, "both copies at work")
            said = tmp_path / f"out-{other}"
            async with asyncio.timeout(PATIENCE_S):
                while "has two histories" not in said.read_text():
                    await work_is_done(at)
            assert await work_is_done(at) == {other}

    asyncio.run(test())
