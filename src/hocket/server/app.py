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
from hocket.mesh.wire import Request

# So many bytes of bodies are kept at the same time, whoever sends them; who comes then is told to come back.
BODIES_BYTES_MAX = 256 * 1024 * 1024


class _Full(Exception):
    """There is no room for more bodies now."""


class _Door:
    """An application of its own and not a function, so that every method and path gets here."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = _Sized(scope, receive)
        try:
            response = await self._respond(request)
        finally:
            self._bytes -= request.size
        await response(scope, receive, send)

    async def _respond(self, request: "_Sized") -> Response:
        try:
            body = await self._body(request)
        except ClientDisconnect:
            return Response(status_code=400)
        except _Full:
            reply = self._gate.failed(503, None)
            return Response(reply.body, reply.status, {**reply.headers, "connection": "close"})
        if body is None:
            # The rest is not waited for: the connection ends with this answer.
            reply = self._gate.too_large()
            return Response(reply.body, reply.status, {**reply.headers, "connection": "close"})
        # Not from the URL, which the Host header has a part in.
        path, query = request.scope["path"], request.scope["query_string"].decode("latin-1")
        try:
            reply = await self._gate.answer(Request(request.method, path, query, dict(request.headers), body))
        except StoreError as error:
            reply = self._gate.failed(503, error)
        except Exception as error:
            reply = self._gate.failed(500, error)
        if reply.stream is not None:
            return StreamingResponse(_closing(reply.stream), reply.status, dict(reply.headers))
        return Response(reply.body, reply.status, dict(reply.headers))

    async def _body(self, request: "_Sized") -> bytes | None:
        """The whole body; None when it is too large. A little more than the bound is read and thrown away, so that a
        sender who has just begun to exceed it gets to hear of that.
        """
        parts: list[bytes] = []
        size = 0
        async for chunk in request.stream():
            size += len(chunk)
            if size > 2 * wire.BODY_BYTES_MAX:
                return None
            if size <= wire.BODY_BYTES_MAX:
                parts.append(chunk)
                request.size += len(chunk)
                self._bytes += len(chunk)
            if self._bytes > BODIES_BYTES_MAX:
                raise _Full
        return b"".join(parts) if size <= wire.BODY_BYTES_MAX else None


class _Sized(WebRequest):
    """A request that knows how much of its body is kept."""

    size = 0


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
