"""Takes in ops from elsewhere inside one transaction. Each op is appended, a duplicate, refused, or held until its time
has come. An appended op moves this node's clock, and so does one that a member has signed and that is refused; but
where there are extensions, a refused one moves it no further than the machine's own clock, and an op that would not
count is held until the machine's clock has reached its time: the deadlines of leases and locks are set by this node's
clock, and an op without effect must not push them away. Bytes that no member has signed never move it.
"""

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from hocket.families.jobs.rules import is_tick
from hocket.kernel.arbitration import Reason
from hocket.kernel.bundles import Fact, count_of, read_facts
from hocket.kernel.clock import Hlc, pack, unpack
from hocket.kernel.ops import NO_ID, Op, decode, link_to, verify_op
from hocket.kernel.postcard import Malformed, UnknownVariant
from hocket.kernel.signing import is_fork
from hocket.kernel.vocabulary import (
    ACCEPTANCES,
    JOB,
    Bundle,
    DelegateUcan,
    Payload,
    ReportFork,
    Sanitised,
    number_of,
    subject_of,
)
from hocket.log.author_check import CURABLE, SIGNED
from hocket.log.citations import long_key
from hocket.log.limits import SHARED, Limits
from hocket.log.transaction import Transaction
from hocket.store import LateOp, WrittenTotals

HELD_MAX = 100_000
# The most held ops of one author, so that no author takes the room of the others.
HELD_PER_AUTHOR_MAX = 10_000
# And their bytes: what is on no log yet counts against no quota. The same holds for late ops.
HELD_BYTES_PER_AUTHOR_MAX = 64 * 1024 * 1024
# By how much an op that does not count may be ahead of this machine's clock without being held: one that its author may
# not write, and one that it may, such as a claim that came second. A node with a slightly fast clock must not wait
# after each of those.
FORBIDDEN_AHEAD_MS = 1_000
IDLE_AHEAD_MS = 10_000
# An op with a higher logical time is held until the machine's clock has passed it. No node gets so far by itself.
LOGICAL_MAX = 2_147_483_648
_WAITING = (int(Reason.WAITING),)
_ACCEPTANCES = tuple(map(number_of, ACCEPTANCES))
# The most ops of one author that wait for the owner's decision.
LATE_MAX = 10_000
# The store's key of the time of an op of this node that does not follow its ops here.
BEHIND = "behind"


class Admission(NamedTuple):
    """What happened to ops from elsewhere. `appended` ops are on the log, whether or not they count. `refused` counts
    refused ops by reason. `collided` of the appended ones share their timestamp with another op of their author: an
    integrity failure, which must be loud. `unread` ops follow bytes that cannot be read, so their start is unknown.
    `held` ops come from a clock that is too far ahead, and are admitted when their time has come. `curable` says from
    when on an author's ops must be sent again, because a missing dependency may arrive. `unlinked` are authors with an
    op that does not follow those here, or of which ops may be missing here that still matter; `forked` are authors
    whose two histories came to light now, here or by another node's report. `limited` counts by author the ops refused
    because the author has used up its quota.
    `branch` is the id of the op of this node's own that stands in the place of one that it has lost: see `lost_past`.
    `is_stopped` says that the rest was not looked at, because its author has used up its share of the store's time.
    """

    appended: int
    duplicated: int
    refused: dict[Reason, int]
    collided: int = 0
    unread: int = 0
    held: int = 0
    curable: dict[int, Hlc] = {}  # noqa: RUF012
    unlinked: frozenset[int] = frozenset()
    forked: frozenset[int] = frozenset()
    limited: dict[int, int] = {}  # noqa: RUF012
    branch: bytes | None = None
    is_stopped: bool = False

    @property
    def rejected(self) -> int:
        return sum(self.refused.values())


