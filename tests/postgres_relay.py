"""A way to the PostgreSQL server that understands its messages. As a pooler it does what PgBouncer does in transaction
mode: each transaction of a client gets another session of the server than the last one did. Either way it counts how
often a client waits for the server, and it can be cut: then the server is away without a word.
"""

import select
import socket
import struct
import threading
from collections import deque
from contextlib import suppress

from tests.postgres_server import server

# Requests that come before the first message of a connection, for encryption: this server has none.
ENCRYPTION = (80877103, 80877104)
QUERY, SYNC, FLUSH, TERMINATE, READY, KEY = b"Q", b"S", b"H", b"X", b"Z", b"K"
IDLE = b"I"


class Relay:
    """`sessions` is how many sessions of the server all clients of a pooler share; None gives each client its own."""

    def __init__(self, sessions: int | None = None) -> None:
        self._sessions = sessions
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._free: deque[Backend] = deque()
        self._made = 0
        self._changed = threading.Condition()
        self._clients: set[socket.socket] = set()
        self.waits = 0
        """How often clients asked for an answer: after a query, a sync or a flush the client waits."""
        threading.Thread(target=self._serve, daemon=True).start()

    def cut(self) -> None:
        """Ends every connection, and refuses new ones."""
        self._stop_listening()
        for client in list(self._clients):
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """Listens on the same port again."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._serve, daemon=True).start()

    def _stop_listening(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends `accept`
        self._listener.close()

    def close(self) -> None:
        self._stop_listening()
        with self._changed:
            for backend in self._free:
                backend.socket.close()

    def _serve(self) -> None:
        listener = self._listener
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            self._clients.add(client)
            threading.Thread(target=self._attend, args=(client,), daemon=True).start()

    def _attend(self, client: socket.socket) -> None:
        with client, suppress(OSError, EOFError):
            try:
                self._carry_all(client)
            finally:
                self._clients.discard(client)

    def _carry_all(self, client: socket.socket) -> None:
        startup = _startup(client)
        if self._sessions is None:
            backend = Backend(startup)
            client.sendall(backend.greeting)
            with backend.socket:
                while self._transact(client, backend, keep=True):
                    pass
            return
        backend = self._take(startup)
        client.sendall(backend.made_up_greeting)
        self._give_back(backend)
        while data := client.recv(65_536):
            backend = self._take(startup)
            is_over = False
            try:
                is_over = self._transact(client, backend, data)
            finally:
                (self._give_back if is_over else self._drop)(backend)

    def _take(self, startup: bytes) -> "Backend":
        """The session that has rested longest, so that nobody gets the same one twice in a row."""
        with self._changed:
            assert self._sessions is not None
            assert self._changed.wait_for(lambda: self._free or self._made < self._sessions, 30)
            if self._made == self._sessions:
                return self._free.popleft()
            self._made += 1
        return Backend(startup)

    def _drop(self, backend: "Backend") -> None:
        backend.socket.close()
        with self._changed:
            self._made -= 1
            self._changed.notify()

    def _give_back(self, backend: "Backend") -> None:
        with self._changed:
            self._free.append(backend)
            self._changed.notify()

    def _transact(self, client: socket.socket, backend: "Backend", first: bytes = b"", keep: bool = False) -> bool:
        """Carries messages both ways until the transaction is over. False if the client has gone."""
        asking, answering = Messages(), Messages()
        open_questions = 0
        is_begun = False
        before = b""
        data = first
        while True:
            for kind, _ in asking.read(data):
                is_begun = True
                if kind == TERMINATE:
                    return False
                open_questions += kind in (QUERY, SYNC)
                # A flush right after a sync asks for nothing new.
                self.waits += kind in (QUERY, SYNC) or (kind == FLUSH and before != SYNC)
                before = kind
            backend.socket.sendall(data)
            data = b""
            ready, _, _ = select.select([client, backend.socket], [], [])
            if backend.socket in ready:
                answer = _received(backend.socket)
                client.sendall(answer)
                for kind, body in answering.read(answer):
                    if kind == READY:
                        open_questions -= 1
                        if body == IDLE and open_questions == 0 and is_begun and not keep and asking.is_empty:
                            return True
            if client in ready:
                data = client.recv(65_536)
                if not data:
                    return False


class Backend:
    """A session of the server."""

    def __init__(self, startup: bytes) -> None:
        self.socket = socket.create_connection(("127.0.0.1", server().port))
        self.socket.sendall(startup)
        messages, self.greeting, self.made_up_greeting = Messages(), b"", b""
        while True:
            data = _received(self.socket)
            self.greeting += data
            for kind, body in messages.read(data):
                # A pooler gives each client a key of its own.
                body = b"\x7f\0\0\1" + body[4:] if kind == KEY else body
                self.made_up_greeting += kind + struct.pack("!I", len(body) + 4) + body
                if kind == READY:
                    return


class Messages:
    """Splits a stream into messages."""

    def __init__(self) -> None:
        self._rest = b""

    @property
    def is_empty(self) -> bool:
        return not self._rest

    def read(self, data: bytes) -> list[tuple[bytes, bytes]]:
        self._rest += data
        found = []
        while len(self._rest) >= 5:
            (size,) = struct.unpack("!I", self._rest[1:5])
            if len(self._rest) < size + 1:
                break
            found.append((self._rest[:1], self._rest[5 : size + 1]))
            self._rest = self._rest[size + 1 :]
        return found


def _startup(client: socket.socket) -> bytes:
    while True:
        head = _exactly(client, 4)
        (size,) = struct.unpack("!I", head)
        body = _exactly(client, size - 4)
        if struct.unpack("!I", body[:4])[0] not in ENCRYPTION:
            return head + body
        client.sendall(b"N")


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += _received(connection, size - len(data))
    return data


def _received(connection: socket.socket, size: int = 65_536) -> bytes:
    data = connection.recv(size)
    if not data:
        raise EOFError
    return data
