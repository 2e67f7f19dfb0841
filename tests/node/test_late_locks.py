"""A lock whose grant arrives when its time is over is not held."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket.families.locks.requests import LockClient, LockLost


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
