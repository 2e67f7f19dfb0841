"""Locks. A write transaction locks what it will decide on before it reads it. All transactions lock in one order: the
author, the permissions, then subjects. A store whose write transactions exclude each other anyway has nothing to lock
and only checks the order; a store that many nodes share locks no more than the transaction names.
"""

from collections.abc import Iterable
from typing import Protocol

from hocket.kernel.subjects import Subject


class LockMisuse(RuntimeError):
    """The program locked in the wrong order, or outside a write transaction."""


class LockSession(Protocol):
    """Locks end with the transaction. Locking again has no effect. Each method raises LockMisuse."""

    def lock_author(self, node: bytes) -> None:
        """This node's clock and the end of its own history. It comes first, if the transaction writes ops of a node."""

    def lock_permissions(self, *, exclusive: bool) -> None:
        """A transaction that relies on the permissions takes the shared side. One that changes them (delegations,
        revocations, coordinator, routes) takes the exclusive side, even after the shared one.
        """

    def lock_subjects(self, subjects: Iterable[Subject]) -> None:
        """Call it before reading their state: the subjects of ops, and what spans several, a unique key or a kind's
        limit. One call locks in the order of family and key.
        """
