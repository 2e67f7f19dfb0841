"""A step of a score that a person must approve: the run waits for it within a budget, and takes its fallback then. The
person is asked, and answers, by mail.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import hocket
from hocket.families.inbox.facts import APPROVAL_TYPE
from hocket.node.node import Node
from tests.extensions.tempo.test_scored_runs import FAST, degraded

PATIENCE_S = 60.0
OWNER = "owner"
# The budget of the first ends after two beats of 50 ms, that of the second after more than three minutes.
BRIEF = FAST
AMPLE = {"tempo": 60, "bar_len": 250, "phases": {"work": 250}, "wait_budget": {"help": 200}}


@hocket.job("approved.deploy", approval_by=OWNER)
def deploy(version: int) -> str:
    return f"deployed {version}"


async def _release(ctx: hocket.Context, version: int) -> str:
    step = await ctx.node.submit(deploy, version)
    try:
        answer: str = await ctx.wait_for(step.result(), budget="help", fallback="nobody answered")
    except hocket.JobCancelled as refused:
        return f"not deployed: {refused}"
    return answer


@hocket.job("approved.brief", score=BRIEF)
async def brief(ctx: hocket.Context, version: int) -> str:
    return await _release(ctx, version)


@hocket.job("approved.ample", score=AMPLE)
async def ample(ctx: hocket.Context, version: int) -> str:
    return await _release(ctx, version)


def run(home: Path, act: Callable[[Node], Awaitable[None]]) -> None:
    async def main() -> None:
        await asyncio.to_thread(hocket.init, home)
        async with (
            asyncio.timeout(PATIENCE_S),
            hocket.open(home) as node,
            node.working([deploy, brief, ample], concurrency=4, grace=0.1),
        ):
            await act(node)

    asyncio.run(main())


@pytest.mark.req("BB-07")
def test_a_step_that_nobody_approves_in_time_takes_the_fallback(tmp_path: Path) -> None:
    async def act(node: Node) -> None:
        release = await node.submit(brief, 7)
        assert await release.result() == "nobody answered"
        (record,) = await degraded(node, release.job_id)
        assert (record["event"], record["wait"], record["step"]) == ("wait exhausted", "help", "fallback")
        # The owner was asked, and may still answer: the step is a job of its own.
        (asked,) = await node.inbox(OWNER).claim(wait=PATIENCE_S)
        await asked.reply("approve")
        assert asked.text.startswith("Job ") and await node.job(asked.text.split()[1]).result() == "deployed 7"

    run(tmp_path / "home", act)


@pytest.mark.touches("BB-07")
@pytest.mark.parametrize(
    ("reply", "end"), [("approve", "deployed 7"), ("refuse: not today", "refused by owner: not today")]
)
def test_mail_to_the_owner_brings_the_answer_for_which_the_step_waits(tmp_path: Path, reply: str, end: str) -> None:
    async def act(node: Node) -> None:
        release = await node.submit(ample, 7)
        (asked,) = await node.inbox(OWNER).claim(wait=PATIENCE_S)
        assert (
            asked.data.type == APPROVAL_TYPE and '"version":7' in asked.text and "of kind approved.deploy" in asked.text
        )
        await asked.reply(reply)
        await asked.ack()
        assert (await release.result()).endswith(end)
        assert await degraded(node, release.job_id) == []

    run(tmp_path / "home", act)
