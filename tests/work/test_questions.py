"""Jobs that ask while they run: whom, what a status says, who may answer, and what a run after a dead one does."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket.errors import Conflict, NotAuthorised, Usage
from hocket.families.inbox.questions import QUESTION_TYPE
from hocket.kernel.ids import node_text, parse_ulid
from hocket.node.handles import Handle
from hocket.node.node import Node
from hocket.store import Session

PATIENCE_S = 60.0
TEXT = "Which one, a or b?"


@hocket.job("asks.async", retries=0)
async def asks(ctx: hocket.Context, wait: str = "1h") -> list[str]:
    return [await ctx.ask(TEXT, wait=wait), await ctx.ask(TEXT, wait=wait)]


@hocket.job("asks.plain", retries=0)
def asks_in_a_thread(ctx: hocket.Context, wait: str = "1h") -> list[str]:
    return [ctx.ask(TEXT, wait=wait), ctx.ask("And then?", wait=wait)]


@hocket.job("asks.fallback")
async def goes_on_without(ctx: hocket.Context, wait: str) -> str:
    answer: str = await ctx.ask(TEXT, wait=wait, fallback="a")
    return answer


@hocket.job("asks.fallback.plain")
def goes_on_without_in_a_thread(ctx: hocket.Context, wait: str) -> str:
    answer: str = ctx.ask(TEXT, wait=wait, fallback="a")
    return answer


JOBS: list[hocket.JobType] = [asks, asks_in_a_thread, goes_on_without, goes_on_without_in_a_thread]
Act = Callable[[Node], Awaitable[None]]


def run(home: Path, act: Act, **options: Any) -> None:
    async def main() -> None:
        await asyncio.to_thread(hocket.init, home)
        async with asyncio.timeout(PATIENCE_S), hocket.open(home) as node:
            async with node.working(JOBS, concurrency=4, grace=0.1, **options):
                await act(node)

    asyncio.run(main())


def messages(session: Session, job_id: str) -> list[tuple[str, str]]:
    """Who wrote what to whom in the thread of a job, without the names of nodes."""
    thread = session.thread(parse_ulid(job_id), 100)
    return [(each.sender, each.to.partition("@")[0]) for each in thread]


async def asked(node: Node, handle: Handle[Any], whom: str, count: int) -> dict[str, Any]:
    """The status of the job when it has asked so many questions and waits for the last one."""

    async def look() -> tuple[bool, dict[str, Any]]:
        status = await handle.status()
        thread = await node.peek(lambda session: session.thread(parse_ulid(handle.job_id), 100))
        questions = [each for each in thread if each.reply_to is None]
        # Two views: the job may be claimed between them.
        is_asking = (status["state"], status["wait_reason"]) == ("running", "answer")
        return is_asking and len(questions) == count, status

    status = await node.until(look, PATIENCE_S)
    assert status["waits_for"].startswith(f"waits for an answer by {whom} on this node, until ")
    return status


@pytest.mark.parametrize("processes", [None, 1])
@pytest.mark.parametrize("job", [asks, asks_in_a_thread])
def test_a_running_job_asks_its_submitter_and_gets_the_answers(
    tmp_path: Path, job: hocket.JobType, processes: int | None
) -> None:
    async def act(node: Node) -> None:
        handle = await node.submit(job)
        await asked(node, handle, "owner", 1)
        await handle.answer("a")
        await asked(node, handle, "owner", 2)
        await handle.answer("b", agent="owner")
        assert await handle.result(PATIENCE_S) == ["a", "b"]
        with pytest.raises(Conflict, match="waits for no answer"):
            await handle.answer("c")
        assert not await node.inbox("owner").claim(5), "what is answered does not wait in the inbox"

    run(tmp_path / "home", act, processes=processes)


def test_a_reply_by_mail_is_the_answer(tmp_path: Path) -> None:
    async def act(node: Node) -> None:
        handle = await node.submit(asks)
        for answer in ("a", "b"):
            (message,) = await node.inbox("owner").claim(wait=PATIENCE_S)
            assert (message.text, message.data.type) == (TEXT, QUESTION_TYPE)
            await message.reply(answer)
            await message.ack()
        assert await handle.result(PATIENCE_S) == ["a", "b"]

    run(tmp_path / "home", act)


def test_only_the_agent_that_is_asked_can_answer(tmp_path: Path) -> None:
    async def act(node: Node) -> None:
        handle = await node.submit(hocket.kind("asks.async", questions_to="ann"))
        await asked(node, handle, "ann", 1)
        for wrong in ("bob", "owner", "ann/helper"):
            with pytest.raises(NotAuthorised, match=r"waits for an answer by ann@[0-9a-f]{16}, not by"):
                await handle.answer("a", agent=wrong)
        (message,) = await node.inbox("ann").claim(wait=PATIENCE_S)
        forged = await node.send(message.data.sender_address, "forged", agent="bob", reply_to=message.id)
        with pytest.raises(Conflict, match="no answer to that question"):
            await handle.answer("a", question=forged)
        await asked(node, handle, "ann", 1)
        await handle.answer("a", agent="ann", question=message.id)
        await asked(node, handle, "ann", 2)
        await handle.answer("b")
        assert await handle.result(PATIENCE_S) == ["a", "b"]

    run(tmp_path / "home", act)


def test_a_message_of_a_node_that_does_not_hold_the_job_is_no_question(tmp_path: Path) -> None:
    """Anybody can send a message that looks like a question."""

    async def act(node: Node) -> None:
        waiting = await node.submit("nobody.serves.this")
        asker = f"job/{waiting.job_id.lower()}/1"
        await node.send("owner@here", "Your password?", agent=asker, type=QUESTION_TYPE, thread=waiting.job_id)
        assert (await waiting.status())["wait_reason"] == "no worker"
        with pytest.raises(Conflict, match="waits for no answer"):
            await waiting.answer("secret")

    run(tmp_path / "home", act)


@pytest.mark.parametrize(
    ("job", "result"),
    [(asks, None), (asks_in_a_thread, None), (goes_on_without, "a"), (goes_on_without_in_a_thread, "a")],
)
def test_without_an_answer_in_time_the_job_goes_on_without_or_fails(
    tmp_path: Path, job: hocket.JobType, result: str | None
) -> None:
    async def act(node: Node) -> None:
        handle = await node.submit(job, wait="50ms")
        if result is not None:
            assert await handle.result(PATIENCE_S) == result
            return
        with pytest.raises(hocket.JobFailed, match=rf"no answer from owner@[0-9a-f]{{16}} to: {TEXT[:10]}"):
            await handle.result(PATIENCE_S)
        status = await handle.status()
        assert (status["waits_for"], status["state"]) == (None, "failed")

    run(tmp_path / "home", act)


def test_a_run_after_a_lost_one_gets_the_old_answers_and_a_retry_asks_anew(tmp_path: Path) -> None:
    async def main() -> None:
        await asyncio.to_thread(hocket.init, tmp_path / "home")
        async with asyncio.timeout(PATIENCE_S), hocket.open(tmp_path / "home") as node:
            handle = await node.submit(asks)
            async with node.working([asks], grace=0.1):
                await asked(node, handle, "owner", 1)
                await handle.answer("a")
                await asked(node, handle, "owner", 2)
            assert (await handle.status())["state"] == "pending"
            await handle.answer("b")
            async with node.working([asks], grace=0.1):
                assert await handle.result(PATIENCE_S) == ["a", "b"]
            async with node.working([asks], grace=0.1):
                again = await node.submit(asks, wait="10ms")
                with pytest.raises(hocket.JobFailed):
                    await again.result(PATIENCE_S)
                before = len(await node.peek(lambda session: messages(session, again.job_id)))
                await again.retry()
                with pytest.raises(hocket.JobFailed):
                    await again.result(PATIENCE_S)
                assert len(await node.peek(lambda session: messages(session, again.job_id))) > before

    asyncio.run(main())


def test_a_retry_of_a_person_asks_anew(tmp_path: Path) -> None:
    @hocket.job("asks.fails", retries=0)
    async def fails(ctx: hocket.Context) -> None:
        raise ValueError(await ctx.ask(TEXT, wait="1h"))

    async def main() -> None:
        await asyncio.to_thread(hocket.init, tmp_path / "home")
        async with asyncio.timeout(PATIENCE_S), hocket.open(tmp_path / "home") as node:
            async with node.working([fails], grace=0.1):
                handle = await node.submit(fails)
                for number, answer in enumerate(("a", "b"), 1):
                    await asked(node, handle, "owner", number)
                    await handle.answer(answer)
                    with pytest.raises(hocket.JobFailed, match=f"ValueError: {answer}"):
                        await handle.result(PATIENCE_S)
                    await handle.retry()

    asyncio.run(main())


def test_a_cancelled_job_waits_no_longer(tmp_path: Path) -> None:
    async def act(node: Node) -> None:
        for job in (asks, asks_in_a_thread):
            handle = await node.submit(job)
            await asked(node, handle, "owner", 1)
            await handle.cancel("enough")
            with pytest.raises(hocket.JobCancelled):
                await handle.result(PATIENCE_S)
            with pytest.raises(Conflict, match="waits for no answer"):
                await handle.answer("a")

    run(tmp_path / "home", act)


def test_the_owner_of_the_mesh_has_an_address(tmp_path: Path) -> None:
    async def act(node: Node) -> None:
        here = node_text(node.log.node)
        await node.send("@owner", "hello", agent="ann")
        (message,) = await node.inbox("owner").claim(wait=PATIENCE_S)
        assert message.text == "hello"
        gated = await node.submit(hocket.kind("asks.async", approval_by="@owner", questions_to="@owner"))
        status = await gated.status()
        assert status["options"]["approval_by"] == status["options"]["questions_to"] == f"owner@{here}"
        await gated.approve(agent="owner")
        await asked(node, gated, "owner", 1)
        with pytest.raises(Usage, match="approval_by"):
            await node.submit(hocket.kind("a", approval_by="@ann"))

    run(tmp_path / "home", act)
