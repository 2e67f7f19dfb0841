"""The gate as a web application. A body is read up to the bound and no further, whatever its head says of it."""

from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.requests import Request as WebRequest
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from hocket.errors import StoreError
from hocket.mesh import wire
from hocket.mesh.gate import Gate
from hocket.mesh.wire import Reply, Request


class _Door:
    """An application of its own and not a function, so that every method and path gets here."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (await self._respond(WebRequest(scope, receive)))(scope, receive, send)

    async def _respond(self, request: WebRequest) -> Response:
        try:
            body = await _body(request)
        except ClientDisconnect:
            return Response(status_code=400)
        if body is None:
            # The rest is not waited for: the connection ends with this answer.
            reply = self._gate.too_large()
            return Response(reply.body, reply.status, {**reply.headers, "connection": "close"})
        asked = Request(request.method, request.url.path, request.url.query, dict(request.headers), body)
        try:
            reply = await self._gate.answer(asked)
        except StoreError:
            # The store's trouble is told to the operator by whoever else uses it; a peer only learns to come back.
            reply = self._gate.stamped(Reply(503, {"retry-after": "5"}))
        if reply.stream is not None:
            return StreamingResponse(_closing(reply.stream), reply.status, dict(reply.headers))
        return Response(reply.body, reply.status, dict(reply.headers))


async def _body(request: WebRequest) -> bytes | None:
    """The whole body; None when it is too large. A little more than the bound is read and thrown away, so that a sender
    who has just begun to exceed it gets to hear of that.
    """
    parts: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > 2 * wire.BODY_BYTES_MAX:
            return None
        if size <= wire.BODY_BYTES_MAX:
            parts.append(chunk)
        else:
            parts.clear()
    return b"".join(parts) if size <= wire.BODY_BYTES_MAX else None


async def _closing(stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Whoever goes away ends the stream."""
    try:
        async for line in stream:
            yield line
    finally:
        if hasattr(stream, "aclose"):
            await stream.aclose()


def web_app(gate: Gate) -> ASGIApp:
    return Starlette(routes=[Route("/{path:path}", _Door(gate))])
