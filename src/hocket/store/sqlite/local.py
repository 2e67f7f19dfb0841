"""The statements about this node's own processes, their offers, and settings."""

from hocket.store.local import NODE_AT, WORKER_OTHERS, WORKER_RENEWED, WorkerRow, worker_columns, worker_row
from hocket.store.row_macs import MAC_TABLES
from hocket.store.sqlite.statements import Statements

_WORKER = f"{MAC_TABLES['workers'].columns}, mac"


class LocalStatements(Statements):
    def put_worker(self, worker: WorkerRow) -> int:
        _, *covered = self._macs.with_mac("workers", worker_columns(worker))
        values = worker.node, *covered, worker.beat, worker.serves
        added = f"INSERT INTO workers (node, {_WORKER}, beat, serves) VALUES ({', '.join('?' * len(values))})"
        renewed = f"ON CONFLICT (name) DO UPDATE SET beat = max(excluded.beat, beat + 1), {WORKER_RENEWED}"
        return int(self._one(f"{added} {renewed} RETURNING number", *values))

    def has_worker(self, number: int) -> bool:
        return self._one("SELECT 1 FROM workers WHERE number = ?", number) is not None

    def workers(self, node: bytes | None = None) -> list[WorkerRow]:
        whose = "WHERE ?1 IS NULL OR node = ?1"
        rows = self._sql(f"SELECT {_WORKER}, {WORKER_OTHERS} FROM workers {whose} ORDER BY number", (node,))
        return [worker_row(row) for row in self._macs.right_or_of_others("workers", rows, NODE_AT)]

    def drop_worker(self, number: int) -> None:
        self._sql("DELETE FROM workers WHERE number = ?", (number,))

    def put_offer(self, op_id: bytes, job_id: bytes, worker: int) -> None:
        self._sql("REPLACE INTO offers VALUES (?, ?, ?)", (op_id, job_id, worker))

    def offered_jobs(self) -> set[bytes]:
        return {row[0] for row in self._rows("SELECT job FROM offers")}

    def offers(self) -> dict[bytes, int]:
        return dict(self._rows("SELECT op, worker FROM offers"))

    def drop_offer(self, op_id: bytes) -> None:
        self._sql("DELETE FROM offers WHERE op = ?", (op_id,))

    def drop_offers_of(self, worker: int) -> None:
        self._sql("DELETE FROM offers WHERE worker = ?", (worker,))

    def meta(self, key: str) -> bytes | None:
        return self._one("SELECT value FROM meta WHERE key = ?", key)  # type: ignore[no-any-return]

    def set_meta(self, key: str, value: bytes) -> None:
        self._sql("REPLACE INTO meta VALUES (?, ?)", (key, value))

    def node_meta(self, node: bytes, key: str) -> bytes | None:
        return self.meta(key)

    def set_node_meta(self, node: bytes, key: str, value: bytes) -> None:
        self.set_meta(key, value)

    def own_meta(self, key: str) -> bytes | None:
        return self.node_meta(self._macs.node, key)

    def set_own_meta(self, key: str, value: bytes) -> None:
        self.set_node_meta(self._macs.node, key, value)
