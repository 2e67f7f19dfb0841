"""The statements about this node's own processes, their offers, and settings."""

from hocket.store.local import Place, WorkerRow
from hocket.store.sqlite.statements import Statements

_WORKER = "name, pid, started, node, beat, host, boot, namespace, locks, serves"


class LocalStatements(Statements):
    def put_worker(self, worker: WorkerRow) -> int:
        added = f"INSERT INTO workers ({_WORKER}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        renewed = "ON CONFLICT (name) DO UPDATE SET beat = max(excluded.beat, beat + 1), serves = excluded.serves"
        return int(self._one(f"{added} {renewed} RETURNING number", *worker[1:6], *worker.place, worker.serves))

    def has_worker(self, number: int) -> bool:
        return self._one("SELECT 1 FROM workers WHERE number = ?", number) is not None

    def workers(self, node: bytes | None = None) -> list[WorkerRow]:
        whose = "WHERE ?1 IS NULL OR node IN (?1, x'')"
        rows = self._sql(f"SELECT number, {_WORKER} FROM workers {whose} ORDER BY number", (node,))
        return [WorkerRow._make((*row[:6], Place(*row[6:10]), row[10])) for row in rows]

    def drop_worker(self, number: int) -> None:
        self._sql("DELETE FROM workers WHERE number = ?", (number,))

    def put_offer(self, op_id: bytes, job_id: bytes, worker: int) -> None:
        self._sql("REPLACE INTO offers VALUES (?, ?, ?)", (op_id, job_id, worker))

    def offered_jobs(self) -> set[bytes]:
        return {row[0] for row in self._rows("SELECT job FROM offers")}

    def offered_by(self, op_id: bytes) -> int | None:
        return self._one("SELECT worker FROM offers WHERE op = ?", op_id)  # type: ignore[no-any-return]

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
