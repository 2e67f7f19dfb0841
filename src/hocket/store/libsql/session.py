"""The statements of the SQLite store in a libSQL server that nodes share. The difference: the head's last op is that of
the author who writes, a node has settings of its own, and nothing is remembered from one transaction to the next.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from hocket.store.job_rows import IsLeft, JobEntry, ReadyJob
from hocket.store.libsql.connection import LibsqlConnection
from hocket.store.local import LocalSession
from hocket.store.op_rows import ENTRY_ID, Head, NewOp
from hocket.store.sqlite.session import SqliteSession
from hocket.store.statements import RowMacs

# How many ready jobs are read at once where some are left to others.
READY_ROWS = 64
# The last op of an author.
LATEST = f"SELECT {ENTRY_ID} FROM ops WHERE substr(hlc, 13) = ? ORDER BY hlc DESC LIMIT 1"


class LibsqlSession(SqliteSession):
    # A node has settings of its own.
    node_meta, set_node_meta = LocalSession.node_meta, LocalSession.set_node_meta

    def __init__(self, connection: LibsqlConnection, is_writer: bool = False, macs: RowMacs | None = None) -> None:
        super().__init__(connection, is_writer, macs)
        # An author and its last op, which a write transaction reads when it begins.
        self._known_last: tuple[bytes | None, bytes] = (None, b"")
        # The number and the id of the last op that the transaction has added.
        self.last_added: tuple[int, bytes] | None = None

    def begun(self, head: Head, known_last: tuple[bytes | None, bytes]) -> None:
        """A write transaction begins, which has read the head and an author's last op."""
        self._head, self._head_seen, self._known_last = head._replace(last=bytes(16)), True, known_last

    def ended(self) -> None:
        self.undone()
        self._claimed.clear()
        self._states.clear()
        self.last_added = None

    @property
    def author(self) -> bytes | None:
        """The author that the transaction has locked."""
        return self._author

    def has_op(self, seq: int, op_id: bytes) -> bool:
        return self._one("SELECT 1 FROM ops WHERE seq = ? AND id = ?", seq, op_id) is not None

    def head(self) -> Head:
        if self._head is None:
            self._head = self._stored_head()._replace(last=bytes(16))
        return self._head

    def lock_author(self, node: bytes) -> None:
        """From now on the head's `last` is that of this author."""
        if self._author != node:
            super().lock_author(node)
            last = self._known_last[1] if self._known_last[0] == node else self.latest_of(node)[1]
            self._head = self.head()._replace(last=last)

    def add_ops(self, ops: Sequence[NewOp], links: Sequence[bytes] = ()) -> int:
        seq = super().add_ops(ops, links)
        if ops:
            self.last_added = seq, ops[-1].id
        return seq

    def drop_ops(self, first: int) -> None:
        super().drop_ops(first)
        self.last_added = None

    def order_ops(self) -> None:
        """The tables have this index from the start: many nodes write here."""

    def _each(self, sql: str, values: Sequence[Sequence[Any]]) -> list[Iterable[Any]]:
        """In one round trip. The author of an op is the end of its time."""
        rows = self._many(sql, values)
        return [list(group) for _, group in groupby(rows, key=lambda row: row[2][12:])]

    def _not_left(self, kind: str, limit: int, after: JobEntry | None, is_left: IsLeft) -> list[ReadyJob]:
        found: list[ReadyJob] = []
        while page := self._ready(kind, READY_ROWS, after):
            found += [each for each in page if not is_left(each[0].job.id, each[0].job.fence)]
            if len(found) >= limit or len(page) < READY_ROWS:
                break
            after = page[-1][0]
        return found[:limit]
