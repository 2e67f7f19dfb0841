"""A client that watches a resource is told when it changes, over both ways and in both revisions."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from mcp import MCPError
from mcp.types import ResourceUpdatedNotification

from tests.mcp.agents import Agent, agent, agent_over_http, new_home, run
from tests.mcp.test_http import token
from tests.server.served import Served, serving

KIND = "acme.review"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(new_home(tmp_path_factory.mktemp("watching")), "--mcp") as running:
        yield running


@pytest.mark.parametrize("way", ["stdio", "http"])
def test_a_client_of_the_new_revision_listens(served: Served, way: str):
    async def work() -> None:
        async with AsyncExitStack() as stack:
            one: Agent
            if way == "stdio":
                one = await stack.enter_async_context(agent(served.home, "listener"))
            else:
                secret = await asyncio.to_thread(token, served.home, "listener")
                one = await stack.enter_async_context(agent_over_http(served.address, secret))
            job = (await one.call("submit", kind=KIND))["job"]
            thread = (await one.call("mail", do="send", to="somebody", text="hello"))["id"]
            uris = [f"hocket://job/{job}", f"hocket://thread/{thread}"]
            async with one.client.listen(resource_subscriptions=uris) as told:
                await one.call("finish", job=job, how="cancel")
                assert (await anext(told)).uri == uris[0]
                await one.call("mail", do="send", to="somebody", text="more", reply_to=thread)
                while (await anext(told)).uri != uris[1]:
                    pass
            with pytest.raises(MCPError, match="01M7SP0K1QY7PBSJAF8JX2N0G9"):
                async with one.client.listen(resource_subscriptions=["hocket://job/01M7SP0K1QY7PBSJAF8JX2N0G9"]):
                    pass

    run(work)


@pytest.mark.filterwarnings("ignore:resources/:mcp.MCPDeprecationWarning")
def test_a_client_of_an_older_revision_subscribes(served: Served):
    async def work() -> None:
        told: asyncio.Queue[str] = asyncio.Queue()

        async def hear(message: Any) -> None:
            if isinstance(message, ResourceUpdatedNotification):
                told.put_nowait(str(message.params.uri))

        async with agent(served.home, "subscriber", revision="legacy", message_handler=hear) as one:
            job = (await one.call("submit", kind=KIND))["job"]
            uri = f"hocket://job/{job}"
            await one.client.subscribe_resource(uri)
            await one.call("finish", job=job, how="cancel")
            assert await told.get() == uri
            await one.client.unsubscribe_resource(uri)
            with pytest.raises(MCPError, match="01M7SP0K1QY7PBSJAF8JX2N0G9"):
                await one.client.subscribe_resource("hocket://job/01M7SP0K1QY7PBSJAF8JX2N0G9")

    run(work)
