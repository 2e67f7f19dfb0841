"""The statements about ops from other nodes that are not on the log."""

from collections import Counter
from collections.abc import Iterable, Sequence

from hocket.kernel.subjects import Subject
from hocket.store import intake
from hocket.store.intake import LateOp, OverQuota, Refusal, WrittenTotals
from hocket.store.sqlite.statements import Statements


class IntakeStatements(Statements):
    def refuse(self, refusals: Sequence[Refusal]) -> None:
        self._many("INSERT INTO refusals (op_id, author, reason, wall) VALUES (?, ?, ?, ?)", refusals)
        self._sql(
            "DELETE FROM refusals WHERE number <= (SELECT max(number) FROM refusals) - ?", (intake.REFUSALS_KEPT,)
        )

    def refusals(self, limit: int) -> list[Refusal]:
        rows = self._sql("SELECT op_id, author, reason, wall FROM refusals ORDER BY number DESC LIMIT ?", (limit,))
        return [Refusal(*row) for row in rows]

    def refusal_counts(self) -> dict[int, int]:
        counts: dict[int, int] = {}
        for table in ("refusals", "ops"):
            for reason, count in self._sql(f"SELECT reason, count(*) FROM {table} WHERE reason != 0 GROUP BY reason"):
                counts[reason] = counts.get(reason, 0) + count
        return counts

    def hold(self, op_id: bytes, wall: int, body: bytes, author: bytes = b"") -> None:
        row = self._macs.with_mac("held", (op_id, wall, body, author))
        self._sql("INSERT OR IGNORE INTO held (of_node, id, wall, body, author, mac) VALUES (?, ?, ?, ?, ?, ?)", row)

    def held_of(self, author: bytes) -> int:
        return int(self._one("SELECT count(*) FROM held WHERE of_node = ? AND author = ?", self._macs.node, author))

    def due(self, wall: int, limit: int) -> list[bytes]:
        return [row[2] for row in self._own("held", "AND wall <= ? ORDER BY wall LIMIT ?", wall, limit)]

    def drop_held(self, op_ids: Sequence[bytes]) -> None:
        self._many("DELETE FROM held WHERE of_node = ? AND id = ?", [(self._macs.node, op_id) for op_id in op_ids])

    def held(self) -> tuple[int, int | None]:
        of = "FROM held WHERE of_node = ?"
        own = self._macs.node
        return self._one(f"SELECT count(*) {of}", own), self._one(f"SELECT min(wall) {of}", own)

    def held_among(self, op_ids: Sequence[bytes]) -> set[bytes]:
        return self._among(f"SELECT id FROM held WHERE of_node = x'{self._macs.node.hex()}' AND id IN ", op_ids)

    def hold_late(self, late: LateOp) -> None:
        self._sql("INSERT OR IGNORE INTO late VALUES (?, ?, ?, ?, ?)", late)

    def late_count(self, node: bytes) -> int:
        return int(self._one("SELECT count(*) FROM late WHERE author = ?", node))

    def late_ops(self, node: bytes | None = None) -> list[LateOp]:
        rows = self._rows(
            "SELECT id, author, hlc, received, body FROM late WHERE ? IN (author, x'') ORDER BY hlc", node or b""
        )
        return [LateOp(*row) for row in rows]

    def drop_late(self, op_ids: Sequence[bytes]) -> None:
        self._many("DELETE FROM late WHERE id = ?", [(op_id,) for op_id in op_ids])

    def add_written(self, node: bytes, written: WrittenTotals) -> None:
        self._sql(
            """INSERT INTO written VALUES (?, ?, ?)
               ON CONFLICT (node) DO UPDATE SET ops = ops + excluded.ops, bytes = bytes + excluded.bytes""",
            (node, *written),
        )

    def written(self, nodes: Iterable[bytes]) -> dict[bytes, WrittenTotals]:
        rows = self._many("SELECT node, ops, bytes FROM written WHERE node = ?", [(node,) for node in nodes])
        return {node: WrittenTotals(ops, size) for node, ops, size in rows}

    def idle_ops(self, subject: Subject, node: bytes, acceptances: Sequence[int]) -> int:
        return int(
            self._one(
                """SELECT total(CASE WHEN substr(hlc, 13) = ? THEN reason != 0 ELSE 0 END)
                          - total(variant IN (SELECT value FROM json_each(?)) AND reason = 0)
                   FROM ops WHERE key = ? AND settled = 1 AND family = ?""",
                *(node, str(list(acceptances)), subject.key, subject.family),
            )
        )

    def keys_of_many_ops(self, keys: Sequence[bytes], count: int) -> set[bytes]:
        sql = "SELECT key FROM ops WHERE settled = 1 AND key IS NOT NULL AND key IN "
        counts = Counter(key for (key,) in self._among_rows(sql, keys))
        return {key for key, ops in counts.items() if ops >= count}

    def put_over_quota(self, noted: OverQuota) -> None:
        self._sql("REPLACE INTO over_quota VALUES (?, ?, ?)", noted)

    def over_quota(self) -> dict[bytes, OverQuota]:
        return {row[0]: OverQuota(*row) for row in self._sql("SELECT node, wall, ops FROM over_quota")}
