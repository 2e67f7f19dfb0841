"""The statements about contested rows."""

from collections.abc import Iterable
from typing import Any

from hocket.families.rows.facts import ROW
from hocket.kernel.subjects import Subject
from hocket.store.postgres.statements import PostgresStatements
from hocket.store.subjects import SubjectRow

_ROWS = (
    "SELECT key, last, state FROM subjects WHERE family = 'row' AND key >= %s AND key < %s AND key > %s"
    " ORDER BY key LIMIT %s"
)
_ROWS_IN_CONFLICT = (
    "SELECT key, last, state FROM subjects"
    " WHERE family = 'row' AND substr(state, 1, 1) = '\\x01'::bytea AND key > %s ORDER BY key LIMIT %s"
)


class PostgresRows(PostgresStatements):
    def rows(self, prefix: bytes, after: bytes, limit: int) -> list[SubjectRow]:
        return _found(self._rows(_ROWS, prefix, _end(prefix), after, limit))

    def rows_in_conflict(self, after: bytes, limit: int) -> list[SubjectRow]:
        return _found(self._rows(_ROWS_IN_CONFLICT, after, limit))

    def rows_written(self, prefix: bytes, after: int) -> list[bytes]:
        sql = "SELECT DISTINCT key FROM ops WHERE seq > %s AND family = 'row' AND key >= %s AND key < %s"
        return self._column(sql, after, prefix, _end(prefix))


def _end(prefix: bytes) -> bytes:
    """What no name with the prefix reaches: in UTF-8 there is no byte 255."""
    return prefix + b"\xff"


def _found(rows: Iterable[Any]) -> list[SubjectRow]:
    return [SubjectRow(Subject(ROW, key), last, state) for key, last, state in rows]
