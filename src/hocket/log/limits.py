"""What each author may use of a log: how many ops and bytes others may pass on, what the outputs of its jobs cost, and
how much time of a write transaction its ops take.

When an author sends its own ops, another check compares its rate and its total with its quota, before verification;
`Limits` caps what other nodes pass on. The cap is a multiple of the author's quota, because this node should admit what
others have admitted: otherwise nodes would differ. An author's ops form one chain, so the cap cuts that chain at the
same place on every node.

A node that runs a job of another node writes the outputs on its own log, where it has no quota itself; so their bytes
count against the quota of the node that submitted the job. They are counted apart from what that node has written:
every node that gets the log cuts an author at the same op, and outputs of its jobs on one node must not move that.

A transaction that admits ops of members ends after a while, so that other writers go in between.

The outbox is what bounds this node itself: ops that the coordinator does not have yet. It is no copy and no queue. The
ops are on the log, in order, and each is counted once by its id; so the coordinator gets them in order and exactly
once, however often they are sent and whichever process dies meanwhile. This knows how far the coordinator has them, and
bounds the rest.

A request that another node decides is good for a few seconds, in which its author waits for the decision. The request
carries the end of that time, and the arbiter accepts it only until then. So a request that its author has given up, or
whose process is dead, is not granted later, however long it waits in the outbox. The deadline is a time of the
arbiter's own clock, because only that clock judges it. Each answer of a peer has the peer's time, so a node knows by
how much the arbiter's clock differs from its own.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import msgspec

from hocket.errors import OutboxFull
from hocket.families.jobs.rules import Job
from hocket.kernel.arbitration import Reason
from hocket.kernel.authority import ceiling, payers, quota_of, sharing
from hocket.kernel.bundles import Fact
from hocket.kernel.clock import Hlc, pack, unpack
from hocket.kernel.decoding import decode_json
from hocket.kernel.ids import node_text
from hocket.kernel.mesh_rules import Bounds
from hocket.kernel.ops import Op
from hocket.kernel.vocabulary import ACCEPTANCES, CreateArtifact, Subject, number_of, subject_of
from hocket.store import PEER_NEW, PEER_OK, IntakeSession, OpSession, Session, WrittenTotals

if TYPE_CHECKING:
    from hocket.log.permissions import Permissions
    from hocket.log.projection import Projection

# When others pass on an author's ops, up to this multiple of its quota is admitted.
HANDED_ON_FACTOR = 4
_ACCEPTANCES = tuple(number_of(each) for each in ACCEPTANCES)
_UNBOUNDED = 2**63
_NOTHING = WrittenTotals()


class Limits:
    """The limits of one batch. `sender` is the node that sends it, None for the operator, who has no limit. The limit
    on ops of an author that do not count on a job applies only to what the author itself sends.
    """

    def __init__(
        self, projection: "Projection", node: int, sender: int | None, is_vouched: bool, expected: Sequence[Op]
    ) -> None:
        """`expected` are all ops that may be admitted."""
        self._projection, self._expected = projection, expected
        self._permissions = projection.permissions
        self._bounds = self._permissions.rules.bounds or Bounds()
        self._is_operator = sender is None
        # The author whose ops are checked one by one.
        self._watched = None if is_vouched else sender
        self._free = {node}
        self._room: dict[int, WrittenTotals] = {}
        self._taken: dict[int, WrittenTotals] = {}
        self._idle: dict[Subject, bool] = {}
        self._busy: set[bytes] | None = None
        self._cut: dict[int, Reason] = {}
        # How many ops were refused, by author.
        self.refused: dict[int, int] = {}

    def refusal(self, ops: Sequence[Fact]) -> Reason | None:
        """Why no more of an author is admitted now; None if there is room, which its ops then take. They are the facts
        of a bundle, or one op.
        """
        author = ops[0].op.node_id
        if self._is_operator or author in self._free:
            return None
        if author not in self._cut:
            taken = self._taken.get(author, _NOTHING)
            taken = WrittenTotals(taken.ops + len(ops), taken.bytes + sum(len(body) for _, body in ops))
            room = self._room_of(author)
            if room.ops < taken.ops or room.bytes < taken.bytes:
                self._cut[author] = Reason.QUOTA
            elif author == self._watched and any(self._is_idle(each) for each, _ in ops):
                self._cut[author] = Reason.IDLE
            else:
                self._taken[author] = taken
                return None
        # Ops after a missing one could not be linked, so they are refused with it.
        self.refused[author] = self.refused.get(author, 0) + len(ops)
        return self._cut[author]

    def _room_of(self, author: int) -> WrittenTotals:
        """How much room an author had before this batch, by the permissions in force."""
        if self._permissions is not self._projection.permissions:
            # An author's first op is the delegation that says what it may store.
            self._permissions = self._projection.permissions
            self._room.clear()
        if author not in self._room:
            self._room[author] = self._find_room(author)
        return self._room[author]

    def _find_room(self, author: int) -> WrittenTotals:
        quota = ceiling(self._permissions.authority, author, self._bounds)
        if quota.ops is None and quota.bytes is None and author != self._watched:
            self._free.add(author)
        node = author.to_bytes(8, "big")
        has = self._projection.session.written((node,)).get(node, _NOTHING)
        ops = _UNBOUNDED if quota.ops is None else quota.ops * HANDED_ON_FACTOR
        size = _UNBOUNDED if quota.bytes is None else quota.bytes * HANDED_ON_FACTOR
        return WrittenTotals(ops - has.ops, size - has.bytes)

    def _is_idle(self, op: Op) -> bool:
        subject = subject_of(op.payload)
        if subject is None:
            return False
        if subject.key not in self._busy_keys():
            return False
        if subject not in self._idle:
            count = self._projection.session.idle_ops(subject, op.node_id.to_bytes(8, "big"), _ACCEPTANCES)
            self._idle[subject] = count >= self._bounds.idle_ops
        return self._idle[subject]

    def _busy_keys(self) -> set[bytes]:
        """Keys about which so many ops are stored that an author may have used up its share. One query asks for all
        expected ones, because hardly any is.
        """
        if self._busy is None:
            subjects = (subject_of(op.payload) for op in self._expected if op.node_id == self._watched)
            keys = {subject.key for subject in subjects if subject is not None}
            self._busy = self._projection.session.keys_of_many_ops(list(keys), self._bounds.idle_ops)
        return self._busy


T = TypeVar("T")

# How long such a transaction goes on, and after how many ops the time is looked at.
SLICE_S = 0.25
SLICE_STEP = 8


class WorkCharge(Protocol):
    """Who is charged, and what follows from it."""

    def is_costly(self, author: int) -> bool:
        """Whether the ops of this author are admitted apart from those of others, and after them."""

    def charge(self, work: Mapping[int, float]) -> bool:
        """Charges each author with these seconds of a transaction that has just ended. False: the rest must wait."""


class Slice:
    """One transaction of a batch. `taken` counts the ops that it has admitted or refused."""

    def __init__(self, stopwatch: Callable[[], float], is_bounded: bool) -> None:
        self._stopwatch, self._is_bounded = stopwatch, is_bounded
        self._began = self._at = stopwatch()
        self._spent: dict[int, float] = {}
        self.taken = 0

    def begin(self) -> None:
        """The store is ours from here on."""
        self._began = self._at = self._stopwatch()

    def steps(self, ops: Sequence[T]) -> Iterator[Sequence[T]]:
        """The ops in parts, until the time is up."""
        size = SLICE_STEP if self._is_bounded else len(ops)
        while self.taken < len(ops):
            step = ops[self.taken : self.taken + size]
            self.taken += len(step)
            yield step
            if self._is_bounded and self._stopwatch() - self._began > SLICE_S:
                return

    def note(self, author: int) -> None:
        """The time since the last note was for an op of this author."""
        now = self._stopwatch()
        self._spent[author] = self._spent.get(author, 0.0) + now - self._at
        self._at = now

    def work(self) -> dict[int, float]:
        """The seconds of each author. What was done for all ops together is shared out in proportion."""
        total, noted = self._stopwatch() - self._began, sum(self._spent.values())
        return {author: spent * (total / noted) for author, spent in self._spent.items()} if noted > 0 else {}


def output_key(node: int) -> bytes:
    """Under which the store counts the outputs of jobs that a node has submitted."""
    return node.to_bytes(8, "big") + b"o"


def submitter(session: OpSession, job: Job) -> int:
    """The node that submitted a job, or set the schedule of which the job is a tick."""
    set_by = job.policy.set_by()
    row = None if set_by is None else session.op(set_by)
    return job.scheduled.node if row is None else int.from_bytes(row.hlc[12:], "big")


def charged(
    session: OpSession, op: Op, size: int, job: Callable[[bytes], Job | None]
) -> tuple[bytes, WrittenTotals] | None:
    """Who is charged for an op of this node's own, and how much; None if nobody is."""
    payload = op.payload
    found = job(payload.source_job) if type(payload) is CreateArtifact and payload.source_job is not None else None
    if found is None or (node := submitter(session, found)) == op.node_id:
        return None
    assert isinstance(payload, CreateArtifact)
    return output_key(node), WrittenTotals(1, max(size, payload.size_bytes))


