"""Jobs that come after others: `then`, `chain`, `gather`, and what a handler gets: `ctx.results` and `ctx.node`."""

import asyncio
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import hocket
import hocket.testing

PATIENCE_S = 60.0


@hocket.job("chain.number")
def number(n: int) -> int:
    return n


@hocket.job("chain.add")
def add(ctx: hocket.Context, more: int = 0) -> int:
    return sum(ctx.results) + more


@hocket.job("chain.aadd")
async def aadd(ctx: hocket.Context) -> int:
    return sum(ctx.results)


@hocket.job("chain.fail")
def fail() -> None:
    raise LookupError("nothing there")


@hocket.job("chain.parent")
def parent(ctx: hocket.Context[hocket.SyncNode], n: int) -> dict[str, Any]:
    children = [ctx.node.submit(number, each) for each in range(n)]
    total = children[0].then(aadd)
    return {
        "numbers": ctx.node.gather(*children, timeout=PATIENCE_S),
        "chained": ctx.node.chain((number, {"n": 5}), add)[-1].result(PATIENCE_S),
        "first": total.result(PATIENCE_S),
        "state": children[0].status()["state"],
        "count": hocket.admin(ctx.node).count(kind="chain.parent"),
    }


@hocket.job("chain.aparent")
async def aparent(ctx: hocket.Context[hocket.Node], n: int) -> dict[str, Any]:
    children = [await ctx.node.submit(number, each) for each in range(n)]
    total = await children[0].then(aadd)
    return {
        "numbers": await ctx.node.gather(*children, timeout=PATIENCE_S),
        "chained": await (await ctx.node.chain((number, {"n": 5}), add))[-1].result(PATIENCE_S),
        "first": await total.result(PATIENCE_S),
        "state": (await children[0].status())["state"],
        "count": await hocket.admin(ctx.node).count(kind="chain.aparent"),
    }


TYPES = [number, add, aadd, fail, parent, aparent]
FAMILY = {"numbers": [0, 1, 2], "chained": 5, "first": 0, "state": "succeeded", "count": 1}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    hocket.init(tmp_path / "home")
    return tmp_path / "home"


def chained(node: hocket.SyncNode) -> None:
    first, second, third = node.chain((number, {"n": 2}), (add, {"more": 3}), "chain.aadd")
    assert third.result(PATIENCE_S) == 5
    assert (second.status()["after"], third.status()["after"]) == ([first.job_id], [second.job_id])
    fan = [node.submit(number, n) for n in (5, 3, 4)]
    assert node.submit(add.using(after=fan), more=1).result(PATIENCE_S) == 13
    assert node.gather(*fan, timeout=PATIENCE_S) == [5, 3, 4]
    assert node.submit(add.using(after=fan[0])).then(add, more=1).result(PATIENCE_S) == 6
    # A job that has a condition already gets one more.
    assert fan[0].then(add.using(after=fan[1])).result(PATIENCE_S) == 8
    assert node.submit(parent, n=3).result(PATIENCE_S) == FAMILY
    assert node.submit(aparent, n=3).result(PATIENCE_S) == FAMILY


async def achained(node: hocket.Node, already: int = 0) -> None:
    first, second, third = await node.chain((number, {"n": 2}), (add, {"more": 3}), "chain.aadd")
    assert await third.result(PATIENCE_S) == 5
    assert ((await second.status())["after"], (await third.status())["after"]) == ([first.job_id], [second.job_id])
    fan = [await node.submit(number, n) for n in (5, 3, 4)]
    assert await node.gather(*fan, timeout=PATIENCE_S) == [5, 3, 4]
    assert await (await fan[0].then(add.using(after=fan[1]))).result(PATIENCE_S) == 8
    for job in (parent, aparent):
        assert await (await node.submit(job, n=3)).result(PATIENCE_S) == FAMILY | {"count": already + 1}


@pytest.mark.touches("LW-41")
def test_chains_in_memory() -> None:
    with hocket.testing.node() as node:
        chained(node)

    async def main() -> None:
        async with hocket.testing.node() as node:
            await achained(node)

    asyncio.run(main())


