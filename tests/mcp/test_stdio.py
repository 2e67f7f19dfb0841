"""Every tool over stdio, in both revisions of the protocol, and what becomes of what an agent held when it ends."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from mcp import MCPError

from tests.mcp.agents import REVISIONS, Agent, agent, is_running, new_home, run
from tests.server.served import PATIENCE_S, ROOT, environment
from tests.server.served import hocket as command
from tests.waiting import wait_for

KIND = "acme.review"
PROOF = "hocket.proof"
BOTH = pytest.mark.parametrize("revision", REVISIONS)
WAIT_S = 45
# Less than the leases of what an agent holds, and less than the silence after which a worker counts as dead.
SOON_S = 25


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new_home(tmp_path_factory.mktemp("mcp"))


@BOTH
def test_an_agent_takes_and_finishes_work(home: Path, revision: str):
    async def work() -> None:
        async with agent(home, "claude", revision=revision) as one:
            assert await one.call("take", kinds=[KIND]) == {"state": "none"}
            made = await one.call("submit", kind=KIND, payload={"file": "a.py"})
            job = made["job"]
            assert made == {"state": "pending", "job": job, "ask_again": job}
            shown = await one.call("status", job=job)
            assert shown["state"] == "pending" and shown["data"]["why"]
            taken = await one.call("take", kinds=["acme.*"])
            assert taken["job"] == job and taken["fence"] == 1
            assert taken["data"] == {"kind": KIND, "payload": {"file": "a.py"}}
            hold = {"job": job, "fence": 1}
            assert (await one.call("note", **hold, text="half", checkpoint={"line": 3}))["state"] == "held"
            waited = await one.call("wait", handle=job, wait_s=0)
            assert waited["ask_again"] == job and waited["data"]["progress"] == "half"
            assert any(job in each for each in (await one.call("status"))["lines"])
            assert (await one.call("finish", **hold, how="give_back"))["state"] == "pending"
            again = await one.call("take", kinds=[KIND])
            assert again["fence"] == 2 and again["data"]["checkpoint"] == {"line": 3}
            assert "fence 1" in await one.refusal("finish", **hold)
            ended = await one.call("finish", job=job, fence=2, result={"is_good": True})
            assert ended == {"job": job, "state": "succeeded"}
            waited = await one.call("wait", handle=job)
            assert waited["outcome"] == "succeeded" and waited["data"] == {"result": {"is_good": True}}
            assert "ask_again" not in waited

    run(work)


def test_the_ways_in_which_a_job_ends(home: Path):
    ways: list[tuple[str, dict[str, object], str]] = [
        ("failed", {"text": "no such file"}, "failed"),
        ("retry", {"text": "busy"}, "pending"),
        ("later", {"delay_s": 3600}, "pending"),
        ("cancel", {"text": "not wanted"}, "cancelled"),
    ]

    async def ended(one: Agent, how: str, more: dict[str, object], state: str) -> None:
        kind = f"ends.{how}"
        job = (await one.call("submit", kind=kind))["job"]
        fence = (await one.call("take", kinds=[kind]))["fence"]
        if how == "later":
            assert "delay_s" in await one.refusal("finish", job=job, fence=fence, how=how)
        assert "needs the fence" in await one.refusal("finish", job=job, how="done")
        await one.call("finish", job=job, how=how, **more, **({} if how == "cancel" else {"fence": fence}))
        shown = await one.call("status", job=job)
        assert shown["state"] == state

    async def work() -> None:
        async with agent(home, "claude") as one:
            for each in ways:
                await ended(one, *each)

    run(work)


def test_a_command_runs_on_a_worker_with_a_proof(tmp_path: Path):
    home = new_home(tmp_path)

    async def work() -> None:
        async with agent(home, "claude") as one:
            job = (await one.call("submit", command=["sh", "-c", "echo hello"], timeout_s=60))["job"]
            assert (await one.call("wait", handle=job, wait_s=0))["ask_again"] == job
            done = await asyncio.to_thread(command, home, "work", "--until-idle")
            assert done.returncode == 0, done.stderr
            ended = await one.call("wait", handle=job)
            assert ended["outcome"] == "succeeded", ended
            assert ended["data"]["result"]["exit_code"] == 0
            uri = f"hocket://job/{job}"
            assert "hello" in (await one.client.read_resource(f"{uri}/log")).contents[0].text
            shown = json.loads((await one.client.read_resource(uri)).contents[0].text)
            assert PROOF in {each["type"] for each in shown["artifacts"]}

    run(work)


@BOTH
def test_agents_lock_and_write_to_each_other(home: Path, revision: str):
    async def work() -> None:
        async with agent(home, "ann", revision=revision) as ann, agent(home, "bob", revision=revision) as bob:
            held = await ann.call("lock", keys=["file:src/a.py", "file:src/b.py"])
            assert held["state"] == "held"
            assert "ann" in await bob.refusal("lock", keys=["file:src/**"])
            assert "you hold none" in await bob.refusal("lock", keys=["file:src/a.py"], do="release")
            renewed = await ann.call("lock", keys=["file:src/a.py"], do="renew")
            assert renewed["fence"] == held["fence"] and renewed["lease_s"] > 0
            waiting = asyncio.create_task(bob.call("lock", keys=["file:src/**"], wait_s=WAIT_S))
            assert await ann.call("lock", keys=["file:src/b.py"], do="release") == {"state": "released"}
            assert (await waiting)["fence"] > held["fence"]
            # Mail.
            assert (await bob.call("wait", handle="mail", wait_s=0))["ask_again"] == "mail"
            waiting = asyncio.create_task(bob.call("wait", handle="mail"))
            sent = await ann.call("mail", do="send", to="bob", text="please review")
            assert "mail" in (await waiting)["state"]
            (read,) = (await bob.call("mail"))["data"]
            assert read["id"] == sent["id"] and read["text"] == "please review" and read["from"].startswith("ann@")
            assert (await bob.call("mail", do="give_back", id=sent["id"]))["state"] == "returned"
            (read,) = (await bob.call("mail", count=5))["data"]
            await bob.call("mail", do="send", to="ann", text="done", reply_to=read["id"])
            assert (await bob.call("mail", do="done", id=read["id"]))["state"] == "acknowledged"
            (answer,) = (await ann.call("mail"))["data"]
            assert answer["thread"] == sent["id"]
            await ann.call("mail", do="done", id=answer["id"])
            thread = await ann.client.read_resource(f"hocket://thread/{sent['id']}")
            assert [each["body"] for each in json.loads(thread.contents[0].text)["items"]] == ["please review", "done"]

    run(work)


def test_lists_have_ten_lines_and_a_cursor(tmp_path: Path):
    home = new_home(tmp_path)
    jobs = [command(home, "submit", f"many.{number}", "{}").stdout.split()[-1] for number in range(12)]

    async def work() -> None:
        async with agent(home, "claude") as one:
            first = await one.call("status", of="jobs")
            second = await one.call("status", of="jobs", cursor=first["next"])
            lines = [*first["lines"], *second["lines"]]
            assert len(first["lines"]) == 10 and "next" not in second
            assert [each.split(" ")[0] for each in lines] == jobs[::-1]
            one_kind = await one.call("status", of="jobs", kind="many.3", state="pending")
            assert [each.split(" ")[0] for each in one_kind["lines"]] == [jobs[3]]
            page = await one.client.list_resources()
            assert [each.uri for each in page.resources] == [f"hocket://job/{each}" for each in jobs[:1:-1]]
            page = await one.client.list_resources(cursor=page.next_cursor)
            assert [each.uri for each in page.resources] == [f"hocket://job/{each}" for each in jobs[1::-1]]
            for each in ("locks", "agents", "nodes", "kinds"):
                assert await one.call("status", of=each)

    run(work)


@pytest.mark.slow
@BOTH
def test_resources_are_read_and_watched(home: Path, revision: str):
    async def work() -> None:
        async with agent(home, "claude", revision=revision) as one:
            templates = await one.client.list_resource_templates()
            assert len(templates.resource_templates) == 4
            job = (await one.call("submit", kind=f"watched.{revision}"))["job"]
            uri = f"hocket://job/{job}"
            shown = json.loads((await one.client.read_resource(uri)).contents[0].text)
            assert shown["job_id"] == job and shown["state"] == "pending"
            assert (await one.client.read_resource(f"{uri}/log")).contents[0].text == ""
            for wrong in ("hocket://job/01M7SP0K1QY7PBSJAF8JX2N0G9", "hocket://secret/1", "file:///etc/passwd"):
                with pytest.raises(MCPError):
                    await one.client.read_resource(wrong)

    run(work)


def test_errors_are_sentences_for_the_model(home: Path):
    async def work() -> None:
        async with agent(home, "claude") as one:
            assert "kinds" in await one.refusal("take")
            assert "wait_s" in await one.refusal("wait", handle="mail", wait_s=46)
            assert "unknown field" in await one.refusal("lock", keys=["a"], agent="somebody-else")
            assert "kind" in await one.refusal("submit")
            assert "give the whole id" in await one.refusal("status", job="nonsense")
            with pytest.raises(MCPError):
                await one.client.call_tool("no_such_tool", {})

    run(work)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, None])
def test_what_an_agent_held_is_free_when_its_server_ends(tmp_path: Path, number: signal.Signals | None):
    """However it ends. What is waited for comes before any lease ends."""
    home = new_home(tmp_path)

    async def work() -> None:
        async with agent(home, "heir") as heir, AsyncExitStack() as stack:
            one = await stack.enter_async_context(agent(home, "claude"))
            await heir.call("submit", kind=KIND, payload={})
            await heir.call("mail", do="send", to="claude", text="hello")
            assert (await one.call("take", kinds=[KIND]))["fence"] == 1
            assert (await one.call("lock", keys=["build"]))["fence"] == 1
            assert len((await one.call("mail"))["data"]) == 1
            pid = one.pid
            if number is None:
                await stack.aclose()
            else:
                os.kill(pid, number)
            assert (await heir.call("lock", keys=["build"], wait_s=SOON_S))["fence"] == 2
            assert (await heir.call("take", kinds=[KIND], wait_s=SOON_S))["fence"] == 2
            async with agent(home, "claude") as again:
                await again.call("wait", handle="mail", wait_s=SOON_S)
                (read,) = (await again.call("mail"))["data"]
                assert read["text"] == "hello"
            wait_for(lambda: not is_running(pid), "the end of the server")

    try:
        run(work)
    except* (BrokenPipeError, ConnectionError, MCPError):
        assert number is not None


def test_a_cancelled_call_takes_nothing(tmp_path: Path):
    home = new_home(tmp_path)

    async def work() -> None:
        async with agent(home, "claude") as one, agent(home, "bob") as other:
            waiting = asyncio.create_task(one.client.call_tool("take", {"kinds": [KIND], "wait_s": WAIT_S}))
            # A request that comes after it and is answered shows that it has come.
            await one.call("status")
            waiting.cancel()
            await asyncio.wait([waiting])
            await one.call("status")
            job = (await other.call("submit", kind=KIND))["job"]
            assert (await other.call("take", kinds=[KIND], wait_s=WAIT_S))["job"] == job

    run(work)


def test_an_agent_has_only_the_tools_that_its_grants_allow(home: Path):
    async def work() -> None:
        async with agent(home, "reader", "--may", "job:read", "--may", "lock:read") as one:
            assert {each.name for each in (await one.client.list_tools()).tools} == {"wait", "status"}
            assert "does not grant" in await one.refusal("lock", keys=["file:a"])
            assert "does not grant" in await one.refusal("submit", kind=KIND)
            assert "does not grant" in await one.refusal("mail", do="send", to="bob", text="x")
            assert await one.call("status", of="jobs")

    run(work)


def test_without_the_extra_the_command_says_what_to_install(home: Path):
    hidden = "import sys; sys.modules['mcp_types'] = None; from hocket.cli import main; sys.exit(main())"
    words = [sys.executable, "-c", hidden, "--home", str(home), "mcp"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, env=environment({}), cwd=ROOT)
    assert done.returncode == 2 and "install hocket[mcp]" in done.stderr and done.stdout == ""
