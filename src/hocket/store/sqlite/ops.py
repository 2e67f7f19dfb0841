"""The statements about the log: the head, the ops and their citations."""

from collections.abc import Iterable, Mapping, Sequence
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import Any

import apsw

from hocket.store.locks import LockSession
from hocket.store.ops import OP_COLUMNS, EndSeal, Head, NewOp, OpRow, OpSession, SealedOp
from hocket.store.row_check import RowCheck
from hocket.store.sqlite.statements import UNREADABLE, SqliteStatements, damaged
from hocket.store.statements import Row

HEAD = "SELECT wall, logical, seq, chain, settled, unsettled, rebuilding, law, last, mark, signed, signature FROM head"
_PUT_HEAD = (
    "UPDATE head SET wall = ?, logical = ?, seq = ?, chain = ?, settled = ?, unsettled = ?, rebuilding = ?, law = ?,"
    " last = ?, mark = ?, signed = ?, signature = ? WHERE one = 1"
)
_ADD_OP = (
    "INSERT INTO ops (seq, id, hlc, variant, family, key, reason, settled, body, place, chain)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


class SqliteOps(SqliteStatements, OpSession, LockSession):
    row_check: RowCheck | None

    def head(self) -> Head:
        """The head. A write transaction reads it only if another connection has written since this one last did."""
        head = self._head
        if head is None or not self._head_seen:
            version = self._data_version()
            if head is None or version != self._head_version:
                head = self._stored_head()
                self._claimed.clear()
                self._states.clear()
            if self._is_writer:
                self._head, self._head_version, self._head_seen = head, version, True
        return head

    def _stored_head(self) -> Head:
        try:
            row = self._sql(HEAD).fetchone()
        except UNREADABLE as error:
            raise damaged(str(error)) from error
        if row is None or type(row[2]) is not int or type(row[3]) is not bytes:
            raise damaged("it has lost the end of its log")
        return head_of(row)

    @property
    def _is_writing(self) -> bool:
        return self._is_writer and self._connection.in_transaction

    def _data_version(self) -> int:
        """Changes with each commit, also of another connection."""
        assert isinstance(self._connection, apsw.Connection)
        return self._connection.data_version("main")

    def lock_end(self) -> Head:
        return self.head()

    def put_head(self, head: Head) -> None:
        self._sql(_PUT_HEAD, (*head[:9], *head.seal))
        self._head, self._head_seen = head, True

    def committed(self) -> None:
        """The head that this transaction read or wrote stays current until another connection's commit changes the
        version. A transaction that did not read it does not know.
        """
        if self._head_seen:
            self._head_version = self._data_version()
        else:
            self._head = None
        self._head_seen = False
        self._last_added = None
        self._unlock()

    def undone(self) -> None:
        self._head, self._head_seen = None, False
        self._last_added = None
        self._unlock()

    def _unlock(self) -> None:
        self._author, self._has_permissions = None, False
        self._unended.clear()

    def add_ops(self, ops: Sequence[NewOp], links: Sequence[bytes]) -> int:
        last = self.head().seq if self._last_added is None else self._last_added
        seqs = range(last + 1, last + len(ops) + 1)
        self._many(_ADD_OP, [(seq, *op, link) for seq, op, link in zip(seqs, ops, links, strict=True)])
        self._last_added = last + len(ops)
        return self._last_added

    def seal_ops(self, ops: Sequence[SealedOp]) -> None:
        self._many("UPDATE ops SET body = ?, chain = ? WHERE seq = ?", [(body, chain, seq) for seq, body, chain in ops])

    def drop_ops(self, first: int) -> None:
        super().drop_ops(first)
        self._last_added = None

    def unsettled_ops(self, after: int, limit: int | None) -> list[OpRow]:
        return self._stored("WHERE seq > ? AND settled = 0 ORDER BY seq LIMIT ?", after, -1 if limit is None else limit)

    def mark_settled(self, seqs: Sequence[int]) -> None:
        if seqs:
            self._sql("UPDATE ops SET settled = 1 WHERE seq BETWEEN ? AND ? AND settled = 0", (seqs[0], seqs[-1]))

    def order_ops(self) -> None:
        self._sql("CREATE INDEX IF NOT EXISTS ops_by_author ON ops (substr(hlc, 13), hlc)")

    def cited_among(self, deps: Sequence[bytes]) -> set[bytes]:
        if self._one("SELECT 1 FROM cites LIMIT 1") is None:
            return set()  # as in most logs: only ops that wait or came late are there
        return super().cited_among(deps)

    def _stored_after(self, which: str, seq: int, limit: int) -> list[OpRow]:
        rows = super()._stored_after(which, seq, limit)
        # Readers of the log continue after the last row; a damaged file without order must not make that an endless
        # loop.
        if any(later.seq <= earlier for later, earlier in zip(rows, (seq, *(row.seq for row in rows)), strict=False)):
            raise damaged("its ops are out of order")
        return rows

    def _next_of(self, which: str, after: Mapping[bytes, bytes], limit: int) -> Iterable[Row]:
        sql = f"SELECT {OP_COLUMNS} FROM ops WHERE substr(hlc, 13) = ? AND hlc > ? AND {which} ORDER BY hlc LIMIT ?"
        authors = self._each(sql, [(node, hlc, limit) for node, hlc in after.items()])
        return islice(merge(*authors, key=itemgetter(2)), limit)

    def _each(self, sql: str, values: Sequence[Sequence[Any]]) -> list[Iterable[Any]]:
        """The rows for each of the values. They are read when they are needed."""
        assert isinstance(self._connection, apsw.Connection)
        return [self._connection.cursor().execute(sql, each) for each in values]

    def _stored(self, tail: str, *values: Any) -> list[OpRow]:
        try:
            return super()._stored(tail, *values)
        except UNREADABLE as error:
            raise damaged(str(error)) from error

    def set_reasons(self, reasons: Iterable[tuple[int, bytes]]) -> None:
        self._many("UPDATE ops SET reason = ? WHERE id = ? AND settled = 1", reasons)

    def frontier(self) -> dict[bytes, bytes]:
        return dict(
            self._sql(
                """WITH RECURSIVE authors(node) AS (
                       SELECT min(substr(hlc, 13)) FROM ops
                       UNION ALL SELECT (SELECT min(substr(hlc, 13)) FROM ops WHERE substr(hlc, 13) > node)
                       FROM authors WHERE node IS NOT NULL)
                   SELECT node, (SELECT max(hlc) FROM ops WHERE substr(hlc, 13) = node)
                   FROM authors WHERE node IS NOT NULL"""
            )
        )


def head_of(row: tuple[Any, ...]) -> Head:
    return Head._make((*row[:9], EndSeal(*row[9:])))
