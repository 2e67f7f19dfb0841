"""Locks. A write transaction locks what it will decide on before it reads it. All transactions lock in one order: the
author, the permissions, then subjects, then the end of the log. A transaction that is alone has nothing to lock, and
only checks the order. In a store that nodes share, transactions of different authors can run beside each other; such a
one locks what it names, and is undone if it turns out that it has to be alone.
"""

from collections.abc import Iterable
from typing import Protocol

from hocket.kernel.subjects import Subject

# The families of what spans jobs and has no ops of its own: the limit of a kind, and a unique key.
LIMIT, UNIQUE_KEY = "limit", "unique key"


class LockMisuse(RuntimeError):
    """The program locked in the wrong order, or outside a write transaction."""


class MustBeAlone(Exception):
    """Undoes a transaction that runs beside others, and would change more than those expect. Its request runs again in
    a transaction that is alone.
    """


class Outdated(Exception):
    """Undoes a transaction that relied on what its process knew, and others have changed that. Its request runs again,
    and reads.
    """


class LockSession(Protocol):
    """Locks end with the transaction. Locking again has no effect. Each method raises LockMisuse."""

    is_beside: bool
    """Whether transactions of other authors may run at the same time."""

    def lock_all(self) -> None:
        """Call it before changing something that transactions rely on without locking it. Raises MustBeAlone in a
        transaction that runs beside others.
        """

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

    def try_lock(self, subject: Subject) -> bool:
        """Locks one subject without waiting: False if another transaction has locked it."""
