"""Data on no log: worker processes, the claims that they have offered, and settings of the store and of its nodes."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from hocket.store.row_macs import MAC_TABLES
from hocket.store.statements import Statements, insert, upsert


class Place(NamedTuple):
    """Where a worker runs: the machine, the boot of that machine, the namespace of its process ids (containers have
    their own), and the directory of its lock. An empty field is unknown.
    """

    host: str = ""
    boot: str = ""
    namespace: str = ""
    locks: str = ""


class WorkerRow(NamedTuple):
    """A process of a node that holds claims. `beat` is its last sign of life, by the store's clock; `serves` is what it
    runs, as `work.serving` writes it.
    """

    number: int
    name: str
    pid: int
    started: int
    node: bytes
    beat: int
    place: Place
    serves: str = ""


# The columns of a worker that the MAC covers and the MAC, and those after it.
_COVERED = f"{MAC_TABLES['workers'].columns}, mac"
_OTHERS = "number, node, beat, serves"
# Where the node is among all of them.
_NODE_AT = 9
_RENEWED = ("node", "pid", "started", "host", "boot", "namespace", "locks", "mac", "serves")
_PUT_WORKER = (
    insert("workers", f"node, {_COVERED}, beat, serves") + " ON CONFLICT (name) DO UPDATE SET"
    " beat = CASE WHEN excluded.beat > workers.beat THEN excluded.beat ELSE workers.beat + 1 END, "
    + ", ".join(f"{name} = excluded.{name}" for name in _RENEWED)
    + " RETURNING number"
)
_WORKERS = f"SELECT {_COVERED}, {_OTHERS} FROM workers {{}} ORDER BY number"
_PUT_OFFER = upsert("offers", "op, job, worker", "op")
_SET_META = upsert("meta", "key, value", "key")
# The jobs with claims that wait for the arbiter.
OFFERED = "SELECT job FROM offers"


class LocalSession(Statements):
    def put_worker(self, worker: WorkerRow) -> int:
        """Adds a worker, or renews the worker of that name: its beat, which rises each time, and what it serves.
        Returns its number.
        """
        _, *covered = self._macs.with_mac("workers", (worker.name, worker.pid, worker.started, *worker.place))
        return int(self._one(_PUT_WORKER, worker.node, *covered, worker.beat, worker.serves))

    def has_worker(self, number: int) -> bool:
        return self._one("SELECT 1 FROM workers WHERE number = ?", number) is not None

    def workers(self, node: bytes | None = None) -> list[WorkerRow]:
        """The workers of a node, or of all nodes that share the store. Only those of the node that uses the store are
        known to be what their rows say.
        """
        whose, values = ("", ()) if node is None else ("WHERE node = ?", (node,))
        rows = self._rows(_WORKERS.format(whose), *values)
        return [_worker(row) for row in self._macs.right_or_of_others("workers", rows, _NODE_AT)]

    def drop_worker(self, number: int) -> None:
        self._put("DELETE FROM workers WHERE number = ?", (number,))

    def put_offer(self, op_id: bytes, job_id: bytes, worker: int) -> None:
        self._put(_PUT_OFFER, (op_id, job_id, worker))

    def offers(self) -> dict[bytes, int]:
        """The worker of each claim that waits for the arbiter, by the claim's op."""
        return {op_id: worker for op_id, worker in self._rows("SELECT op, worker FROM offers")}

    def offered_jobs(self) -> set[bytes]:
        return set(self._column(OFFERED))

    def drop_offer(self, op_id: bytes) -> None:
        self._put("DELETE FROM offers WHERE op = ?", (op_id,))

    def drop_offers_of(self, worker: int) -> None:
        self._put("DELETE FROM offers WHERE worker = ?", (worker,))

    def meta(self, key: str) -> bytes | None:
        value: bytes | None = self._one("SELECT value FROM meta WHERE key = ?", key)
        return value

    def set_meta(self, key: str, value: bytes) -> None:
        self._put(_SET_META, (key, value))

    def node_meta(self, node: bytes, key: str) -> bytes | None:
        """A setting of one of the nodes that share the store; a store of one node has no others."""
        name = f"{key} {node.hex()}"
        return self._macs.value(name, self.meta(name))

    def set_node_meta(self, node: bytes, key: str, value: bytes) -> None:
        name = f"{key} {node.hex()}"
        self.set_meta(name, self._macs.value_with_mac(name, value))

    def own_meta(self, key: str) -> bytes | None:
        """A setting of the node that uses the store."""
        return self.node_meta(self._macs.node, key)

    def set_own_meta(self, key: str, value: bytes) -> None:
        self.set_node_meta(self._macs.node, key, value)


def _worker(row: Sequence[Any]) -> WorkerRow:
    name, pid, started, host, boot, namespace, locks, _, number, node, beat, serves = row
    return WorkerRow(number, name, pid, started, node, beat, Place(host, boot, namespace, locks), serves)
