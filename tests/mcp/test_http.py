"""The tools over HTTP, for tokens: who asks, what each may, and what becomes of it when a token or a client ends."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from mcp import MCPError

from tests.mcp.agents import REVISIONS, agent_over_http, new_home, run
from tests.server.served import Served, serving
from tests.server.served import hocket as command

KIND = "acme.review"
BOTH = pytest.mark.parametrize("revision", REVISIONS)
WAIT_S = 45


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(new_home(tmp_path_factory.mktemp("mcp-http")), "--mcp") as running:
        yield running


@pytest.fixture(scope="module")
def tokens(served: Served) -> dict[str, str]:
    return {each: token(served.home, each) for each in ("ann", "bob")}


def token(home: Path, name: str, *grants: str) -> str:
    may = [word for grant in grants or ("all",) for word in ("--may", grant)]
    return command(home, "token", "create", name, *may).stdout.splitlines()[0]


@BOTH
def test_agents_work_over_http(served: Served, tokens: dict[str, str], revision: str):
    async def work() -> None:
        async with (
            agent_over_http(served.address, tokens["ann"], revision) as ann,
            agent_over_http(served.address, tokens["bob"], revision) as bob,
        ):
            assert len((await ann.client.list_tools()).tools) == 8
            assert (await ann.call("status"))["you"].startswith("ann@")
            job = (await ann.call("submit", kind=KIND, payload={"file": "a.py"}))["job"]
            taken = await bob.call("take", kinds=[KIND], wait_s=WAIT_S)
            hold = {"job": job, "fence": taken["fence"]}
            assert taken["job"] == job and taken["lease_s"] > 60
            assert "you do not hold" in await ann.refusal("note", **hold, text="mine?")
            assert (await bob.call("note", **hold, text="half"))["state"] == "held"
            assert any(job in each for each in (await bob.call("status"))["lines"])
            waiting = asyncio.create_task(ann.call("wait", handle=job))
            await bob.call("finish", **hold, result="good")
            assert (await waiting)["data"] == {"result": "good"}
            held = await ann.call("lock", keys=["file:a.py"])
            assert held["lease_s"] > 60 and "ann" in await bob.refusal("lock", keys=["file:a.py"])
            assert (await ann.call("lock", keys=["file:a.py"], do="renew"))["fence"] == held["fence"]
            waiting = asyncio.create_task(bob.call("lock", keys=["file:a.py"], wait_s=WAIT_S))
            assert (await ann.call("lock", keys=["file:a.py"], do="release"))["state"] == "released"
            assert (await waiting)["fence"] > held["fence"]
            await bob.call("lock", keys=["file:a.py"], do="release")
            await ann.call("mail", do="send", to="bob", text="hello")
            (read,) = (await bob.call("mail"))["data"]
            assert read["text"] == "hello" and read["from"].startswith("ann@")
            await bob.call("mail", do="done", id=read["id"])
            shown = (await bob.client.read_resource(f"hocket://job/{job}")).contents[0].text
            assert json.loads(shown)["state"] == "succeeded"

    run(work)


def test_a_token_sees_and_does_what_it_grants(served: Served):
    narrow = token(served.home, "narrow", "job:read:acme.", "job:claim:acme.")
    command(served.home, "submit", "other.kind", "{}")

    async def work() -> None:
        async with agent_over_http(served.address, narrow) as one:
            assert {each.name for each in (await one.client.list_tools()).tools} == {
                *("take", "note", "finish", "wait", "status")
            }
            for tool, arguments in (
                ("lock", {"keys": ["file:a.py"]}),
                ("submit", {"kind": KIND}),
                ("mail", {"do": "send", "to": "ann", "text": "x"}),
                ("take", {"kinds": ["other.kind"]}),
                ("status", {"of": "jobs", "kind": "other.kind"}),
            ):
                assert "does not grant" in await one.refusal(tool, **arguments)

    run(work)


def test_nobody_without_a_token_and_no_foreign_page_is_answered(served: Served, tokens: dict[str, str]):
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    head = {"Accept": "application/json, text/event-stream"}
    assert served.ask("POST", "/mcp", None, body, head).status == 401
    assert served.ask("POST", "/mcp", "hkt_000000000000_" + "A" * 43, body, head).status == 401
    foreign = served.ask("POST", "/mcp", tokens["ann"], body, {**head, "Origin": "https://evil.example"})
    assert foreign.status == 403 and b"evil.example" in foreign.body
    assert served.ask("GET", "/mcp", tokens["ann"], None, head).status == 405
    assert served.ask("POST", "/mcp", tokens["ann"], b"x" * 5_000_000, head).status == 413


def test_a_wait_ends_with_its_token(served: Served):
    ending = token(served.home, "ending")

    async def work() -> None:
        async with agent_over_http(served.address, ending) as one:
            waiting = asyncio.create_task(one.client.call_tool("wait", {"handle": "mail"}))
            await one.call("status")
            await asyncio.to_thread(command, served.home, "token", "revoke", "ending")
            with pytest.raises(MCPError):
                await waiting

    run(work)


@BOTH
@pytest.mark.parametrize("does_leave", [True, False])
def test_a_client_that_cancels_takes_nothing(served: Served, tokens: dict[str, str], revision: str, does_leave: bool):
    kind = f"gone.{revision}.{does_leave}"

    async def work() -> None:
        async with agent_over_http(served.address, tokens["bob"]) as bob:
            async with agent_over_http(served.address, tokens["ann"], revision) as ann:
                waiting = asyncio.create_task(ann.client.call_tool("take", {"kinds": [kind], "wait_s": WAIT_S}))
                await ann.call("status")
                waiting.cancel()
                await asyncio.wait([waiting])
                if not does_leave:
                    await ann.call("status")
                    job = (await bob.call("submit", kind=kind))["job"]
                    assert (await bob.call("take", kinds=[kind], wait_s=WAIT_S))["job"] == job
            job = (await bob.call("submit", kind=kind))["job"]
            assert (await bob.call("take", kinds=[kind], wait_s=WAIT_S))["job"] == job

    run(work)


def test_a_server_that_was_not_told_to_has_no_tools(tmp_path: Path):
    home = new_home(tmp_path)
    with serving(home) as plain:
        assert plain.ask("POST", "/mcp", token(home, "ann"), {}).status == 404