def add_charges(session: IntakeSession, charges: Iterable[tuple[bytes, WrittenTotals] | None]) -> None:
    totals: dict[bytes, WrittenTotals] = {}
    for each in charges:
        if each is not None:
            ops, size = totals.get(each[0], WrittenTotals())
            totals[each[0]] = WrittenTotals(ops + each[1].ops, size + each[1].bytes)
    for key, total in totals.items():
        session.add_written(key, total)


def add_written(
    session: Session,
    node: int,
    written: Iterable[tuple[Op, int]],
    sets: Iterable[tuple[bytes, WrittenTotals]],
    job: Callable[[bytes], Job | None],
) -> None:
    """Adds up what other authors have written, each op with its size or many at once, and the outputs of their jobs
    that this node has written. This node has no quota on its own log.
    """
    add_charges(
        session,
        [
            *sets,
            *(
                charged(session, op, size, job)
                if op.node_id == node
                else (op.node_id.to_bytes(8, "big"), WrittenTotals(1, size))
                for op, size in written
            ),
        ],
    )


def stored_totals(session: IntakeSession, nodes: Iterable[int]) -> dict[int, WrittenTotals]:
    """What each of these nodes has written here, with the bytes of the outputs of its jobs."""
    keys = {node: (node.to_bytes(8, "big"), output_key(node)) for node in nodes}
    found = session.written(key for pair in keys.values() for key in pair)
    nothing = WrittenTotals()
    return {
        node: WrittenTotals(found.get(own, nothing).ops, found.get(own, nothing).bytes + found.get(out, nothing).bytes)
        for node, (own, out) in keys.items()
    }


