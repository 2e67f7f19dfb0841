"""The statements about requests for locks that end with their process."""

from hocket.store.local import Place
from hocket.store.lock_requests import BoundRequest
from hocket.store.sqlite.statements import Statements


class LockRequestStatements(Statements):
    def put_lock_request(self, request: BoundRequest) -> None:
        values = (*request[:5], *request.place)
        self._sql("REPLACE INTO lock_requests VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)

    def lock_requests(self, node: bytes) -> list[BoundRequest]:
        rows = self._sql("SELECT * FROM lock_requests WHERE node = ?", (node,))
        return [BoundRequest._make((*row[:5], Place(*row[5:]))) for row in rows]

    def drop_lock_request(self, op_id: bytes) -> None:
        self._sql("DELETE FROM lock_requests WHERE op = ?", (op_id,))
