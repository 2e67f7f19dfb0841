"""The locks of a store that nodes share. A transaction that is alone excludes all others. Those that run beside each
other hold the shared side of the same lock, and each its author, the jobs that it has read, the limits that it has
tried, and at the end the row of the head. PostgreSQL gives them back when the transaction ends, even behind a pooler.
"""

from collections.abc import Iterable

from hocket.kernel.ids import content_hash
from hocket.kernel.subjects import Subject
from hocket.store.locks import UNIQUE_KEY, LockMisuse, MustBeAlone
from hocket.store.postgres.statements import PostgresStatements


def lock_key(schema: str, *names: bytes) -> int:
    """The number of an advisory lock. All programs that use the database share these numbers."""
    name = b"\0".join((b"hocket", schema.encode(), *names))
    return int.from_bytes(content_hash(name)[:8], "big", signed=True)


class PostgresLocks(PostgresStatements):
    def lock_author(self, node: bytes) -> None:
        self._check_writing()
        if self._author != node and (self._author is not None or self._has_permissions):
            raise LockMisuse("a transaction has one author, and locks it first")
        self._author = node

    def lock_permissions(self, *, exclusive: bool) -> None:
        self._check_writing()
        if exclusive:
            self.lock_all()
        self._has_permissions = True

    def lock_all(self) -> None:
        self._check_writing()
        if self.is_beside:
            raise MustBeAlone

    def lock_subjects(self, subjects: Iterable[Subject]) -> None:
        """Jobs are locked by the statement that reads them. Everything else changes only in transactions that are
        alone.
        """
        if not self._has_permissions:
            raise LockMisuse("lock the author and the permissions before a subject, in a write transaction")
        if self.is_beside and any(subject.family == UNIQUE_KEY for subject in subjects):
            raise MustBeAlone

    def try_lock(self, subject: Subject) -> bool:
        self.lock_subjects((subject,))
        if not self.is_beside or subject in self._locked:
            return True
        key = lock_key(self._schema, subject.family.encode(), subject.key)
        if not self._one("SELECT pg_try_advisory_xact_lock(?)", key):
            return False
        self._locked.add(subject)
        return True

    def _check_writing(self) -> None:
        if not self._is_writer or not self._in_transaction:
            raise LockMisuse("only a write transaction locks")
