"""Workers whose helpers promise help and fall silent: no job waits past its budget, each ends with its fallback, and
each broken promise is counted.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket.extensions.tempo.messages import PromiseOutcome, PromiseResult, to_json
from hocket.extensions.tempo.promises import make_promise
from hocket.extensions.tempo.tempo_messages import TempoMessages, TempoQueue
from hocket.node.node import Node

PATIENCE_S = 90.0
BEAT_S = 2.0
# A request must get a promise before the bar ends, which begins with the test.
POLICY = "cluster_id: choir\ninitial_bpm: 30\nbar_len_beats: 256\nanchor_ms: {}\n"
BUDGET_BEATS = 3
SCORE = {
    "phases": {"work": 8},
    "wait_budget": {"help": BUDGET_BEATS},
    "escalation": {"on_wait_exhausted": ["fallback:alone"]},
}
# Promises fail before the budget of the wait is spent, or after that.
FAIL_AFTER = (2, 5)
# More turns than an event loop makes between the end of a wait's time and the handler's next step.
TURNS = 20
began: set[str] = set()
ended: set[str] = set()
overdue: set[str] = set()


async def watched(job_id: str, awaited: Awaitable[Any]) -> Any:
    """Looks in the event loop of the wait, when the whole budget is spent since the wait began, whether it has ended. A
    loop that is late is late for both, so a busy machine changes nothing.
    """
    loop = asyncio.get_running_loop()

    def look(turns: int) -> None:
        if turns:
            loop.call_soon(look, turns - 1)
        elif job_id not in ended:
            overdue.add(job_id)

    began.add(job_id)
    loop.call_later(BUDGET_BEATS * BEAT_S, look, TURNS)
    return await awaited


@hocket.job("silent.async", score=SCORE)
async def asks(ctx: hocket.Context) -> Any:
    ctx.set_fallback("alone", {"by": ctx.job_id})
    try:
        await ctx.wait_for(watched(ctx.job_id, ctx.ask_help("helper", ctx.job_id)), budget="help")
    finally:
        ended.add(ctx.job_id)


@hocket.job("silent.plain", score=SCORE)
def asks_in_a_thread(ctx: hocket.Context) -> Any:
    ctx.set_fallback("alone", {"by": ctx.job_id})
    try:
        ctx.wait_for(watched(ctx.job_id, ctx.ask_help("helper", ctx.job_id)), budget="help")
    finally:
        ended.add(ctx.job_id)


@asynccontextmanager
async def mesh(home: Path, workers: int) -> AsyncIterator[tuple[Node, TempoQueue[PromiseResult]]]:
    await asyncio.to_thread(hocket.init, home)
    (home / "tempo.yaml").write_text(POLICY.format(int(time.time() * 1000)))
    async with asyncio.timeout(PATIENCE_S), AsyncExitStack() as stack:
        node = await stack.enter_async_context(hocket.open(home))
        bus = await node.mesh_messages()
        assert bus is not None
        queue = await TempoMessages(bus, node.runtime.log.user).subscribe(PromiseResult, "choir")
        for _ in range(workers):
            other = await stack.enter_async_context(hocket.open(home))
            await stack.enter_async_context(other.working([asks, asks_in_a_thread], concurrency=1, ahead=0, grace=0.1))
        yield node, queue
        queue.close()


async def promise_and_fall_silent(node: Node, requests: int) -> dict[str, str]:
    """Promises help to each request, as another agent each, and never helps. Returns the promises by thread."""
    promised: dict[str, str] = {}
    while len(promised) < requests:
        for message in await node.inbox("helper").claim(20, wait=PATIENCE_S):
            agent = f"silent-{len(promised)}"
            made = make_promise(message.id, 1, FAIL_AFTER[len(promised) % 2], 0.9, "fallback")
            await node.send(
                message.data.sender_address,
                to_json(made),
                agent=agent,
                type="promise",
                reply_to=message.id,
            )
            promised[message.id] = agent
    return promised


async def show(home: Path, workers: int, jobs: int) -> None:
    for each in (began, ended, overdue):
        each.clear()
    async with mesh(home, workers) as (node, queue):
        silent = asyncio.create_task(promise_and_fall_silent(node, jobs))
        handles = [await node.submit((asks, asks_in_a_thread)[n % 2]) for n in range(jobs)]
        for handle in handles:
            assert await handle.result() == {"by": handle.job_id}
            (record,) = (await handle.status())["degraded"]
            assert (record["wait"], record["step"], record["fallback"]) == ("help", "fallback", "alone")
        promised = await silent
        broken: dict[str, str] = {}
        while len(broken) < jobs:
            heard = await queue.get(PATIENCE_S)
            assert heard is not None and heard.message.outcome is PromiseOutcome.BROKEN
            broken[heard.message.thread_id] = heard.message.agent_id.partition("@")[0]
        assert broken == promised
        assert began == ended and len(ended) == jobs
        assert not overdue, "they waited longer than their budget"


@pytest.mark.req("BB-07", "BB-08")
@pytest.mark.timeout(100)
def test_twenty_workers_whose_helpers_all_fall_silent(tmp_path: Path) -> None:
    asyncio.run(show(tmp_path / "home", workers=20, jobs=20))


@pytest.mark.soak
@pytest.mark.req("BB-07", "BB-08")
@pytest.mark.timeout(600)
def test_twenty_workers_with_many_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.extensions.tempo.test_silent_helpers.PATIENCE_S", 500.0)
    asyncio.run(show(tmp_path / "home", workers=20, jobs=400))
