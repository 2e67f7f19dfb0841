"""How many connections each caller may hold. One address gets a share of them. When the share or the total is used up,
the connection that has been idle longest is closed for the new one, so that a caller with hundreds of idle connections
shuts out no other, not even one behind the same address. Connections count from the moment they are accepted, so a TLS
handshake that never ends counts, too.
"""

import socket
from asyncio import WriteTransport
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from ipaddress import IPv6Address, ip_address
from typing import Any

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
