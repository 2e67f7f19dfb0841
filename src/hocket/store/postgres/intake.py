"""The statements about ops from other nodes that are not on the log."""

from collections.abc import Iterable, Sequence

from hocket.kernel.subjects import Subject
from hocket.store import intake
from hocket.store.intake import LateOp, OverQuota, Refusal, WrittenTotals
from hocket.store.postgres.statements import PostgresStatements, insert, insert_new, upsert

_LATE = "id, author, hlc, received, body"


class PostgresIntake(PostgresStatements):
    def refuse(self, refusals: Sequence[Refusal]) -> None:
        self._many(insert("refusals", "op_id, author, reason, wall"), refusals)
        self._put(
            "DELETE FROM refusals WHERE number <= (SELECT max(number) FROM refusals) - %s", (intake.REFUSALS_KEPT,)
        )

    def refusals(self, limit: int) -> list[Refusal]:
        rows = self._rows("SELECT op_id, author, reason, wall FROM refusals ORDER BY number DESC LIMIT %s", limit)
        return [Refusal(*row) for row in rows]

    def refusal_counts(self) -> dict[int, int]:
        counts: dict[int, int] = {}
        for table in ("refusals", "ops"):
            for reason, count in self._rows(f"SELECT reason, count(*) FROM {table} WHERE reason <> 0 GROUP BY reason"):
                counts[reason] = counts.get(reason, 0) + count
        return counts

    def hold(self, op_id: bytes, wall: int, body: bytes, author: bytes = b"") -> None:
        row = self._macs.with_mac("held", (op_id, wall, body, author))
        self._put(insert_new("held", "of_node, id, wall, body, author, mac"), row)

    def held_of(self, author: bytes) -> int:
        return int(self._one("SELECT count(*) FROM held WHERE of_node = %s AND author = %s", self._macs.node, author))

    def due(self, wall: int, limit: int) -> list[bytes]:
        return [row[2] for row in self._own("held", "AND wall <= %s ORDER BY wall LIMIT %s", wall, limit)]

    def drop_held(self, op_ids: Sequence[bytes]) -> None:
        self._put("DELETE FROM held WHERE of_node = %s AND id = ANY(%s)", (self._macs.node, list(op_ids)))

    def held(self) -> tuple[int, int | None]:
        ((count, first),) = self._rows("SELECT count(*), min(wall) FROM held WHERE of_node = %s", self._macs.node)
        return count, first

    def held_among(self, op_ids: Sequence[bytes]) -> set[bytes]:
        own = f"of_node = '\\x{self._macs.node.hex()}'"
        return {row[0] for row in self._among(f"SELECT id FROM held WHERE {own} AND id = ANY(%s)", op_ids)}

    def hold_late(self, late: LateOp) -> None:
        self._put(insert_new("late", _LATE), late)

    def late_count(self, node: bytes) -> int:
        return int(self._one("SELECT count(*) FROM late WHERE author = %s", node))

    def late_ops(self, node: bytes | None = None) -> list[LateOp]:
        whose, values = ("", ()) if node is None else ("WHERE author = %s", (node,))
        return [LateOp(*row) for row in self._rows(f"SELECT {_LATE} FROM late {whose} ORDER BY hlc", *values)]

    def drop_late(self, op_ids: Sequence[bytes]) -> None:
        self._put("DELETE FROM late WHERE id = ANY(%s)", (list(op_ids),))

    def add_written(self, node: bytes, written: WrittenTotals) -> None:
        self._put(
            insert("written", "node, ops, bytes") + " ON CONFLICT (node) DO UPDATE"
            " SET ops = written.ops + excluded.ops, bytes = written.bytes + excluded.bytes",
            (node, *written),
        )

    def written(self, nodes: Iterable[bytes]) -> dict[bytes, WrittenTotals]:
        rows = self._among("SELECT node, ops, bytes FROM written WHERE node = ANY(%s)", nodes)
        return {node: WrittenTotals(ops, size) for node, ops, size in rows}

    def idle_ops(self, subject: Subject, node: bytes, acceptances: Sequence[int]) -> int:
        return int(
            self._one(
                """SELECT count(*) FILTER (WHERE substr(hlc, 13) = %s AND reason <> 0)
                          - count(*) FILTER (WHERE variant = ANY(%s) AND reason = 0)
                   FROM ops WHERE key = %s AND settled = 1 AND family = %s""",
                *(node, list(acceptances), subject.key, subject.family),
            )
        )

    def keys_of_many_ops(self, keys: Sequence[bytes], count: int) -> set[bytes]:
        sql = "SELECT key, count(*) FROM ops WHERE settled = 1 AND key = ANY(%s) GROUP BY key"
        return {key for key, ops in self._among(sql, keys) if ops >= count}

    def put_over_quota(self, noted: OverQuota) -> None:
        self._put(upsert("over_quota", "node, wall, ops", "node"), noted)

    def over_quota(self) -> dict[bytes, OverQuota]:
        return {row[0]: OverQuota(*row) for row in self._rows("SELECT node, wall, ops FROM over_quota")}
