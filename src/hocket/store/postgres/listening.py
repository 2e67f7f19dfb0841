"""The connection that hears the notes of a PostgreSQL store, by LISTEN. It needs a session of its own, which a pooler
in transaction mode does not give.
"""

import base64
import binascii
import os
import select
import threading
from contextlib import suppress

import psycopg
from psycopg.conninfo import make_conninfo

from hocket.store.connections import WakeUp
from hocket.store.postgres.connecting import DatabaseAddress, connect, is_pooled, raise_explained, read_address
from hocket.store.postgres.exchange import Connection, Statement

# A server that vanished without a word is noticed after about a minute.
_KEEP_ALIVE = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}


def notification(address: DatabaseAddress, note: bytes) -> Statement:
    """The statement that sends a note."""
    return "SELECT pg_notify(?, ?)", (address.schema, base64.b64encode(note).decode())


class PostgresListener:
    """`url` is the store's address, and `direct` the way to the same database past a pooler, if there is one."""

    def __init__(self, url: str, direct: str | None) -> None:
        store = read_address(url)
        way = store if direct is None else read_address(direct)
        self._address = way._replace(schema=store.schema, conninfo=make_conninfo(way.conninfo, **_KEEP_ALIVE))
        self._connection: Connection | None = None
        self._reading = threading.Lock()
        self._is_closed = False
        # A byte here ends a wait.
        self._end, self._ending = os.pipe()

    def open(self) -> WakeUp:
        self._drop()
        connection = connect(self._address)
        try:
            if is_pooled(connection):
                connection.close()
                return WakeUp.POLLING
            connection.execute(f'LISTEN "{self._address.schema}"', prepare=False)
        except psycopg.Error as error:
            connection.close()
            raise_explained(self._address.shown, error)
        self._connection = connection
        return WakeUp.LISTENING

    def wait(self) -> list[bytes]:
        connection = self._connection
        assert connection is not None
        with self._reading:
            if self._is_closed:
                self._drop()
                return []
            poll = select.poll()
            poll.register(self._end, select.POLLIN)
            poll.register(connection.fileno(), select.POLLIN)
            notes: list[bytes] = []
            try:
                while not notes and not self._is_closed:
                    poll.poll()
                    notes = [_note(each.payload) for each in connection.notifies(timeout=0)]
            except psycopg.Error as error:
                self._drop()
                raise_explained(self._address.shown, error)
        return notes

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            os.write(self._ending, b"\0")
            with self._reading:
                self._drop()
            os.close(self._end)
            os.close(self._ending)

    def _drop(self) -> None:
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.close()
            self._connection = None


def _note(payload: str) -> bytes:
    """Another program may send anything; an empty note means anything, too."""
    try:
        return base64.b64decode(payload, validate=True)
    except (binascii.Error, ValueError):
        return b""
