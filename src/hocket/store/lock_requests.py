"""Requests for locks that end with the process that made them. They concern this node alone and are on no log."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

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


def request_columns(request: BoundRequest) -> tuple[Any, ...]:
    """The columns that are sealed, in their order."""
    return (request.op, *request[2:5], *request.place)


def bound_request(node: bytes, row: Sequence[Any]) -> BoundRequest:
    return BoundRequest._make((row[0], node, *row[1:4], Place(*row[4:8])))


class LockRequestSession(Protocol):
    def put_lock_request(self, request: BoundRequest) -> None:
        """Adds it, or replaces the one of the same op."""

    def lock_requests(self, node: bytes) -> list[BoundRequest]:
        """Those of the node that uses the store; of another node there are none to see."""

    def drop_lock_request(self, op_id: bytes) -> None: ...
