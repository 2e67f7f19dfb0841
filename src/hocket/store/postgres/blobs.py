"""Blobs in PostgreSQL, over connections of their own. A blob is written in one transaction, so it is visible when it is
whole: a process that dies meanwhile leaves nothing. The row of the blob comes first and serves as its lock: of two
nodes that write the same blob, the second waits for the first and then has nothing to do. Every use of a connection
happens on a thread that no exception interrupts. Nothing is kept in a session, so a pooler may stand before the server.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import Any, TypeVar

import psycopg
from blake3 import blake3
from psycopg import errors

from hocket.errors import StoreError, StoreLocked
from hocket.kernel.ids import hash_text
from hocket.store.artifact_rows import PART_BYTES, ClearedBlobs
from hocket.store.postgres.connecting import IDLE_S, connect, raise_explained, read_address
from hocket.store.postgres.exchange import Connection
from hocket.store.postgres.statements import SERVER_MS

CONNECTIONS_MAX = 4
# How long a node waits for another one that writes the same blob.
SAME_BLOB_S = 300
# So many blobs are listed or deleted by one statement.
PAGE = 500

T = TypeVar("T")

_BEGIN = (
    f"BEGIN; SET LOCAL lock_timeout = '{SAME_BLOB_S}s'; SET LOCAL idle_in_transaction_session_timeout = '{IDLE_S}s'"
)
# Makes a blob young again, and tells what its parts are without sending them.
_RENEW = f"""
    WITH renewed AS (
        UPDATE {{schema}}.blobs SET made = {SERVER_MS} WHERE hash = %(hash)s AND size = %(size)s RETURNING content
    )
    SELECT 0 AS number, sha256(content) FROM renewed
    UNION ALL SELECT number, sha256(content) FROM {{schema}}.blob_parts WHERE hash = %(hash)s
    ORDER BY number"""
_DROP_DAMAGED = "DELETE FROM {schema}.blobs WHERE hash = %s AND (size <> %s OR %s)"
_FIRST_PART = f"""
    INSERT INTO {{schema}}.blobs (hash, size, content, made) VALUES (%s, %s, %b, {SERVER_MS})
    ON CONFLICT (hash) DO UPDATE SET made = excluded.made RETURNING xmax = 0"""
_OTHER_PART = "INSERT INTO {schema}.blob_parts (hash, number, content) VALUES (%s, %s, %b)"
_UNUSED = f"""
    WITH unused AS (
        SELECT hash FROM {{schema}}.blobs
        WHERE made < {SERVER_MS} - %s
          AND EXISTS (SELECT 1 FROM {{schema}}.head WHERE unsettled = 0 AND rebuilding IS NULL)
          AND NOT EXISTS (
              SELECT 1 FROM {{schema}}.artifacts AS made_of
              WHERE made_of.hash = blobs.hash AND inline = 0
                AND NOT EXISTS (SELECT 1 FROM {{schema}}.evictions
                                WHERE artifact IN (made_of.id, made_of.source_job)))
        LIMIT {PAGE} FOR UPDATE OF blobs SKIP LOCKED
    )
    DELETE FROM {{schema}}.blobs USING unused WHERE blobs.hash = unused.hash RETURNING size"""


class PostgresBlobs:
    def __init__(self, url: str) -> None:
        self._address = read_address(url)._replace(is_pooled=True)
        self.shown = self._address.shown
        self._threads = ThreadPoolExecutor(CONNECTIONS_MAX, thread_name_prefix="blobs")
        self._idle: deque[Connection] = deque()

    def write(self, hash: bytes, size: int, content: Callable[[], Iterator[bytes]]) -> None:
        self._run(lambda connection: self._write(connection, hash, size, content))

    def _write(self, connection: Connection, hash: bytes, size: int, content: Callable[[], Iterator[bytes]]) -> None:
        there = connection.execute(self._sql(_RENEW), {"hash": hash, "size": size}, binary=True).fetchall()
        if there and [digest for _, digest in there] == [sha256(part).digest() for part in _whole_parts(content())]:
            return
        connection.execute(_BEGIN)
        try:
            connection.execute(self._sql(_DROP_DAMAGED), (hash, size, bool(there)))
            parts = _whole_parts(content())
            hasher = blake3(first := next(parts))
            ((is_new,),) = connection.execute(self._sql(_FIRST_PART), (hash, size, first))
            for number, part in enumerate(parts if is_new else (), 1):
                hasher.update(part)
                connection.execute(self._sql(_OTHER_PART), (hash, number, part))
            if is_new and hasher.digest() != hash:
                raise StoreError(f"the content is not {hash_text(hash)}; it was not stored in {self.shown}")
            connection.execute("COMMIT")
        except errors.LockNotAvailable:
            raise StoreLocked(
                f"another process has been writing the blob {hash_text(hash)} to {self.shown} for {SAME_BLOB_S}"
                " seconds; repeat the change"
            ) from None

    def among(self, hashes: Sequence[bytes]) -> set[bytes]:
        rows = self._rows("SELECT hash FROM {schema}.blobs WHERE hash = ANY(%s)", list(hashes)) if hashes else []
        return {hash for (hash,) in rows}

    def part(self, hash: bytes, number: int) -> bytes | None:
        if number == 0:
            rows = self._rows("SELECT content FROM {schema}.blobs WHERE hash = %s", hash)
        else:
            rows = self._rows("SELECT content FROM {schema}.blob_parts WHERE hash = %s AND number = %s", hash, number)
        return rows[0][0] if rows else None

    def all(self) -> Iterator[tuple[bytes, int]]:
        after = b""
        listed = "SELECT hash, size FROM {schema}.blobs WHERE hash > %s ORDER BY hash LIMIT %s"
        while rows := self._rows(listed, after, PAGE):
            yield from rows
            after = rows[-1][0]

    def remove(self, hash: bytes, age_s: float) -> int:
        old = f"DELETE FROM {{schema}}.blobs WHERE hash = %s AND made < {SERVER_MS} - %s RETURNING size"
        return sum(size for (size,) in self._rows(old, hash, round(age_s * 1000)))

    def clear(self, age_s: float) -> ClearedBlobs:
        sizes: list[int] = []
        while rows := self._rows(_UNUSED, round(age_s * 1000)):
            sizes += (size for (size,) in rows)
        return ClearedBlobs(len(sizes), sum(sizes))

    def close(self) -> None:
        self._threads.shutdown()
        while self._idle:
            self._idle.pop().close()

    def _sql(self, statement: str) -> str:
        return statement.format(schema=self._address.schema)

    def _rows(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        sql = self._sql(statement)
        return self._run(lambda connection: connection.execute(sql, values, binary=True).fetchall())

    def _run(self, work: Callable[[Connection], T]) -> T:
        return self._threads.submit(self._attempt, work).result()

    def _connected(self) -> Connection:
        try:
            return self._idle.pop()
        except IndexError:
            return connect(self._address)

    def _attempt(self, work: Callable[[Connection], T]) -> T:
        """Runs it again over a new connection if the first one broke. All work here can be repeated."""
        connection: Connection | None = None
        try:
            try:
                connection = self._connected()
                result = work(connection)
            except psycopg.OperationalError:
                if connection is None or not connection.closed:
                    raise
                connection = connect(self._address)
                result = work(connection)
        except BaseException as error:
            if connection is not None:
                connection.close()
            raise_explained(self.shown, error)
        self._idle.append(connection)
        return result


def _whole_parts(content: Iterator[bytes]) -> Iterator[bytes]:
    """The content in parts of the same size, and a last one with the rest. Empty content is one empty part."""
    rest, is_empty = b"", True
    for piece in content:
        rest += piece
        while len(rest) >= PART_BYTES:
            yield rest[:PART_BYTES]
            rest, is_empty = rest[PART_BYTES:], False
    if rest or is_empty:
        yield rest
