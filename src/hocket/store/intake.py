"""What came from other nodes and is not on the log: ops that were refused, ops from clocks too far ahead, ops that came
too late; and how much of each author is on the log.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from hocket.kernel.subjects import Subject

# A store remembers the newest refusals, so many of them.
REFUSALS_KEPT = 10_000


class Refusal(NamedTuple):
    """An op that was turned away at the door."""

    op_id: bytes
    author: bytes
    reason: int
    wall: int


class LateOp(NamedTuple):
    """An op that came long after what allowed it had ended. It is on no log until the owner says so."""

    id: bytes
    author: bytes
    hlc: bytes
    received: int
    body: bytes


class WrittenTotals(NamedTuple):
    """How much of an author is on the log."""

    ops: int = 0
    bytes: int = 0


class OverQuota(NamedTuple):
    """A node of which more came than it may store: when that was last noted, and how many ops were refused."""

    node: bytes
    wall: int
    ops: int


class IntakeSession(Protocol):
    def refuse(self, refusals: Sequence[Refusal]) -> None: ...
    def refusals(self, limit: int) -> list[Refusal]: ...

    def refusal_counts(self) -> dict[int, int]:
        """By reason: what was turned away, and what is on the log and does not count."""

    def hold(self, op_id: bytes, wall: int, body: bytes, author: bytes = b"") -> None: ...
    def held_of(self, author: bytes) -> int: ...

    def due(self, wall: int, limit: int) -> list[bytes]:
        """The held ops whose time has come, the earliest first."""

    def drop_held(self, op_ids: Sequence[bytes]) -> None: ...

    def held(self) -> tuple[int, int | None]:
        """How many ops are held, and the wall of the earliest."""

    def held_among(self, op_ids: Sequence[bytes]) -> set[bytes]: ...
    def hold_late(self, late: LateOp) -> None: ...
    def late_count(self, node: bytes) -> int: ...

    def late_ops(self, node: bytes | None = None) -> list[LateOp]:
        """Those of one author, or of all, in HLC order."""

    def drop_late(self, op_ids: Sequence[bytes]) -> None: ...
    def add_written(self, node: bytes, written: WrittenTotals) -> None: ...
    def written(self, nodes: Iterable[bytes]) -> dict[bytes, WrittenTotals]: ...

    def idle_ops(self, subject: Subject, node: bytes, acceptances: Sequence[int]) -> int:
        """How many ops about a subject do not count, of this author, beyond the offers that were accepted: as many as
        there are ops of the variants `acceptances` that count.
        """

    def put_over_quota(self, noted: OverQuota) -> None: ...
    def over_quota(self) -> dict[bytes, OverQuota]: ...
