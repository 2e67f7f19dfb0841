"""Background work that fails is told and started again."""

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest

from hocket.events import sentences
from hocket.kernel.retrying import RetryPolicy
from hocket.work import environment as environment_module
from hocket.work.environment import supervised


def environment() -> Any:
    return SimpleNamespace(chance=random.Random(1), monotonic=lambda: asyncio.get_running_loop().time())


def test_work_that_fails_is_told_and_started_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(environment_module, "TASK_RETRIES", RetryPolicy(0.005))
    notices: list[str] = []
    runs = 0

    async def work() -> str:
        nonlocal runs
        runs += 1
        if runs < 4:
            raise ValueError(f"run {runs}")
        return "done"

    async def test() -> None:
        async with asyncio.timeout(20):
            assert await supervised("the sync loop", work, sentences(notices.append), environment()) == "done"

    asyncio.run(test())
    assert runs == 4
    assert [notice.split(";")[0] for notice in notices] == [
        f"the sync loop failed (ValueError: run {n})" for n in (1, 2, 3)
    ]


def test_the_rest_grows_while_the_errors_go_on(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(environment_module, "TASK_RETRIES", RetryPolicy(0.001, 0.02))
    rests: list[float] = []
    sleep = asyncio.sleep

    async def rest(seconds: float) -> None:
        rests.append(seconds)
        await sleep(0)

    async def work() -> None:
        if len(rests) < 8:
            raise OSError

    monkeypatch.setattr(environment_module.asyncio, "sleep", rest)
    asyncio.run(supervised("it", work, lambda text: None, environment()))
    assert rests[0] <= 0.002 and max(rests) <= 0.02
    assert all(seconds >= 0.005 for seconds in rests[4:])


def test_cancelling_the_supervisor_cancels_the_work():
    ended = False

    async def work() -> None:
        nonlocal ended
        try:
            await asyncio.Event().wait()
        finally:
            ended = True

    async def test() -> None:
        task = asyncio.create_task(supervised("it", work, lambda text: None, environment()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task], timeout=5)
        assert task.cancelled()

    asyncio.run(test())
    assert ended
