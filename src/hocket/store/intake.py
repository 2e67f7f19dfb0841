"""Ops from other nodes that are not on the log: refused ones, ones from clocks too far ahead, ones that came too late;
and how much each author has on the log.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

from hocket.kernel.vocabulary import Subject
from hocket.store.op_rows import PRUNED
from hocket.store.statements import Statements, insert, insert_new, upsert

# A store keeps this many of the newest refusals.
REFUSALS_KEPT = 10_000

_REFUSE = insert("refusals", "op_id, author, reason, wall")
_DROP_REFUSALS = "DELETE FROM refusals WHERE number <= (SELECT max(number) FROM refusals) - ?"
_HOLD = insert_new("held", "of_node, id, wall, body, author, mac")
_LATE = "id, author, hlc, received, body"
_TOTALS = "count(*), coalesce(sum(length(body)), 0)"
_HOLD_LATE = insert_new("late", _LATE)
_ADD_WRITTEN = (
    insert("written", "node, ops, bytes") + " ON CONFLICT (node) DO UPDATE"
    " SET ops = written.ops + excluded.ops, bytes = written.bytes + excluded.bytes"
)
_MANY_OPS = "SELECT key, count(*) FROM ops WHERE settled = 1 AND key IS NOT NULL AND key {} GROUP BY key"
_PUT_OVER_QUOTA = upsert("over_quota", "node, wall, ops", "node")


@cache
def _idle_ops(acceptances: tuple[int, ...]) -> str:
    accepted = ", ".join(str(int(each)) for each in acceptances) or "NULL"
    return f"""
        SELECT count(*) FILTER (WHERE substr(hlc, 13) = ? AND reason <> 0)
            - count(*) FILTER (WHERE variant IN ({accepted}) AND reason = 0)
        FROM ops WHERE key = ? AND settled = 1 AND family = ?"""


class Refusal(NamedTuple):
    """An op that was refused on arrival."""

    op_id: bytes
    author: bytes
    reason: int
    wall: int


class LateOp(NamedTuple):
    """An op that came long after the permission for it had ended. It is on no log until the owner accepts it."""

    id: bytes
    author: bytes
    hlc: bytes
    received: int
    body: bytes


class WrittenTotals(NamedTuple):
    """How much an author has on the log, or beside it."""

    ops: int = 0
    bytes: int = 0

    def plus(self, size: int) -> "WrittenTotals":
        return WrittenTotals(self.ops + 1, self.bytes + size)


class OverQuota(NamedTuple):
    """A node that sent more than its quota: when that was last recorded, and how many ops were refused."""

    node: bytes
    wall: int
    ops: int


class IntakeSession(Statements):
    def refuse(self, refusals: Sequence[Refusal]) -> None:
        self._many(_REFUSE, refusals)
        self._put(_DROP_REFUSALS, (REFUSALS_KEPT,))

    def refusals(self, limit: int) -> list[Refusal]:
        rows = self._rows("SELECT op_id, author, reason, wall FROM refusals ORDER BY number DESC LIMIT ?", limit)
        return [Refusal(*row) for row in rows]

    def refusal_counts(self) -> dict[int, int]:
        """By reason: how many ops were refused, or are on the log and do not count, without those that were let go."""
        counts: dict[int, int] = {}
        for table in ("refusals", "ops"):
            where = f"WHERE reason <> 0 AND reason <> {PRUNED}"
            for reason, count in self._rows(f"SELECT reason, count(*) FROM {table} {where} GROUP BY reason"):
                counts[reason] = counts.get(reason, 0) + count
        return counts

    def hold(self, op_id: bytes, wall: int, body: bytes, author: bytes = b"") -> None:
        self._put(_HOLD, self._macs.with_mac("held", (op_id, wall, body, author)))

    def held_of(self, author: bytes) -> WrittenTotals:
        (totals,) = self._rows(f"SELECT {_TOTALS} FROM held WHERE of_node = ? AND author = ?", self._macs.node, author)
        return WrittenTotals(*map(int, totals))

    def due(self, wall: int, limit: int) -> list[bytes]:
        """The held ops whose time has come, the earliest first."""
        return [row[2] for row in self._own("held", "AND wall <= ? ORDER BY wall LIMIT ?", wall, limit)]

    def drop_held(self, op_ids: Sequence[bytes]) -> None:
        self._many("DELETE FROM held WHERE of_node = ? AND id = ?", [(self._macs.node, op_id) for op_id in op_ids])

    def held(self) -> tuple[int, int | None]:
        """How many ops are held, and the wall of the earliest."""
        ((count, first),) = self._rows("SELECT count(*), min(wall) FROM held WHERE of_node = ?", self._macs.node)
        return count, first

    def held_among(self, op_ids: Sequence[bytes]) -> set[bytes]:
        rows = self._among("SELECT id FROM held WHERE id {} AND of_node = ?", op_ids, self._macs.node)
        return {op_id for (op_id,) in rows}

    def hold_late(self, late: LateOp) -> None:
        self._put(_HOLD_LATE, late)

    def late_of(self, author: bytes) -> WrittenTotals:
        (totals,) = self._rows(f"SELECT {_TOTALS} FROM late WHERE author = ?", author)
        return WrittenTotals(*map(int, totals))

    def late_ops(self, node: bytes | None = None) -> list[LateOp]:
        """The late ops of one author, or of all, in HLC order."""
        whose, values = ("", ()) if node is None else ("WHERE author = ?", (node,))
        return [LateOp(*row) for row in self._rows(f"SELECT {_LATE} FROM late {whose} ORDER BY hlc", *values)]

    def drop_late(self, op_ids: Sequence[bytes]) -> None:
        self._many("DELETE FROM late WHERE id = ?", [(op_id,) for op_id in op_ids])

    def add_written(self, node: bytes, written: WrittenTotals) -> None:
        self._put(_ADD_WRITTEN, (node, *written))

    def written(self, nodes: Iterable[bytes]) -> dict[bytes, WrittenTotals]:
        rows = self._among("SELECT node, ops, bytes FROM written WHERE node {}", list(nodes))
        return {node: WrittenTotals(ops, size) for node, ops, size in rows}

    def idle_ops(self, subject: Subject, node: bytes, acceptances: Sequence[int]) -> int:
        """How many ops of this author about a subject do not count, less the number of accepted offers: the ops of the
        variants `acceptances` that count.
        """
        return int(self._one(_idle_ops(tuple(acceptances)), node, subject.key, subject.family))

    def keys_of_many_ops(self, keys: Sequence[bytes], count: int) -> set[bytes]:
        """Those of these keys about whose subjects at least so many ops are stored."""
        return {key for key, ops in self._among(_MANY_OPS, keys) if ops >= count}

    def put_over_quota(self, noted: OverQuota) -> None:
        self._put(_PUT_OVER_QUOTA, noted)

    def over_quota(self) -> dict[bytes, OverQuota]:
        return {row[0]: OverQuota(*row) for row in self._rows("SELECT node, wall, ops FROM over_quota")}
