"""The statements about subjects whose families have no tables of their own."""

from hocket.families.inbox.facts import MESSAGE
from hocket.kernel.subjects import Subject
from hocket.store.postgres.statements import PostgresStatements, upsert
from hocket.store.postgres.told import FAMILIES, STATE
from hocket.store.subjects import LOCK_QUEUE, SubjectRow


class PostgresSubjects(PostgresStatements):
    def subject_state(self, subject: Subject) -> bytes | None:
        state, latest = self._told_state(subject)
        check = self.row_check
        return state if check is None or subject.family == LOCK_QUEUE else check.state(subject, state, latest)

    def _told_state(self, subject: Subject) -> tuple[bytes | None, bytes | None]:
        """The state, and the time of the latest op about the subject."""
        told = self._told if subject.family in FAMILIES else None
        if told is not None:
            told.asked.add(subject)
            if subject in told.subjects:
                return told.subjects[subject]
        ((state, latest),) = self._rows(f"SELECT {STATE}", *subject, *subject)
        if told is not None:
            told.subjects[subject] = state, latest
        return state, latest

    def _changes(self, subject: Subject, state: bytes | None, last: bytes = b"") -> None:
        if self._told is not None:
            self._told.subjects.pop(subject, None)
        if self.row_check is not None and subject.family != LOCK_QUEUE:
            self.row_check.wrote_state(subject, state, last)

    def put_subject(self, row: SubjectRow) -> None:
        self._changes(row.subject, row.state, row.last)
        self._put(upsert("subjects", "family, key, last, state", "family, key"), (*row.subject, row.last, row.state))

    def drop_subject(self, subject: Subject) -> None:
        self._changes(subject, None)
        self._put("DELETE FROM subjects WHERE family = %s AND key = %s", subject)

    def subject_states(self, family: str, without: bytes) -> list[bytes]:
        return self._column("SELECT state FROM subjects WHERE family = %s AND key <> %s ORDER BY key", family, without)

    def has_op_after(self, subject: Subject, hlc: bytes) -> bool:
        where = "WHERE key = %s AND settled = 1 AND hlc > %s AND family = %s AND reason = 0"
        return self._one(f"SELECT 1 FROM ops {where} LIMIT 1", subject.key, hlc, subject.family) is not None

    def subjects_since(self, family: str, hlc: bytes) -> list[bytes]:
        """A subject has no state if none of its ops counts."""
        sql = (
            "SELECT key FROM subjects WHERE family = %s AND last > %s UNION SELECT key FROM ops"
            " WHERE reason <> 0 AND settled = 1 AND family = %s AND key IS NOT NULL AND hlc > %s"
        )
        return self._column(sql, family, hlc, family, hlc)

    def subjects_offered(self, family: str, reason: int, hlc: bytes) -> list[Subject]:
        where = "WHERE reason <> 0 AND reason = %s AND family = %s AND key IS NOT NULL AND settled = 1 AND hlc > %s"
        keys = self._column(f"SELECT DISTINCT key FROM ops {where}", int(reason), family, hlc)
        return [Subject(family, key) for key in keys]

    def subjects_of(self, family: str) -> list[bytes]:
        about = "SELECT key FROM ops WHERE key IS NOT NULL AND family = %s"
        if family == MESSAGE:
            return self._column(f"{about} UNION SELECT id FROM messages", family)
        return self._column(f"{about} UNION SELECT key FROM subjects WHERE family = %s", family, family)

    def each_subject(self) -> list[SubjectRow]:
        rows = self._rows("SELECT family, key, last, state FROM subjects ORDER BY family, key")
        return [SubjectRow(Subject(family, key), last, state) for family, key, last, state in rows]
