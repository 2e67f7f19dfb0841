"""Jobs with a score: waits end with their budgets, phrases end on their beat, and every fallback is on the log."""

import asyncio
import concurrent.futures
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket.extensions.tempo.heard_beats import LocalBeats
from hocket.extensions.tempo.policy import make_policy
from hocket.extensions.tempo.run_pace import Pacing, ScoreKeeper
from hocket.node.node import Node
from hocket.work.handlers import REGISTRY

PATIENCE_S = 60.0
# 50 ms beats: as fast as a tempo can be.
FAST = {"tempo": 1200, "bar_len": 8, "phases": {"plan": 2, "work": 4, "review": 2}, "wait_budget": {"help": 2, "io": 1}}
GIVES_UP = FAST | {"escalation": {"on_wait_exhausted": ["emit:needs-attention", "fallback:coarse"]}}
LONG_S = 600.0
DEAF_S = 20.0
seen: list[Any] = []


def never() -> Awaitable[None]:
    return asyncio.sleep(LONG_S)


@hocket.job("score.async", score=GIVES_UP)
async def waits(ctx: hocket.Context) -> Any:
    return {"answer": await ctx.wait_for(never(), budget="help", fallback="guess")}


@hocket.job("score.plain", score=GIVES_UP)
def waits_in_a_thread(ctx: hocket.Context) -> Any:
    return {"answer": ctx.wait_for(concurrent.futures.Future(), budget="help", fallback=lambda: "guess")}


@hocket.job("score.ends", score=GIVES_UP)
async def ends_with_the_fallback(ctx: hocket.Context) -> Any:
    ctx.set_fallback("coarse", ["roughly"])
    await ctx.wait_for(never(), budget="help")
    return "not reached"


@hocket.job("score.fails", score=FAST)
async def has_no_fallback(ctx: hocket.Context) -> Any:
    await ctx.wait_for(never(), budget="io")


@hocket.job("score.defers", backoff="10ms", score=FAST | {"retry": {"max_phrases": 3}})
def overruns(ctx: hocket.Context) -> Any:
    seen.append((ctx.attempt, ctx.last_checkpoint))
    ctx.checkpoint({"attempt": ctx.attempt})
    if ctx.attempt == 3:
        return "done"
    while not ctx.cancelled:
        time.sleep(0.005)


AGAIN = {"retry": {"max_phrases": 2}, "escalation": {"on_wait_exhausted": ["defer:next-phrase"]}}


@hocket.job("score.again", backoff="10ms", score=FAST | {"tempo": 240} | AGAIN)
async def waits_again(ctx: hocket.Context) -> Any:
    return await ctx.wait_for(never(), budget="io", fallback="guess")


@hocket.job("score.overruns", score=FAST | {"escalation": {"on_overrun": ["fallback:coarse"]}})
async def overruns_with_fallback(ctx: hocket.Context) -> Any:
    ctx.set_fallback("coarse", "so far")
    await asyncio.sleep(LONG_S)


@hocket.job("score.stubborn", score=GIVES_UP)
async def stubborn(ctx: hocket.Context) -> Any:
    async def deaf() -> None:
        until = time.monotonic() + DEAF_S
        while time.monotonic() < until:
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                continue

    before = time.monotonic()
    await ctx.wait_for(deaf(), budget="io", fallback=None)
    return time.monotonic() - before


@hocket.job("score.quick", score=FAST | {"tempo": 20})
async def quick(ctx: hocket.Context) -> Any:
    first = await ctx.wait_for(asyncio.sleep(0, "first"), budget="io")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return [first, await ctx.wait_for(pool.submit(lambda: "second"), budget="io")]


@hocket.job("score.none")
async def no_score(ctx: hocket.Context) -> Any:
    assert (ctx.beat, ctx.phase, ctx.beats_left) == (None, None, None)
    await ctx.wait_for(asyncio.sleep(0))


@asynccontextmanager
async def working(home: Path, **options: Any) -> AsyncIterator[Node]:
    await asyncio.to_thread(hocket.init, home)
    async with hocket.open(home) as node:
        types = [each for kind, each in REGISTRY.items() if kind.startswith("score.")]
        async with node.working(types, grace=0.1, **options):
            yield node


def run(home: Path, act: Callable[[Node], Awaitable[Any]], **options: Any) -> Any:
    async def main() -> Any:
        async with asyncio.timeout(PATIENCE_S), working(home, **options) as node:
            return await act(node)

    return asyncio.run(main())


async def degraded(node: Node, job_id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await node.job(job_id).status())["degraded"]
    return found


