"""An agent over stdio that calls no tool for too long loses what it holds, though its process lives on."""

import asyncio
from pathlib import Path

import pytest

import hocket
from hocket.api.programs import own_process
from hocket.mcp import process_holds
from hocket.mcp.caller import McpCaller
from hocket.mcp.process_holds import ProcessHolds
from hocket.node.inbox import Inbox
from hocket.server.api import Api
from tests.mcp.agents import new_home, run

PATIENCE_S = 60


def test_an_idle_agent_gives_back_its_locks_and_mail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(process_holds, "JOB_LEASE_MS", 300)  # it is looked at three times as often
    home = new_home(tmp_path)

    async def work() -> None:
        async with hocket.open(home) as node:
            api = Api(node)
            holds = ProcessHolds(node, "ann", lambda: caller())

            def caller() -> McpCaller:
                return McpCaller(api, node, own_process(api.service, "ann"), holds)

            ann = await node.call(caller)
            await node.send("ann", "hello")
            assert len(await holds.claim_messages(ann, 1, 1_800_000)) == 1
            fence = await holds.acquire(ann, ["build"], "", 0)
            holds.heard()
            renewing = asyncio.create_task(holds.run())
            try:
                bob = asyncio.create_task(node.lock("build", agent="bob", wait=PATIENCE_S).__aenter__())
                await asyncio.wait([bob], timeout=1)
                assert not bob.done() and holds.notices() == [], "an agent that was just heard keeps what it holds"
                monkeypatch.setattr(process_holds, "IDLE_S", 0.0)
                assert (await bob).fence > fence
                assert len(await node.inbox("ann").claim(wait=PATIENCE_S)) == 1
                (notice,) = holds.notices()
                assert "your jobs, locks and mail went back" in notice
            finally:
                renewing.cancel()
                await asyncio.wait([renewing])
                await holds.end()
                api.close()

    run(work)


def test_a_message_is_bound_to_the_process_in_the_transaction_that_claims_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Else an agent that was killed in between would hold it until its lease ends."""

    def killed(*given: object) -> None:
        raise RuntimeError("killed")

    home = new_home(tmp_path)

    async def work() -> None:
        async with hocket.open(home) as node:
            await node.send("ann", "hello")
            monkeypatch.setattr(Inbox, "_received", killed)
            with pytest.raises(RuntimeError, match="killed"):
                await node.inbox("ann").claim_bound(1, 1_800_000)
            bound = await node.peek(lambda session: session.lock_requests(node.log.node.to_bytes(8, "big")))
            assert len(bound) == 1

    run(work)
