"""The statements about requests for locks that end with their process."""

from hocket.store.lock_requests import BoundRequest, bound_request, request_columns
from hocket.store.sqlite.statements import Statements


class LockRequestStatements(Statements):
    def put_lock_request(self, request: BoundRequest) -> None:
        self._put_own("lock_requests", request_columns(request))

    def lock_requests(self, node: bytes) -> list[BoundRequest]:
        return [bound_request(node, row) for row in self._own("lock_requests")] if node == self._macs.node else []

    def drop_lock_request(self, op_id: bytes) -> None:
        self._sql("DELETE FROM lock_requests WHERE op = ?", (op_id,))