def stored_bytes(session: IntakeSession, nodes: Iterable[int]) -> int:
    """What these nodes have written here, and the outputs of their jobs."""
    return sum(each.bytes for each in stored_totals(session, nodes).values())


def output_room(session: Session, permissions: "Permissions", job: Job, now_ms: int) -> int | None:
    """How many bytes the quota of a job's submitter leaves for outputs here; None if it has no quota."""
    node = submitter(session, job)
    if not permissions.delegations or permissions.is_trusted(node, now_ms):
        return None
    authority, bounds = permissions.authority, permissions.rules.bounds or Bounds()
    sharers = sharing(authority, permissions.delegations)
    rooms = [
        quota.bytes - stored_bytes(session, sharers.get(payer, {payer}))
        for payer in payers(authority, node, now_ms)
        if (quota := quota_of(authority, payer, now_ms, bounds)).bytes is not None
    ]
    return max(0, min(rooms)) if rooms else None


# The most ops that may wait for the coordinator. Then nothing more is submitted, sent or put. The longest batch fits.
OUTBOX_OPS_MAX = 1_000_000
# The store's key of the last op of this node that any other node is known to have.
SHARED = "shared"
# The store's key of how far other nodes have this node's ops: the packed time of the last one, by node.
_DELIVERED = "delivered"


class Outbox(NamedTuple):
    """`since_ms` is the time of the oldest op that waits."""

    ops: int
    since_ms: int | None


