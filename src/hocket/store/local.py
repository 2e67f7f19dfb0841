"""Data on no log: worker processes, the claims that they have offered, and settings of the store and of its nodes."""

from typing import NamedTuple, Protocol


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


class LocalSession(Protocol):
    def put_worker(self, worker: WorkerRow) -> int:
        """Adds a worker, or renews the worker of that name: its beat, which rises each time, and what it serves.
        Returns its number.
        """

    def has_worker(self, number: int) -> bool: ...

    def workers(self, node: bytes | None = None) -> list[WorkerRow]:
        """The workers of a node, or of all nodes that share the store."""

    def drop_worker(self, number: int) -> None: ...
    def put_offer(self, op_id: bytes, job_id: bytes, worker: int) -> None: ...
    def offered_by(self, op_id: bytes) -> int | None: ...
    def offered_jobs(self) -> set[bytes]: ...
    def drop_offer(self, op_id: bytes) -> None: ...
    def drop_offers_of(self, worker: int) -> None: ...
    def meta(self, key: str) -> bytes | None: ...
    def set_meta(self, key: str, value: bytes) -> None: ...

    def node_meta(self, node: bytes, key: str) -> bytes | None:
        """A setting of one of the nodes that share the store; a store of one node has no others."""

    def set_node_meta(self, node: bytes, key: str, value: bytes) -> None: ...
