"""Requests for locks that end with the process that made them. They concern this node alone and are on no log."""

from typing import NamedTuple

from hocket.store.local import Place
from hocket.store.statements import Statements


class BoundRequest(NamedTuple):
    """`op` is the AcquireLocks op. `process` is the name of the process's OS lock; empty if the request was given up.
    After `until` nothing is left of what the request may have got.
    """

    op: bytes
    node: bytes
    scope: str
    process: str
    until: int
    place: Place


class LockRequestSession(Statements):
    def put_lock_request(self, request: BoundRequest) -> None:
        """Adds it, or replaces the one of the same op."""
        self._put_own("lock_requests", (request.op, *request[2:5], *request.place))

    def lock_requests(self, node: bytes) -> list[BoundRequest]:
        """Those of the node that uses the store; of another node there are none to see."""
        rows = self._own("lock_requests") if node == self._macs.node else ()
        return [BoundRequest._make((row[0], node, *row[1:4], Place(*row[4:8]))) for row in rows]

    def drop_lock_request(self, op_id: bytes) -> None:
        self._put("DELETE FROM lock_requests WHERE op = ?", (op_id,))