def waiting(session: Session, node: int, coordinator: int | None) -> Outbox:
    """The ops of this node that the coordinator is not known to have. If it is not known, or was never met, those that
    no other node has: the others pass them on.
    """
    if _is_alone(session, node, coordinator):
        return Outbox(0, None)
    reached = _delivered(session, node)
    author = node.to_bytes(8, "big")
    met = None if coordinator is None else reached.get(node_text(coordinator))
    last = met or max(reached.values(), default=b"") or session.node_meta(author, SHARED) or b""
    ops, first = session.ops_written_after(author, last)
    return Outbox(ops, None if first is None else unpack(first).wall)


def _is_alone(session: Session, node: int, coordinator: int | None) -> bool:
    """Whether this node's ops wait for no other node."""
    return coordinator == node or (coordinator is None and not session.peers())


def note_delivered(session: Session, node: int, at: Hlc) -> None:
    """Notes that a node has the ops of another, the author of the op of that time, up to then."""
    reached = _delivered(session, at.node) | {node_text(node): pack(at)}
    session.set_node_meta(at.node.to_bytes(8, "big"), _DELIVERED, msgspec.json.encode(reached))


def _delivered(session: Session, author: int) -> dict[str, bytes]:
    kept = session.node_meta(author.to_bytes(8, "big"), _DELIVERED)
    return decode_json(kept or b"{}", dict[str, bytes])


class OutboxBound:
    """Remembers up to which op of the log there is room, so that few transactions have to count."""

    def __init__(self) -> None:
        self._room_until = 0

    def has_room(self, seq: int) -> bool:
        """Whether there is room, as far as is known, for one more op, which would get this number on the log."""
        return seq <= self._room_until

    def check(self, session: Session, node: int, coordinator: int | None, seq: int, unwritten: int) -> None:
        """Raises OutboxFull if this node may not write one more op, which would get this number on the log. `unwritten`
        ops of the same transaction come before it.
        """
        ops = waiting(session, node, coordinator).ops
        room = OUTBOX_OPS_MAX - ops - unwritten
        if _is_alone(session, node, coordinator):
            room = OUTBOX_OPS_MAX
        if room <= 0:
            whom = "other nodes" if coordinator is None else f"the coordinator {node_text(coordinator)}"
            raise OutboxFull(
                f"{ops:,} ops wait here for {whom}, and at most {OUTBOX_OPS_MAX:,} may; nothing was written. Bring back"
                " the connection, or designate another coordinator with `hocket mesh coordinator NODE`"
            )
        self._room_until = seq + room - 1


# How long an author waits for a decision. An exchange with the arbiter takes no longer: its author gives up first.
DECIDED_MS = 5_000
# A difference between two clocks that is smaller than this is not corrected: answers have whole seconds.
OFFSET_MS_MIN = 2_000
# The store's key of by how many milliseconds the clocks of other nodes are ahead of this node's clock, by node.
_OFFSETS = "clock_offsets"


def request_deadline(session: Session, node: int, arbiter: int, physical: int) -> int:
    """The deadline of a request that is written now."""
    return max(0, physical + _offsets(session, node).get(node_text(arbiter), 0) + DECIDED_MS)


def note_offset(session: Session, node: int, other: int, offset_ms: int) -> None:
    """Notes by how much the clock of another node is ahead of this node's clock."""
    offsets = _offsets(session, node) | {node_text(other): offset_ms}
    session.set_node_meta(node.to_bytes(8, "big"), _OFFSETS, msgspec.json.encode(offsets))


def known_offset(session: Session, node: int, other: int) -> int:
    return _offsets(session, node).get(node_text(other), 0)


def _offsets(session: Session, node: int) -> dict[str, int]:
    return decode_json(session.node_meta(node.to_bytes(8, "big"), _OFFSETS) or b"{}", dict[str, int])


def is_out_of_touch(session: Session, arbiter: int) -> bool:
    """Whether the last exchange with the arbiter failed. Then it is asked before a request is written, so that requests
    which cannot be decided leave nothing on the log.
    """
    states = [peer.state for peer in session.peers() if peer.node == arbiter.to_bytes(8, "big")]
    return bool(states) and not {PEER_OK, PEER_NEW} & set(states)


def is_given_up(offered: Op, good_for_ms: int, physical: int, now: int) -> bool:
    """Whether the author of a request no longer waits for it. A request of a program that knows no deadlines is good
    for as long as what it asks for.
    """
    if offered.deadline is None:
        return offered.timestamp.wall + good_for_ms < now
    return offered.deadline < physical