class Intake:
    """`limit` is the latest wall to admit now. `expected` are the ops that may be admitted, in the order of their
    times: the intake reads in one go what the store knows about them. `is_vouched` says that the owner, the coordinator
    or the operator sends them; `sender` is the sending node, None for the operator.
    """

    def __init__(
        self,
        tx: Transaction,
        limit: int,
        expected: Sequence[tuple[bytes, Op]],
        is_vouched: bool = True,
        sender: int | None = None,
    ) -> None:
        self.tx = self._tx = tx
        facts = [fact for raw, op in expected for fact, _ in _facts(raw, op)]
        self._limits = Limits(tx.projection, tx.node, sender, is_vouched, facts)
        self._limit = limit
        self._is_vouched, self._is_operator, self._is_own_sender = is_vouched, sender is None, sender == tx.node
        self._known = _known(tx, [op.id for _, op in expected])
        tx.projection.prepare(facts)
        self._forks = tx.projection.permissions.forks
        self._room = HELD_MAX - tx.session.held()[0]
        self._held_of: dict[int, WrittenTotals] = {}
        self._lates: dict[int, WrittenTotals] = {}
        # Only a node that holds every op of every author can check whether one op follows another.
        self._checks_links = tx.is_bound and tx.holds_everything
        self._unlinked: set[int] = set()
        self._branch: bytes | None = None
        self._is_behind = False
        self.taken: list[Op] = []
        # The latest time of the admitted ops that the clock has not heard yet.
        self._heard: Hlc | None = None
        self._ids: set[bytes] = set()
        self._appended = self._duplicated = 0
        self._held = 0
        self._refused: dict[Reason, int] = {}
        self._curable: dict[int, Hlc] = {}

    def unreadable(self, raw: bytes, error: Malformed) -> None:
        reason = Reason.UNKNOWN_VARIANT if isinstance(error, UnknownVariant) else Reason.MALFORMED
        self._refuse(raw[:16].ljust(16, b"\0"), 0, reason)

    def take(self, raw: bytes, op: Op, reason: Reason | None) -> None:
        tx = self._tx
        early = op.timestamp.wall > self._limit
        known = self._known.get(op.id)
        if known == b"":
            # In a store that nodes share, another program has changed the op that is here.
            self._refuse(op.id, op.node_id, Reason.OTHER_BYTES)
            return
        if tx.is_strict and known not in (None, raw) and decode(known).node_id != op.node_id:
            # Another author has used the id before: this op's key is its id and its author.
            op = replace(op, id=long_key(op))
            known = self._known.get(op.id)
        facts = _facts(raw, op) if reason is None else ()
        if known is not None and _is_same(known, raw, op):
            self._duplicated += count_of(raw, op)
        elif reason is not None:
            self._refuse(op.id, op.node_id, reason, op.timestamp, self._is_signed(raw, op, reason))
        elif known is not None:
            self._contradict(known, raw, op)
        elif (limited := self._limits.refusal(facts)) is not None:
            self._refuse(op.id, op.node_id, limited, op.timestamp)
        elif early:
            self._hold(raw, op, op.timestamp.wall)
        elif self._is_ahead(op) and any(self._is_idle_ahead(each) for each, _ in facts):
            # Due when this machine's clock has reached it; others are due once it is within the allowed difference.
            self._hold(raw, op, op.timestamp.wall + self._limit - tx.physical)
        elif not tx.is_strict and not self._is_operator and self._leaves_no_time(facts[-1].op.timestamp):
            # Due when this machine's clock has passed it, which begins to count anew.
            self._hold(raw, op, op.timestamp.wall + self._limit - tx.physical + 1)
        elif not self._is_vouched and (
            any(self._is_late(each) for each, _ in facts) or (self._checks_links and self._late_of(op.node_id).ops)
        ):
            self._hold_for_owner(raw, op)
        elif op.node_id == tx.node and self._was_let_go(op):
            self._duplicated += len(facts)
        elif tx.is_bound and op.node_id == tx.node and not self._continues(raw, op):
            tx.hear(op.timestamp)
            self._refuse(op.id, op.node_id, Reason.UNLINKED, op.timestamp)
        elif self._checks_links and op.node_id != tx.node and not self._follows(raw, op):
            if self._was_let_go(op):
                self._duplicated += len(facts)
                return
            self._unlinked.add(op.node_id)
            self._refuse(op.id, op.node_id, Reason.UNLINKED, op.timestamp)
        else:
            self._admit(raw, op, [each for each, _ in facts])

    def _admit(self, raw: bytes, op: Op, facts: Sequence[Op]) -> None:
        if op.node_id == self._tx.node and not self._is_own_sender:
            # The op is admitted, since the key is good; but this node never wrote it, or has lost it.
            self._tx.refuse(op.id, op.node_id, Reason.TWIN)
        if self._late_of(op.node_id).ops:
            self._tx.session.drop_late([op.id])
            del self._lates[op.node_id]
        last = facts[-1].timestamp
        self._heard = last if self._heard is None else max(self._heard, last)
        self._tx.admit(op, raw)
        self._appended += len(facts)
        self._known[op.id] = raw
        self._ids.update(each.id for each in facts)
        self.taken += facts

    def _contradict(self, known: bytes, raw: bytes, op: Op) -> None:
        """Another op has this id. If both are by one author, neither counts any more."""
        other = replace(decode(known), id=op.id)
        if other.node_id == op.node_id:
            if self._tx.is_bound:
                self._report(known, raw, op)
            else:
                self._tx.projection.collide(other)
        self._refuse(op.id, op.node_id, Reason.OTHER_BYTES, op.timestamp, op.signature is not None)

    # One author, one history.

    def _was_let_go(self, op: Op) -> bool:
        """Whether an op that is not here has been: of an author there are no gaps up to the horizon."""
        cut = self._tx.projection.cut
        return cut is not None and cut.is_settled(op.timestamp)

    def _follows(self, raw: bytes, op: Op) -> bool:
        """Whether the op comes right after the last one of its author that is here. An op that shows two histories of
        its author is admitted as well: it proves the fork, and from there on no op of either history counts.
        """
        tx = self._tx
        latest, latest_id = tx.latest_of(op.node_id)
        if pack(op.timestamp) > latest and op.link == link_to(latest_id):
            return True
        # An op of a forked author does not count, but may prove an earlier fork. An op from before the fork may count,
        # and must then follow, or prove an earlier fork.
        since = tx.projection.permissions.forks.get(op.node_id) if tx.projection.permissions.is_forked(op) else None
        if op.link is None or (since is None and op.node_id in self._unlinked):
            return since is not None
        # The earliest op that contradicts it proves the most.
        beside = sorted(tx.bodies_beside(op), key=lambda body: decode(body).timestamp)
        earlier = [body for body in beside if since is None or decode(body).timestamp < since]
        has_proved = any(self._report(other, raw, op) for other in earlier)
        return has_proved or since is not None

    def _continues(self, raw: bytes, op: Op) -> bool:
        """Whether an op of this node itself, which it has lost, comes right after its last one here. If not, it has
        written others since, or more is lost. If other nodes have what it wrote since, it has two histories.
        """
        tx = self._tx
        latest, latest_id = tx.latest_of(op.node_id)
        if (pack(op.timestamp) > latest and op.link == link_to(latest_id)) or tx.projection.permissions.is_forked(op):
            return True
        if not self._is_behind:
            rows = [] if op.link is None else tx.session.ops_with_link(pack(op.timestamp)[12:], op.link)
            branch = next((row for row in rows if decode(row.body).link == op.link), None)
            # A node that has lost ops still has its first one, so another first op is a second history.
            is_first = op.link == link_to(NO_ID)
            if is_first or (
                branch is not None and branch.hlc <= (tx.session.node_meta(tx.node.to_bytes(8, "big"), SHARED) or b"")
            ):
                return self._follows(raw, op)
            self._is_behind = True
            tx.session.set_node_meta(tx.node.to_bytes(8, "big"), BEHIND, pack(op.timestamp))
            self._branch = None if branch is None else branch.id
        return False

    def _report(self, known: bytes, raw: bytes, op: Op) -> bool:
        tx = self._tx
        if not is_fork(decode(known), op):
            return False
        self._hear_taken()
        public, _ = tx.session.nodes().get(op.node_id.to_bytes(8, "big"), (b"", ""))
        return bool(public) and isinstance(tx.author(ReportFork(public, known, raw)), Op)

    def _lacking(self) -> frozenset[int]:
        """Authors with two histories of whom ops may be missing that still matter: ops that a designation has pinned,
        that the arbiter has accepted, or that show where the histories part.
        """
        projection = self._tx.projection
        permissions = projection.permissions
        if not self._checks_links or not permissions.forks:
            return frozenset()
        waiting = [unpack(row.hlc) for row in self._tx.session.ops_refused_for(_WAITING) if row.variant in _ACCEPTANCES]
        waiting += [
            op.timestamp
            for op in self.taken
            if type(op.payload) in ACCEPTANCES and projection.reason(op.id) == Reason.WAITING
        ]
        is_waiting = any(permissions.arbiter(at) == at.node for at in waiting)
        return frozenset(permissions.forks) if is_waiting else permissions.lacking

    def _found_forked(self) -> frozenset[int]:
        """Authors whose two histories were found by this node, or proved by a report that has come."""
        now = self._tx.projection.permissions.forks
        return frozenset(node for node, since in now.items() if self._forks.get(node) != since)

    # Ops that must wait.

    def _is_late(self, op: Op) -> bool:
        """Whether the permission for the op ended so long ago that the op may well be backdated."""
        tx, bounds = self._tx, self._tx.projection.permissions.rules.bounds
        if bounds is None:
            return False
        ended = tx.physical - bounds.late_ms
        authority = tx.projection.permissions.authority
        if not authority.has_ended(op.node_id, ended):
            return False
        if is_tick(op.payload):
            # Its schedule's author must be allowed to schedule the job; its own author must be a member.
            return authority.membership_ended(op.node_id, op.timestamp.wall, ended)
        return authority.relied_on_ended(op.node_id, op.payload, op.timestamp.wall, _kind_of(tx, op.payload), ended)

    def _leaves_no_time(self, at: Hlc) -> bool:
        """Whether few ops could follow one of that time until this machine's clock has passed it."""
        return at.logical > LOGICAL_MAX and at.wall >= self._tx.physical

    def _is_ahead(self, op: Op) -> bool:
        return op.timestamp.wall > self._tx.physical + FORBIDDEN_AHEAD_MS

    def _is_idle_ahead(self, op: Op) -> bool:
        """Whether an op that is ahead of this machine's clock would not count, or follows one that is held for that.
        Owners, the coordinator and the operator are trusted with this node's clock.
        """
        tx = self._tx
        if tx.is_strict or self._is_operator or op.node_id == tx.node:
            return False
        projection = tx.projection
        if projection.permissions.is_trusted(op.node_id, tx.physical):
            return False
        if isinstance(op.payload, DelegateUcan) and tx.latest_of(op.node_id)[1] == NO_ID:
            return False  # its introduction
        return (
            self._held_by(op.node_id).ops > 0
            or projection.is_unauthorised(op)
            or (op.timestamp.wall > tx.physical + IDLE_AHEAD_MS and not projection.would_count(op))
        )

    def _held_by(self, node: int) -> WrittenTotals:
        if node not in self._held_of:
            self._held_of[node] = self._tx.session.held_of(node.to_bytes(8, "big"))
        return self._held_of[node]

    def _hold(self, raw: bytes, op: Op, due: int) -> None:
        author = op.node_id.to_bytes(8, "big")
        held = self._held_by(op.node_id).plus(len(raw))
        if self._room <= 0 or held.ops > HELD_PER_AUTHOR_MAX or held.bytes > HELD_BYTES_PER_AUTHOR_MAX:
            self._refuse(op.id, op.node_id, Reason.HELD_FULL, op.timestamp)
            return
        self._room -= 1
        self._held += 1
        self._held_of[op.node_id] = held
        self._tx.session.hold(op.id, due, raw, author)

    def _late_of(self, node: int) -> WrittenTotals:
        """How much of this author waits for the owner's decision. Its later ones wait with them, so that none of
        its history is missing here.
        """
        if node not in self._lates:
            self._lates[node] = self._tx.session.late_of(node.to_bytes(8, "big"))
        return self._lates[node]

    def _hold_for_owner(self, raw: bytes, op: Op) -> None:
        author = op.node_id.to_bytes(8, "big")
        late = self._late_of(op.node_id).plus(len(raw))
        if late.ops > LATE_MAX or late.bytes > HELD_BYTES_PER_AUTHOR_MAX:
            self._refuse(op.id, op.node_id, Reason.HELD_FULL, op.timestamp)
            return
        self._lates[op.node_id] = late
        self._held += 1
        self._tx.refuse(op.id, op.node_id, Reason.LATE)
        self._tx.session.hold_late(LateOp(op.id, author, pack(op.timestamp), self._tx.physical, raw))

    def _refuse(self, op_id: bytes, author: int, reason: Reason, at: Hlc | None = None, is_signed: bool = True) -> None:
        self._tx.refuse(op_id, author, reason)
        self._refused[reason] = self._refused.get(reason, 0) + 1
        if at is not None and is_signed:
            self._hear_refused(at)
        if at is not None and reason in CURABLE:
            self._curable[author] = min(self._curable.get(author, at), at)

    def _is_signed(self, raw: bytes, op: Op, reason: Reason) -> bool:
        """Whether a member has signed an op that is refused. Delegations are refused without a look at the signature,
        which is worth one only in a strict mesh, where a refused op moves the clock ahead.
        """
        if op.signature is None or reason in (Reason.BAD_SIGNATURE, Reason.UNKNOWN_NODE):
            return False
        if reason in SIGNED or not self._tx.is_strict or op.timestamp.wall > self._limit:
            return reason in SIGNED
        public, _ = self._tx.session.nodes().get(op.node_id.to_bytes(8, "big"), (b"", ""))
        return bool(public) and verify_op(raw, op, public)

    def _hear_refused(self, stamp: Hlc) -> None:
        if stamp.wall <= (self._limit if self._tx.is_strict else self._tx.physical):
            self._tx.hear(stamp)

    def settle(self) -> None:
        """Moves the clock past the admitted ops, and refolds the subjects that late ones have changed: once for many
        ops.
        """
        self._hear_taken()
        self._tx.projection.settle()

    def _hear_taken(self) -> None:
        if self._heard is not None:
            self._tx.hear(self._heard)
            self._heard = None

    def admission(self) -> Admission:
        collided = sum(
            reason == Reason.INTEGRITY and op_id in self._ids for op_id, reason in self._tx.projection.changed.items()
        )
        return Admission(
            self._appended,
            self._duplicated,
            self._refused,
            collided,
            held=self._held,
            curable=self._curable,
            unlinked=self._lacking() | self._unlinked,
            forked=self._found_forked(),
            limited=self._limits.refused,
            branch=self._branch,
        )


