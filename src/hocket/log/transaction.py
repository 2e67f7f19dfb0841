"""One write transaction of the log: the only place where the clock ticks and a claim is decided. Requests run inside it
one after the other. Their ops are stamped, folded and counted at once and stored together at the end, so that many
requests cost one commit. They are signed when they leave the node.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from msgspec.structs import replace

from hocket.bus.changes import CLAIM, LOCK_WAIT, LOG, NOTHING, Changes, gathered
from hocket.errors import StoreError
from hocket.kernel.clock import U32_MAX, ClockOverflow, Hlc, pack, recv, tick, unpack
from hocket.kernel.coordination_payloads import Availability
from hocket.kernel.ops import NO_ID, SELF_NAMED, Op, bound, deadline_at, decode, link_to, pin_to, unsigned
from hocket.kernel.policy import Policy
from hocket.kernel.reasons import Reason
from hocket.kernel.roster import Job
from hocket.kernel.signing import OpSigner
from hocket.kernel.subjects import JOB, Subject, subject_of
from hocket.kernel.vocabulary import (
    EXTENSION_BASE,
    ClaimWork,
    CompleteJob,
    CreateArtifact,
    FailWork,
    Payload,
    PostponeWork,
    ReportProgress,
    SaveCheckpoint,
    ScheduleJob,
    YieldWork,
    discriminant,
)
from hocket.log.naming import ID_BYTES, is_taken, keyed
from hocket.log.outbox import OutboxBound
from hocket.log.permissions import PermissionsReader
from hocket.log.projection import Projection
from hocket.log.projectors import follow_up
from hocket.log.registers import CoordinatorRegister, GrantRegister, RouteRegister
from hocket.log.request_deadlines import is_out_of_touch, request_deadline
from hocket.log.sealing import LogEnd, signed
from hocket.store import Head, NewOp, Refusal, Session, WrittenTotals

# Gives the time in milliseconds, never less than the clock reading that it is told.
Wall = Callable[[int], int]
# Adds ops to the log, and gives its new end.
Append = Callable[[Session, Head, Sequence[NewOp]], LogEnd]


# What may be written beside transactions of other nodes: ops about jobs that the transaction has locked or made, and
# what a run leaves behind. All other transactions rely on everything else without locking it.
BESIDE_PAYLOADS = frozenset(
    (
        ClaimWork,
        CompleteJob,
        CreateArtifact,
        FailWork,
        PostponeWork,
        ReportProgress,
        SaveCheckpoint,
        ScheduleJob,
        YieldWork,
    )
)
PERMISSION_PAYLOADS = frozenset((*GrantRegister.payloads, *CoordinatorRegister.payloads, *RouteRegister.payloads))
_NO_SUBJECT = (JOB, None)
# The node's key for: this node has not always received every op.
GAPS = "gaps"
# The node's key for: this node joined a mesh that already existed, so that the mesh has a coordinator.
NEWCOMER = "newcomer"


def being_rebuilt() -> StoreError:
    return StoreError(
        "the roster is being rebuilt; wait for `hocket log rebuild` to end, or run it again if it was stopped"
    )


def next_stamp(clock: Hlc, wall_now: int) -> Hlc:
    """The time of the next op of this node's own."""
    try:
        return tick(clock, wall_now)
    except ClockOverflow as error:
        raise StoreError(f"nothing can be written until the wall clock moves on: {error}") from error


class OpDraft(NamedTuple):
    """An op of this transaction. `body` is the whole op: signed if it was received, marked if it is this node's own."""

    op: Op
    body: bytes
    is_received: bool


BeatOf = Callable[[int], bytes]
"""What an op carries of its beat that is written at that time, in milliseconds."""


