"""What a coordinator with successors may decide, and when its decisions may be told. It decides while it has the lead:
promises of enough named nodes not to vote for a successor yet. A decision is confirmed once enough named nodes have it,
and nobody is told of it before: a caller that asked for it waits, and other nodes are sent the coordinator's own ops
only as far as they are confirmed. So a successor that a quorum elects has everything that was told.

One process of the coordinator asks the named nodes (`mesh.succession`) and notes in the store how far it is; all its
processes read that here. Without a succession nothing is read.
"""

from collections.abc import Callable
from contextlib import closing
from functools import cache
from itertools import takewhile
from typing import TYPE_CHECKING, Protocol

import msgspec

from hocket.bus.hints import Bus, about
from hocket.errors import Unconfirmed
from hocket.kernel.clock import just_before, pack
from hocket.kernel.decoding import decode_json
from hocket.kernel.succession.chain import Chain, Succession
from hocket.kernel.succession.quorums import binding
from hocket.store import OpRow, Session, Store

if TYPE_CHECKING:
    from hocket.log.permissions import Permissions, PermissionsReader

# The store's key of how far the coordinator has come.
LEAD = "lead"
# What listeners hear when more is confirmed, or the lead is held or lost.
CONFIRMED = "confirmed"
# How long a caller waits until its decision is confirmed.
CONFIRM_S = 5.0
# A hint can be lost, so a caller that waits looks again after this long.
LOOK_AGAIN_S = 0.5
OVERTAKEN = "another node has become the coordinator, and did not know of what was decided here; ask again"


class NamedNode(msgspec.Struct, frozen=True):
    """What the coordinator knows of a named node: when it last answered, by the coordinator's clock, the time of the
    coordinator's last op that it has, and why it confirms nothing, if so.
    """

    node: int
    answered_ms: int | None = None
    has: str = ""
    fault: str = ""


class LeadRow(msgspec.Struct, frozen=True):
    """`tenure` is the op that began it, `confirmed` the packed time of the last own op that enough named nodes have,
    and `settled` the succession that it has acted under. It has the lead `until` that time of the machine's monotonic
    clock. Until `behind_until_ms` it ends leases by a clock that is `behind_ms` behind its own, and so not ahead of the
    clock of the coordinator that granted them. Times and ids are hexadecimal.
    """

    tenure: str
    confirmed: str
    settled: str = ""
    until: float = 0.0
    named: tuple[NamedNode, ...] = ()
    behind_ms: int = 0
    behind_until_ms: int = 0

    @property
    def confirmed_at(self) -> bytes:
        return bytes.fromhex(self.confirmed)

    @property
    def settled_id(self) -> bytes | None:
        return bytes.fromhex(self.settled) or None

    @property
    def sentence(self) -> str:
        """Which of the named nodes do not confirm, and why."""
        silent = [f"{each.node:016x}: {each.fault}" for each in self.named if each.fault]
        answering = len(self.named) - len(silent)
        return f"{answering} of {len(self.named)} other named nodes confirm" + (
            f" ({'; '.join(silent)})" if silent else ""
        )


def read_lead(session: Session) -> LeadRow | None:
    kept = session.own_meta(LEAD)
    return None if kept is None else decode_json(kept, LeadRow)


def put_lead(session: Session, row: LeadRow) -> None:
    session.set_own_meta(LEAD, msgspec.json.encode(row))


class LeadingLog(Protocol):
    """What is needed of the log."""

    node: int
    author: bytes
    is_shared: bool
    store: Store
    permissions_reader: "PermissionsReader"

    def permissions(self, session: Session | None = None) -> "Permissions": ...


