"""The statements about the log: the head, the ops and their citations."""

from collections.abc import Iterable, Mapping, Sequence
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import Any

import apsw

from hocket.kernel.bundles import FACTS_MAX
from hocket.kernel.subjects import Subject
from hocket.store.ops import BUNDLE, ENTRY_ID, OP_COLUMNS, EndSeal, Head, NewOp, OpRow, SealedOp, with_bodies
from hocket.store.sqlite.locks import SqliteLocks
from hocket.store.sqlite.statements import UNREADABLE, damaged

HEAD = "SELECT wall, logical, seq, chain, settled, unsettled, rebuilding, law, last, mark, signed, signature FROM head"
_PUT_HEAD = (
    "UPDATE head SET wall = ?, logical = ?, seq = ?, chain = ?, settled = ?, unsettled = ?, rebuilding = ?, law = ?,"
    " last = ?, mark = ?, signed = ?, signature = ? WHERE one = 1"
)
_ADD_OP = (
    "INSERT INTO ops (seq, id, hlc, variant, family, key, reason, settled, body, place, chain)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_OPS = f"variant != {BUNDLE}"
_ENTRIES = "place IS NULL"
# The time of an author's last op, and the id of its last entry.
LATEST = f"SELECT hlc, {ENTRY_ID} FROM ops WHERE substr(hlc, 13) = ? ORDER BY hlc DESC LIMIT 1"


class SqliteOps(SqliteLocks):
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

    def add_ops(self, ops: Sequence[NewOp], links: Sequence[bytes]) -> int:
        last = self.head().seq if self._last_added is None else self._last_added
        seqs = range(last + 1, last + len(ops) + 1)
        self._many(_ADD_OP, [(seq, *op, link) for seq, op, link in zip(seqs, ops, links, strict=True)])
        self._last_added = last + len(ops)
        return self._last_added

    def seal_ops(self, ops: Sequence[SealedOp]) -> None:
        self._many("UPDATE ops SET body = ?, chain = ? WHERE seq = ?", [(body, chain, seq) for seq, body, chain in ops])

    def drop_ops(self, first: int) -> None:
        self._sql("DELETE FROM ops WHERE seq >= ?", (first,))
        self._last_added = None

    def unsettled_ops(self, after: int, limit: int | None) -> list[OpRow]:
        return self._stored("WHERE seq > ? AND settled = 0 ORDER BY seq LIMIT ?", after, -1 if limit is None else limit)

    def mark_settled(self, seqs: Sequence[int]) -> None:
        if seqs:
            self._sql("UPDATE ops SET settled = 1 WHERE seq BETWEEN ? AND ? AND settled = 0", (seqs[0], seqs[-1]))

    def order_ops(self) -> None:
        self._sql("CREATE INDEX IF NOT EXISTS ops_by_author ON ops (substr(hlc, 13), hlc)")

    def op(self, op_id: bytes) -> OpRow | None:
        return self._op("id = ? AND settled = 1", op_id)

    def known_ops(self, op_ids: Sequence[bytes]) -> dict[bytes, bytes]:
        known = f"SELECT id, body FROM ops WHERE settled = 1 AND {_ENTRIES} AND id {{}}"
        bodies = {op_id: body for op_id, body in self._among(known, op_ids)}
        return bodies if self.row_check is None else self.row_check.bodies(bodies)

    def ops_by_id(self, op_ids: Sequence[bytes]) -> list[OpRow]:
        rows = self._among(f"SELECT {OP_COLUMNS} FROM ops WHERE settled = 1 AND id {{}}", op_ids)
        return self._checked(self._read(rows))

    def ops_named(self, op_id: bytes) -> list[OpRow]:
        return self._ops("WHERE id BETWEEN ? AND ? AND settled = 1", op_id, op_id + b"\xff" * 8)

    def latest_of(self, node: bytes) -> tuple[bytes, bytes]:
        return self._sql(LATEST, (node,)).fetchone() or (bytes(20), bytes(16))

    def first_stored(self, node: bytes) -> bytes | None:
        rows = self._stored("WHERE substr(hlc, 13) = ? ORDER BY hlc LIMIT 1", node)
        return rows[0].body if rows else None

    def ops_with_link(self, node: bytes, link: bytes) -> list[OpRow]:
        return self._ops("WHERE substr(hlc, 13) = ? AND instr(body, ?) > 0 ORDER BY hlc", node, link)

    def entry(self, seq: int) -> OpRow | None:
        return self._op("seq = (SELECT seq - coalesce(place + 1, 0) FROM ops WHERE seq = ?)", seq)

    def _op(self, where: str, value: bytes | int) -> OpRow | None:
        row = self._sql(f"SELECT {OP_COLUMNS} FROM ops WHERE {where}", (value,)).fetchone()
        return None if row is None else next(iter(self._checked(self._read([row]))), None)

    def ops_after(self, seq: int, limit: int) -> list[OpRow]:
        return self._after(_OPS, seq, limit)

    def entries_after(self, seq: int, limit: int) -> list[OpRow]:
        return self._after(_ENTRIES, seq, limit)

    def _after(self, which: str, seq: int, limit: int) -> list[OpRow]:
        found: list[OpRow] = []
        while rows := self._stored_after(which, seq, limit - len(found)):
            found += self._checked(rows)
            if self.row_check is None or len(found) == limit:
                break
            seq = rows[-1].seq
        return found

    def stored_entries(self, seq: int, limit: int) -> list[OpRow]:
        return self._stored_after(_ENTRIES, seq, limit)

    def entry_count(self) -> int:
        return int(self._one(f"SELECT count(*) FROM ops WHERE {_ENTRIES}"))

    def op_count(self) -> int:
        return self.head().seq - int(self._one(f"SELECT count(*) FROM ops WHERE variant = {BUNDLE}"))

    def facts_of(self, seq: int) -> list[OpRow]:
        return self._stored("WHERE seq > ?1 AND seq <= ?1 + ?2 AND seq - place - 1 = ?1 ORDER BY seq", seq, FACTS_MAX)

    def _stored_after(self, which: str, seq: int, limit: int) -> list[OpRow]:
        rows = self._stored(f"WHERE seq > ? AND {which} ORDER BY seq LIMIT ?", seq, limit)
        # Readers of the log continue after the last row; a damaged file without order must not make that an endless
        # loop.
        if any(later.seq <= earlier for later, earlier in zip(rows, (seq, *(row.seq for row in rows)), strict=False)):
            raise damaged("its ops are out of order")
        return rows

    def last_ops(self, count: int) -> list[OpRow]:
        return self._ops(f"WHERE {_OPS} ORDER BY seq DESC LIMIT ?", count)[::-1]

    def ops_at(self, hlc: bytes) -> list[OpRow]:
        return self._ops(f"WHERE substr(hlc, 13) = ? AND hlc = ? AND {_OPS}", hlc[12:], hlc)

    def entries_at(self, hlc: bytes) -> list[OpRow]:
        at = "SELECT seq - coalesce(place + 1, 0) FROM ops WHERE substr(hlc, 13) = ? AND hlc = ?"
        return self._ops(f"WHERE seq IN ({at})", hlc[12:], hlc)

    def ops_about(self, subject: Subject, without: Sequence[int] = (), after: bytes = b"") -> list[OpRow]:
        refused = f"AND reason NOT IN ({', '.join(str(int(reason)) for reason in without)})" if without else ""
        where = f"WHERE key = ? AND settled = 1 AND family = ? AND hlc > ? {refused} ORDER BY hlc"
        return self._ops(where, subject.key, subject.family, after)

    def every_op_about(self, subject: Subject, after: bytes = b"") -> list[OpRow]:
        """SQLite has no rights by column: a program that may change one column of an op may change all."""
        return self.ops_about(subject, (), after)

    def ops_in_order(self, after: bytes, limit: int) -> list[OpRow]:
        return self._merged(_OPS, {node: after for node in self.frontier()}, limit)

    def entries_since(self, frontier: Mapping[bytes, bytes], limit: int) -> list[OpRow]:
        after = {node: (frontier.get(node, bytes(20)), last) for node, last in self.frontier().items()}
        beyond = {node: known for node, (known, last) in after.items() if last > known}
        return self._merged(_ENTRIES, beyond, limit)

    def _merged(self, which: str, after: Mapping[bytes, bytes], limit: int) -> list[OpRow]:
        """Merges the authors' own sequences, which are indexed."""
        sql = f"SELECT {OP_COLUMNS} FROM ops WHERE substr(hlc, 13) = ? AND hlc > ? AND {which} ORDER BY hlc LIMIT ?"
        found: list[OpRow] = []
        beyond = dict(after)
        while wanted := limit - len(found):
            authors = self._each(sql, [(node, hlc, wanted) for node, hlc in beyond.items()])
            rows = self._read(islice(merge(*authors, key=itemgetter(2)), wanted))
            found += self._checked(rows)
            if len(rows) < wanted:
                break
            beyond.update((row.hlc[12:], row.hlc) for row in rows)
        return found

    def _each(self, sql: str, values: Sequence[Sequence[Any]]) -> list[Iterable[Any]]:
        """The rows for each of the values. They are read when they are needed."""
        assert isinstance(self._connection, apsw.Connection)
        return [self._connection.cursor().execute(sql, each) for each in values]

    def ops_of_author(self, node: bytes, after: bytes, limit: int) -> list[OpRow]:
        return self._merged(_OPS, {node: after}, limit)

    def entries_of_author(self, node: bytes, after: bytes, limit: int) -> list[OpRow]:
        return self._merged(_ENTRIES, {node: after}, limit)

    def ops_written_after(self, node: bytes, hlc: bytes) -> tuple[int, bytes | None]:
        sql = f"SELECT count(*), min(hlc) FROM ops WHERE substr(hlc, 13) = ? AND hlc > ? AND {_OPS}"
        count, first = self._sql(sql, (node, hlc)).fetchone() or (0, None)
        return count, first

    def written_by(self, node: bytes) -> list[tuple[bytes, Subject | None]]:
        sql = f"SELECT id, family, key FROM ops WHERE substr(hlc, 13) = ? AND {_OPS} ORDER BY hlc"
        rows = self._rows(sql, node)
        return [(op_id, None if key is None else Subject(family, key)) for op_id, family, key in rows]

    def ops_of_variants(self, variants: Sequence[int]) -> list[OpRow]:
        return self._ops(f"WHERE variant IN ({', '.join('?' * len(variants))}) ORDER BY hlc", *variants)

    def has_variants(self, variants: Sequence[int]) -> bool:
        marks = ", ".join("?" * len(variants))
        return bool(self._one(f"SELECT EXISTS (SELECT 1 FROM ops WHERE variant IN ({marks}))", *variants))

    def jobs_written_of(self, job_ids: Sequence[bytes]) -> set[bytes]:
        about = "SELECT key FROM ops WHERE settled = 1 AND family = 'job' AND key IS NOT NULL AND key {}"
        return {key for (key,) in self._among(about, job_ids)}

    def ops_about_jobs(self, job_ids: Sequence[bytes], variant: int) -> list[OpRow]:
        where = f"WHERE settled = 1 AND family = 'job' AND variant = {variant:d} AND key {{}}"
        return self._checked(self._read(self._among(f"SELECT {OP_COLUMNS} FROM ops {where}", job_ids)))

    def _ops(self, tail: str, *values: Any) -> list[OpRow]:
        return self._checked(self._stored(tail, *values))

    def _checked(self, rows: list[OpRow]) -> list[OpRow]:
        return rows if self.row_check is None or not rows else self.row_check.ops(rows)

    def _stored(self, tail: str, *values: Any) -> list[OpRow]:
        try:
            return self._read(self._sql(f"SELECT {OP_COLUMNS} FROM ops {tail}", values))
        except UNREADABLE as error:
            raise damaged(str(error)) from error

    def _read(self, rows: Iterable[Any]) -> list[OpRow]:
        return with_bodies([_op_row(row) for row in rows], self._bundles)

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

    def refused_ops(self, limit: int) -> list[OpRow]:
        return self._ops("WHERE reason != 0 ORDER BY seq DESC LIMIT ?", limit)

    def ops_refused_for(self, reasons: Sequence[int]) -> list[OpRow]:
        marks = ", ".join("?" * len(reasons))
        return self._ops(f"WHERE reason != 0 AND reason IN ({marks}) ORDER BY seq", *reasons)

    def cite(self, dep: bytes, op_id: bytes) -> None:
        self._sql("INSERT OR IGNORE INTO cites VALUES (?, ?)", (dep, op_id))

    def citing(self, dep: bytes) -> list[bytes]:
        return [row[0] for row in self._sql("SELECT op FROM cites WHERE dep = ?", (dep,))]

    def cited_among(self, deps: Sequence[bytes]) -> set[bytes]:
        if self._one("SELECT 1 FROM cites LIMIT 1") is None:
            return set()  # as in most logs: only ops that wait or came late are there
        return {dep for (dep,) in self._among("SELECT dep FROM cites WHERE dep {}", deps)}


def head_of(row: tuple[Any, ...]) -> Head:
    return Head._make((*row[:9], EndSeal(*row[9:])))


def _op_row(row: tuple[Any, ...]) -> OpRow:
    """An op's row. In a damaged file any value can stand in place of bytes. The row then has empty bytes, and the check
    of the op fails.
    """
    op = OpRow(*row)
    if type(op.id) is type(op.hlc) is type(op.body) is type(op.chain) is bytes:
        return op
    return op._replace(id=_bytes(op.id), hlc=_bytes(op.hlc), body=_bytes(op.body), chain=_bytes(op.chain))


def _bytes(value: Any) -> bytes:
    return value if type(value) is bytes else b""
