"""The gate for other nodes and the API for programs as one web application. Each sees the head of a request first. The
body is read only when it asks for it, and only as far as it allows. A caller that it refuses before that gets its
answer without its body being read, and its connection is closed.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Protocol

from starlette.types import ASGIApp, Receive, Scope, Send

from hocket.api.operation import TokenNeed
from hocket.errors import StoreError
from hocket.mesh.gate import Gate
from hocket.mesh.peers import is_loopback
from hocket.mesh.wire import BodyTooLong, NoRoom, Reply, Request
from hocket.server.api import Api
from hocket.server.browser_page import PATHS, browser_page
from hocket.server.connections import REQUEST_S, STREAMED
from hocket.server.monitoring.monitor import METRICS, Monitor, names_this_machine
from hocket.server.proxies import TrustedProxies, without_base
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


class Site(Protocol):
    """A face with paths of its own: the page, or the server for agents."""

    def has(self, path: str) -> bool: ...

    async def answer(self, request: Request) -> Reply: ...

    def failed(self, error: Exception, path: str) -> Reply:
        """The reply to a request that met a bug."""


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

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it comes. A piece counts until the next one is read."""
        while not self.is_read:
            async with asyncio.timeout(REQUEST_S):
                message = await self._receive()
            if message["type"] == "http.disconnect":
                raise _Gone
            self.drop()
            piece = message.get("body", b"")
            self._kept = len(piece)
            self._bodies.add(self._address, len(piece), self._shared)
            self.is_read = not message.get("more_body", False)
            yield piece

    async def gone(self) -> None:
        """Returns when the caller disconnects."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def is_gone(self) -> bool:
        """Whether the caller has disconnected. What is written right after this goes out."""
        with suppress(TimeoutError):
            async with asyncio.timeout(0):
                await self.gone()
                return True
        return False

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
    """An ASGI application that answers every method and path, with the base path that a proxy left and without."""

    def __init__(
        self,
        gate: Gate,
        proxies: TrustedProxies,
        api: Api | None,
        monitor: Monitor | None,
        base_path: str,
        sites: Sequence[Site],
    ) -> None:
        self._gate, self._proxies, self._api, self._monitor, self._base = gate, proxies, api, monitor, base_path
        self._sites = sites
        self._bodies = _Bodies()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: dict[str, str] = {}
        for name, value in scope["headers"]:
            # If a header is repeated, the first one counts.
            headers.setdefault(name.decode("latin-1"), value.decode("latin-1"))
        host = scope["client"][0] if scope["client"] else ""
        address, is_shared = self._proxies.caller(host, headers.get("x-forwarded-for", ""))
        body = _Body(receive, headers, self._bodies, address, is_shared)
        # Path and query do not come from the URL, because the Host header is a part of it.
        path, query = without_base(scope["path"], self._base), scope["query_string"].decode("latin-1")
        request = Request(scope["method"], path, query, headers, b"", address, body.read, body.gone, body.pieces)
        try:
            if self._api is not None and path in PATHS:
                reply = browser_page(request, self._base)
            elif self._api is not None and path.startswith(PREFIX) and not self._gate.has(path):
                raw_path = without_base(scope["raw_path"].decode("latin-1"), self._base)
                reply = await _program_answer(self._api, request._replace(path=raw_path))
            elif (site := next((each for each in self._sites if each.has(path)), None)) and not self._gate.has(path):
                reply = await _site_answer(site, request)
            elif self._monitor is not None and self._monitor.has(path) and not self._gate.has(path):
                reply = await self._monitored(self._monitor, request, is_local=is_loopback(address) and not is_shared)
            else:
                reply = await self._answer(request)
        except _Gone:
            return
        finally:
            body.drop()
        if reply.undelivered is not None and await body.is_gone():
            reply.undelivered()
        elif reply.stream is not None:
            scope[STREAMED] = True
            try:
                await _send_stream(reply, reply.stream, body, send)
            finally:  # the caller may disconnect before the stream begins
                if hasattr(reply.stream, "aclose"):
                    await reply.stream.aclose()
                body.drop()
        elif not body.is_read:
            await _last_answer(reply, body, send)
        else:
            await _send_whole(reply, send)

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


async def _program_answer(api: Api, request: Request) -> Reply:
    try:
        return await api.answer(request)
    except _Gone:
        raise
    except Exception as error:
        return api.failed(error, request.path)


async def _site_answer(site: Site, request: Request) -> Reply:
    try:
        return await site.answer(request)
    except _Gone:
        raise
    except Exception as error:
        return site.failed(error, request.path)


async def _send_stream(reply: Reply, stream: AsyncIterator[bytes], body: _Body, send: Send) -> None:
    """Sends what a stream yields until it ends, the caller disconnects, or does not read for a whole deadline. A stream
    that reads the body itself sees the caller disconnect there.
    """

    async def send_all() -> None:
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers.items()]
        await send({"type": "http.response.start", "status": reply.status, "headers": raw})
        async for piece in stream:
            async with asyncio.timeout(REQUEST_S):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    tasks = [asyncio.create_task(send_all())]
    if body.is_read:
        tasks.append(asyncio.create_task(body.gone()))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.wait(tasks)
    if not tasks[0].cancelled() and (error := tasks[0].exception()) is not None and not isinstance(error, _Gone):
        raise error


async def _send_whole(reply: Reply, send: Send) -> None:
    await send({"type": "http.response.start", "status": reply.status, "headers": _raw(reply)})
    await send({"type": "http.response.body", "body": reply.body})


def _raw(reply: Reply) -> list[tuple[bytes, bytes]]:
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers.items()]
    if reply.status not in (204, 304):
        headers.append((b"content-length", b"%d" % len(reply.body)))
    return headers


async def _last_answer(reply: Reply, body: _Body, send: Send) -> None:
    """Answers a request whose body was not read to its end, and closes the connection."""
    headers = [*_raw(reply), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body, "more_body": True})
    await body.throw_away()
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def web_app(
    gate: Gate,
    proxies: TrustedProxies = TrustedProxies(),  # noqa: B008
    api: Api | None = None,
    monitor: Monitor | None = None,
    base_path: str = "",
    sites: Sequence[Site] = (),
) -> ASGIApp:
    return _Door(gate, proxies, api, monitor, base_path, sites)
