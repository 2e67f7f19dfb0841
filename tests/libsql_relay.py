"""Stands between programs and a libSQL server: counts requests, delays them, and speaks TLS as a proxy does."""

import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress

_REQUEST = b"POST /"


class LibsqlRelay:
    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self._port, self._tls = port, tls
        self.requests = 0
        self.delay_s = 0.0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        _thread(self._accept)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            _thread(lambda client=client: self._serve(client))

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client:
            with self._tls.wrap_socket(client, server_side=True) if self._tls else client as near:
                with socket.create_connection(("127.0.0.1", self._port)) as far:
                    _thread(lambda: _copy(far, near))
                    self._forward(near, far)

    def _forward(self, near: socket.socket, far: socket.socket) -> None:
        while content := near.recv(65_536):
            if content.startswith(_REQUEST):
                self.requests += 1
                time.sleep(self.delay_s)
            far.sendall(content)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while content := source.recv(65_536):
            target.sendall(content)


def _thread(target: Callable[[], None]) -> None:
    threading.Thread(target=target, daemon=True).start()
