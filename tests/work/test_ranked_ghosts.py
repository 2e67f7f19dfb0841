"""Workers that are killed, and come back as nodes of another name, leave names behind. No job is left to one of them
for longer than a name lasts.
"""

import asyncio
from pathlib import Path

import pytest

from hocket.work.members import EXPIRY_MS
from tests.work.fleet import SLOW_MS, fleet, places

pytestmark = pytest.mark.slow

JOBS = 12


@pytest.mark.req("GR-06")
@pytest.mark.parametrize(
    "restarts", [3, pytest.param(100, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])], ids=str
)
def test_names_of_killed_workers_win_nothing_after_they_have_expired(tmp_path: Path, restarts: int) -> None:
    async def test() -> None:
        async with fleet(tmp_path, 2) as at:
            made: dict[str, set[str]] = {}
            ghosts: set[str] = set()
            known = 0
            for number in range(restarts):
                ghost = next(iter(at.homes))
                ghosts.add(ghost)
                at.kill(ghost)
                del at.homes[ghost]
                (probe,) = await at.submit(1, not_before="+1h")
                known += ghost in places(at.explained(probe))
                node = await at.add(f"again{number}")
                (job,) = await at.submit(1, lease="5s")
                made[job] = {*ghosts}
                async with asyncio.timeout(60):
                    while node not in places(at.explained(job)):
                        await asyncio.sleep(0.02)
            assert known, "each name had expired before the job was there, which shows nothing"
            for told in await at.finished([*made]):
                assert told.holder not in made[told.job_id]
                (wait_ms,) = [each.after_ms for each in told.tried if each.result.startswith("accepted")][-1:]
                assert wait_ms <= EXPIRY_MS + SLOW_MS
            await at.candidates(*at.homes)
            for told in await at.finished(await at.submit(JOBS)):
                assert told.holder in at.homes and {*places(told)} == at.homes.keys()

    asyncio.run(test())
