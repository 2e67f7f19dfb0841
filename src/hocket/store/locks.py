"""Locks. A write transaction locks what it will decide on before it reads it. All transactions lock in one order: the
author, the permissions, then subjects, then the end of the log. A transaction that is alone has nothing to lock, and
only checks the order. In a store that nodes share, transactions of different authors can run beside each other; such a
one locks what it names, and is undone if it turns out that it has to be alone.
"""

from abc import abstractmethod
from collections.abc import Iterable

from hocket.kernel.vocabulary import Subject
from hocket.store.statements import Statements

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


class LockSession(Statements):
    """Locks end with the transaction. Locking again has no effect. Each method raises LockMisuse."""

    is_beside = False
    """Whether transactions of other authors may run at the same time."""
    # What the transaction has locked.
    _author: bytes | None = None
    _has_permissions = False

    @property
    @abstractmethod
    def _is_writing(self) -> bool:
        """Whether a write transaction runs."""

    def lock_all(self) -> None:
        """Call it before changing something that transactions rely on without locking it. Raises MustBeAlone in a
        transaction that runs beside others.
        """
        self._check_writing()
        if self.is_beside:
            raise MustBeAlone

    def lock_author(self, node: bytes) -> None:
        """This node's clock and the end of its own history. It comes first, if the transaction writes ops of a node."""
        self._check_writing()
        if self._author != node and (self._author is not None or self._has_permissions):
            raise LockMisuse("a transaction has one author, and locks it first")
        self._author = node

    def lock_permissions(self, *, exclusive: bool) -> None:
        """A transaction that relies on the permissions takes the shared side. One that changes them (delegations,
        revocations, coordinator, routes) takes the exclusive side, even after the shared one.
        """
        self._check_writing()
        if exclusive:
            self.lock_all()
        self._has_permissions = True

    def lock_subjects(self, subjects: Iterable[Subject]) -> None:
        """Call it before reading their state: the subjects of ops, and what spans several, a unique key or a kind's
        limit. Jobs are locked by the statement that reads them. Everything else changes only in transactions that are
        alone.
        """
        if not self._has_permissions:
            raise LockMisuse("lock the author and the permissions before a subject, in a write transaction")
        if self.is_beside and any(subject.family == UNIQUE_KEY for subject in subjects):
            raise MustBeAlone

    def try_lock(self, subject: Subject) -> bool:
        """Locks one subject without waiting: False if another transaction has locked it."""
        self.lock_subjects((subject,))
        return not self.is_beside or self._try_lock(subject)

    def _try_lock(self, subject: Subject) -> bool:
        """In a transaction that runs beside others."""
        return True

    def _check_writing(self) -> None:
        if not self._is_writing:
            raise LockMisuse("only a write transaction locks")