@pytest.mark.touches("LW-41")
def test_chains_in_a_home(home: Path) -> None:
    with hocket.open(home) as node, node.working(TYPES):
        chained(node)
        assert node.runtime.verify().findings == []

    async def main() -> None:
        async with hocket.open(home) as node, node.working(TYPES):
            await achained(node, already=1)

    asyncio.run(main())


def test_a_chain_is_all_or_nothing(home: Path) -> None:
    with hocket.open(home) as node:
        with pytest.raises(hocket.Usage, match="missing required field `n`"):
            node.chain((number, {"n": 1}), number)
        assert hocket.admin(node).count() == 0


def test_a_failure_ends_the_chain_and_the_wait() -> None:
    with hocket.testing.node() as node:
        failing = node.submit(fail)
        after = failing.then(number, 1)
        late = node.submit(number.using(not_before="+1h"), 1)
        with pytest.raises(hocket.JobFailed, match="nothing there"):
            node.gather(late, failing)
        with pytest.raises(hocket.JobCancelled, match="which it comes after, failed"):
            after.result()
        with pytest.raises(hocket.Conflict, match="nothing can come after it"):
            failing.then(number, 1)


def test_gather_has_a_timeout(home: Path) -> None:
    with hocket.open(home) as node:
        handle = node.submit(number, 1)
        with pytest.raises(TimeoutError):
            node.gather(handle, timeout=0.01)
        assert node.gather() == []

    async def main() -> None:
        async with hocket.open(home) as node:
            with pytest.raises(TimeoutError):
                await node.gather(node.job(handle.job_id), timeout=0.01)

    asyncio.run(main())


def test_a_handler_cannot_close_the_workers_node(home: Path) -> None:
    @hocket.job("chain.closer2")
    def closer(ctx: hocket.Context[hocket.SyncNode]) -> None:
        ctx.node.close()

    @hocket.job("chain.acloser")
    async def acloser(ctx: hocket.Context[hocket.Node]) -> None:
        await ctx.node.close()

    with hocket.open(home) as node, node.working([closer, acloser]):
        for job in (closer, acloser):
            with pytest.raises(hocket.JobFailed, match="belongs to the worker"):
                node.submit(job).result(PATIENCE_S)


def test_a_handler_that_waits_for_another_job_can_be_stopped(home: Path) -> None:
    """It waits for a job that nobody runs."""
    begun = threading.Event()
    stopped: list[str] = []

    @hocket.job("chain.waits")
    def waits(ctx: hocket.Context[hocket.SyncNode]) -> None:
        handle = ctx.node.submit("chain.nobody")
        begun.set()
        try:
            handle.result()
        except hocket.Cancelled:
            stopped.append("plain")
            raise

    @hocket.job("chain.awaits")
    async def awaits(ctx: hocket.Context[hocket.Node]) -> None:
        handle = await ctx.node.submit("chain.nobody")
        begun.set()
        try:
            await handle.result()
        except asyncio.CancelledError:
            stopped.append("async")
            raise

    with hocket.open(home) as node, node.working([waits, awaits, number]):
        for job in (waits, awaits):
            begun.clear()
            handle = node.submit(job)
            assert begun.wait(PATIENCE_S)
            handle.cancel("enough")
            deadline = time.monotonic() + PATIENCE_S
            while len(stopped) < (1 if job is waits else 2):
                assert time.monotonic() < deadline
                node.submit(number, 1).result(PATIENCE_S)  # the worker's node goes on
        assert stopped == ["plain", "async"]


WORKER = """
import hocket

@hocket.job("chain.elsewhere")
def elsewhere(ctx):
    assert isinstance(ctx.node, hocket.SyncNode)
    return [ctx.results, str(ctx.node.runtime.home.path)]
"""


def test_a_worker_of_another_home_than_the_default_gives_its_own_node(home: Path, tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(WORKER)
    words = [sys.executable, "-m", "hocket.cli", "work", "--home", str(home), "--until-idle", "tasks.py"]
    with hocket.open(home) as node:
        first = node.submit(number, 7)
        node.work([number], until_idle=True)
        handle = first.then("chain.elsewhere")
        subprocess.run(words, cwd=tmp_path, check=True, timeout=PATIENCE_S, capture_output=True)
        assert handle.result(PATIENCE_S) == [[7], str(home)]
