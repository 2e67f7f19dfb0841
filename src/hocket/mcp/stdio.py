"""The MCP server over stdin and stdout, for one agent. It ends with its client: at the end of stdin, at a signal, or
when it is killed, and what its agent held is free at once.
"""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import CancelledError
from contextlib import asynccontextmanager, suppress

import anyio
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.server.lowlevel.server import Server
from mcp.shared.message import SessionMessage

from hocket.api import Program
from hocket.api.programs import own_process
from hocket.cancelling import end_tasks
from hocket.events import Emit
from hocket.kernel.ucan import Capability
from hocket.mcp.caller import Context, McpCaller
from hocket.mcp.process_holds import ProcessHolds
from hocket.mcp.protocol import McpProtocol
from hocket.node.node import Node
from hocket.node.signals import ReceivedSignals, stopped_by_signals
from hocket.server.api import Api
from hocket.work.environment import supervising

# The longest message of a client. The connection ends at a longer one.
LINE_BYTES_MAX = 4 * 1024 * 1024


async def serve_stdio(node: Node, agent: str, capabilities: Sequence[Capability], emit: Emit) -> ReceivedSignals:
    """Serves until the client leaves or a signal comes."""
    api = Api(node)

    def program() -> Program:
        return own_process(api.service, agent, capabilities)

    holds = ProcessHolds(node, agent, lambda: McpCaller(api, node, program(), holds))

    async def caller(context: Context) -> McpCaller:
        return McpCaller(api, node, await api.read(program), holds)

    protocol = McpProtocol(caller)
    protocol.add_subscriptions()
    ended = asyncio.Event()
    try:
        with stopped_by_signals(ended.set) as received:
            async with node.in_touch(emit), supervising("renewing", holds.run, emit, node.environment):
                serving = asyncio.create_task(_serve(protocol.server))
                stop = asyncio.create_task(ended.wait())
                await asyncio.wait([serving, stop], return_when=asyncio.FIRST_COMPLETED)
                await end_tasks([serving, stop])
                await holds.end()
                if not serving.cancelled() and (error := serving.exception()) is not None:
                    raise error
    finally:
        api.close()
    return received


async def _serve(server: "Server[object]") -> None:
    async with _lines() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


@asynccontextmanager
async def _lines() -> AsyncIterator[
    tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]
]:
    """The messages of stdin, and a place for those to stdout. What this process reads or prints otherwise goes
    elsewhere. A thread that waits for stdin does not hold up the end of the process.
    """
    wire_in, wire_out = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    to_server, reading = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    writing, from_server = anyio.create_memory_object_stream[SessionMessage](0)
    loop = asyncio.get_running_loop()

    def read() -> None:
        with os.fdopen(wire_in, "rb", closefd=False) as file, suppress(Exception, CancelledError):
            while (line := file.readline(LINE_BYTES_MAX + 1)) and len(line) <= LINE_BYTES_MAX:
                asyncio.run_coroutine_threadsafe(to_server.send(_message(line)), loop).result()
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(to_server.close)

    async def write() -> None:
        async for each in from_server:
            text = each.message.model_dump_json(by_alias=True, exclude_unset=True)
            await asyncio.to_thread(_write_all, wire_out, text.encode() + b"\n")

    threading.Thread(target=read, name="hocket-mcp-stdin", daemon=True).start()
    writer = asyncio.create_task(write())
    try:
        yield reading, writing
    finally:
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(1):
                await writer
        await end_tasks([writer])


def _message(line: bytes) -> SessionMessage | Exception:
    try:
        return SessionMessage(types.jsonrpc_message_adapter.validate_json(line, by_name=False))
    except Exception as error:
        return error


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
