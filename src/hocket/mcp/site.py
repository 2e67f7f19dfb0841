"""The MCP server over HTTP: `/mcp` of `hocket mesh serve`. The agent is that of the token, and what it holds ends with
its leases. A request stands for itself, in both revisions of the protocol: no session is kept.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, ExitStack
from typing import Any, NamedTuple

import msgspec
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from hocket.api import Program
from hocket.cancelling import end_tasks
from hocket.errors import HocketError
from hocket.mcp.caller import Context, McpCaller
from hocket.mcp.protocol import McpProtocol
from hocket.mesh.wire import BodyTooLong, NoRoom, Reply, Request
from hocket.node.node import Node
from hocket.server.api import Api
from hocket.server.problems import BadMethod, WaitEnded
from hocket.server.program_caller import check_origin
from hocket.server.routes import BODY_BYTES_MAX

PATH = "/mcp"
# Where a request carries who sends it.
CALLER = "hocket.caller"


class McpSite:
    def __init__(self, node: Node, api: Api) -> None:
        self._node, self._api = node, api
        self._manager = StreamableHTTPSessionManager(McpProtocol(_caller_of).server, stateless=True)
        self._in_work: dict[_RequestPlace, set[_Exchange]] = {}

    def running(self) -> AbstractAsyncContextManager[None]:
        """Requests are answered in this block."""
        return self._manager.run()

    def has(self, path: str) -> bool:
        return path == PATH

    def failed(self, error: Exception, path: str) -> Reply:
        return self._api.failed(error, path)

    async def answer(self, request: Request) -> Reply:
        try:
            check_origin(request)
            if request.method != "POST":
                raise BadMethod(["POST"])
            program = await self._api.admitted(request)
            return program if isinstance(program, Reply) else await self._answer(request, program)
        except (HocketError, BodyTooLong, NoRoom) as error:
            return self._api.refused(error, request)

    async def _answer(self, request: Request, program: Program) -> Reply:
        request = await request.whole(BODY_BYTES_MAX)
        message = _read(request.body)
        if message.method == "notifications/cancelled":
            self._cancel(_RequestPlace(program.name, request.address, message.cancelled))
        with ExitStack() as stack:
            ending = stack.enter_context(
                self._api.held_open(request, program, is_stream=message.method == "subscriptions/listen")
            )
            exchange = _Exchange(self._manager, request, McpCaller(self._api, self._node, program), ending)
            stack.callback(exchange.cancel)
            self._note(_RequestPlace(program.name, request.address, message.id), exchange)
            reply = await exchange.reply()
            if reply.stream is None:
                return reply
            exchange.held = stack.pop_all()
            return reply

    def _note(self, place: "_RequestPlace", exchange: "_Exchange") -> None:
        if place.request is None:
            return
        in_work = self._in_work.setdefault(place, set())
        in_work.add(exchange)

        def done() -> None:
            in_work.discard(exchange)
            if not in_work and self._in_work.get(place) is in_work:
                del self._in_work[place]

        exchange.when_done(done)

    def _cancel(self, place: "_RequestPlace") -> None:
        """A client of an older revision cancels by a request of its own, which names the other one by an id that is
        unique to the client. The server keeps no sessions, so it cancels only if there is no doubt which one it is.
        """
        found = self._in_work.get(place, set())
        if place.request is not None and len(found) == 1:
            next(iter(found)).cancel()


class _RequestPlace(NamedTuple):
    """Which request of which client it is, as far as that can be known: its token, its address, and its own id."""

    program: str
    address: str
    request: str | int | None


class _Message(NamedTuple):
    """What of a message is read before the SDK reads it. `cancelled` is the id of the request that it cancels."""

    method: str
    id: str | int | None
    cancelled: str | int | None


async def _caller_of(context: Context) -> McpCaller:
    caller: McpCaller = context.request.scope[CALLER]  # type: ignore[union-attr]
    return caller


def _read(body: bytes) -> _Message:
    try:
        message = msgspec.json.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        message = None
    found = message if isinstance(message, dict) else {}
    params = found.get("params")
    cancelled = params.get("requestId") if isinstance(params, dict) else None
    return _Message(str(found.get("method", "")), _request_id(found.get("id")), _request_id(cancelled))


def _request_id(id: Any) -> str | int | None:
    return id if isinstance(id, str | int) else None


class _Exchange:
    """One request as the SDK's application takes it, and its answer as a reply of ours."""

    def __init__(
        self, manager: StreamableHTTPSessionManager, request: Request, caller: McpCaller, ending: asyncio.Event
    ) -> None:
        self._manager, self._request, self._caller, self._ending = manager, request, caller, ending
        self._sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue(1)
        self._is_read = False
        self.held: ExitStack | None = None
        self._task = asyncio.create_task(self._run())
        self._watch = asyncio.create_task(self._end())

    async def _run(self) -> None:
        request = self._request
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": "http",
            "path": request.path,
            "raw_path": request.path.encode(),
            "query_string": request.query.encode(),
            "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in request.headers.items()],
            "client": (request.address, 0),
            CALLER: self._caller,
        }
        try:
            await self._manager.handle_request(scope, self._receive, self._send)  # type: ignore[arg-type]
        finally:
            self._watch.cancel()

    async def _end(self) -> None:
        """The request ends with its token, and with the server."""
        await self._ending.wait()
        self._task.cancel()

    async def _receive(self) -> dict[str, Any]:
        if not self._is_read:
            self._is_read = True
            return {"type": "http.request", "body": self._request.body, "more_body": False}
        if self._request.gone is None:
            await asyncio.Event().wait()
        else:
            await self._request.gone()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        await self._sent.put(message)

    def when_done(self, then: Callable[[], object]) -> None:
        self._task.add_done_callback(lambda _: then())

    def cancel(self) -> None:
        self._task.cancel()
        self._watch.cancel()

    async def _next(self) -> dict[str, Any] | None:
        """The next message of the answer; None after its end."""
        getting = asyncio.create_task(self._sent.get())
        try:
            await asyncio.wait([getting, self._task], return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not getting.done():
                getting.cancel()
        if getting.done():
            return getting.result()
        return None if self._sent.empty() else self._sent.get_nowait()

    async def reply(self) -> Reply:
        start, first = await self._next(), await self._next()
        if start is None or first is None:
            if self._task.done() and not self._task.cancelled():
                self._task.result()
            raise WaitEnded("the request was cancelled, or has ended with its token or with the server; send it again")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in start["headers"]}
        headers = {"cache-control": "no-store", **headers}
        if not first.get("more_body"):
            headers.pop("content-length", None)
            reply = Reply(start["status"], headers, first.get("body", b""))
            return reply._replace(undelivered=self._caller.service.undelivered)
        return Reply(start["status"], headers, stream=_AnswerPieces(self, first.get("body", b"")))

    async def pieces(self, first: bytes) -> AsyncIterator[bytes]:
        yield first
        while (message := await self._next()) is not None:
            yield message.get("body", b"")

    async def close(self, *, is_whole: bool) -> None:
        if not is_whole and self._caller.service.undelivered is not None:
            self._caller.service.undelivered()
        await end_tasks([self._task, self._watch])
        if self.held is not None:
            self.held.close()


class _AnswerPieces:
    """The body of an answer that comes in pieces. The sender closes it."""

    def __init__(self, exchange: _Exchange, first: bytes) -> None:
        self._exchange, self._pieces, self._is_whole = exchange, exchange.pieces(first), False

    def __aiter__(self) -> "_AnswerPieces":
        return self

    async def __anext__(self) -> bytes:
        try:
            return await anext(self._pieces)
        except StopAsyncIteration:
            self._is_whole = True
            raise

    async def aclose(self) -> None:
        await self._exchange.close(is_whole=self._is_whole)