@pytest.mark.req("BB-07")
@pytest.mark.parametrize("job", [waits, waits_in_a_thread])
def test_a_spent_wait_takes_its_fallback_and_records_it(tmp_path: Path, job: Any) -> None:
    async def act(node: Node) -> None:
        handle = await node.submit(job)
        assert await handle.result() == {"answer": "guess"}
        (record,) = await degraded(node, handle.job_id)
        assert record["event"] == "wait exhausted" and record["wait"] == "help" and record["step"] == "fallback"
        assert record["budget_beats"] == 2 and record["waited_ms"] > 0 and record["emitted"] == ["needs-attention"]
        (message,) = await node.inbox("needs-attention").claim(wait=PATIENCE_S)
        assert message.data.type == "escalation" and message.json()["job_id"] == handle.job_id

    run(tmp_path / "home", act)


@pytest.mark.req("BB-07")
def test_without_a_fallback_of_its_own_the_job_ends_with_the_scores(tmp_path: Path) -> None:
    async def act(node: Node) -> None:
        handle = await node.submit(ends_with_the_fallback)
        assert await handle.result() == ["roughly"]
        (record,) = await degraded(node, handle.job_id)
        assert record["fallback"] == "coarse"
        failing = await node.submit(has_no_fallback)
        with pytest.raises(hocket.JobFailed, match="waited in vain for io: its score allows 1 beat"):
            await failing.result()
        (record,) = await degraded(node, failing.job_id)
        assert record["step"] == "fail"

    run(tmp_path / "home", act)


@pytest.mark.req("BB-07")
def test_a_score_that_defers_goes_before_the_fallback_of_a_wait(tmp_path: Path) -> None:
    async def act(node: Node) -> None:
        handle = await node.submit(waits_again)
        assert await handle.result() == "guess"
        assert [each["step"] for each in await degraded(node, handle.job_id)] == ["defer", "fallback"]

    run(tmp_path / "home", act)


@pytest.mark.req("BB-07", "BB-10")
def test_an_overrun_goes_on_from_its_checkpoint_in_a_shorter_phrase(tmp_path: Path) -> None:
    seen.clear()

    async def act(node: Node) -> None:
        handle = await node.submit(overruns)
        assert await handle.result() == "done"
        assert seen == [(1, None), (2, {"attempt": 1}), (3, {"attempt": 2})]
        first, second = await degraded(node, handle.job_id)
        assert (first["budget_beats"], second["budget_beats"]) == (8, 4)
        assert first["step"] == second["step"] == "defer" and first["event"] == "overrun"
        status = await handle.status()
        assert status["failures"] == 2 and "overran phrase 2 of 3, which has 4 beats" in str(status["ops"])

    run(tmp_path / "home", act)


@pytest.mark.req("BB-07")
def test_an_overrun_can_end_with_the_fallback(tmp_path: Path) -> None:
    async def act(node: Node) -> None:
        assert await (await node.submit(overruns_with_fallback)).result() == "so far"
        # Longer than its budget of a beat, and far from what the deaf one takes.
        assert 0.02 <= await (await node.submit(stubborn)).result() < DEAF_S / 2
        assert await (await node.submit(quick)).result() == ["first", "second"]

    run(tmp_path / "home", act)


@hocket.job("score.endless", budget={"hard_end": 1})
async def endless(ctx: hocket.Context) -> None:
    await asyncio.sleep(LONG_S)


@pytest.mark.req("BB-14")
def test_the_hard_end_of_a_budget_ends_the_job(tmp_path: Path) -> None:
    async def act(node: Node) -> None:
        beats = LocalBeats(make_policy("test", 240, 2), node.runtime.log.physical)
        node.runtime.pacers["tempo"] = Pacing(lambda job: ScoreKeeper(beats, job))
        with pytest.raises(hocket.JobFailed, match="over its budget"):
            await (await node.submit(endless)).result()

    run(tmp_path / "home", act)


@pytest.mark.req("BB-07")
def test_without_tempo_and_score_there_is_no_beat(tmp_path: Path) -> None:
    async def act(node: Node) -> None:
        with pytest.raises(hocket.JobFailed, match="this job has no score"):
            await (await node.submit(no_score)).result()

    run(tmp_path / "home", act)


@hocket.job("score.same")
def same(ctx: hocket.Context, different: bool) -> None:
    windows = set()
    while len(windows) < 8:
        assert ctx.beat is not None
        windows.add(ctx.beat.window_ms)
        ctx.checkpoint(len(windows) if different else "same")
        time.sleep(0.01)
    raise hocket.Fatal("seen enough")


@pytest.mark.req("BB-10")
def test_checkpoints_go_with_the_bars_and_the_same_one_again_has_no_effect(tmp_path: Path) -> None:
    async def act(node: Node) -> None:
        beats = LocalBeats(make_policy("test", 240, 1), node.runtime.log.physical)
        node.runtime.pacers["tempo"] = Pacing(lambda job: ScoreKeeper(beats, job))
        for different, expected in ((True, range(2, 9)), (False, range(1, 2))):
            handle = await node.submit(same, different=different)
            with pytest.raises(hocket.JobFailed, match="seen enough"):
                await handle.result()
            ops = [each["type"] for each in (await handle.status())["ops"]]
            assert ops.count("SaveCheckpoint") in expected

    run(tmp_path / "home", act)
