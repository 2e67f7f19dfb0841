"""Requests for locks that end with the process that made them. They concern this node alone and are on no log."""

from typing import NamedTuple, Protocol

from hocket.store.local import Place


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


class LockRequestSession(Protocol):
    def put_lock_request(self, request: BoundRequest) -> None:
        """Adds it, or replaces the one of the same op."""

    def lock_requests(self, node: bytes) -> list[BoundRequest]: ...
    def drop_lock_request(self, op_id: bytes) -> None: ...
