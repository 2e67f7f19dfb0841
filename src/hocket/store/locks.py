"""What a write transaction says that it is about to decide on, before it reads it. All transactions lock in one order:
the author, the permissions, then subjects. A store whose write transactions exclude each other anyway has nothing to
lock and only checks the order; a store that many nodes share locks no more than was asked for.
"""

from collections.abc import Iterable
from typing import Protocol

from hocket.kernel.subjects import Subject


class LockMisuse(RuntimeError):
    """The program has locked in the wrong order, or outside a write transaction."""


class LockSession(Protocol):
    """Locks end with the transaction. To lock again what is locked does nothing. Each raises LockMisuse."""

    def lock_author(self, node: bytes) -> None:
        """This node's clock and the end of its own history. First of all, if the transaction writes ops of a node."""

    def lock_permissions(self, *, exclusive: bool) -> None:
        """A transaction that decides by the permissions takes the shared side. One that changes them (delegations,
        revocations, coordinator, routes) takes the exclusive side, also after the shared one.
        """

    def lock_subjects(self, subjects: Iterable[Subject]) -> None:
        """Before their state is read: what ops are about, and what spans them, a unique key or a kind's limit. What one
        call names is locked in the order of family and key.
        """
