"""All statements of the SQLite store in one session."""

from collections.abc import Iterable, Iterator
from typing import Any

from hocket.store.row_macs import MAC_TABLES
from hocket.store.sqlite.artifacts import ArtifactStatements
from hocket.store.sqlite.intake import IntakeStatements
from hocket.store.sqlite.jobs import JobStatements
from hocket.store.sqlite.local import LocalStatements
from hocket.store.sqlite.lock_requests import LockRequestStatements
from hocket.store.sqlite.messages import MessageStatements
from hocket.store.sqlite.ops import OpStatements
from hocket.store.sqlite.peers import PeerStatements
from hocket.store.sqlite.presence import PresenceStatements
from hocket.store.sqlite.registers import RegisterStatements
from hocket.store.sqlite.rows import RowStatements
from hocket.store.sqlite.statements import UNREADABLE
from hocket.store.sqlite.subjects import SubjectStatements
from hocket.store.sqlite.tokens import TokenStatements
from hocket.store.unlogged import KEPT, MOVED

# How the error of a trigger begins that refuses a write to a moved store. The address follows.
MOVED_TO = "this store was moved to "
_PROJECTIONS = (
    *("jobs", "subjects", "after", "cites", "nodes", "routes", "schedules", "artifacts"),
    *("evictions", "delegations", "revocations", "coordinators", "forks", "written"),
    *("messages", "deliveries", "group_cursors"),
)


class SqliteSession(
    OpStatements,
    IntakeStatements,
    JobStatements,
    SubjectStatements,
    RowStatements,
    MessageStatements,
    RegisterStatements,
    ArtifactStatements,
    PeerStatements,
    PresenceStatements,
    LocalStatements,
    TokenStatements,
    LockRequestStatements,
):
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
        for table in _PROJECTIONS:
            self._sql(f"DELETE FROM {table}")
        self._sql("DELETE FROM finished")

    def damage(self) -> list[str]:
        try:
            return [row[0] for row in self._sql("PRAGMA integrity_check(20)") if row[0] != "ok"]
        except UNREADABLE as error:
            return [str(error)]

    def unlogged(self, table: str) -> Iterator[tuple[Any, ...]]:
        yield from self._sql(f"SELECT {KEPT[table].columns} FROM {table} ORDER BY {KEPT[table].order}")

    def put_unlogged(self, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
        columns = KEPT[table].columns
        self._sql(f"DELETE FROM {table}")
        self._many(f"INSERT INTO {table} ({columns}) VALUES ({', '.join('?' * (columns.count(',') + 1))})", rows)

    def mark_moved(self, address: str) -> None:
        """Triggers refuse the writes, also those of processes that have the file open, and of older programs."""
        self._sql("REPLACE INTO meta VALUES (?, ?)", (MOVED, address.encode()))
        told = (MOVED_TO + address).replace("'", "''")
        tables = self._sql("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'").fetchall()
        for (table,) in tables:
            for act in ("INSERT", "UPDATE", "DELETE"):
                trigger = f"CREATE TRIGGER moved_{act}_{table} BEFORE {act} ON {table}"
                self._sql(f"{trigger} BEGIN SELECT RAISE(ABORT, '{told}'); END")
