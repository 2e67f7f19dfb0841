"""Ports for programs that must be told theirs before they start."""

import secrets
import socket

# Below the ports that systems give to connections: none of those takes it before the program listens.
_PORTS = range(12_000, 32_000)
_given: set[int] = set()


def free_port() -> int:
    """A port on which nothing listens now, another one each time. Tests of other processes hardly ever get it."""
    while True:
        port = secrets.choice(_PORTS)
        if port not in _given:
            with socket.socket() as found:
                try:
                    found.bind(("127.0.0.1", port))
                except OSError:
                    continue
            _given.add(port)
            return port
