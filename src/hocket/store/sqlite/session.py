"""The session of the SQLite store: the statements that differ from those that all stores share."""

from hocket.kernel.subjects import Subject
from hocket.store.row_check import RowCheck
from hocket.store.row_macs import MAC_TABLES
from hocket.store.session import Session
from hocket.store.sqlite.jobs import SqliteJobs
from hocket.store.sqlite.statements import UNREADABLE
from hocket.store.unlogged import MOVED

# How the error of a trigger begins that refuses a write to a moved store. The address follows.
MOVED_TO = "this store was moved to "
# How many states a writer remembers, and how large each may be.
STATES_REMEMBERED = 64
STATE_BYTES_REMEMBERED = 4_096


class SqliteSession(SqliteJobs, Session):
    row_check: RowCheck | None

    def subject_state(self, subject: Subject) -> bytes | None:
        if self._head_seen and subject in self._states:
            return self._states[subject]
        return super().subject_state(subject)

    def _changes(self, subject: Subject, state: bytes | None, last: bytes = b"") -> None:
        super()._changes(subject, state, last)
        self._states.pop(subject, None)
        if state is not None and len(state) <= STATE_BYTES_REMEMBERED:
            if len(self._states) >= STATES_REMEMBERED:
                self._states.clear()
            self._states[subject] = state

    def node_meta(self, node: bytes, key: str) -> bytes | None:
        return self.meta(key)

    def set_node_meta(self, node: bytes, key: str, value: bytes) -> None:
        self.set_meta(key, value)

    def has_rows_to_mac(self) -> bool:
        """Whether an older program has left rows without a MAC."""
        return self._one("SELECT 1 FROM to_mac") is not None

    def mac_old_rows(self) -> None:
        for table, each in MAC_TABLES.items():
            sql = f"SELECT {each.columns} FROM {table} WHERE mac = x''"
            at = [each.columns.split(", ").index(name) for name in each.key.split(", ")]
            which = " AND ".join(f"{name} = ?" for name in each.key.split(", "))
            columns = ", ".join(f"{name} = ?" for name in (each.owner, *each.columns.split(", "), "mac"))
            for row in self._sql(sql).fetchall():
                changed = f"UPDATE {table} SET {columns} WHERE mac = x'' AND {which}"
                self._sql(changed, (*self._macs.with_mac(table, row), *(row[number] for number in at)))
        self._sql("DELETE FROM to_mac")

    def carry_note(self, note: bytes) -> None:
        """Every process that uses the file is on this machine."""

    def drop_projections(self) -> None:
        self._claimed.clear()
        self._states.clear()
        super().drop_projections()

    def damage(self) -> list[str]:
        try:
            return [row[0] for row in self._sql("PRAGMA integrity_check(20)") if row[0] != "ok"]
        except UNREADABLE as error:
            return [str(error)]

    def mark_moved(self, address: str) -> None:
        """Triggers refuse the writes, also those of processes that have the file open, and of older programs."""
        self.set_meta(MOVED, address.encode())
        told = (MOVED_TO + address).replace("'", "''")
        tables = self._sql("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'").fetchall()
        for (table,) in tables:
            for act in ("INSERT", "UPDATE", "DELETE"):
                trigger = f"CREATE TRIGGER moved_{act}_{table} BEFORE {act} ON {table}"
                self._sql(f"{trigger} BEGIN SELECT RAISE(ABORT, '{told}'); END")
