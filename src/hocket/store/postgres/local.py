"""The statements about worker processes, their offers, and settings."""

from hocket.store.local import NODE_AT, WORKER_OTHERS, WORKER_RENEWED, WorkerRow, worker_columns, worker_row
from hocket.store.postgres.jobs import OFFERED
from hocket.store.postgres.statements import PostgresStatements, insert, upsert
from hocket.store.row_macs import MAC_TABLES

_WORKER = f"{MAC_TABLES['workers'].columns}, mac"


class PostgresLocal(PostgresStatements):
    def put_worker(self, worker: WorkerRow) -> int:
        if self._told is not None:
            self._told.worker = None
        _, *covered = self._macs.with_mac("workers", worker_columns(worker))
        values = worker.node, *covered, worker.beat, worker.serves
        renewed = f"beat = greatest(excluded.beat, workers.beat + 1), {WORKER_RENEWED}"
        added = insert("workers", f"node, {_WORKER}, beat, serves")
        return int(self._one(f"{added} ON CONFLICT (name) DO UPDATE SET {renewed} RETURNING number", *values))

    def has_worker(self, number: int) -> bool:
        told = self._told
        if told is not None and told.worker is not None and told.worker[0] == number:
            return told.worker[1]
        found = self._one("SELECT 1 FROM workers WHERE number = %s", number) is not None
        if told is not None:
            told.worker = number, found
        return found

    def workers(self, node: bytes | None = None) -> list[WorkerRow]:
        whose, values = ("", ()) if node is None else ("WHERE node = %s", (node,))
        rows = self._rows(f"SELECT {_WORKER}, {WORKER_OTHERS} FROM workers {whose} ORDER BY number", *values)
        return [worker_row(row) for row in self._macs.right_or_of_others("workers", rows, NODE_AT)]

    def drop_worker(self, number: int) -> None:
        if self._told is not None:
            self._told.worker = None
        self._put("DELETE FROM workers WHERE number = %s", (number,))

    def put_offer(self, op_id: bytes, job_id: bytes, worker: int) -> None:
        self._change_offers()
        self._put(upsert("offers", "op, job, worker", "op"), (op_id, job_id, worker))

    def _change_offers(self) -> None:
        if self._told is not None:
            self._told.offered = None

    def offered_jobs(self) -> set[bytes]:
        if self._told is not None and self._told.offered is not None:
            return self._told.offered
        return set(self._column(OFFERED))

    def offers(self) -> dict[bytes, int]:
        return {op_id: worker for op_id, worker in self._rows("SELECT op, worker FROM offers")}

    def drop_offer(self, op_id: bytes) -> None:
        self._change_offers()
        self._put("DELETE FROM offers WHERE op = %s", (op_id,))

    def drop_offers_of(self, worker: int) -> None:
        self._change_offers()
        self._put("DELETE FROM offers WHERE worker = %s", (worker,))

    def meta(self, key: str) -> bytes | None:
        value: bytes | None = self._one("SELECT value FROM meta WHERE key = %s", key)
        return value

    def set_meta(self, key: str, value: bytes) -> None:
        self._put(upsert("meta", "key, value", "key"), (key, value))

    def node_meta(self, node: bytes, key: str) -> bytes | None:
        name = f"{key} {node.hex()}"
        return self._macs.value(name, self.meta(name))

    def set_node_meta(self, node: bytes, key: str, value: bytes) -> None:
        name = f"{key} {node.hex()}"
        self.set_meta(name, self._macs.value_with_mac(name, value))

    def own_meta(self, key: str) -> bytes | None:
        return self.node_meta(self._macs.node, key)

    def set_own_meta(self, key: str, value: bytes) -> None:
        self.set_node_meta(self._macs.node, key, value)
