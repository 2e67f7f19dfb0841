"""A lock whose grant arrives when its time is over is not held, and nothing keeps the lock of a node that is closed."""

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket.errors import StoreAway
from hocket.families.locks.requests import LockClient, LockLost
from tests.waiting import PATIENCE_S


@pytest.mark.req("VX-04")
def test_a_lock_that_is_over_when_the_answer_comes_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = LockClient.acquire

    async def slowly(self: LockClient, *args: Any, **kwargs: Any) -> Any:
        granted = await plain(self, *args, **kwargs)
        await asyncio.sleep(0.3)
        return granted

    async def hold() -> None:
        async with hocket.open(tmp_path / "home") as node:
            async with node.lock("k", agent="one", ttl="100ms"):
                pytest.fail("another agent may hold it by now")

    hocket.init(tmp_path / "home")
    monkeypatch.setattr(LockClient, "acquire", slowly)
    with pytest.raises(LockLost):
        asyncio.run(hold())


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "while it is kept"])
def test_the_lock_of_a_closed_node_is_lost_and_nothing_else_is_reported(tmp_path: Path, at_once: bool) -> None:
    reported: list[dict[str, Any]] = []

    async def hold() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        async with hocket.open(tmp_path / "home") as node:
            lock = node.lock("k", agent="one", ttl="12s")
            held = await lock.__aenter__()
            while lock._keeper is None and not at_once:
                await asyncio.sleep(0.01)
        await asyncio.wait_for(held.lost.wait(), PATIENCE_S)
        del lock
        gc.collect()

    hocket.init(tmp_path / "home")
    asyncio.run(hold())
    assert reported == []


@pytest.mark.req("VX-04")
def test_a_lock_is_renewed_though_the_store_was_away_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hold() -> None:
        async with hocket.open(tmp_path / "home") as node:
            plain, renew = node.peek, LockClient.renew
            away, renewed = asyncio.Event(), asyncio.Event()
            lock = node.lock("k", agent="one", ttl="12s")

            async def away_once(query: Any) -> Any:
                if asyncio.current_task() is lock._keeper and not away.is_set():
                    away.set()
                    raise StoreAway("the database does not answer")
                return await plain(query)

            async def noticed(*args: Any) -> Any:
                hold = await renew(*args)
                renewed.set()
                return hold

            async with lock as held:
                monkeypatch.setattr(node, "peek", away_once)
                monkeypatch.setattr(LockClient, "renew", noticed)
                await asyncio.wait_for(renewed.wait(), PATIENCE_S)
                assert away.is_set() and not held.lost.is_set()

    hocket.init(tmp_path / "home")
    asyncio.run(hold())
