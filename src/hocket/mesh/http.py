"""Requests over real sockets, with aiohttp. Every answer is limited in size and in time, however slowly it arrives.
Redirects, cookies, proxies and compressed bodies are not accepted. Certificates are checked against the system's
authorities, a CA file for the peer, or one pinned certificate.
"""

import asyncio
import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from types import TracebackType
from urllib.parse import quote

import aiohttp
from yarl import URL

from hocket.bus.hints import Changes
from hocket.errors import Unreachable, Usage
from hocket.mesh import wire
from hocket.mesh.peers import Trust
from hocket.mesh.wire import Reply, Request

CONNECT_S = 5.0
# A whole request with its answer. The peer may have to verify 8 MiB before it answers.
ANSWER_S = 60.0
# A hint stream is closed if not even a keep-alive came for this long.
QUIET_S = 45.0
CONNECTIONS_PER_PEER = 6
HEADER_BYTES_MAX = 1024 * 1024
EVENT_BYTES_MAX = 64 * 1024
MESSAGE_EVENT_BYTES_MAX = 128 * 1024
TRUST_IT = "if it is the right one, give its fingerprint with --pin or its CA with --ca, to `join` or `peers add`"
_CHUNK = 256 * 1024


class HttpTransport:
    """`trust` tells how to check the certificate of an address. Close it when done."""

    def __init__(self, trust: Callable[[str], Trust] = lambda address: Trust(), answer_s: float = ANSWER_S) -> None:
        self._trust, self._answer_s = trust, answer_s
        self._sessions: dict[Trust, aiohttp.ClientSession] = {}

    async def __aenter__(self) -> "HttpTransport":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        for session in self._sessions.values():
            await session.close()
        self._sessions.clear()

    async def send(self, address: str, request: Request) -> Reply:
        try:
            async with asyncio.timeout(self._answer_s):
                async with self._session(address).request(
                    request.method,
                    _url(address, request),
                    headers=dict(request.headers),
                    data=request.body or None,
                    allow_redirects=False,
                ) as response:
                    headers = {name.lower(): value for name, value in response.headers.items()}
                    return Reply(response.status, headers, await _body(response, address))
        except TimeoutError:
            raise Unreachable(f"{address} did not answer in time") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Unreachable(f"{address} cannot be reached: {_said(error)}") from error

    async def hints(self, address: str, headers: Mapping[str, str]) -> AsyncIterator[Changes]:
        async with aclosing(self._stream(address, wire.HINTS, headers, EVENT_BYTES_MAX)) as events:
            async for data in events:
                yield wire.read_hint(data)

    async def messages(self, address: str, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
        """The messages of the bus that the peer passes on, sealed, until the connection ends."""
        async with aclosing(self._stream(address, wire.BUS, headers, MESSAGE_EVENT_BYTES_MAX)) as events:
            async for data in events:
                yield wire.read_message(data)

    async def _stream(
        self, address: str, path: str, headers: Mapping[str, str], size_max: int
    ) -> AsyncGenerator[bytes, None]:
        quiet = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=QUIET_S)
        try:
            async with self._session(address).get(
                _url(address, Request("GET", path)),
                headers={**headers, "accept": wire.EVENTS},
                timeout=quiet,
                allow_redirects=False,
            ) as response:
                if response.status != 200 or response.content_type != wire.EVENTS:
                    raise Unreachable(f"{address} does not serve {path}")
                async with aclosing(_events(response.content, size_max)) as events:
                    async for data in events:
                        yield data
        except TimeoutError:
            raise Unreachable(f"{address} has fallen silent") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Unreachable(f"{address} cannot be reached: {_said(error)}") from error

    def _session(self, address: str) -> aiohttp.ClientSession:
        trust = self._trust(address)
        if trust not in self._sessions:
            self._sessions[trust] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit_per_host=CONNECTIONS_PER_PEER, ssl=_ssl(trust)),
                timeout=aiohttp.ClientTimeout(total=self._answer_s, sock_connect=CONNECT_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"accept-encoding": "identity"},
                auto_decompress=False,
                max_field_size=HEADER_BYTES_MAX,
                max_line_size=HEADER_BYTES_MAX,
            )
        return self._sessions[trust]


def _url(address: str, request: Request) -> URL:
    query = f"?{request.query}" if request.query else ""
    return URL(f"{address}{quote(request.path)}{query}", encoded=True)


async def _body(response: aiohttp.ClientResponse, address: str) -> bytes:
    parts: list[bytes] = []
    left = wire.BODY_BYTES_MAX
    async for chunk in response.content.iter_chunked(_CHUNK):
        left -= len(chunk)
        if left < 0:
            response.close()
            raise Unreachable(f"{address} sent more than {wire.BODY_BYTES_MAX} bytes at once")
        parts.append(chunk)
    return b"".join(parts)


async def _events(content: aiohttp.StreamReader, size_max: int) -> AsyncGenerator[bytes, None]:
    """The data of each event of the stream, without keep-alive lines."""
    size, data = 0, b""
    while line := await content.readline():
        size += len(line)
        if size > size_max:
            raise ValueError("an event that is too long")
        if line.startswith(b"data:"):
            data += line[5:]
        if line in (b"\n", b"\r\n"):
            if data:
                yield data
            size, data = 0, b""


def _ssl(trust: Trust) -> ssl.SSLContext | aiohttp.Fingerprint | bool:
    if trust.pin is not None:
        return aiohttp.Fingerprint(bytes.fromhex(trust.pin))
    if trust.ca is not None:
        try:
            return ssl.create_default_context(cafile=trust.ca)
        except (OSError, ssl.SSLError) as error:
            raise Usage(f"{trust.ca} is not a file of CA certificates: {error}") from error
    return True


def _said(error: BaseException) -> str:
    """The error in a few words."""
    if isinstance(error, aiohttp.ServerFingerprintMismatch):
        return f"its certificate is {error.got.hex()}, not the pinned one; if the server has a new one, give --pin anew"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"its certificate is not trusted ({error.certificate_error}); {TRUST_IT}"
    if isinstance(error, aiohttp.ClientConnectorError):
        number = error.os_error.errno
        return os.strerror(number) if number and number > 0 else error.os_error.strerror or str(error.os_error)
    return str(error) or type(error).__name__