def _facts(raw: bytes, op: Op) -> Sequence[Fact]:
    """The facts of a bundle, or an op by itself."""
    if not isinstance(op.payload, Bundle):
        return (Fact(op, raw),)
    try:
        return read_facts(raw)
    except Malformed:
        return ()


def _kind_of(tx: Transaction, payload: Payload) -> str | None:
    """The kind of the job that an op is about, if the job is known."""
    subject = subject_of(payload)
    job = None if subject is None or subject.family != JOB else tx.projection.jobs.state(subject.key)
    return None if job is None else job.kind


def _known(tx: Transaction, op_ids: Sequence[bytes]) -> dict[bytes, bytes]:
    """The ops on the log that have these ids, by their keys."""
    if not tx.is_strict:
        return tx.session.known_ops(op_ids)
    return {row.id: row.body for op_id in op_ids for row in tx.session.ops_named(op_id)}


def _is_same(known: bytes, raw: bytes, op: Op) -> bool:
    """Whether an op with the same id is the same op. A sanitised copy is; so is one that was signed again."""
    if known == raw:
        return True
    other = replace(decode(known), id=op.id)
    is_sanitised = isinstance(op.payload, Sanitised) or isinstance(other.payload, Sanitised)
    return other.node_id == op.node_id and (is_sanitised or replace(other, signature=op.signature) == op)


def add(left: Admission, right: Admission) -> Admission:
    reasons = left.refused.keys() | right.refused.keys()
    refused = {reason: left.refused.get(reason, 0) + right.refused.get(reason, 0) for reason in reasons}
    curable = {author: min(left.curable.get(author, at), at) for author, at in right.curable.items()}
    return Admission(
        left.appended + right.appended,
        left.duplicated + right.duplicated,
        refused,
        left.collided + right.collided,
        held=left.held + right.held,
        curable=left.curable | curable,
        unlinked=left.unlinked | right.unlinked,
        forked=left.forked | right.forked,
        limited=left.limited | {author: left.limited.get(author, 0) + n for author, n in right.limited.items()},
        branch=left.branch or right.branch,
        is_stopped=left.is_stopped or right.is_stopped,
    )
