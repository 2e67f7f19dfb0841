"""The statements about requests for locks that end with their process."""

from hocket.store.local import Place
from hocket.store.lock_requests import BoundRequest
from hocket.store.postgres.statements import PostgresStatements, upsert

_REQUEST = "op, node, scope, process, until, host, boot, namespace, locks"


class PostgresLockRequests(PostgresStatements):
    def put_lock_request(self, request: BoundRequest) -> None:
        self._put(upsert("lock_requests", _REQUEST, "op"), (*request[:5], *request.place))

    def lock_requests(self, node: bytes) -> list[BoundRequest]:
        rows = self._rows(f"SELECT {_REQUEST} FROM lock_requests WHERE node = %s", node)
        return [BoundRequest._make((*row[:5], Place(*row[5:]))) for row in rows]

    def drop_lock_request(self, op_id: bytes) -> None:
        self._put("DELETE FROM lock_requests WHERE op = %s", (op_id,))
