"""A worker whose database fails tries again by the one formula, on virtual time."""

import asyncio
from itertools import pairwise

import pytest

from hocket.errors import StoreError
from hocket.kernel.retrying import STORE_RETRIES
from tests.work.test_offers import Mesh, Work, now, until, virtually


@pytest.mark.req("VX-15")
@virtually
async def test_a_database_that_fails_is_tried_after_twice_as_long_each_time() -> None:
    work = Work()
    mesh = Mesh([work.type])
    await asyncio.sleep(1)
    plain, tries = mesh.line.run, list[float]()

    async def broken(request: object) -> None:
        tries.append(now())
        raise StoreError("the disk is full")

    mesh.line.run = broken  # type: ignore[method-assign, assignment]
    mesh.home.submit("w.job")
    await until(lambda: len(tries) == 12)
    gaps = [later - earlier for earlier, later in pairwise(tries)]
    for number, gap in enumerate(gaps):
        base_s = min(STORE_RETRIES.base_s * 2**number, STORE_RETRIES.cap_s / 2)
        assert base_s <= gap <= 2 * base_s + 0.1 <= 30.0, gaps
    assert len({round(gap, 6) for gap in gaps[-4:]}) == 4, "there is no jitter"
    mesh.line.run = plain  # type: ignore[method-assign]
    await until(lambda: work.ended)
    await mesh.stop()
