"""Connections that end. uvicorn waits for ever for the end of a request's head and for a slow reader of its answer, and
takes headers without end. Here every request has a deadline from its first byte to the last one of its answer, and its
head has bounds: on the length of its address, and on the number and the size of its headers. A head beyond them is
answered with 414 or 431 as soon as that is seen.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.flow_control import service_unavailable
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from hocket.mesh import wire
from hocket.server.listening import Connections

HEAD_S = 10.0
REQUEST_S = 60.0
# A frontier of the most authors that there can be is a part of the address.
URL_BYTES_MAX = 512 * 1024
HEADERS_MAX = 64
HEADERS_BYTES_MAX = 64 * 1024
# Requests that may wait behind the one that is being answered. No client of ours sends any.
PIPELINED_MAX = 8


class _BadHead(Exception):
    """Stops the parser."""


class BoundedProtocol(HttpToolsProtocol):
    """Streams of hints are the one thing that may go on: their listeners are bounded in number."""

    head_s = HEAD_S
    request_s = REQUEST_S

    def __init__(self, *arguments: Any, connections: Connections | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # uvicorn's own set of them has the name `connections`.
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
        # What came with the head in one piece may be body already, so the measure is taken while the head goes on.
        # A header that is not complete is not told by the parser, but it grows inside it.
        if self._in_head and self._head_bytes - self._url_bytes > HEADERS_BYTES_MAX:
            self._status = 431
            self.send_400_response("")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_bytes = True, self._piece_bytes
        self._url, self._url_bytes, self._headers_bytes = [], 0, 0
        self._arm(self.head_s)

    def on_url(self, url: bytes) -> None:
        # Kept in parts: an address that comes in many pieces is put together once.
        self._url.append(url)
        self._url_bytes += len(url)
        if self._url_bytes > URL_BYTES_MAX:
            self._stop(414)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Of the trailers behind a body, too."""
        self._headers_bytes += len(name) + len(value)
        if len(self.headers) >= HEADERS_MAX or self._headers_bytes > HEADERS_BYTES_MAX:
            self._stop(431)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        if len(self.pipeline) >= PIPELINED_MAX:
            self._stop(400)
        # The parser of addresses takes 64 KiB at most, and a frontier of two thousand authors is longer.
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
            # It is complete, but not gone yet: a reader that does not read holds it up.
            self._deadline = self.loop.call_later(self.request_s, self._unread)
        else:
            self._shares.is_busy(self._peer, False)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.cycle is None or self.cycle.response_complete:
            self._shares.is_busy(self._peer, False)

    def send_400_response(self, msg: str) -> None:
        """For a request that cannot be read: its head is too long, or it is no HTTP."""
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            # Its answer is under way, and there is no room for another one in it.
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
        return bool(scope["path"] == wire.HINTS)
