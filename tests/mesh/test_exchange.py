"""Real nodes that exchange over loopback: what one has, the others have, and all of them say the same of it."""

import asyncio
from pathlib import Path

import pytest

from hocket.mesh import peers
from tests.mesh.world import until, world


@pytest.mark.req("LW-28", "LW-32")
def test_two_nodes_converge(tmp_path: Path):
    async def run() -> None:
        async with world(tmp_path, "a", "b") as (a, b):
            a.submit(30)
            b.submit(20)
            b.befriend(a.address)
            done = await b.exchanges.visit(a.address)
            assert (done.state, done.detail) == (peers.OK, "")
            assert done.node == a.id
            assert a.ids() == b.ids()
            assert a.digest() == b.digest()
            again = await b.exchanges.visit(a.address)
            assert (again.pulled, again.pushed, again.refused) == (0, 0, 0)

    asyncio.run(run())


@pytest.mark.req("LW-28", "LW-32")
def test_three_nodes_converge_over_one_of_them(tmp_path: Path):
    async def run() -> None:
        async with world(tmp_path, "a", "b", "c") as (a, b, c):
            for place in (a, b, c):
                place.submit(15)
            for place in (b, c):
                place.befriend(a.address)
            for place in (b, c, b):
                assert (await place.exchanges.visit(a.address)).state == peers.OK
            assert a.ids() == b.ids() == c.ids()
            assert a.digest() == b.digest() == c.digest()

    asyncio.run(run())


@pytest.mark.req("LW-40")
def test_a_change_reaches_the_others_within_a_second(tmp_path: Path):
    async def run() -> None:
        async with world(tmp_path, "a", "b", "c") as (a, b, c):
            for place in (b, c):
                place.befriend(a.address)
                place.keep_in_touch()
            await until(lambda: a.ids() == b.ids() == c.ids(), "the first exchange")
            for author in (a, b, c):
                author.submit(1)
                async with asyncio.timeout(1.0):
                    await until(lambda: a.ids() == b.ids() == c.ids())
            assert a.digest() == b.digest() == c.digest()

    asyncio.run(run())
