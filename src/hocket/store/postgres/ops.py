"""The statements about the log: the head, the ops and their citations."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from hocket.kernel.vocabulary import Subject
from hocket.store.ops import OP_COLUMNS, Head, NewOp, OpRow, OpSession, SealedOp
from hocket.store.postgres.columns import Bytes, Numbers, Texts, columns, unnested
from hocket.store.postgres.statements import PostgresStatements, damaged
from hocket.store.row_check import RowCheck
from hocket.store.statements import LockMisuse, LockSession, Row, insert

HEAD = "SELECT wall, logical, seq, chain, settled, unsettled, rebuilding, law FROM head"
_PUT_HEAD = (
    "UPDATE head SET wall = ?, logical = ?, seq = ?, chain = ?, settled = ?, unsettled = ?, rebuilding = ?,"
    " law = ?, sealed = ?"  # older programs want `sealed` to be the number of ops
)
_TYPES = (Bytes, Bytes, Numbers, Texts, Bytes, Numbers, Numbers, Bytes, Numbers, Bytes)
_COLUMNS = "seq, id, hlc, variant, family, key, reason, settled, body, place, chain"
# For one op, as a single submit writes it. Arrays of one value cost the server and this process more than the row.
_ADD_OP = insert("ops", _COLUMNS)
_ADD_OPS = f"""
    INSERT INTO ops ({_COLUMNS})
    SELECT ? + number, id, hlc, variant, family, key, reason, settled, body, place, chain
    FROM {unnested(_TYPES)}
        WITH ORDINALITY AS new (id, hlc, variant, family, key, reason, settled, body, place, chain, number)"""
_SEAL_OPS = """
    UPDATE ops SET body = new.body, chain = new.chain
    FROM unnest(?::bigint[], ?::bytea[], ?::bytea[]) AS new (seq, body, chain)
    WHERE ops.seq = new.seq"""
_SET_REASONS = """
    UPDATE ops SET reason = new.reason FROM unnest(?::integer[], ?::bytea[]) AS new (reason, id)
    WHERE ops.id = new.id AND ops.settled = 1"""
# Each author once, by hopping through the index from author to author.
_FRONTIER = """
    WITH RECURSIVE latest(node, hlc) AS (
        (SELECT substr(hlc, 13), hlc FROM ops ORDER BY substr(hlc, 13) DESC, hlc DESC LIMIT 1)
        UNION ALL SELECT lower.* FROM latest, LATERAL (
            SELECT substr(ops.hlc, 13), ops.hlc FROM ops WHERE substr(ops.hlc, 13) < latest.node
            ORDER BY substr(ops.hlc, 13) DESC, ops.hlc DESC LIMIT 1) AS lower)
    SELECT node, hlc FROM latest"""


@cache
def _merged(which: str) -> str:
    return f"""
    SELECT next.* FROM unnest(?::bytea[], ?::bytea[]) AS known (node, hlc), LATERAL (
        SELECT {OP_COLUMNS} FROM ops WHERE substr(ops.hlc, 13) = known.node AND ops.hlc > known.hlc AND {which}
        ORDER BY ops.hlc LIMIT ?) AS next
    ORDER BY next.hlc LIMIT ?"""


class PostgresOps(PostgresStatements, OpSession, LockSession):
    row_check: RowCheck | None

    def head(self) -> Head:
        if self._head is None:
            self._head = head_of(self._sql(HEAD).first)
        return self._head

    def lock_author(self, node: bytes) -> None:
        """From now on the head's `last` is that of this author."""
        if self._author != node:
            super().lock_author(node)
            known = None if self._told is None else self._told.last
            last = known[1] if known is not None and known[0] == node else self.latest_of(node)[1]
            if (head := self.head()).last != last:
                self._head = head._replace(last=last)

    def lock_end(self) -> Head:
        """What was changed so far goes out with this, so that the lock is held for one more message, the commit."""
        if self._has_end:
            return self.head()
        self._has_end = True
        if self._unchanged_end is not None:
            self._put(*self._unchanged_end)
            self._unchanged = None
        else:
            last = self.head().last
            self._head = head_of(self._sql(f"{HEAD} FOR UPDATE").first)._replace(last=last)
        return self.head()

    def put_head(self, head: Head) -> None:
        self._check_end()
        self._put(_PUT_HEAD, (*head[:8], head.seq))
        self._head = head

    def add_ops(self, ops: Sequence[NewOp], links: Sequence[bytes]) -> int:
        self._check_end()
        last = self.head().seq if self._last_added is None else self._last_added[0]
        if ops:
            if len(ops) == 1:
                self._put(_ADD_OP, (last + 1, *ops[0], *links))
            else:
                rows = [(*op, link) for op, link in zip(ops, links, strict=True)]
                self._put(_ADD_OPS, (last, *columns(_TYPES, rows)))
            self._last_added = last + len(ops), ops[-1].id
        return last + len(ops)

    def _check_end(self) -> None:
        if not self._has_end:
            raise LockMisuse("lock the end of the log before it changes")

    def seal_ops(self, ops: Sequence[SealedOp]) -> None:
        self._sql(_SEAL_OPS, [[each[i] for each in ops] for i in range(3)])

    def drop_ops(self, first: int) -> None:
        super().drop_ops(first)
        self._last_added = None

    def unsettled_ops(self, after: int, limit: int | None) -> list[OpRow]:
        """A transaction beside others leaves them those that they are folding."""
        lock = "FOR UPDATE SKIP LOCKED" if self.is_beside else ""
        return self._stored(f"WHERE seq > ? AND settled = 0 ORDER BY seq LIMIT ? {lock}", after, limit)

    def mark_settled(self, seqs: Sequence[int]) -> None:
        self._put("UPDATE ops SET settled = 1 WHERE seq = ANY(?)", (list(seqs),))

    def every_op_about(self, subject: Subject, after: bytes = b"") -> list[OpRow]:
        # An OR would use none of the two indexes.
        about = f"SELECT {OP_COLUMNS} FROM ops WHERE key = ? AND settled = {{}} AND family = ? AND hlc > ?"
        values = (subject.key, subject.family, after)
        rows = self._rows(f"{about.format(1)} UNION ALL {about.format(0)} ORDER BY hlc", *values, *values)
        return self._checked(self._read(rows))

    def _next_of(self, which: str, after: Mapping[bytes, bytes], limit: int) -> Iterable[Row]:
        return self._rows(_merged(which), list(after), list(after.values()), limit, limit)

    def set_reasons(self, reasons: Iterable[tuple[int, bytes]]) -> None:
        chosen = list(reasons)
        if chosen:
            self._put(_SET_REASONS, ([int(reason) for reason, _ in chosen], [op_id for _, op_id in chosen]))

    def frontier(self) -> dict[bytes, bytes]:
        return {node: hlc for node, hlc in self._rows(_FRONTIER)}


def head_of(row: tuple[Any, ...] | None) -> Head:
    if row is None:
        raise damaged("it has lost the end of its log")
    return Head(*row)
