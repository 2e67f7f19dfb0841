"""How often an idle process wakes, on virtual time: each wake-up costs a part of a core on every machine of a mesh."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from hocket.events import ignore
from hocket.families.locks.processes import LockSweep
from hocket.work import maintenance as sweep
from hocket.work.handler_threads import HandlerWatch
from hocket.work.maintenance import SweepLoop
from tests.work.test_offers import Mesh, Work, until, virtually

IDLE_S = 60
# A little more than once a second.
WAKES_MAX = 80


def counted(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[None]:
    calls: list[None] = []
    real: Callable[..., Any] = getattr(owner, name)

    def call(*arguments: Any) -> Any:
        calls.append(None)
        return real(*arguments)

    monkeypatch.setattr(owner, name, call)
    return calls


def test_an_idle_process_looks_about_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    @virtually
    async def run() -> None:
        watched, swept = counted(monkeypatch, HandlerWatch, "look"), counted(monkeypatch, SweepLoop, "look")
        locks = counted(monkeypatch, LockSweep, "look")
        mesh = Mesh([Work().type])
        tasks = [
            asyncio.create_task(each(mesh.line, mesh.home.environment, ignore).run())  # type: ignore[arg-type]
            for each in (SweepLoop, LockSweep)
        ]
        await asyncio.sleep(IDLE_S)
        for calls in (watched, swept, locks):
            assert IDLE_S / 2 <= len(calls) <= WAKES_MAX
        for task in tasks:
            task.cancel()
        await mesh.stop()

    run()


def test_a_process_whose_node_holds_a_job_looks_four_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    @virtually
    async def run() -> None:
        watched, swept = counted(monkeypatch, HandlerWatch, "look"), counted(monkeypatch, SweepLoop, "look")
        work = Work(seconds=IDLE_S + 10)
        mesh = Mesh([work.type])
        task = asyncio.create_task(SweepLoop(mesh.line, mesh.home.environment, ignore).run())  # type: ignore[arg-type]
        await asyncio.sleep(5)
        mesh.home.submit("w.job")
        await until(lambda: work.began)
        del watched[:], swept[:]
        await asyncio.sleep(IDLE_S)
        assert min(len(watched), len(swept)) >= IDLE_S / sweep.SWEEP_S / 1.3
        task.cancel()
        await mesh.stop()

    run()