class Transaction:
    """`now` is the time for decisions: the node's clock, never behind the wall. `physical` is the reading of the
    machine's own clock, whatever other nodes' clocks say. `beat` is given on a node with a tempo.
    """

    def __init__(
        self,
        session: Session,
        signer: OpSigner,
        permissions_reader: PermissionsReader,
        wall: Wall,
        physical: int,
        new_id: Callable[[int], bytes],
        outbox: OutboxBound,
        beat: BeatOf | None = None,
    ) -> None:
        self.session = session
        self._beat = beat
        self._outbox = outbox
        self._signer = signer
        self.node = node = signer.node
        self.physical = physical
        self._permissions_reader = permissions_reader
        session.lock_author(node.to_bytes(8, "big"))
        session.lock_permissions(exclusive=False)
        head = session.head()
        if head.rebuilding is not None:
            raise being_rebuilt()
        self._head = head
        self._clock = Hlc(head.wall, head.logical, node)
        self._wall_now = self.now = wall(head.wall)
        self.new_id = new_id
        self._drafts: list[OpDraft] = []
        self._stamps: dict[Hlc, Op] = {}
        # Of each author, the time and the id of its latest op, as far as it was looked up.
        self._latest: dict[int, tuple[bytes, bytes]] = {}
        self._last = head.last
        self._refusals: list[Refusal] = []
        self._announced: set[bytes] = set()
        self._settled, self.unsettled = head.settled, head.unsettled

    @cached_property
    def projection(self) -> Projection:
        state = self._head.permissions_state
        return Projection(self.session, self.now, self._permissions_reader, state, self.settle, self.physical)

    @property
    def _used_projection(self) -> Projection | None:
        return self.__dict__.get("projection")

    @cached_property
    def is_bound(self) -> bool:
        """Whether ids are bound to content here, and ops to their author's previous op."""
        return self._permissions_reader.rules.bounds is not None

    @cached_property
    def is_strict(self) -> bool:
        """Whether the mesh keeps to Likewise v0.1."""
        return self._permissions_reader.rules.is_strict

    @property
    def written(self) -> list[bytes]:
        """The ids of the ops of this transaction so far."""
        return [draft.op.id for draft in self._drafts]

    @property
    def changes(self) -> Changes:
        """What this transaction has changed, once it is closed."""
        projection, announced = self._used_projection, self._announced
        if projection is None:  # every op goes through the projection
            return gathered((), {JOB: announced}) if announced else NOTHING
        log = {b""} if self._drafts else ()
        touched = {family: projector.touched for family, projector in projection.projectors.items()}
        if announced:
            touched[JOB] = touched[JOB] | announced
        keys = {**touched, CLAIM: projection.jobs.lost_claims, LOCK_WAIT: projection.no_longer_waiting(), LOG: log}
        return gathered(projection.jobs.ready_kinds(), keys)

    def announce(self, job_id: bytes) -> None:
        """Tells those who listen for changes of this job, although no op is about it."""
        self._announced.add(job_id)

    def author(
        self,
        payload: Payload,
        deps: tuple[bytes, ...] = (),
        about: int | None = None,
        *,
        at_once: bool = False,
        is_awaited: bool = False,
    ) -> Op | Reason:
        """Writes an op of this node. An op that would not count is not written: the reason is returned instead. If
        another node is the arbiter and must decide on it, the op is written as an offer: see `is_offer`. A job, an
        artifact or a message whose id is `NO_ID` gets that of the op. An op that is `about` another node pins that
        node's last known op. It is marked, or signed `at_once` if others need its signature. An offer that
        `is_awaited` has a deadline: its author waits for the decision now, and does not want a later one. In a strict
        mesh Hocket's own payloads are never written.
        """
        if self.is_strict and discriminant(payload) >= EXTENSION_BASE:
            return Reason.STRICT
        if type(payload) in PERMISSION_PAYLOADS:
            self.session.lock_permissions(exclusive=True)
        if self.session.is_beside:
            self._check_beside(payload)
        stamp = next_stamp(self._clock, self._wall_now)
        op, body = self._named(stamp, payload, deps, about, self._deadline if is_awaited else None)
        projection = self.projection
        if isinstance(op.payload, ScheduleJob) and op.payload.job_id == op.id:
            projection.jobs.expect_new(op.id)
        reason = projection.newest(op)
        if reason is not None:
            return reason
        self._clock, self._last = stamp, op.id
        self._drafts.append(OpDraft(op, self._signer.for_log(body, at_once=at_once), is_received=False))
        self._follow_up(op)
        return op

    def _check_beside(self, payload: Payload) -> None:
        """Beside others: locks what the payload is about. Another node may have written about it since this transaction
        began, and this op must be later.
        """
        if type(payload) not in BESIDE_PAYLOADS:
            self.session.lock_all()
        subject = subject_of(payload)
        if subject is None or subject.key == NO_ID:
            return
        projector = self.projection.projectors[subject.family]
        state = projector.state(subject.key)
        if state is not None and (last := projector.family.last(state)) >= self._clock:
            self.hear(last)

    def _follow_up(self, op: Op) -> None:
        """Writes what belongs to an op that counts, such as the message about a conflict, if this node may."""
        reason, subject = self.projection.standing(op.id)
        if subject is None or reason == Reason.OFFERED:
            return
        payload = follow_up(subject, lambda: self.projection.projectors[subject.family].state(subject.key), op)
        if payload is not None:
            self.author(payload)

    def check_outbox(self) -> None:
        """Call this before something new is submitted, sent or put. Raises OutboxFull if the coordinator is away and no
        more may wait for it.
        """
        coordinator = lambda: self.projection.permissions.awaited(self.latest)  # noqa: E731
        unwritten = len(self._drafts)
        self._outbox.check(self.session, self.node, coordinator, self._head.seq + unwritten + 1, unwritten)

    def lock_permissions_for(self, payloads: Iterable[Payload]) -> None:
        """Payloads that change the permissions exclude every transaction that relies on them."""
        if any(type(payload) in PERMISSION_PAYLOADS for payload in payloads):
            self.session.lock_permissions(exclusive=True)

    def _named(
        self, stamp: Hlc, payload: Payload, deps: tuple[bytes, ...], about: int | None, deadline: bytes | None = None
    ) -> tuple[Op, bytes]:
        if self.is_bound:
            pins = self._pin(about) if about is not None else () if deadline is None else (deadline,)
            if self._beat is not None and not pins:
                pins = (self._beat(stamp.wall),)
            return bound(stamp, (*deps, *pins, link_to(self._last)), payload)
        op_id = self.new_id(stamp.wall)
        while self.is_strict and is_taken(self.session, op_id):
            op_id = self.new_id(stamp.wall)
        deps = tuple(dep[:ID_BYTES] for dep in deps)
        field = SELF_NAMED.get(type(payload))
        if field is not None and getattr(payload, field) == NO_ID:
            payload = replace(payload, **{field: op_id})
        op = Op(op_id, stamp, self.node, deps, payload)
        return op, unsigned(op)

    def _pin(self, node: int) -> tuple[bytes, ...]:
        self.session.order_ops()
        hlc, op_id = self.latest_of(node)
        return (pin_to(unpack(hlc), op_id),) if op_id != NO_ID else ()

    def state(self, subject: Subject) -> Any:
        """The state of a subject, after the ops of this transaction."""
        return self.projection.projectors[subject.family].state(subject.key)

    def is_offer(self, op: Op) -> bool:
        """Whether an op of this transaction waits for the arbiter's word."""
        return self.projection.reason(op.id) == Reason.OFFERED

    def counts(self, op: Op) -> bool:
        """Whether an op of this transaction counts."""
        return self.projection.reason(op.id) == 0

    def settle(self, limit: int | None = None) -> bool:
        """Folds and indexes ops that were only put on the log so far, oldest first. False when there are none."""
        if self._head.unsettled == 0 or self._settled >= self._head.seq:
            return False
        rows = self.session.unsettled_ops(self._settled, limit)
        check = self.session.row_check
        for row in rows if check is None else check.ops(rows):
            op = decode(row.body)
            if not isinstance(op.payload, ScheduleJob):
                continue  # another program wrote it: no node leaves such an op unfolded
            self.projection.jobs.expect_new(op.payload.job_id)
            self.projection.replayed(op)
        if rows:
            self.session.mark_settled([row.seq for row in rows])
            self.projection.flush()
        self.unsettled -= len(rows)
        self._settled = rows[-1].seq if len(rows) == limit else self._head.seq
        return bool(rows)

    def body(self, op_id: bytes) -> bytes:
        """The bytes of an op that is on the log; empty if it is not there."""
        row = self.session.op(op_id)
        return row.body if row is not None else next((each.body for each in self._drafts if each.op.id == op_id), b"")

    def signed(self, op: bytes) -> bytes:
        """An op of this node as it may leave it: with its signature."""
        return signed(self._signer, op)

    def admits(self, kind: str) -> bool:
        """Whether this node takes new work, and the route in force and its delegations let it claim jobs of the kind,
        and end them.
        """
        if self.projection.availability(self.node) is not Availability.ACTIVE:
            return False
        routed = self.projection.jobs.route(kind, self.latest)
        return routed in (None, self.node) and self.projection.permissions.may_run(self.node, kind, self.now)

    def decides(self, policy: Policy) -> bool:
        """Whether this node may end jobs of such a policy without asking another node."""
        if policy.open:
            return True
        return self.projection.arbiter(self.latest) in (None, self.node) and not self.is_uninformed

    @property
    def is_uninformed(self) -> bool:
        """Whether another node decides here, and this node does not know yet which."""
        extensions = self._permissions_reader.rules.extensions
        has_arbiter = extensions is not None and extensions.arbiter
        if not has_arbiter or self.projection.permissions.coordinators:
            return False
        return self.session.own_meta(NEWCOMER) is not None

    @cached_property
    def _other_arbiter(self) -> int | None:
        """The node that decides on this node's requests, if it is another one."""
        arbiter = self.projection.arbiter(self.latest)
        return None if arbiter == self.node else arbiter

    @cached_property
    def _deadline(self) -> bytes | None:
        arbiter = self._other_arbiter
        if arbiter is None:
            return None
        return deadline_at(request_deadline(self.session, self.node, arbiter, self.physical))

    @property
    def is_out_of_touch(self) -> bool:
        """Whether another node decides here, and it did not answer when this node last asked it."""
        arbiter = self._other_arbiter
        return arbiter is not None and is_out_of_touch(self.session, arbiter)

    @property
    def latest(self) -> Hlc:
        """Now, after everything that can have happened by now."""
        return Hlc(self.now, U32_MAX, self.node)

    def hear(self, stamp: Hlc) -> None:
        """Moves the clock past a timestamp that came from outside, whether or not its op is taken in."""
        try:
            self._clock = recv(self._clock, stamp, self._wall_now)
        except ClockOverflow:
            # The counter is used up. Until the wall clock moves on, this node can receive but not write.
            self._clock = Hlc(max(self._clock.wall, stamp.wall), U32_MAX, self.node)

    def latest_of(self, node: int) -> tuple[bytes, bytes]:
        """The packed time and the id of the latest op of a node, those of this transaction included."""
        if node == self.node and self._drafts and self._last != self._head.last:
            own = next(draft.op for draft in reversed(self._drafts) if draft.op.node_id == node)
            return pack(own.timestamp), own.id
        if node not in self._latest:
            author = node.to_bytes(8, "big")
            self._latest[node] = self.session.latest_of(author)
        return self._latest[node]

    def bodies_beside(self, op: Op) -> list[bytes]:
        """Other ops of the same author with the same link or the same time."""
        assert op.link is not None
        packed = pack(op.timestamp)
        rows = self.session.ops_with_link(packed[12:], op.link) + self.session.ops_at(packed)
        fresh = [draft.body for draft in self._drafts if draft.op.node_id == op.node_id and draft.is_received]
        return [signed(self._signer, body) for body in ([row.body for row in rows] + fresh) if body[:16] != op.id]

    @property
    def holds_everything(self) -> bool:
        """Whether this node may read every op, and always could, so that it holds all ops of every author."""
        authority = self.projection.permissions.authority
        return authority.reads_everything(self.node, self.now) and self.session.own_meta(GAPS) is None

    def kind_of(self, payload: Payload) -> str | None:
        """The kind of the job that an op is about, if the job is known."""
        subject = subject_of(payload)
        entry = None if subject is None or subject.family != JOB else self.projection.jobs.entry(subject.key)
        return None if entry is None else entry.job.kind

    def admit(self, op: Op, body: bytes) -> None:
        """Takes in an op from outside whose signature and author are good. It may be older than others."""
        packed = pack(op.timestamp)
        latest = self.latest_of(op.node_id)
        twins = [keyed(row) for row in self.session.ops_at(packed)] if packed <= latest[0] else []
        if packed > latest[0]:
            self._latest[op.node_id] = packed, op.id
            if op.node_id == self.node:
                # This node has lost it, or another machine has its key. Its next op follows this one.
                self._last = op.id
        if op.timestamp in self._stamps:
            twins.append(self._stamps[op.timestamp])
        self._stamps[op.timestamp] = op
        for twin in twins:
            self.projection.collide(twin)
        self.projection.arrived(op, integrity=bool(twins))
        self._drafts.append(OpDraft(op, body, is_received=True))

    def refuse(self, op_id: bytes, author: int, reason: Reason) -> None:
        self._refusals.append(Refusal(op_id[:ID_BYTES], author.to_bytes(8, "big"), int(reason), self.now))

    def close(self, append: Append) -> None:
        """Stores what was written; the caller's commit makes it durable."""
        ops = []
        projection = self._used_projection
        for op, body, _ in self._drafts:
            assert projection is not None  # every op goes through it
            reason, subject = projection.standing(op.id)
            family, key = subject or _NO_SUBJECT
            ops.append(NewOp(op.id, pack(op.timestamp), discriminant(op.payload), family, key, reason, 1, body))
        if projection is not None:
            # Before the end of the log is locked, which others wait for.
            projection.flush()
        folded = self._head.unsettled - self.unsettled
        is_longer = bool(ops or folded) or self._clock[:2] != self._head[:2]
        now = self.session.lock_end() if is_longer else self._head
        last, chain, seal = append(self.session, now, ops)
        if ops:
            self._count()
        if self._refusals:
            self.session.refuse(self._refusals)
        unsettled = now.unsettled - folded
        settled = last if unsettled == 0 else now.settled if self.session.is_beside else self._settled
        permissions_state = now.permissions_state if projection is None else projection.permissions_state
        wall, logical = max((now.wall, now.logical), self._clock[:2])
        head = Head(wall, logical, last, chain, settled, unsettled, None, permissions_state, self._last, seal)
        if head != now:
            self.session.put_head(head)

    def forget(self) -> None:
        """Call this at the end. The parts of a transaction refer to each other, so only the garbage collector would
        free its ops and states, after a while and at a price.
        """
        self._drafts.clear()
        if (projection := self._used_projection) is not None:
            projection.forget()

    def _count(self) -> None:
        """Adds up what other authors have written, and the outputs of their jobs that this node has written. This node
        has no quota on its own log.
        """
        sizes: dict[int, list[int]] = defaultdict(list)
        outputs: list[OpDraft] = []
        for draft in self._drafts:
            if draft.op.node_id != self.node:
                if draft.is_received:
                    sizes[draft.op.node_id].append(len(draft.body))
            elif type(draft.op.payload) is CreateArtifact:
                outputs.append(draft)
        for node, found in sizes.items():
            self.session.add_written(node.to_bytes(8, "big"), WrittenTotals(len(found), sum(found)))
        if outputs:
            from hocket.log.output_quota import add_charges, charged

            add_charges(self.session, [charged(self.session, op, len(body), self._job) for op, body, _ in outputs])

    def _job(self, job_id: bytes) -> Job | None:
        entry = self.projection.jobs.entry(job_id)
        return None if entry is None else entry.job
