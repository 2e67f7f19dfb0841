"""The locks of a store with a single lock: the write transaction already holds it."""

from collections.abc import Iterable

from hocket.kernel.subjects import Subject
from hocket.store.locks import LockMisuse
from hocket.store.sqlite.statements import SqliteStatements


class SqliteLocks(SqliteStatements):
    is_beside = has_skipped = False

    def lock_all(self) -> None:
        self._check_writing()

    def lock_author(self, node: bytes) -> None:
        self._check_writing()
        if self._author != node and (self._author is not None or self._has_permissions):
            raise LockMisuse("a transaction has one author, and locks it first")
        self._author = node

    def lock_permissions(self, *, exclusive: bool) -> None:
        self._check_writing()
        self._has_permissions = True

    def lock_subjects(self, subjects: Iterable[Subject]) -> None:
        if not self._has_permissions:
            raise LockMisuse("lock the author and the permissions before a subject, in a write transaction")

    def try_lock(self, subject: Subject) -> bool:
        self.lock_subjects((subject,))
        return True

    def _unlock(self) -> None:
        self._author, self._has_permissions = None, False
        self._unended.clear()

    def _check_writing(self) -> None:
        if not self._is_writer or not self._connection.in_transaction:
            raise LockMisuse("only a write transaction locks")
