"""The states of subjects whose families have no tables of their own. Contested rows are such subjects: they are also
found by name, by conflict and by change.
"""

from collections.abc import Iterable
from functools import cache
from typing import NamedTuple, Protocol

from hocket.families.inbox.facts import MESSAGE
from hocket.kernel.vocabulary import Subject
from hocket.store.statements import Dialect, Row, Statements, upsert

# The families of subjects whose states no ops say: which scopes of locks agents wait in.
LOCK_QUEUE = "lock queue"

# The time of the latest op about a subject, and its state with that time.
LATEST_ABOUT = "SELECT hlc FROM ops WHERE family = ? AND key = ? AND settled = 1 ORDER BY hlc DESC LIMIT 1"
STATE = f"(SELECT state FROM subjects WHERE family = ? AND key = ?), ({LATEST_ABOUT})"
_PUT_SUBJECT = upsert("subjects", "family, key, last, state", "family, key")
_SINCE = (
    "SELECT key FROM subjects WHERE family = ?1 AND last > ?2 UNION SELECT key FROM ops"
    " WHERE reason <> 0 AND settled = 1 AND family = ?1 AND key IS NOT NULL AND hlc > ?2"
)
_OFFERED = (
    "SELECT DISTINCT key FROM ops"
    " WHERE reason <> 0 AND reason = ? AND family = ? AND key IS NOT NULL AND settled = 1 AND hlc > ?"
)
_WITH_OPS = "SELECT key FROM ops WHERE settled = 1 AND key IS NOT NULL AND family = ?1"
_WITH_STATE = "SELECT key FROM subjects WHERE family = ?1"
_ROWS = (
    "SELECT family, key, last, state FROM subjects WHERE family = 'row' AND key >= ? AND key < ? AND key > ?"
    " ORDER BY key LIMIT ?"
)
_WRITTEN = "SELECT DISTINCT key FROM ops WHERE seq > ? AND family = 'row' AND key >= ? AND key < ?"


@cache
def _in_conflict(dialect: Dialect) -> str:
    table = f"subjects {dialect.using.format('rows_in_conflict')}"
    where = f"family = 'row' AND substr(state, 1, 1) = {dialect.blob.format('01')} AND key > ?"
    return f"SELECT family, key, last, state FROM {table} WHERE {where} ORDER BY key LIMIT ?"


class SubjectRow(NamedTuple):
    """`last` is the packed time of the latest op about the subject."""

    subject: Subject
    last: bytes
    state: bytes


class ChecksStates(Protocol):
    """What a store that nodes share asks about states: see `RowCheck`."""

    def state(self, subject: Subject, row: bytes | None, latest: bytes | None) -> bytes | None:
        """The state that the ops about a subject lead to. `row` is the stored one, and `latest` the time of the latest
        of these ops.
        """

    def wrote_state(self, subject: Subject, state: bytes | None, last: bytes) -> None:
        """The transaction writes a state that follows from the ops up to this time, or drops it."""


class SubjectSession(Statements):
    row_check: ChecksStates | None

    def subject_state(self, subject: Subject) -> bytes | None:
        """In a store that nodes share, what the ops about the subject say: see `RowCheck`."""
        if self.row_check is None or subject.family == LOCK_QUEUE:
            state: bytes | None = self._one("SELECT state FROM subjects WHERE family = ? AND key = ?", *subject)
            return state
        return self.row_check.state(subject, *self._rows(f"SELECT {STATE}", *subject, *subject)[0])

    def put_subject(self, row: SubjectRow) -> None:
        self._changes(row.subject, row.state, row.last)
        self._put(_PUT_SUBJECT, (*row.subject, row.last, row.state))

    def drop_subject(self, subject: Subject) -> None:
        self._changes(subject, None)
        self._put("DELETE FROM subjects WHERE family = ? AND key = ?", subject)

    def _changes(self, subject: Subject, state: bytes | None, last: bytes = b"") -> None:
        """Tells what remembers the states of subjects."""
        if self.row_check is not None and subject.family != LOCK_QUEUE:
            self.row_check.wrote_state(subject, state, last)

    def subject_states(self, family: str, without: bytes) -> list[bytes]:
        """The states of all subjects of a family but one."""
        return self._column("SELECT state FROM subjects WHERE family = ? AND key <> ? ORDER BY key", family, without)

    def has_op_after(self, subject: Subject, hlc: bytes) -> bool:
        """Whether an op about the subject that counts is later than this."""
        where = "WHERE key = ? AND settled = 1 AND hlc > ? AND family = ? AND reason = 0"
        return self._one(f"SELECT 1 FROM ops {where} LIMIT 1", subject.key, hlc, subject.family) is not None

    def subjects_with_state(self, family: str) -> list[bytes]:
        """The keys of a family's subjects, without those of which no op counts."""
        return self._column(_WITH_STATE, family)

    def subjects_since(self, family: str, hlc: bytes) -> list[bytes]:
        """The keys of subjects with ops later than this. A subject has no state if none of its ops counts."""
        return self._column(_SINCE, family, hlc)

    def subjects_offered(self, family: str, reason: int, hlc: bytes) -> list[Subject]:
        """The subjects of a family with ops later than this that do not count for that reason."""
        return [Subject(family, key) for key in self._column(_OFFERED, int(reason), family, hlc)]

    def subjects_of(self, family: str) -> list[bytes]:
        """The keys of all subjects of a family that have a state or that ops are about."""
        stored = "SELECT id FROM messages" if family == MESSAGE else _WITH_STATE
        return self._column(f"{stored} UNION {_WITH_OPS}", family)

    def each_subject(self) -> list[SubjectRow]:
        return _subjects(self._rows("SELECT family, key, last, state FROM subjects ORDER BY family, key"))

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
    return [SubjectRow(Subject(family, key), last, state) for family, key, last, state in rows]
