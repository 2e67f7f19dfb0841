"""Ranked jobs while the NATS server fails in every way that it has: it costs time, and no job."""

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.bus.nats_server import NatsServer, two_halves
from tests.work.fleet import Fleet, fleet

pytestmark = pytest.mark.slow

JOBS = 8


async def work_is_done(at: Fleet) -> None:
    made = await at.submit(JOBS)
    await at.finished(made)
    assert {at.completions(each) for each in made} == {1}


@pytest.mark.touches("GR-05", "GR-10")
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"jetstream": False}, id="no JetStream"),
        pytest.param({"space": "1MB"}, id="JetStream full"),
        pytest.param({"configuration": "authorization { user: a, password: b }"}, id="refuses the credentials"),
        pytest.param({"configuration": "max_connections: 1"}, id="full"),
        pytest.param({"configuration": "max_payload: 64"}, id="takes no message"),
    ],
)
def test_jobs_are_completed_once_over_a_server_that_does_not_serve(tmp_path: Path, options: dict[str, Any]) -> None:
    async def test() -> None:
        with NatsServer(tmp_path, **options) as server:
            async with fleet(tmp_path, 2, server=server) as at:
                await work_is_done(at)

    asyncio.run(test())


def come_back_empty(server: NatsServer) -> None:
    server.kill()
    server.lose_data()
    server.start()


@pytest.mark.touches("GR-05", "GR-10")
def test_jobs_are_completed_once_while_the_server_hangs_loses_its_data_and_ends(tmp_path: Path) -> None:
    async def test() -> None:
        async with fleet(tmp_path, 2) as at:
            troubles: list[Callable[[], None]] = [
                at.server.freeze,
                at.server.thaw,
                lambda: come_back_empty(at.server),
                at.server.kill,
            ]
            for trouble in troubles:
                await asyncio.to_thread(trouble)
                await work_is_done(at)

    asyncio.run(test())


@pytest.mark.touches("GR-05", "GR-10")
def test_jobs_are_completed_once_while_two_halves_of_a_cluster_do_not_hear_each_other(tmp_path: Path) -> None:
    async def test() -> None:
        async with two_halves(tmp_path) as (one, two, cable), fleet(tmp_path, 0, server=one) as at:
            at.urls = itertools.cycle([one.url, two.url])
            for number in range(4):
                await at.add(f"half{number}")
            await at.candidates(*at.homes)
            await at.acquainted()
            for change in (cable.cut, cable.join):
                await change()
                made = await at.submit(3 * JOBS)
                told = await at.finished(made)
                assert {at.completions(each) for each in made} == {1}
                assert len({each.holder for each in told}) >= 2, "only one worker had a share"

    asyncio.run(test())
