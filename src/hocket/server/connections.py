"""Connections that end. uvicorn waits for ever for the end of a request's head and for a slow reader of its answer;
here every request has a deadline from its first byte to the last one of its answer, and its head a size. A connection
that keeps to neither is cut.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from hocket.mesh import wire

HEAD_S = 10.0
REQUEST_S = 60.0
HEAD_BYTES_MAX = 1024 * 1024


class BoundedProtocol(HttpToolsProtocol):
    """Streams of hints are the one thing that may go on: their listeners are bounded in number."""

    head_s = HEAD_S
    request_s = REQUEST_S

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._deadline: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._in_head = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._arm(self.head_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        # What came with the head in one piece may be body already, so the measure is taken while the head goes on.
        if self._in_head and self._head_bytes > HEAD_BYTES_MAX:
            self.transport.abort()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0
        self._arm(self.head_s)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._arm(self.request_s)
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        self._disarm()
        super().on_response_complete()
        if self.transport.get_write_buffer_size():
            # It is complete, but not gone yet: a reader that does not read holds it up.
            self._deadline = self.loop.call_later(self.request_s, self._unread)

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
