"""Contested rows, which are subjects: how to find them by name, by conflict and by change."""

from typing import Protocol

from hocket.store.subjects import SubjectRow


class RowSession(Protocol):
    def rows(self, prefix: bytes, after: bytes, limit: int) -> list[SubjectRow]:
        """Rows whose name begins with the prefix and comes after another name, in the order of their names. Deleted
        rows are among them.
        """

    def rows_in_conflict(self, after: bytes, limit: int) -> list[SubjectRow]:
        """Rows with recorded conflicts, after this name, in the order of their names."""

    def rows_written(self, prefix: bytes, after: int) -> list[bytes]:
        """The names with the prefix that ops after this number are about, each once."""
