"""What a process sees to that stays up without working, as a server does: leases, held ops, artifacts."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from hocket.events import sentences
from hocket.families import artifacts
from hocket.families.jobs import claiming
from hocket.families.jobs.cron import NewSchedule, add
from hocket.families.jobs.rules import State
from hocket.kernel.clock import Hlc
from hocket.kernel.ops import NO_ID, bound, encode, link_to, sign
from hocket.kernel.vocabulary import ScheduleJob
from hocket.node.node import Node
from hocket.node.runtime import Runtime
from hocket.work import maintenance
from hocket.work import maintenance as sweep
from hocket.work.handlers import JobType, kind
from hocket.work.run_outputs import contain
from tests.mesh.world import until


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "ROUND_S", 0.02)
    monkeypatch.setattr(maintenance, "SWEEP_S", 0.02)


def kept_up(home: Path, test: Callable[[Node], Awaitable[None]]) -> None:
    async def run() -> None:
        node = Node(Runtime.init(home))
        notices: list[str] = []
        try:
            async with node.kept_up(sentences(notices.append)):
                await test(node)
        finally:
            await node.close()
        assert notices == []

    asyncio.run(run())


@pytest.mark.req("LW-06", "LW-39")
def test_a_lease_that_runs_out_is_ended_by_a_node_that_does_not_work(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        handle = await node.submit("acme.x")
        sign = node.environment.liveness.announce("a worker that lives and does nothing")
        await node.run(sign.beat)
        (claim,) = (await node.run(lambda tx: claiming.claim(tx, sign.row(tx), 1, lambda kind: 30))).taken
        assert claim.job.state is State.CLAIMED

        async def is_pending() -> bool:
            return (await handle.status())["state"] == "pending"

        await until(is_pending)
        sign.close()

    kept_up(tmp_path / "home", test)


@pytest.mark.req("LW-38")
def test_held_ops_are_let_in_when_their_time_has_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(node: Node) -> None:
        log, key = node.log, node.runtime.home.node_key()
        far = Hlc(log.physical() + 400_000, 0, log.node)
        link = link_to(await node.peek(lambda session: session.head().last))
        op = sign(bound(far, (link,), ScheduleJob(NO_ID, "acme.x", b"", b""))[0], key)
        assert (await node.call(lambda: log.admit([(encode(op), op)]))).held == 1
        clock = log.physical
        monkeypatch.setattr(log, "physical", lambda: clock() + 400_000)

        async def is_here() -> bool:
            return await node.peek(lambda session: session.op(op.id)) is not None

        await until(is_here)
        await until(lambda: node.peek(lambda session: session.held() == (0, None)))

    kept_up(tmp_path / "home", test)


def test_artifacts_whose_time_is_over_are_evicted(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        blobs = node.runtime.blobs
        content = contain(blobs, b"gone soon")
        made = await node.run(lambda tx: artifacts.put(tx, blobs, "note", content, 1))

        async def is_evicted() -> bool:
            return await node.peek(lambda session: session.is_evicted(made))

        await until(is_evicted)

    kept_up(tmp_path / "home", test)


def test_a_schedule_ticks_on_a_node_that_does_not_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(node: Node) -> None:
        await node.run(lambda tx: add(tx, NewSchedule("pulse", "* * * * *", "UTC", kind("acme.ping").draft({}))))
        wall = node.log.wall
        monkeypatch.setattr(node.log, "wall", lambda floor: wall(floor) + 61_000)
        monkeypatch.setattr(node.environment, "physical_ms", lambda: node.log.physical() + 61_000)

        async def has_ticked() -> bool:
            return bool(await node.peek(lambda session: session.ready_kinds()))

        await until(has_ticked)

    kept_up(tmp_path / "home", test)


def test_a_process_that_works_sweeps_once_in_each_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[sweep.Sweep] = []
    real = sweep.Sweep.__init__

    def init(self: sweep.Sweep, *arguments: Any) -> None:
        made.append(self)
        real(self, *arguments)

    monkeypatch.setattr(maintenance.Sweep, "__init__", init)

    async def run() -> None:
        node = Node(Runtime.init(tmp_path / "home"))
        try:
            await node.submit("acme.x")
            worker = await node.work([JobType("acme.x", function=lambda ctx: None)], until_idle=True)
            assert worker.succeeded == 1
        finally:
            await node.close()

    asyncio.run(run())
    assert len(made) == 1
