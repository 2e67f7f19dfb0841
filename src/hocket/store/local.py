"""Data on no log: worker processes, the claims that they have offered, and settings of the store and of its nodes."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol


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


# The columns of a worker after those that the MAC covers and the MAC, and where the node is among all of them.
WORKER_OTHERS = "number, node, beat, serves"
NODE_AT = 9
# What a renewed row of a worker takes over.
WORKER_RENEWED = ", ".join(
    f"{name} = excluded.{name}"
    for name in ("node", "pid", "started", "host", "boot", "namespace", "locks", "mac", "serves")
)


def worker_columns(worker: WorkerRow) -> tuple[Any, ...]:
    """The columns that the MAC covers, in their order."""
    return (worker.name, worker.pid, worker.started, *worker.place)


def worker_row(row: Sequence[Any]) -> WorkerRow:
    """From the columns that the MAC covers, the MAC, and the number, the node, the beat and what it serves."""
    name, pid, started, host, boot, namespace, locks, _, number, node, beat, serves = row
    return WorkerRow(number, name, pid, started, node, beat, Place(host, boot, namespace, locks), serves)


class LocalSession(Protocol):
    def put_worker(self, worker: WorkerRow) -> int:
        """Adds a worker, or renews the worker of that name: its beat, which rises each time, and what it serves.
        Returns its number.
        """

    def has_worker(self, number: int) -> bool: ...

    def workers(self, node: bytes | None = None) -> list[WorkerRow]:
        """The workers of a node, or of all nodes that share the store. Only those of the node that uses the store are
        known to be what their rows say.
        """

    def drop_worker(self, number: int) -> None: ...
    def put_offer(self, op_id: bytes, job_id: bytes, worker: int) -> None: ...
    def offers(self) -> dict[bytes, int]:
        """The worker of each claim that waits for the arbiter, by the claim's op."""

    def offered_jobs(self) -> set[bytes]: ...
    def drop_offer(self, op_id: bytes) -> None: ...
    def drop_offers_of(self, worker: int) -> None: ...
    def meta(self, key: str) -> bytes | None: ...
    def set_meta(self, key: str, value: bytes) -> None: ...

    def node_meta(self, node: bytes, key: str) -> bytes | None:
        """A setting of one of the nodes that share the store; a store of one node has no others."""

    def set_node_meta(self, node: bytes, key: str, value: bytes) -> None: ...

    def own_meta(self, key: str) -> bytes | None:
        """A setting of the node that uses the store."""

    def set_own_meta(self, key: str, value: bytes) -> None: ...
