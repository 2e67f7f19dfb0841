"""What stands in the place of ops that retention let go: the heads of authors, the bases of subjects, and the runs of
rows that were deleted; and what is left to do until a horizon is in force.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hocket.kernel.vocabulary import Subject
from hocket.store.statements import Statements, upsert

# The store's key of the horizon in force: see `HorizonRow`.
HORIZON = "horizon"
# The store's key of which process prepares the next horizon.
PREPARING = "preparing"
_HEAD = "author, hlc, entry, size, peaks"
_PUT_HEAD = upsert("heads", _HEAD, "author")
_PUT_BASE = upsert("bases", "of_node, family, key, last, state, mac", "family, key")
_PUT_GAP = upsert("gaps", "of_node, first, last, chain, mac", "first")
_PUT_PRUNING = upsert("pruning", "family, key, last, state, kept", "family, key")


class HorizonRow(NamedTuple):
    """The horizon in force: the op that moved it, the millisecond that it settles, and until when what has gone began.
    `is_denied`: every subject follows it. `is_deleted`: what has gone is no longer in the store.
    """

    op: bytes
    at_ms: int
    forgotten_ms: int
    is_denied: bool = False
    is_deleted: bool = False

    def encode(self) -> bytes:
        flags = self.is_denied | self.is_deleted << 1
        return self.op + self.at_ms.to_bytes(8, "big") + self.forgotten_ms.to_bytes(8, "big") + bytes((flags,))

    @classmethod
    def read(cls, data: bytes) -> "HorizonRow":
        at_ms, forgotten_ms = int.from_bytes(data[16:24], "big"), int.from_bytes(data[24:32], "big")
        return cls(data[:16], at_ms, forgotten_ms, bool(data[32] & 1), bool(data[32] & 2))


class HeadRow(NamedTuple):
    """The last settled entry of an author: the time of its last op, its id, and the author's tree up to it."""

    author: bytes
    hlc: bytes
    entry: bytes
    size: int
    peaks: bytes


class BaseRow(NamedTuple):
    """What a subject was at the horizon: `last` is the time of the latest settled op about it."""

    subject: Subject
    last: bytes
    state: bytes


class GapRow(NamedTuple):
    """Rows that were deleted: the numbers of the first and the last op, and the link of the last entry."""

    first: int
    last: int
    chain: bytes


class PruningRow(NamedTuple):
    """A subject that a horizon in force has not reached yet. With a base it stays; without one it goes. An empty family
    stands for an op without a subject. The settled ops with the ids in `kept` stay in any case.
    """

    subject: Subject
    last: bytes | None
    state: bytes | None
    kept: tuple[bytes, ...]


class HorizonSession(Statements):
    def horizon(self) -> HorizonRow | None:
        data = self._one("SELECT value FROM meta WHERE key = ?", HORIZON)
        return None if data is None else HorizonRow.read(data)

    def set_horizon(self, row: HorizonRow) -> None:
        self._put(upsert("meta", "key, value", "key"), (HORIZON, row.encode()))

    def heads(self) -> dict[bytes, HeadRow]:
        """The heads of authors, by author."""
        return {row[0]: HeadRow(*row) for row in self._rows(f"SELECT {_HEAD} FROM heads")}

    def put_heads(self, heads: Sequence[HeadRow]) -> None:
        self._many(_PUT_HEAD, heads)

    def base(self, subject: Subject) -> BaseRow | None:
        """In a store that nodes share, a base that another node has computed is as if it were not there."""
        found = self._own("bases", "AND family = ? AND key = ?", *subject)
        return next((BaseRow(Subject(*row[:2]), row[2], row[3]) for row in found), None)

    def bases(self, after: Subject, limit: int) -> list[BaseRow]:
        found = self._own("bases", "AND (family, key) > (?, ?) ORDER BY family, key LIMIT ?", *after, limit)
        return [BaseRow(Subject(*row[:2]), row[2], row[3]) for row in found]

    def has_bases(self) -> bool:
        return bool(self._one("SELECT EXISTS (SELECT 1 FROM bases)"))

    def put_base(self, base: BaseRow) -> None:
        self._put(_PUT_BASE, self._macs.with_mac("bases", (*base.subject, base.last, base.state)))

    def drop_base(self, subject: Subject) -> None:
        self._put("DELETE FROM bases WHERE family = ? AND key = ?", subject)

    def drop_settled(self) -> None:
        """Drops heads and bases, and what was left to do: those of another horizon take their place."""
        for table in ("heads", "bases", "pruning"):
            self._put(f"DELETE FROM {table}")

    # What is left to do.

    def put_pruning(self, rows: Iterable[PruningRow]) -> None:
        self._many(_PUT_PRUNING, [(*row.subject, row.last, row.state, b"".join(row.kept)) for row in rows])

    def pruning(self, limit: int) -> list[PruningRow]:
        rows = self._rows("SELECT family, key, last, state, kept FROM pruning ORDER BY family, key LIMIT ?", limit)
        return [
            PruningRow(Subject(family, key), last, state, tuple(kept[at : at + 16] for at in range(0, len(kept), 16)))
            for family, key, last, state, kept in rows
        ]

    def drop_pruning(self, subjects: Iterable[Subject]) -> None:
        self._many("DELETE FROM pruning WHERE family = ? AND key = ?", list(subjects))

    def clear_pruning(self) -> None:
        self._put("DELETE FROM pruning")

    # Rows that go.

    def gaps(self) -> list[GapRow]:
        """Those that this node has left."""
        return [GapRow(*row[:3]) for row in self._own("gaps", "ORDER BY first")]

    def gap_at(self, seq: int) -> GapRow | None:
        """The gap that covers this number."""
        found = (GapRow(*row[:3]) for row in self._own("gaps", "AND first <= ? ORDER BY first DESC LIMIT 1", seq))
        return next((gap for gap in found if gap.last >= seq), None)

    def gap_after(self, seq: int) -> GapRow | None:
        """The gap that begins right after this number."""
        return next((GapRow(*row[:3]) for row in self._own("gaps", "AND first = ?", seq + 1)), None)

    def put_gap(self, gap: GapRow) -> None:
        """A gap that touches others becomes one with them."""
        left, right = self.gap_at(gap.first - 1), self.gap_after(gap.last)
        if left is not None:
            gap = gap._replace(first=left.first)
        if right is not None:
            self._put("DELETE FROM gaps WHERE first = ?", (right.first,))
            gap = GapRow(gap.first, right.last, right.chain)
        self._put(_PUT_GAP, self._macs.with_mac("gaps", gap))

    def replace_gaps(self, gaps: Iterable[GapRow]) -> None:
        """In the place of all that this node has left."""
        self._put("DELETE FROM gaps WHERE of_node = ?", (self._macs.node,))
        self._many(_PUT_GAP, [self._macs.with_mac("gaps", gap) for gap in gaps])

    def delete_ops(self, first: int, last: int) -> None:
        """Deletes the rows with these numbers, and their citations. The caller puts the gap."""
        self._put("DELETE FROM cites WHERE op IN (SELECT id FROM ops WHERE seq BETWEEN ? AND ?)", (first, last))
        self._put("DELETE FROM ops WHERE seq BETWEEN ? AND ?", (first, last))
