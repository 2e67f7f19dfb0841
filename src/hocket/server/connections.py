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
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.flow_control import service_unavailable
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from hocket.mesh import wire

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application

CONNECTIONS_MAX = 512
CONNECTIONS_PER_ADDRESS_MAX = 128
# The most bytes of answers that one address has not read yet; beyond that, its requests are told to come back later.
UNSENT_PER_ADDRESS_BYTES_MAX = 64 * 1024 * 1024
# The most connections refused in a row before the event loop gets other work done.
TURNED_AWAY_AT_ONCE = 64

Peer = tuple[Any, ...]


@lru_cache(1024)
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
    """The open connections of one server, in the order in which they became idle. Each reverse proxy stands for many
    addresses, so it may hold all connections: `is_proxy` tells which those are. `tell` is called with the limit that
    was hit.
    """

    def __init__(
        self,
        is_proxy: Callable[[str], bool] = lambda host: False,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._is_proxy, self._tell = is_proxy, tell
        self._open: dict[Peer, _Connection] = {}
        # Those whose answers fill the buffers of the machine and of the program.
        self._full: dict[Peer, _Connection] = {}

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, peer: Peer, end: Callable[[], None]) -> bool:
        """Counts a new connection, which `end` would close. False if there is no room for it."""
        address = address_of(str(peer[0]))
        if not self._make_room(str(peer[0]), address):
            return False
        self._open[peer] = _Connection(address, end)
        return True

    def closed(self, peer: Peer) -> None:
        self._open.pop(peer, None)
        self._full.pop(peer, None)

    def is_full(self, peer: Peer, full: bool) -> None:
        """Tells that answers wait until their reader has read some, or that none do."""
        if not full:
            self._full.pop(peer, None)
        elif peer in self._open:
            self._full[peer] = self._open[peer]

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
        """Whether an address has too many unread answers. Small ones do not count."""
        if not self._full:
            return False
        address = address_of(host)
        if self._is_proxy(host):
            return False
        unsent = sum(
            connection.transport.get_write_buffer_size()
            for connection in self._full.values()
            if connection.address == address and connection.transport is not None
        )
        if unsent <= UNSENT_PER_ADDRESS_BYTES_MAX:
            return False
        self._tell("too many unread answers for one address")
        return True

    def _make_room(self, host: str, address: str) -> bool:
        of_address = Counter(connection.address for connection in self._open.values())
        if of_address[address] >= CONNECTIONS_PER_ADDRESS_MAX and not self._is_proxy(host):
            self._tell("too many connections from one address")
            return self._end_idle(address)
        if len(self._open) >= CONNECTIONS_MAX:
            self._tell("too many connections")
            return any(self._end_idle(crowded) for crowded, _ in of_address.most_common())
        return True

    def _end_idle(self, address: str) -> bool:
        for peer, connection in self._open.items():
            if connection.address == address and not connection.is_busy:
                self.closed(peer)
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


# In the scope of a request whose answer is a stream.
STREAMED = "hocket.streamed"
HEAD_S = 10.0
REQUEST_S = 60.0
# The URL contains a frontier, which can have the greatest possible number of authors.
URL_BYTES_MAX = 512 * 1024
HEADERS_MAX = 64
HEADERS_BYTES_MAX = 64 * 1024
# The most requests that may wait behind the current one. No client of ours pipelines.
PIPELINED_MAX = 8


class _JoinedWrites:
    """A transport that sends what is written in one turn of the event loop together: the head of an answer and its body
    are one call of the system, in which other threads may take the interpreter.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._pending: list[bytes] = []
        # What protocol and server call often is not looked up twice.
        self.is_closing = transport.is_closing
        self.get_extra_info = transport.get_extra_info

    def write(self, data: bytes) -> None:
        if not self._pending:
            self._loop.call_soon(self._flush)
        self._pending.append(data)

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size() + sum(map(len, self._pending))

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        self._pending.clear()
        self._transport.abort()

    def _flush(self) -> None:
        if self._pending:
            data = b"".join(self._pending)
            self._pending.clear()
            self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class _BadHead(Exception):
    """Stops the parser."""


class BoundedProtocol(HttpToolsProtocol):
    """Only streams that have begun may exceed the deadline: their number is limited, and `app` ends one that is not
    read.
    """

    head_s = HEAD_S
    request_s = REQUEST_S
    app: "ASGI3Application"

    def __init__(self, *arguments: Any, connections: Connections | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # uvicorn's own set of connections has the name `connections`.
        self._shares = connections or Connections()
        self._peer: tuple[Any, ...] = ()
        self._answering = self.app
        # The timer may be set to a time before the deadline: it is then set again when it fires.
        self._timer: asyncio.TimerHandle | None = None
        self._deadline: float | None = None
        self._at_deadline = self._late
        self._piece_bytes = self._head_bytes = self._url_bytes = self._headers_bytes = 0
        self._url: list[bytes] = []
        self._in_head = True
        self._status = 400

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(_JoinedWrites(transport, self.loop))  # type: ignore[arg-type]
        self._peer = transport.get_extra_info("peername") or ()
        self._shares.attached(self._peer, self.transport)
        self._arm(self.head_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline = None
        if self._timer is not None:
            self._timer.cancel()
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
        self._deadline = None
        super().on_response_complete()
        if self.pipeline:
            return
        if self.transport.get_write_buffer_size():
            # The answer is complete but not sent yet: the reader is slow.
            self._arm(self.request_s, self._unread)
        else:
            self._shares.is_busy(self._peer, False)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._shares.is_full(self._peer, True)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._shares.is_full(self._peer, False)
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

    def _arm(self, seconds: float, then: Callable[[], None] | None = None) -> None:
        """Every request moves the deadline several times, and a timer costs more than a comparison."""
        self._deadline = at = self.loop.time() + seconds
        self._at_deadline = then or self._late
        if self._timer is None or self._timer.when() > at:
            self._set_timer(at)

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_at(at, self._fired)

    def _fired(self) -> None:
        self._timer = None
        if self._deadline is None:
            return
        if self.loop.time() < self._deadline:
            self._set_timer(self._deadline)
        else:
            self._at_deadline()

    def _late(self) -> None:
        cycle = self.cycle
        if (
            cycle is not None
            and not cycle.response_complete
            and cycle.response_started
            and self._is_stream(cycle.scope)
        ):
            return
        self.transport.abort()

    def _unread(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()

    @staticmethod
    def _is_stream(scope: Any) -> bool:
        return scope["path"] in (wire.HINTS, wire.BUS) or STREAMED in scope
