"""Agents with the official client: each starts `hocket mcp` as its clients do, and speaks with it over pipes."""

import asyncio
import os
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.types import CallToolResult, TextContent

from hocket.node.runtime import Runtime
from tests.cli.fork_server import fork_server, forked_program
from tests.server.served import ROOT, environment

# Both revisions of the protocol: the client asks which the server speaks, or shakes hands as before.
REVISIONS = ("auto", "legacy")
PATIENCE_S = 120.0
# What `hocket mcp` loads first takes a second.
MCP = "hocket.mcp.stdio"


def new_home(path: Path) -> Path:
    Runtime.init(path / "home", name="box").close()
    return path / "home"


class Agent:
    def __init__(self, client: Client, pid_file: Path | None = None) -> None:
        self.client, self._pid_file = client, pid_file

    @property
    def pid(self) -> int:
        assert self._pid_file is not None
        return int(self._pid_file.read_text())

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The structured answer of a tool that does what was asked."""
        answer = await self.client.call_tool(tool, arguments)
        assert not answer.is_error, text_of(answer)
        assert isinstance(answer.structured_content, dict)
        return answer.structured_content

    async def refusal(self, tool: str, **arguments: Any) -> str:
        """The sentence of a tool that does not."""
        answer = await self.client.call_tool(tool, arguments)
        assert answer.is_error and answer.structured_content is None
        return text_of(answer)

    async def text(self, tool: str, **arguments: Any) -> str:
        return text_of(await self.client.call_tool(tool, arguments))


def text_of(answer: CallToolResult) -> str:
    (content,) = answer.content
    assert isinstance(content, TextContent)
    return content.text


@asynccontextmanager
async def agent(
    home: Path, name: str, *options: str, revision: str = "auto", program: Sequence[str] = (), **given: Any
) -> AsyncIterator[Agent]:
    """An agent with a server of its own, which ends with the block. `program` starts `hocket`; `given` goes to the
    client.
    """
    pid_file = home.parent / f"{name}.pid"
    words = [*(program or forked_program(fork_server(MCP))), "--home", str(home), "mcp", "--agent", name, *options]
    script = f"echo $$ > {shlex.quote(str(pid_file))}; exec {shlex.join(words)}"
    server = StdioServerParameters(command="sh", args=["-c", script], env=environment({}), cwd=str(ROOT))
    async with Client(server, mode=revision, **given) as client:
        yield Agent(client, pid_file)


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await work()

    asyncio.run(bounded())


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@asynccontextmanager
async def agent_over_http(address: str, token: str, revision: str = "auto", **given: Any) -> AsyncIterator[Agent]:
    """An agent with a token. `given` goes to the client."""
    headers = {"Authorization": f"Bearer {token}"}
    async with create_mcp_http_client(headers) as http:
        transport = streamable_http_client(f"{address}/mcp", http_client=http)
        async with Client(transport, mode=revision, **given) as client:
            yield Agent(client)
