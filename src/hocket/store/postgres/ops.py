"""The statements about the log: the head, the ops and their citations."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hocket.kernel.bundles import FACTS_MAX
from hocket.kernel.subjects import Subject
from hocket.store.locks import LockMisuse
from hocket.store.ops import BUNDLE, ENTRY_ID, OP_COLUMNS, Head, NewOp, OpRow, SealedOp, with_bodies
from hocket.store.postgres.columns import Bytes, Numbers, Texts, columns, unnested
from hocket.store.postgres.locks import PostgresLocks
from hocket.store.postgres.statements import damaged
from hocket.store.statements import insert_new

HEAD = "SELECT wall, logical, seq, chain, settled, unsettled, rebuilding, law FROM head"
# The time of an author's last op, and the id of its last entry.
LATEST = f"SELECT hlc, {ENTRY_ID} AS id FROM ops WHERE substr(hlc, 13) = {{author}} ORDER BY hlc DESC LIMIT 1"
_OPS = f"variant <> {BUNDLE}"
_ENTRIES = "place IS NULL"
_PUT_HEAD = (
    "UPDATE head SET wall = ?, logical = ?, seq = ?, chain = ?, settled = ?, unsettled = ?, rebuilding = ?,"
    " law = ?, sealed = ?"  # older programs want `sealed` to be the number of ops
)
_TYPES = (Bytes, Bytes, Numbers, Texts, Bytes, Numbers, Numbers, Bytes, Numbers, Bytes)
_ADD_OPS = f"""
    INSERT INTO ops (seq, id, hlc, variant, family, key, reason, settled, body, place, chain)
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
# Merges the authors' own sequences, which are indexed.
_MERGED = f"""
    SELECT next.* FROM unnest(?::bytea[], ?::bytea[]) AS known (node, hlc), LATERAL (
        SELECT {OP_COLUMNS} FROM ops WHERE substr(ops.hlc, 13) = known.node AND ops.hlc > known.hlc AND {{which}}
        ORDER BY ops.hlc LIMIT ?) AS next
    ORDER BY next.hlc LIMIT ?"""


