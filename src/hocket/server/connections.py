"""Connections with limits. uvicorn waits for ever for the end of a request's head and for a slow reader of its answer,
and accepts any number of headers. Here every request has a deadline from its first byte to the last byte of its answer,
and its head has limits: on the length of the URL, and on the number and the size of headers. A head beyond them gets
414 or 431 as soon as that is seen.

Each caller may hold so many connections. When the share of an address or the total is used up, the connection that has
been idle longest is closed for the new one, so that a caller with hundreds of idle connections shuts out no other, not
even one behind the same address. Connections count from the moment they are accepted, so a TLS handshake that never
ends counts, too.
"""

import asyncio
import socket
from asyncio import WriteTransport
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from ipaddress import IPv6Address, ip_address
from typing import Any

from uvicorn.protocols.http.flow_control import service_unavailable
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

CONNECTIONS_MAX = 512
CONNECTIONS_PER_ADDRESS_MAX = 128
# The most bytes of answers that one address has not read yet; beyond that, its requests are told to come back later.
UNSENT_PER_ADDRESS_BYTES_MAX = 64 * 1024 * 1024
# The most connections refused in a row before the event loop gets other work done.
TURNED_AWAY_AT_ONCE = 64

Peer = tuple[Any, ...]


def address_of(host: str) -> str:
    """The unit of counting: an IPv4 address, or an IPv6 /64 network, since one machine has a whole one."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        if not address.is_loopback:
            return f"{IPv6Address(int(address) >> 64 << 64)}/64"
    return str(address)


class _Connection:
    def __init__(self, address: str, end: Callable[[], None]) -> None:
        self.address, self.end = address, end
        self.transport: WriteTransport | None = None
        self.is_busy = False


class Connections:
    """The open connections of one server, in the order in which they became idle. The reverse `proxies` stand for many
    addresses, so each may hold all connections. `tell` is called with the limit that was hit.
    """

    def __init__(self, proxies: Collection[str] = (), tell: Callable[[str], None] = lambda text: None) -> None:
        self._proxies = frozenset(map(address_of, proxies))
        self._tell = tell
        self._open: dict[Peer, _Connection] = {}

    def __len__(self) -> int:
        return len(self._open)

    def is_proxy(self, host: str) -> bool:
        return address_of(host) in self._proxies

    def opened(self, peer: Peer, end: Callable[[], None]) -> bool:
        """Counts a new connection, which `end` would close. False if there is no room for it."""
        address = address_of(str(peer[0]))
        if not self._make_room(address):
            return False
        self._open[peer] = _Connection(address, end)
        return True

    def closed(self, peer: Peer) -> None:
        self._open.pop(peer, None)

    def attached(self, peer: Peer, transport: WriteTransport) -> None:
        if peer in self._open:
            self._open[peer].transport = transport

    def is_busy(self, peer: Peer, busy: bool) -> None:
        """A connection is busy from the whole head of a request until its whole answer is sent."""
        connection = self._open.get(peer)
        if connection is not None and connection.is_busy != busy:
            connection.is_busy = busy
            # The connection that became idle last is closed last.
            self._open[peer] = self._open.pop(peer)

    def reads_too_slowly(self, host: str) -> bool:
        """Whether an address has too many unread answers."""
        address = address_of(host)
        if address in self._proxies:
            return False
        unsent = sum(
            connection.transport.get_write_buffer_size()
            for connection in self._open.values()
            if connection.address == address and connection.transport is not None
        )
        if unsent <= UNSENT_PER_ADDRESS_BYTES_MAX:
            return False
        self._tell("too many unread answers for one address")
        return True

    def _make_room(self, address: str) -> bool:
        of_address = Counter(connection.address for connection in self._open.values())
        if of_address[address] >= CONNECTIONS_PER_ADDRESS_MAX and address not in self._proxies:
            self._tell("too many connections from one address")
            return self._end_idle(address)
        if len(self._open) >= CONNECTIONS_MAX:
            self._tell("too many connections")
            return any(self._end_idle(crowded) for crowded, _ in of_address.most_common())
        return True

    def _end_idle(self, address: str) -> bool:
        for peer, connection in self._open.items():
            if connection.address == address and not connection.is_busy:
                del self._open[peer]
                connection.end()
                return True
        return False


class _Accepted(socket.socket):
    """A connection that reports when it is closed."""

    closed: Callable[[], None] = staticmethod(lambda: None)

    def close(self) -> None:
        self.closed()
        super().close()

    def end(self) -> None:
        """Makes readers of this connection see its end."""
        with suppress(OSError):
            self.shutdown(socket.SHUT_RDWR)


class BoundedListener(socket.socket):
    """A listening socket that accepts only connections for which there is room."""

    connections: Connections

    def accept(self) -> tuple[socket.socket, Peer]:
        for _ in range(TURNED_AWAY_AT_ONCE):
            number, peer = self._accept()  # type: ignore[attr-defined]
            accepted = _Accepted(self.family, self.type, self.proto, fileno=number)
            if self.connections.opened(peer, accepted.end):
                accepted.closed = lambda peer=peer: self.connections.closed(peer)  # type: ignore[misc]
                return accepted, peer
            accepted.close()
        raise ConnectionAbortedError


HEAD_S = 10.0
REQUEST_S = 60.0
UNREAD_S = 30.0
# The URL contains a frontier, which can have the greatest possible number of authors.
URL_BYTES_MAX = 512 * 1024
HEADERS_MAX = 64
HEADERS_BYTES_MAX = 64 * 1024
# The most requests that may wait behind the current one. No client of ours pipelines.
PIPELINED_MAX = 8


class _BadHead(Exception):
    """Stops the parser."""


# The key in a scope that says that the answer is a stream.
STREAMS = "hocket.streams"


class BoundedProtocol(HttpToolsProtocol):
    """Only streams may exceed the deadline: their number is limited, and one whose reader takes nothing for `unread_s`
    is ended.
    """

    head_s = HEAD_S
    request_s = REQUEST_S
    unread_s = UNREAD_S

    def __init__(self, *arguments: Any, connections: Connections | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # uvicorn's own set of connections has the name `connections`.
        self._shares = connections or Connections()
        self._peer: tuple[Any, ...] = ()
        self._answering = self.app
        self._deadline: asyncio.TimerHandle | None = None
        self._piece_bytes = self._head_bytes = self._url_bytes = self._headers_bytes = 0
        self._url: list[bytes] = []
        self._in_head = True
        self._is_taken = True
        self._status = 400

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._peer = transport.get_extra_info("peername") or ()
        self._shares.attached(self._peer, transport)
        self._arm(self.head_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._piece_bytes = len(data)
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        # Data that arrives together with the head may already be body, so the size is checked while the head is read.
        # The parser does not report an incomplete header, which keeps growing inside it.
        if self._in_head and self._head_bytes - self._url_bytes > HEADERS_BYTES_MAX:
            self._status = 431
            self.send_400_response("")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_bytes = True, self._piece_bytes
        self._url, self._url_bytes, self._headers_bytes = [], 0, 0
        self._arm(self.head_s)

    def on_url(self, url: bytes) -> None:
        # Kept in parts, so that a URL in many pieces is joined only once.
        self._url.append(url)
        self._url_bytes += len(url)
        if self._url_bytes > URL_BYTES_MAX:
            self._stop(414)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Also called for the trailers after a body."""
        self._headers_bytes += len(name) + len(value)
        if len(self.headers) >= HEADERS_MAX or self._headers_bytes > HEADERS_BYTES_MAX:
            self._stop(431)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        if len(self.pipeline) >= PIPELINED_MAX:
            self._stop(400)
        # The URL parser accepts at most 64 KiB, and a frontier of two thousand authors is longer.
        self.url, _, query = b"".join(self._url).partition(b"?")
        self._arm(self.request_s)
        is_full = bool(self._peer) and self._shares.reads_too_slowly(str(self._peer[0]))
        self._shares.is_busy(self._peer, True)
        self.app = service_unavailable if is_full else self._answering
        super().on_headers_complete()
        self.scope["query_string"] = query.partition(b"#")[0]

    def on_response_complete(self) -> None:
        self._disarm()
        super().on_response_complete()
        if self.pipeline:
            return
        if self.transport.get_write_buffer_size():
            # The answer is complete but not sent yet: the reader is slow.
            self._deadline = self.loop.call_later(self.request_s, self._unread)
        else:
            self._shares.is_busy(self._peer, False)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._is_taken = True
        if self.cycle is None or self.cycle.response_complete:
            self._shares.is_busy(self._peer, False)

    def send_400_response(self, msg: str) -> None:
        """Answers a request that cannot be parsed: its head is too long, or it is not HTTP."""
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            # The answer has begun, so no other answer can be sent.
            self.transport.abort()
            return
        self.transport.write(STATUS_LINE[self._status] + b"content-length: 0\r\nconnection: close\r\n\r\n")
        self.transport.close()

    def _stop(self, status: int) -> None:
        self._status = status
        raise _BadHead

    def _arm(self, seconds: float) -> None:
        self._disarm()
        self._deadline = self.loop.call_later(seconds, self._late)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        cycle = self.cycle
        streams = cycle is not None and not cycle.response_complete and STREAMS in cycle.scope
        if streams and (self._is_taken or not self.flow.write_paused):
            self._is_taken = False
            self._arm(self.unread_s)
        else:
            self.transport.abort()

    def _unread(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()
