"""Connections with limits. uvicorn waits for ever for the end of a request's head and for a slow reader of its answer,
and accepts any number of headers. Here every request has a deadline from its first byte to the last byte of its answer,
and its head has limits: on the length of the URL, and on the number and the size of headers. A head beyond them gets
414 or 431 as soon as that is seen.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.flow_control import service_unavailable
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from hocket.mesh import wire
from hocket.server.listening import Connections

HEAD_S = 10.0
REQUEST_S = 60.0
# The URL contains a frontier, which can have the greatest possible number of authors.
URL_BYTES_MAX = 512 * 1024
HEADERS_MAX = 64
HEADERS_BYTES_MAX = 64 * 1024
# The most requests that may wait behind the current one. No client of ours pipelines.
PIPELINED_MAX = 8


class _BadHead(Exception):
    """Stops the parser."""


class BoundedProtocol(HttpToolsProtocol):
    """Only hint streams may exceed the deadline: the number of their listeners is limited."""

    head_s = HEAD_S
    request_s = REQUEST_S

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
        if cycle is not None and not cycle.response_complete and cycle.response_started and self._is_hints(cycle.scope):
            return
        self.transport.abort()

    def _unread(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()

    @staticmethod
    def _is_hints(scope: Any) -> bool:
        return scope["path"] in (wire.HINTS, wire.BUS)
