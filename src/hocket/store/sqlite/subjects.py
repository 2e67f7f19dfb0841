"""The statements about subjects whose families have no tables of their own."""

from hocket.families.inbox.facts import MESSAGE
from hocket.kernel.subjects import Subject
from hocket.store.sqlite.statements import Statements
from hocket.store.subjects import LOCK_QUEUE, SubjectRow

# How many states a writer remembers, and how large each may be.
STATES_REMEMBERED = 64
STATE_BYTES_REMEMBERED = 4_096
# The time of the latest op about a subject.
LATEST_ABOUT = "SELECT hlc FROM ops WHERE key = ?2 AND settled = 1 AND family = ?1 ORDER BY hlc DESC LIMIT 1"


class SubjectStatements(Statements):
    def subject_state(self, subject: Subject) -> bytes | None:
        if self._head_seen and subject in self._states:
            return self._states[subject]
        if self.row_check is None or subject.family == LOCK_QUEUE:
            state: bytes | None = self._one("SELECT state FROM subjects WHERE family = ? AND key = ?", *subject)
            return state
        sql = f"SELECT (SELECT state FROM subjects WHERE family = ?1 AND key = ?2), ({LATEST_ABOUT})"
        return self.row_check.state(subject, *self._sql(sql, subject).fetchone())

    def _wrote(self, subject: Subject, state: bytes | None, last: bytes) -> None:
        if self.row_check is not None and subject.family != LOCK_QUEUE:
            self.row_check.wrote_state(subject, state, last)

    def put_subject(self, row: SubjectRow) -> None:
        self._sql("REPLACE INTO subjects VALUES (?, ?, ?, ?)", (*row.subject, row.last, row.state))
        self._wrote(row.subject, row.state, row.last)
        self._states.pop(row.subject, None)
        if len(row.state) <= STATE_BYTES_REMEMBERED:
            if len(self._states) >= STATES_REMEMBERED:
                self._states.clear()
            self._states[row.subject] = row.state

    def drop_subject(self, subject: Subject) -> None:
        self._sql("DELETE FROM subjects WHERE family = ? AND key = ?", subject)
        self._wrote(subject, None, b"")
        self._states.pop(subject, None)

    def subject_states(self, family: str, without: bytes) -> list[bytes]:
        sql = "SELECT state FROM subjects WHERE family = ? AND key != ? ORDER BY key"
        return [row[0] for row in self._sql(sql, (family, without))]

    def has_op_after(self, subject: Subject, hlc: bytes) -> bool:
        where = "WHERE key = ? AND settled = 1 AND hlc > ? AND family = ? AND reason = 0"
        return self._one(f"SELECT 1 FROM ops {where} LIMIT 1", subject.key, hlc, subject.family) is not None

    def subjects_since(self, family: str, hlc: bytes) -> list[bytes]:
        """A subject has no state if none of its ops counts."""
        sql = (
            "SELECT key FROM subjects WHERE family = ?1 AND last > ?2 UNION SELECT key FROM ops"
            " WHERE reason != 0 AND settled = 1 AND family = ?1 AND key IS NOT NULL AND hlc > ?2"
        )
        return [row[0] for row in self._sql(sql, (family, hlc))]

    def subjects_offered(self, family: str, reason: int, hlc: bytes) -> list[Subject]:
        where = "WHERE reason != 0 AND reason = ? AND family = ? AND key IS NOT NULL AND settled = 1 AND hlc > ?"
        rows = self._sql(f"SELECT DISTINCT key FROM ops {where}", (int(reason), family, hlc))
        return [Subject(family, row[0]) for row in rows]

    def subjects_of(self, family: str) -> list[bytes]:
        stored = "SELECT id FROM messages" if family == MESSAGE else "SELECT key FROM subjects WHERE family = ?1"
        sql = f"{stored} UNION SELECT key FROM ops WHERE settled = 1 AND key IS NOT NULL AND family = ?1"
        return [row[0] for row in self._sql(sql, (family,))]

    def each_subject(self) -> list[SubjectRow]:
        rows = self._sql("SELECT family, key, last, state FROM subjects ORDER BY family, key")
        return [SubjectRow(Subject(family, key), last, state) for family, key, last, state in rows]