class PostgresOps(PostgresLocks):
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
        self._put("DELETE FROM ops WHERE seq >= ?", (first,))
        self._last_added = None

    def unsettled_ops(self, after: int, limit: int | None) -> list[OpRow]:
        """A transaction beside others leaves them those that they are folding."""
        lock = "FOR UPDATE SKIP LOCKED" if self.is_beside else ""
        return self._stored(f"WHERE seq > ? AND settled = 0 ORDER BY seq LIMIT ? {lock}", after, limit)

    def mark_settled(self, seqs: Sequence[int]) -> None:
        self._put("UPDATE ops SET settled = 1 WHERE seq = ANY(?)", (list(seqs),))

    def order_ops(self) -> None:
        """The schema has this index from the start: many nodes write here."""

    def op(self, op_id: bytes) -> OpRow | None:
        return self._op("id = ? AND settled = 1", op_id)

    def known_ops(self, op_ids: Sequence[bytes]) -> dict[bytes, bytes]:
        rows = self._among(f"SELECT id, body FROM ops WHERE settled = 1 AND {_ENTRIES} AND id {{}}", op_ids)
        bodies = {op_id: body for op_id, body in rows}
        return bodies if self.row_check is None else self.row_check.bodies(bodies)

    def ops_by_id(self, op_ids: Sequence[bytes]) -> list[OpRow]:
        return self._ops("WHERE settled = 1 AND id = ANY(?)", list(op_ids)) if op_ids else []

    def ops_named(self, op_id: bytes) -> list[OpRow]:
        return self._ops("WHERE id BETWEEN ? AND ? AND settled = 1", op_id, op_id + b"\xff" * 8)

    def latest_of(self, node: bytes) -> tuple[bytes, bytes]:
        rows = self._rows(LATEST.format(author="?"), node)
        return (rows[0][0], rows[0][1]) if rows else (bytes(20), bytes(16))

    def first_stored(self, node: bytes) -> bytes | None:
        rows = self._stored("WHERE substr(hlc, 13) = ? ORDER BY hlc LIMIT 1", node)
        return rows[0].body if rows else None

    def ops_with_link(self, node: bytes, link: bytes) -> list[OpRow]:
        where = "WHERE substr(hlc, 13) = ? AND position(?::bytea IN body) > 0 ORDER BY hlc"
        return self._ops(where, node, link)

    def entry(self, seq: int) -> OpRow | None:
        return self._op("seq = (SELECT seq - coalesce(place + 1, 0) FROM ops WHERE seq = ?)", seq)

    def _op(self, where: str, value: bytes | int) -> OpRow | None:
        return next(iter(self._ops(f"WHERE {where}", value)), None)

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
        where = "WHERE seq > ? AND seq <= ? AND seq - place - 1 = ? ORDER BY seq"
        return self._stored(where, seq, seq + FACTS_MAX, seq)

    def _stored_after(self, which: str, seq: int, limit: int) -> list[OpRow]:
        return self._stored(f"WHERE seq > ? AND {which} ORDER BY seq LIMIT ?", seq, limit)

    def last_ops(self, count: int) -> list[OpRow]:
        return self._ops(f"WHERE {_OPS} ORDER BY seq DESC LIMIT ?", count)[::-1]

    def ops_at(self, hlc: bytes) -> list[OpRow]:
        return self._ops(f"WHERE substr(hlc, 13) = ? AND hlc = ? AND {_OPS}", hlc[12:], hlc)

    def entries_at(self, hlc: bytes) -> list[OpRow]:
        at = "SELECT seq - coalesce(place + 1, 0) FROM ops WHERE substr(hlc, 13) = ? AND hlc = ?"
        return self._ops(f"WHERE seq IN ({at})", hlc[12:], hlc)

    def ops_about(self, subject: Subject, without: Sequence[int] = (), after: bytes = b"") -> list[OpRow]:
        where = "WHERE key = ? AND settled = 1 AND family = ? AND hlc > ? AND reason <> ALL(?) ORDER BY hlc"
        return self._ops(where, subject.key, subject.family, after, [int(reason) for reason in without])

    def every_op_about(self, subject: Subject, after: bytes = b"") -> list[OpRow]:
        # An OR would use none of the two indexes.
        about = f"SELECT {OP_COLUMNS} FROM ops WHERE key = ? AND settled = {{}} AND family = ? AND hlc > ?"
        values = (subject.key, subject.family, after)
        rows = self._rows(f"{about.format(1)} UNION ALL {about.format(0)} ORDER BY hlc", *values, *values)
        return self._checked(self._read(rows))

    def ops_in_order(self, after: bytes, limit: int) -> list[OpRow]:
        return self._merged(_OPS, {node: after for node in self.frontier()}, limit)

    def entries_since(self, frontier: Mapping[bytes, bytes], limit: int) -> list[OpRow]:
        after = {node: (frontier.get(node, bytes(20)), last) for node, last in self.frontier().items()}
        beyond = {node: known for node, (known, last) in after.items() if last > known}
        return self._merged(_ENTRIES, beyond, limit)

    def _merged(self, which: str, after: Mapping[bytes, bytes], limit: int) -> list[OpRow]:
        found: list[OpRow] = []
        beyond, sql = dict(after), _MERGED.format(which=which)
        while wanted := limit - len(found):
            rows = self._read(self._rows(sql, list(beyond), list(beyond.values()), wanted, wanted))
            found += self._checked(rows)
            if len(rows) < wanted:
                break
            beyond.update((row.hlc[12:], row.hlc) for row in rows)
        return found

    def ops_of_author(self, node: bytes, after: bytes, limit: int) -> list[OpRow]:
        return self._merged(_OPS, {node: after}, limit)

    def entries_of_author(self, node: bytes, after: bytes, limit: int) -> list[OpRow]:
        return self._merged(_ENTRIES, {node: after}, limit)

    def ops_written_after(self, node: bytes, hlc: bytes) -> tuple[int, bytes | None]:
        where = f"FROM ops WHERE substr(hlc, 13) = ? AND hlc > ? AND {_OPS}"
        first: bytes | None = self._one(f"SELECT hlc {where} ORDER BY hlc LIMIT 1", node, hlc)
        return self._one(f"SELECT count(*) {where}", node, hlc), first

    def written_by(self, node: bytes) -> list[tuple[bytes, Subject | None]]:
        sql = f"SELECT id, family, key FROM ops WHERE substr(hlc, 13) = ? AND {_OPS} ORDER BY hlc"
        rows = self._rows(sql, node)
        return [(op_id, None if key is None else Subject(family, key)) for op_id, family, key in rows]

    def ops_of_variants(self, variants: Sequence[int]) -> list[OpRow]:
        return self._ops("WHERE variant = ANY(?) ORDER BY hlc", list(variants))

    def has_variants(self, variants: Sequence[int]) -> bool:
        return bool(self._one("SELECT EXISTS (SELECT 1 FROM ops WHERE variant = ANY(?))", list(variants)))

    def jobs_written_of(self, job_ids: Sequence[bytes]) -> set[bytes]:
        about = "SELECT DISTINCT key FROM ops WHERE settled = 1 AND family = 'job' AND key {}"
        return {row[0] for row in self._among(about, job_ids)}

    def ops_about_jobs(self, job_ids: Sequence[bytes], variant: int) -> list[OpRow]:
        about = "WHERE settled = 1 AND family = 'job' AND variant = ? AND key = ANY(?)"
        return self._ops(about, variant, list(job_ids)) if job_ids else []

    def _ops(self, tail: str, *values: Any) -> list[OpRow]:
        return self._checked(self._stored(tail, *values))

    def _checked(self, rows: list[OpRow]) -> list[OpRow]:
        return rows if self.row_check is None or not rows else self.row_check.ops(rows)

    def _stored(self, tail: str, *values: Any) -> list[OpRow]:
        return self._read(self._rows(f"SELECT {OP_COLUMNS} FROM ops {tail}", *values))

    def _read(self, rows: Iterable[Any]) -> list[OpRow]:
        return with_bodies([OpRow(*row) for row in rows], self._bundles)

    def set_reasons(self, reasons: Iterable[tuple[int, bytes]]) -> None:
        chosen = list(reasons)
        if chosen:
            self._put(_SET_REASONS, ([int(reason) for reason, _ in chosen], [op_id for _, op_id in chosen]))

    def frontier(self) -> dict[bytes, bytes]:
        return {node: hlc for node, hlc in self._rows(_FRONTIER)}

    def refused_ops(self, limit: int) -> list[OpRow]:
        return self._ops("WHERE reason <> 0 ORDER BY seq DESC LIMIT ?", limit)

    def ops_refused_for(self, reasons: Sequence[int]) -> list[OpRow]:
        wanted = [int(reason) for reason in reasons]
        return self._ops("WHERE reason <> 0 AND reason = ANY(?) ORDER BY seq", wanted)

    def cite(self, dep: bytes, op_id: bytes) -> None:
        self._put(insert_new("cites", "dep, op"), (dep, op_id))

    def citing(self, dep: bytes) -> list[bytes]:
        return self._column("SELECT op FROM cites WHERE dep = ?", dep)

    def cited_among(self, deps: Sequence[bytes]) -> set[bytes]:
        return {row[0] for row in self._among("SELECT DISTINCT dep FROM cites WHERE dep {}", deps)}


def head_of(row: tuple[Any, ...] | None) -> Head:
    if row is None:
        raise damaged("it has lost the end of its log")
    return Head(*row)
