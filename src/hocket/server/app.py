"""The gate for other nodes and the API for programs as one web application. Each sees the head of a request first. The
body is read only when it asks for it, and only as far as it allows. A caller that it refuses before that gets its
answer without its body being read, and its connection is closed.
"""

import asyncio
from collections import Counter
from contextlib import suppress

from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from hocket.api.operation import TokenNeed
from hocket.errors import StoreError
from hocket.mesh.gate import Gate
from hocket.mesh.peers import is_loopback
from hocket.mesh.wire import BodyTooLong, NoRoom, Reply, Request
from hocket.server.api import Api
from hocket.server.connections import STREAMS, Connections, address_of
from hocket.server.monitoring.monitor import METRICS, Monitor, names_this_machine
from hocket.server.routes import PREFIX

# The most bytes of request bodies in memory at once, of all callers and of one address; beyond that, callers are told
# to come back later.
BODIES_BYTES_MAX = 256 * 1024 * 1024
BODIES_PER_ADDRESS_BYTES_MAX = 64 * 1024 * 1024
# A refused caller may still be sending. For this long, and up to this many bytes, its data is discarded: closing a
# connection at once can lose the answer.
LINGER_S = 1.0
LINGER_BYTES_MAX = 1024 * 1024
# What the token of a program on another machine must grant for the metrics.
METRICS_NEED = TokenNeed("Mesh", "Read")


class _Gone(Exception):
    """The caller disconnected in the middle of its body."""


class _Bodies:
    """How much memory the bodies of unfinished requests take, by address."""

    def __init__(self) -> None:
        self._all = 0
        self._of: Counter[str] = Counter()

    def add(self, address: str, size: int, is_shared: bool) -> None:
        """Raises NoRoom if that is too much. A `shared` address stands for many callers."""
        self._all += size
        self._of[address] += size
        if self._all > BODIES_BYTES_MAX or (self._of[address] > BODIES_PER_ADDRESS_BYTES_MAX and not is_shared):
            raise NoRoom

    def drop(self, address: str, size: int) -> None:
        self._all -= size
        self._of[address] -= size
        if not self._of[address]:
            del self._of[address]


class _Body:
    """The body of one request, read on demand."""

    def __init__(self, receive: Receive, headers: dict[str, str], bodies: _Bodies, address: str, shared: bool) -> None:
        self._receive, self._bodies = receive, bodies
        self._address, self._shared = address, shared
        length = headers.get("content-length", "0")
        self._length = int(length) if length.isascii() and length.isdigit() and len(length) < 20 else 0
        self._kept = 0
        self.is_read = not self._length and "transfer-encoding" not in headers

    async def read(self, limit: int) -> bytes:
        """The whole body. Raises BodyTooLong and NoRoom."""
        if self._length > limit:
            raise BodyTooLong
        parts: list[bytes] = []
        while not self.is_read:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise _Gone
            part = message.get("body", b"")
            self._kept += len(part)
            self._bodies.add(self._address, len(part), self._shared)
            if self._kept > limit:
                raise BodyTooLong
            parts.append(part)
            self.is_read = not message.get("more_body", False)
        return b"".join(parts)

    async def gone(self) -> None:
        """Returns when the caller disconnects."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def throw_away(self) -> None:
        """Gives the caller time to read its answer while it may still be sending."""
        left = LINGER_BYTES_MAX
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while left > 0:
                    message = await self._receive()
                    if message["type"] == "http.disconnect" or not message.get("more_body", False):
                        return
                    left -= len(message.get("body", b""))

    def drop(self) -> None:
        self._bodies.drop(self._address, self._kept)
        self._kept = 0


class _Door:
    """An ASGI application that answers every method and path."""

    def __init__(self, gate: Gate, connections: Connections, api: Api | None, monitor: Monitor | None) -> None:
        self._gate, self._connections, self._api, self._monitor = gate, connections, api, monitor
        self._bodies = _Bodies()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: dict[str, str] = {}
        for name, value in scope["headers"]:
            # If a header is repeated, the first one counts.
            headers.setdefault(name.decode("latin-1"), value.decode("latin-1"))
        address, is_shared = self._address(scope, headers)
        body = _Body(receive, headers, self._bodies, address, is_shared)
        # Path and query do not come from the URL, because the Host header is a part of it.
        path, query = scope["path"], scope["query_string"].decode("latin-1")
        request = Request(scope["method"], path, query, headers, b"", address, body.read, body.gone)
        try:
            if self._api is not None and path.startswith(PREFIX) and not self._gate.has(path):
                reply = await _program_answer(self._api, request._replace(path=scope["raw_path"].decode("latin-1")))
            elif self._monitor is not None and self._monitor.has(path) and not self._gate.has(path):
                reply = await self._monitored(self._monitor, request, is_local=is_loopback(address) and not is_shared)
            else:
                reply = await self._answer(request)
        except _Gone:
            return
        finally:
            body.drop()
        if not body.is_read:
            await _last_answer(reply, body, send)
        elif reply.stream is not None:
            scope[STREAMS] = True
            try:
                await StreamingResponse(reply.stream, reply.status, dict(reply.headers))(scope, receive, send)
            finally:  # the caller may disconnect before the stream begins
                if hasattr(reply.stream, "aclose"):
                    await reply.stream.aclose()
        else:
            await Response(reply.body, reply.status, dict(reply.headers))(scope, receive, send)

    async def _monitored(self, monitor: Monitor, request: Request, is_local: bool) -> Reply:
        """Metrics name jobs and nodes. A caller on this machine that asks for this machine may read them; another needs
        a token.
        """
        refused = None
        is_local = is_local and names_this_machine(request.headers.get("host"))
        if request.path == METRICS and self._api is not None and not is_local:
            refused = await self._api.refusal(request, METRICS_NEED)
        return await monitor.answer(request) if refused is None else refused

    async def _answer(self, request: Request) -> Reply:
        try:
            return await self._gate.answer(request)
        except _Gone:
            raise
        except StoreError as error:
            return self._gate.failed(503, error)
        except Exception as error:
            return self._gate.failed(500, error)

    def _address(self, scope: Scope, headers: dict[str, str]) -> tuple[str, bool]:
        """The address of the caller, and whether many callers share it. Only a proxy that the operator named may name
        another address.
        """
        host = scope["client"][0] if scope["client"] else ""
        if not self._connections.is_proxy(host):
            return address_of(host), False
        # The nearest proxy adds the last entry; the caller may have made up those before it.
        said = headers.get("x-forwarded-for", "").rpartition(",")[2].strip()
        return (address_of(said), False) if said else (address_of(host), True)


async def _program_answer(api: Api, request: Request) -> Reply:
    try:
        return await api.answer(request)
    except _Gone:
        raise
    except Exception as error:
        return api.failed(error, request.path)


async def _last_answer(reply: Reply, body: _Body, send: Send) -> None:
    """Answers a request whose body was not read to its end, and closes the connection."""
    headers = {**reply.headers, "content-length": str(len(reply.body)), "connection": "close"}
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": reply.status, "headers": raw})
    await send({"type": "http.response.body", "body": reply.body, "more_body": True})
    await body.throw_away()
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def web_app(gate: Gate, connections: Connections, api: Api | None = None, monitor: Monitor | None = None) -> ASGIApp:
    return _Door(gate, connections, api, monitor)
