"""Contested rows, which are subjects: how to find them by name, by conflict and by change."""

from collections.abc import Iterable
from functools import cache

from hocket.families.rows.facts import ROW
from hocket.kernel.vocabulary import Subject
from hocket.store.statements import Dialect, Row, Statements
from hocket.store.subjects import SubjectRow

_ROWS = (
    "SELECT key, last, state FROM subjects WHERE family = 'row' AND key >= ? AND key < ? AND key > ?"
    " ORDER BY key LIMIT ?"
)
_WRITTEN = "SELECT DISTINCT key FROM ops WHERE seq > ? AND family = 'row' AND key >= ? AND key < ?"


@cache
def _in_conflict(dialect: Dialect) -> str:
    table = f"subjects {dialect.using.format('rows_in_conflict')}"
    where = f"family = 'row' AND substr(state, 1, 1) = {dialect.blob.format('01')} AND key > ?"
    return f"SELECT key, last, state FROM {table} WHERE {where} ORDER BY key LIMIT ?"


class RowSession(Statements):
    def rows(self, prefix: bytes, after: bytes, limit: int) -> list[SubjectRow]:
        """Rows whose name begins with the prefix and comes after another name, in the order of their names. Deleted
        rows are among them.
        """
        return _subjects(self._rows(_ROWS, prefix, _end(prefix), after, limit))

    def rows_in_conflict(self, after: bytes, limit: int) -> list[SubjectRow]:
        """Rows with recorded conflicts, after this name, in the order of their names."""
        return _subjects(self._rows(_in_conflict(self.dialect), after, limit))

    def rows_written(self, prefix: bytes, after: int) -> list[bytes]:
        """The names with the prefix that ops after this number are about, each once."""
        return self._column(_WRITTEN, after, prefix, _end(prefix))


def _end(prefix: bytes) -> bytes:
    """What no name with the prefix reaches: in UTF-8 there is no byte 255."""
    return prefix + b"\xff"


def _subjects(rows: Iterable[Row]) -> list[SubjectRow]:
    return [SubjectRow(Subject(ROW, key), last, state) for key, last, state in rows]