class CoordinatorLead:
    """The lead of one node, as any of its processes sees it. `monotonic` is the machine's clock."""

    def __init__(self, log: LeadingLog, monotonic: Callable[[], float], bus: Bus) -> None:
        self._log, self.monotonic, self._bus = log, monotonic, bus
        self._judged: tuple[Permissions, bool] | None = None

    def is_shared_out(self, permissions: "Permissions") -> bool:
        """Whether this node is the coordinator, and successors are named. Then it may still have been that they were
        named and are no more.
        """
        judged = self._judged
        if judged is None or judged[0] is not permissions:
            chain = permissions.chain
            head = chain.head
            judged = permissions, head is not None and head.node == self._log.node and bool(chain.in_question)
            self._judged = judged
        return judged[1]

    def row(self, session: Session, chain: Chain) -> LeadRow:
        """How far this node has come in its tenure."""
        assert chain.head is not None
        row = read_lead(session)
        if row is not None and row.tenure == chain.head.op_id.hex():
            return row
        return LeadRow(chain.head.op_id.hex(), self._told_before(session, chain).hex())

    def _told_before(self, session: Session, chain: Chain) -> bytes:
        """The time of the last op that this node told others of before it knew of successors."""
        assert chain.head is not None
        if chain.head.is_takeover:
            return pack(just_before(chain.head.at))
        named = session.op(chain.in_question[0].op_id)
        if named is None or named.seq is None:
            return bytes(20)
        if named.hlc.endswith(self._log.author):
            return named.hlc
        return session.last_time_before(self._log.author, named.seq)

    def bound_by(self, session: Session, permissions: "Permissions") -> tuple[Succession, ...]:
        """The successions whose quorums this node needs; none if it decides alone."""
        if not self.is_shared_out(permissions):
            return ()
        return binding(permissions.chain, self.row(session, permissions.chain).settled_id)

    def fault(self, session: Session, permissions: "Permissions") -> str | None:
        """Why this node may decide nothing now, if so. The caller's node is the coordinator."""
        if not self.bound_by(session, permissions):
            return None
        if self._log.is_shared:
            return "its store is one that nodes can share, and a coordinator with successors needs a store of its own"
        row, head = self.row(session, permissions.chain), permissions.chain.head
        assert head is not None
        if head.is_takeover and row.confirmed_at < pack(head.at):
            return f"its takeover is not confirmed: {row.sentence}"
        now, longest_s = self.monotonic(), max(each.after_ms for each in permissions.chain.in_question) / 1000
        if not now < row.until <= now + longest_s:  # a later time is from before the machine was restarted
            return f"it has not the lead: {row.sentence}" if row.named else "none of its processes asks the named nodes"
        return None

    def may_decide(self, session: Session) -> bool:
        """Whether this node may decide now what it decides if it is the coordinator, as far as this process knows."""
        known = self._log.permissions_reader.latest
        if known is None or not self.is_shared_out(known):
            return True
        permissions = self._log.permissions(session)
        return not self.is_shared_out(permissions) or self.fault(session, permissions) is None

    def judging_ms(self, session: Session, permissions: "Permissions", physical_ms: int) -> int:
        """The clock by which this node, the coordinator, ends leases: none that another coordinator gave ends early."""
        assert permissions.chain.head is not None
        if not permissions.chain.head.is_takeover:
            return physical_ms
        row = self.row(session, permissions.chain)
        return physical_ms - row.behind_ms if physical_ms < row.behind_until_ms else physical_ms

    def served_to(self, session: Session, permissions: "Permissions") -> bytes | None:
        """Up to which of its own times this node tells others of its ops; None without a limit."""
        if not self.bound_by(session, permissions):
            return None
        return self.row(session, permissions.chain).confirmed_at

    def told(self, session: Session, rows: list[OpRow]) -> list[OpRow]:
        """The ops before the first own one that is not confirmed, as far as this process knows of successors."""
        permissions = self._log.permissions_reader.latest
        if permissions is None or not self.is_shared_out(permissions):
            return rows
        until = self.served_to(session, self._log.permissions(session))
        if until is None:
            return rows
        own = self._log.author
        return list(takewhile(lambda row: not row.hlc.endswith(own) or row.hlc <= until, rows))

    # Waiting.

    def is_confirmed(self, at: bytes) -> bool:
        """Whether this node's op of that time is confirmed. Raises Unconfirmed if it never will be."""
        with self._log.store.read() as session:
            permissions = self._log.permissions(session)
            head = permissions.chain.head
            if head is None or head.node != self._log.node:
                raise Unconfirmed(OVERTAKEN, is_written=True)
            limit = self.served_to(session, permissions)
        return limit is None or at <= limit

    def unconfirmed(self) -> Unconfirmed:
        """The error of a caller that has waited for too long."""
        with self._log.store.read() as session:
            permissions = self._log.permissions(session)
            chain = permissions.chain
            why = "" if chain.head is None else f": {self.row(session, chain).sentence}"
        return Unconfirmed(
            f"the coordinator's decision is not confirmed{why}; ask again when enough of them answer", is_written=True
        )

    def wait(self, at: bytes) -> None:
        """Blocks until this node's op of that time is confirmed. Raises Unconfirmed."""
        deadline = self.monotonic() + CONFIRM_S
        with closing(self._bus.subscribe(about(CONFIRMED))) as changes:
            while not self.is_confirmed(at):
                left = deadline - self.monotonic()
                if left <= 0:
                    raise self.unconfirmed()
                changes.wait(min(left, LOOK_AGAIN_S))

    def last_own(self) -> bytes | None:
        """The time of this node's last op, if it must be confirmed before others rely on it."""
        with self._log.store.read() as session:
            if not self.bound_by(session, self._log.permissions(session)):
                return None
            return session.latest_of(self._log.author)[0]

    def wait_for_all(self) -> None:
        """Blocks until everything is confirmed that this node has decided as the coordinator. Raises Unconfirmed."""
        known = self._log.permissions_reader.latest
        if known is not None and self.is_shared_out(known) and (at := self.last_own()) is not None:
            self.wait(at)

    @property
    def bus(self) -> Bus:
        return self._bus


@cache
def decided_types() -> frozenset[type]:
    """The payloads that the coordinator decides, and its acceptances."""
    from hocket.families.jobs.rules import JOBS
    from hocket.kernel.family import FAMILIES
    from hocket.kernel.vocabulary import ACCEPTANCES
    from hocket.log.projectors import rules_of

    found: set[type] = {*ACCEPTANCES, *JOBS.decided}
    for name in FAMILIES:
        found |= rules_of(name).decided
    return frozenset(found)


@cache
def decided_variants() -> frozenset[int]:
    from hocket.kernel.vocabulary import number_of

    return frozenset(map(number_of, decided_types()))
