"""The entries of a coordinator that a named node keeps for it. They are not on this node's log: the coordinator has
told nobody what it decided in them, until enough named nodes have them.
"""

from collections.abc import Iterable
from typing import NamedTuple

from hocket.store.statements import Statements


class WitnessedRow(NamedTuple):
    """An entry with its signature. `hlc` is the time of its last op."""

    author: bytes
    hlc: bytes
    body: bytes


class WitnessSession(Statements):
    def put_witnessed(self, rows: Iterable[WitnessedRow]) -> None:
        for row in rows:
            self._put_own("witnessed", row)

    def witnessed(self, after: tuple[bytes, bytes], limit: int) -> list[WitnessedRow]:
        """The entries after this author and time, in the order of authors and times."""
        tail = "AND (author > ? OR (author = ? AND hlc > ?)) ORDER BY author, hlc LIMIT ?"
        return [WitnessedRow(*row[:-1]) for row in self._own("witnessed", tail, after[0], *after, limit)]

    def witnessed_of(self, author: bytes, after: bytes = b"") -> list[WitnessedRow]:
        """The entries of one author after this time, in order."""
        rows = self._own("witnessed", "AND author = ? AND hlc > ? ORDER BY hlc", author, after)
        return [WitnessedRow(*row[:-1]) for row in rows]

    def last_witnessed(self, author: bytes) -> WitnessedRow | None:
        rows = self._own("witnessed", "AND author = ? ORDER BY hlc DESC LIMIT 1", author)
        return next((WitnessedRow(*row[:-1]) for row in rows), None)

    def witnessed_at(self, author: bytes, hlc: bytes) -> WitnessedRow | None:
        rows = self._own("witnessed", "AND author = ? AND hlc = ?", author, hlc)
        return next((WitnessedRow(*row[:-1]) for row in rows), None)

    def drop_witnessed(self, author: bytes, until: bytes) -> None:
        """Drops the entries of an author up to this time: they are on the log."""
        self._put(
            "DELETE FROM witnessed WHERE of_node = ? AND author = ? AND hlc <= ?", (self._macs.node, author, until)
        )

    def last_time_before(self, author: bytes, seq: int) -> bytes:
        """The time of the author's last op before this number; zeros if there is none."""
        found = self._one("SELECT max(hlc) FROM ops WHERE substr(hlc, 13) = ? AND seq < ?", author, seq)
        return bytes(20) if found is None else bytes(found)
