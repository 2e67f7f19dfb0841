"""Ops from other nodes that are not on the log: refused ones, ones from clocks too far ahead, ones that came too late;
and how much each author has on the log.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from hocket.kernel.subjects import Subject

# A store keeps this many of the newest refusals.
REFUSALS_KEPT = 10_000


class Refusal(NamedTuple):
    """An op that was refused on arrival."""

    op_id: bytes
    author: bytes
    reason: int
    wall: int


class LateOp(NamedTuple):
    """An op that came long after the permission for it had ended. It is on no log until the owner accepts it."""

    id: bytes
    author: bytes
    hlc: bytes
    received: int
    body: bytes


class WrittenTotals(NamedTuple):
    """How much an author has on the log."""

    ops: int = 0
    bytes: int = 0


class OverQuota(NamedTuple):
    """A node that sent more than its quota: when that was last recorded, and how many ops were refused."""

    node: bytes
    wall: int
    ops: int


class IntakeSession(Protocol):
    def refuse(self, refusals: Sequence[Refusal]) -> None: ...
    def refusals(self, limit: int) -> list[Refusal]: ...

    def refusal_counts(self) -> dict[int, int]:
        """By reason: how many ops were refused, or are on the log and do not count."""

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
        """The late ops of one author, or of all, in HLC order."""

    def drop_late(self, op_ids: Sequence[bytes]) -> None: ...
    def add_written(self, node: bytes, written: WrittenTotals) -> None: ...
    def written(self, nodes: Iterable[bytes]) -> dict[bytes, WrittenTotals]: ...

    def idle_ops(self, subject: Subject, node: bytes, acceptances: Sequence[int]) -> int:
        """How many ops of this author about a subject do not count, less the number of accepted offers: the ops of the
        variants `acceptances` that count.
        """

    def keys_of_many_ops(self, keys: Sequence[bytes], count: int) -> set[bytes]:
        """Those of these keys about whose subjects at least so many ops are stored."""

    def put_over_quota(self, noted: OverQuota) -> None: ...
    def over_quota(self) -> dict[bytes, OverQuota]: ...
