"""One write transaction of the log: the only place where the clock ticks and a claim is decided. Requests run inside it
one after the other. Their ops are stamped, folded and counted at once and stored together at the end, so that many
requests cost one commit. They are signed when they leave the node.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from msgspec.structs import replace

from hocket.bus.hints import LOG, Changes, gathered
from hocket.errors import NotAuthorised, StoreError, Usage
from hocket.families.availability.facts import Availability
from hocket.kernel.arbitration import Reason
from hocket.kernel.bundles import BundleDraft, facts_of, read_facts, with_bundle_signature
from hocket.kernel.clock import U32_MAX, ClockOverflow, Hlc, pack, recv, tick, unpack
from hocket.kernel.ops import (
    NO_ID,
    SELF_NAMED,
    Op,
    bound,
    deadline_at,
    decode,
    link_to,
    pin_to,
    plain_schedule,
    unsigned,
)
from hocket.kernel.policy import DEFAULT, Policy
from hocket.kernel.signing import OpSigner
from hocket.kernel.vocabulary import (
    EXTENSION_BASE,
    JOB,
    Bundle,
    ClaimWork,
    CompleteJob,
    CreateArtifact,
    FailWork,
    Payload,
    PostponeWork,
    ReportProgress,
    SaveCheckpoint,
    ScheduleJob,
    Subject,
    YieldWork,
    discriminant,
    number_of,
    subject_of,
)
from hocket.log.citations import ID_BYTES, is_taken, keyed
from hocket.log.limits import OutboxBound, is_out_of_touch, request_deadline
from hocket.log.projection import Projection
from hocket.log.projectors import FOLLOWED_UP, follow_up
from hocket.log.registers import CoordinatorRegister, GrantRegister, RouteRegister
from hocket.log.sealing import LogEnd, signed
from hocket.log.set_judges import Asked, OpDraft, WrittenOp, judge_of_received, write_facts
from hocket.store import Head, NewOp, Refusal, Session, WrittenTotals
from hocket.store.op_rows import fact_body

if TYPE_CHECKING:
    from hocket.log.permissions import Permissions
    from hocket.log.succession.leading import CoordinatorLead
    from hocket.log.written.journal import WrittenEntries

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
# A bundle that this node writes has at most this size, so that its facts can be read without reading much else.
BUNDLE_BYTES = 64 * 1024
_NO_SUBJECT = (JOB, None)
_SCHEDULE_JOB = number_of(ScheduleJob)
_COUNTS, _UNSETTLED, _SETTLED = 0, 0, 1
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


BeatOf = Callable[[int], bytes]
"""What an op carries of its beat that is written at that time, in milliseconds."""


KeepApart = Callable[[bytes], tuple[bytes, int]]
"""Keeps content beside the log, with a salt before it. Returns the hash and the size of both together."""


class WritableLog(Protocol):
    """What a transaction takes from its log. `beat` is given on a node with a tempo."""

    node: int
    author: bytes
    wall: Wall
    physical: Callable[[], int]
    outbox: OutboxBound
    beat: BeatOf | None
    keep_apart: KeepApart | None
    written: "WrittenEntries | None"

    @property
    def signer(self) -> OpSigner: ...
    @property
    def lead(self) -> "CoordinatorLead": ...
    def is_shared_out(self, permissions: "Permissions") -> bool: ...
    def new_id(self, ms: int) -> bytes: ...


class Transaction:
    """`projection` is that of the session, and of no other transaction meanwhile. `now` is the time for decisions: the
    node's clock, never behind the wall. `physical` is the reading of the machine's own clock, whatever other nodes'
    clocks say.
    """

    def __init__(self, projection: Projection, log: WritableLog) -> None:
        self._log = log
        self.projection = projection
        self.session = session = projection.session
        self.node = node = log.node
        session.lock_author(log.author)
        session.lock_permissions(exclusive=False)
        self._head = head = session.head()
        if log.written is not None:
            log.written.check(session, head.last)
        if head.rebuilding is not None:
            raise being_rebuilt()
        self._clock = Hlc(head.wall, head.logical, node)
        self.now = now = log.wall(head.wall)
        # Facts of a set are already as the log stores them.
        self._drafts: list[OpDraft | NewOp] = []
        # Ops that count against quotas, with their sizes: those of other authors, and outputs; and what authors have
        # written in sets.
        self._counted: list[tuple[Op, int]] = []
        self._counted_sets: list[tuple[bytes, WrittenTotals]] = []
        # Ops that are only put on the log, and the kinds of their jobs. A later transaction folds them.
        self._unfolded: list[NewOp] = []
        self._unfolded_kinds: set[str] = set()
        self._stamps: dict[Hlc, Op] = {}
        # Sets of facts that were admitted, whose times are not among the stamps yet.
        self._unstamped: list[Op] = []
        # Of each author, the time and the id of its latest op, as far as it was looked up.
        self._latest: dict[int, tuple[bytes, bytes]] = {}
        self._last = head.last
        self._refusals: list[Refusal] = []
        self._announced: set[bytes] = set()
        self._settled, self.unsettled = head.settled, head.unsettled
        self.is_strict = projection.is_strict
        """Whether the mesh keeps to Likewise v0.1."""
        self.is_bound = projection.is_bound
        """Whether ids are bound to content here, and ops to their author's previous op."""
        projection.begin(now, head.permissions_state, physical=self._judging_ms, settle=self.settle, head=head)

    def keep_apart(self, content: bytes) -> tuple[bytes, int]:
        """Keeps content beside the log. Raises Usage if this node has no place for it."""
        if self._log.keep_apart is None:
            raise Usage("this node has no blobs, and the kind keeps its content apart from the log")
        return self._log.keep_apart(content)

    @property
    def physical(self) -> int:
        return self.projection.physical

    def _judging_ms(self) -> int:
        permissions, physical = self.projection.permissions, self._log.physical()
        if not self._log.is_shared_out(permissions):
            return physical
        return self._log.lead.judging_ms(self.session, permissions, physical)

    @property
    def written(self) -> list[bytes]:
        """The ids of the ops of this transaction so far."""
        return [draft.id for draft in self._drafts if draft.is_op]

    @property
    def drafted(self) -> int:
        """How many ops this transaction has written or admitted so far."""
        return len(self._drafts)

    def has_decided(self, first: int, payloads: Collection[type], variants: Collection[int]) -> bool:
        """Whether one of this node's own ops, after so many, is about what the arbiter decides."""
        own = self._log.author
        for draft in self._drafts[first:]:
            if isinstance(draft, NewOp):
                if draft.variant in variants and draft.hlc.endswith(own) and not self._is_open(draft.key):
                    return True
            elif not draft.is_received and type(draft.op.payload) in payloads:
                subject = subject_of(draft.op.payload)
                if subject is None or subject.family != JOB or not self._is_open(subject.key):
                    return True
        return False

    def _is_open(self, key: bytes | None) -> bool:
        entry = None if key is None else self.projection.jobs.entry(key)
        return entry is not None and bool(entry.job.policy.open)

    @property
    def may_decide(self) -> bool:
        """Whether this node, the arbiter, may decide now. It may not while too few of the nodes that may follow it
        answer.
        """
        permissions, log = self.projection.permissions, self._log
        return not log.is_shared_out(permissions) or log.lead.fault(self.session, permissions) is None

    @property
    def changes(self) -> Changes:
        """What this transaction has changed, once it is closed."""
        projection, announced = self.projection, self._announced
        log = {b""} if self._drafts or self._unfolded else ()
        touched = {family: projector.touched for family, projector in projection.projectors.items()}
        kinds = projection.jobs.ready_kinds().union(self._unfolded_kinds)
        if announced or self._unfolded:
            touched[JOB] = touched[JOB].union(announced, (op.id for op in self._unfolded))
        keys = {**touched, LOG: log}
        for projector in projection.projectors.values():
            for family, more in projector.topics.items():
                if more:
                    keys[family] = {*keys.get(family, ()), *more}
        return gathered(kinds, keys)

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
        pin: bytes | None = None,
    ) -> Op | Reason:
        """Writes an op of this node. An op that would not count is not written: the reason is returned instead. If
        another node is the arbiter and must decide on it, the op is written as an offer: see `is_offer`. A job, an
        artifact or a message whose id is `NO_ID` gets that of the op. An op that is `about` another node pins that
        node's last known op; a `pin` may be given instead. It is marked, or signed `at_once` if others need its
        signature. An offer that `is_awaited` has a deadline: its author waits for the decision now, and does not want a
        later one. In a strict mesh Hocket's own payloads are never written.
        """
        if self.is_strict and discriminant(payload) >= EXTENSION_BASE:
            return Reason.STRICT
        kind = type(payload)
        if kind in PERMISSION_PAYLOADS:
            self.session.lock_permissions(exclusive=True)
        if self.session.is_beside:
            self._check_beside(payload)
        stamp = next_stamp(self._clock, self.now)
        said = () if pin is None else (pin,)
        op, body = self._named(stamp, payload, deps, about, self._deadline if is_awaited else None, said)
        projection = self.projection
        if isinstance(op.payload, ScheduleJob) and op.payload.job_id == op.id:
            projection.jobs.expect_new(op.id)
        reason = projection.newest(op)
        if reason is not None:
            return reason
        self._clock, self._last = stamp, op.id
        body = self._log.signer.for_log(body, at_once=at_once)
        self._drafts.append(OpDraft(op, body, is_received=False))
        self._count_or_follow_up(op, len(body))
        return op

    def author_all(
        self, asked: Sequence[Asked], *, at_once: bool = False, is_awaited: bool = False
    ) -> list[WrittenOp | Reason]:
        """Writes ops of this node, each from its payload and what it depends on, as `author` would. In a mesh with
        bundles, ops of one type about jobs of one kind become one bundle. New jobs keep their order, so that only those
        of one kind that follow each other do. Bundles and ops are marked, or signed `at_once` if others need their
        signatures.
        """
        if len(asked) < 2 or not self._writes_bundles:
            return [self._author_one(each, at_once, is_awaited) for each in asked]
        groups: dict[tuple[type[Payload], str | None, int], list[int]] = {}
        kind, changes = None, 0
        for number, (payload, _) in enumerate(asked):
            before, kind = kind, self._shared_kind(payload)
            changes += type(payload) is ScheduleJob and kind != before
            groups.setdefault((type(payload), kind, changes), []).append(number)
        written: dict[int, WrittenOp | Reason] = {}
        for (_, shared, _), left in groups.items():
            while left:
                found = self._author_bundle([asked[number] for number in left], shared, at_once, is_awaited)
                written.update(zip(left, found, strict=False))
                left = left[len(found) :]
        return [written[number] for number in range(len(asked))]

    def _author_one(self, asked: Asked, at_once: bool, is_awaited: bool) -> WrittenOp | Reason:
        op = self.author(*asked, at_once=at_once, is_awaited=is_awaited)
        return op if isinstance(op, Reason) else WrittenOp(op.id, self.is_offer(op))

    @cached_property
    def _writes_bundles(self) -> bool:
        """No bundle is written where a reader gets some ops only in part."""
        projection = self.projection
        rules = projection.permissions_reader.rules
        return rules.bundles and not projection.permissions.authority.has_sanitised_readers

    def _shared_kind(self, payload: Payload) -> str | None:
        kind = type(payload)
        if kind is ScheduleJob:
            return payload.kind  # type: ignore[union-attr]
        job_id = getattr(payload, "source_job" if kind is CreateArtifact else "job_id", None)
        entry = None if job_id is None else self.projection.jobs.entry(job_id)
        return None if entry is None else entry.job.kind

    def _author_bundle(
        self, asked: Sequence[Asked], kind: str | None, at_once: bool, is_awaited: bool
    ) -> list[WrittenOp | Reason]:
        """Writes the first of these as one bundle, as many as it may carry. A large one is an op of its own. They are
        about jobs of that kind.
        """
        if self.session.is_beside:
            for payload, _ in asked:
                self._check_beside(payload)
        begin = next_stamp(self._clock, self.now)
        said = () if not is_awaited or self._deadline is None else (self._deadline,)
        if self._log.beat is not None and not said:
            said = (self._log.beat(begin.wall),)
        draft = BundleDraft(type(asked[0][0]), begin, said, BUNDLE_BYTES)
        answers, drafts, set_ids, last, reason = write_facts(self.projection, draft, asked, kind)
        if not answers:
            return [self._author_one(asked[0], at_once, is_awaited)]
        if drafts:
            bundle, body = draft.closed(link_to(self._last))
            self._clock, self._last = last, bundle.id
            body = self._log.signer.for_log(body, at_once=at_once)
            self._drafts += [OpDraft(bundle, body, is_received=False), *drafts]
            self.projection.put_set(bundle, set_ids, reason)
        for each in drafts:
            if isinstance(each, OpDraft):
                self._count_or_follow_up(each.op, len(each.body))
        return answers

    def _count_or_follow_up(self, op: Op, size: int) -> None:
        kind = type(op.payload)
        if kind is CreateArtifact:
            self._counted.append((op, size))
        elif kind in FOLLOWED_UP:
            self._follow_up(op)

    def append_plain(self, kind: str, payload: bytes) -> bytes | None:
        """Schedules one new job without a policy and returns its id, which is that of the op. The op always counts, so
        it is only put on the log: the next transaction that reads the roster folds and indexes many such ops at once,
        and this one writes no other. Returns None, and writes nothing, if the kind has options, or this node a tempo.
        """
        projection = self.projection
        if self._log.beat is not None or projection.defaults(kind) is not DEFAULT:
            return None
        stamp = next_stamp(self._clock, self.now)
        permissions = projection.permissions
        if permissions.delegations:
            schedule = ScheduleJob(NO_ID, kind, b"", b"")
            refused = permissions.authority.refusal(self.node, schedule, stamp.wall, kind)
            if refused is not None:
                raise NotAuthorised(f"this node may not submit {kind} jobs: {refused.sentence}")
            self.check_outbox()
        link_back, new_id = (link_to(self._last), None) if self.is_bound else (None, self._free_id(stamp.wall))
        job_id, body = plain_schedule(new_id, stamp, link_back, kind, payload)
        self._clock, self._last = stamp, job_id
        body = self._log.signer.for_log(body)
        op = NewOp(job_id, pack(stamp), _SCHEDULE_JOB, JOB, job_id, _COUNTS, _UNSETTLED, body)
        self._unfolded.append(op)
        self._unfolded_kinds.add(kind)
        return job_id

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

    def check_outbox(self, waiting: int = 0) -> None:
        """Call this before something new is submitted, sent or put, besides so many ops that are about to be written.
        Raises OutboxFull if the coordinator is away and no more may wait for it.
        """
        unwritten = len(self._drafts) + len(self._unfolded) + waiting
        seq = self._head.seq + unwritten + 1
        outbox = self._log.outbox
        if not outbox.has_room(seq):
            coordinator = self.projection.permissions.awaited(self.latest)
            outbox.check(self.session, self.node, coordinator, seq, unwritten)

    def lock_permissions_for(self, payloads: Iterable[Payload]) -> None:
        """Payloads that change the permissions exclude every transaction that relies on them."""
        if any(type(payload) in PERMISSION_PAYLOADS for payload in payloads):
            self.session.lock_permissions(exclusive=True)

    def _named(
        self,
        stamp: Hlc,
        payload: Payload,
        deps: tuple[bytes, ...],
        about: int | None,
        deadline: bytes | None,
        pins: tuple[bytes, ...],
    ) -> tuple[Op, bytes]:
        if self.is_bound:
            if not pins:
                pins = self._pin(about) if about is not None else () if deadline is None else (deadline,)
            if self._log.beat is not None and not pins:
                pins = (self._log.beat(stamp.wall),)
            return bound(stamp, (*deps, *pins, link_to(self._last)), payload)
        op_id = self._free_id(stamp.wall)
        deps = tuple(dep[:ID_BYTES] for dep in deps)
        field = SELF_NAMED.get(type(payload))
        if field is not None and getattr(payload, field) == NO_ID:
            payload = replace(payload, **{field: op_id})
        op = Op(op_id, stamp, self.node, deps, payload)
        return op, unsigned(op)

    def _free_id(self, ms: int) -> bytes:
        """An id that no op and no job has. In a strict mesh another node can guess the next id, and take it."""
        op_id = self._log.new_id(ms)
        while self.is_strict and is_taken(self.session, op_id):
            op_id = self._log.new_id(ms)
        return op_id

    def _pin(self, node: int) -> tuple[bytes, ...]:
        self.session.order_ops()
        hlc, op_id = self.latest_of(node)
        return (pin_to(unpack(hlc), op_id),) if op_id != NO_ID else ()

    def state(self, subject: Subject) -> Any:
        """The state of a subject, after the ops of this transaction."""
        return self.projection.projectors[subject.family].state(subject.key)

    def is_offer(self, op: Op) -> bool:
        """Whether an op waits for the arbiter's word."""
        return self.projection.is_offered(op.id)

    def counts(self, op_id: bytes) -> bool:
        """Whether an op of this transaction counts."""
        return self.projection.reason(op_id) == 0

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
        """The bytes of an op that is on the log; empty if it is not there. Those of a fact have the signature of its
        bundle.
        """
        row = self.session.op(op_id)
        if row is not None:
            return row.signed_body
        for number, draft in enumerate(self._drafts):
            if draft.id == op_id:
                return draft.body if draft.place is None else self._fact_body(number, draft.place)
        return b""

    def _fact_body(self, number: int, place: int) -> bytes:
        """The bytes of a fact, which follows its bundle."""
        bundle = self._drafts[number - place - 1].body
        return with_bundle_signature(fact_body(bundle, place), bundle)

    def signed(self, op: bytes) -> bytes:
        """An op of this node as it may leave it: with its signature."""
        return signed(self._log.signer, op)

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
        extensions = self.projection.permissions_reader.rules.extensions
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
            self._clock = recv(self._clock, stamp, self.now)
        except ClockOverflow:
            # The counter is used up. Until the wall clock moves on, this node can receive but not write.
            self._clock = Hlc(max(self._clock.wall, stamp.wall), U32_MAX, self.node)

    def latest_of(self, node: int) -> tuple[bytes, bytes]:
        """The packed time of the latest op of a node, and the id of its latest entry on the log, those of this
        transaction included.
        """
        if node == self.node and self._drafts and self._last != self._head.last:
            author = node.to_bytes(8, "big")
            return next(hlc for each in reversed(self._drafts) if (hlc := each.hlc).endswith(author)), self._last
        if node not in self._latest:
            author = node.to_bytes(8, "big")
            self._latest[node] = self.session.latest_of(author)
        return self._latest[node]

    def bodies_beside(self, op: Op) -> list[bytes]:
        """Other entries of the same author with the same link or the same time."""
        assert op.link is not None
        times = [op, *(each.op for each in facts_of(op))] if isinstance(op.payload, Bundle) else [op]
        rows = self.session.ops_with_link(op.node_id.to_bytes(8, "big"), op.link)
        rows += [row for each in times for row in self.session.entries_at(pack(each.timestamp))]
        drafts = [
            each for each in self._drafts if isinstance(each, OpDraft) and each.is_received and each.place is None
        ]
        fresh = [draft.body for draft in drafts if draft.op.node_id == op.node_id]
        return [signed(self._log.signer, body) for body in ([row.body for row in rows] + fresh) if body[:16] != op.id]

    @property
    def holds_everything(self) -> bool:
        """Whether this node may read every op, and always could, so that it holds all ops of every author."""
        authority = self.projection.permissions.authority
        return authority.reads_everything(self.node, self.now) and self.session.own_meta(GAPS) is None

    def admit(self, op: Op, body: bytes) -> None:
        """Takes in an op from outside whose signature and author are good. It may be older than others."""
        draft = OpDraft(op, body, is_received=True)
        if not isinstance(op.payload, Bundle):
            self._admit(draft, op.id)
            return
        self._drafts.append(draft)
        facts = read_facts(body)
        is_latest = op.node_id != self.node and draft.hlc > self.latest_of(op.node_id)[0]
        cut = self.projection.cut
        is_latest = is_latest and (cut is None or op.timestamp.wall > cut.at_ms)
        judge = judge_of_received(self.projection, facts) if is_latest else None
        if judge is None:
            for place, each in enumerate(facts):
                self._admit(OpDraft(*each, True, place), op.id)
            return
        number, author, counted, size = op.payload.variant, draft.hlc[12:], 0, 0
        for place, (fact, content) in enumerate(facts):
            key: bytes = fact.payload.job_id  # type: ignore[union-attr]
            if self.projection.arrived_in_set(judge, fact, key):
                row = NewOp(fact.id, pack(fact.timestamp), number, JOB, key, judge.reason, _SETTLED, b"", place)
                self._drafts.append(row)
                self._unstamped.append(fact)
                counted += 1
                size += len(content)
            else:
                self._admit(OpDraft(fact, content, True, place), op.id)
        self._latest[op.node_id] = pack(facts[-1].op.timestamp), op.id
        self._counted_sets.append((author, WrittenTotals(counted, size)))

    def _admit(self, draft: OpDraft, entry: bytes) -> None:
        op, packed = draft.op, pack(draft.op.timestamp)
        latest = self.latest_of(op.node_id)
        twins = [keyed(row) for row in self.session.ops_at(packed)] if packed <= latest[0] else []
        if packed > latest[0]:
            self._latest[op.node_id] = packed, entry
            if op.node_id == self.node:
                # This node has lost it, or another machine has its key. Its next op follows this one.
                self._last = entry
        else:
            self._stamps.update((each.timestamp, each) for each in self._unstamped)
            self._unstamped.clear()
        if op.timestamp in self._stamps:
            twins.append(self._stamps[op.timestamp])
        self._stamps[op.timestamp] = op
        for twin in twins:
            self.projection.collide(twin)
        self.projection.arrived(op, integrity=bool(twins))
        self._drafts.append(draft)
        if op.node_id != self.node or type(op.payload) is CreateArtifact:
            self._counted.append((op, len(draft.body)))

    def refuse(self, op_id: bytes, author: int, reason: Reason) -> None:
        self._refusals.append(Refusal(op_id[:ID_BYTES], author.to_bytes(8, "big"), int(reason), self.now))

    def close(self, append: Append) -> None:
        """Stores what was written; the caller's commit makes it durable."""
        projection, session = self.projection, self.session
        now, (wall, logical, _), unfolded = self._head, self._clock, self._unfolded
        assert not (self._drafts and unfolded), "ops that are folded later do not stand among others"
        ops = unfolded or self._stored_all()
        # Before the end of the log is locked, which others wait for.
        projection.flush()
        folded, settled = now.unsettled - self.unsettled, self._settled
        if session.is_beside:
            if ops or folded or (wall, logical) != now[:2]:
                now = session.lock_end()
            settled, (wall, logical) = now.settled, max(now[:2], (wall, logical))
        last, chain, seal = append(session, now, ops)
        if self._counted or self._counted_sets:
            from hocket.log.limits import add_written

            add_written(session, self.node, self._counted, self._counted_sets, projection.jobs.state)
        if self._refusals:
            session.refuse(self._refusals)
        unsettled = now.unsettled - folded
        if unsettled == 0:
            settled = last - len(unfolded)
        unsettled += len(unfolded)
        state = projection.permissions_state
        head = Head(wall, logical, last, chain, settled, unsettled, None, state, self._last, seal)
        if head != now:
            session.put_head(head)
            self._head = head

    def _stored_all(self) -> list[NewOp]:
        changed, drafts = self.projection.changed, self._drafts
        if not changed:
            return [draft if isinstance(draft, NewOp) else self._stored(draft) for draft in drafts]
        return [
            draft._replace(reason=changed.get(draft.id, draft.reason))
            if isinstance(draft, NewOp)
            else self._stored(draft)
            for draft in drafts
        ]

    def _stored(self, draft: OpDraft) -> NewOp:
        op, body, _, place = draft
        reason, subject = self.projection.standing(op.id) if draft.is_op else (_COUNTS, None)
        family, key = subject or _NO_SUBJECT
        stored = body if place is None else b""
        return NewOp(op.id, pack(op.timestamp), discriminant(op.payload), family, key, reason, _SETTLED, stored, place)

    def forget(self) -> None:
        """Call this when it is closed and its changes are known. The projection is free for the next transaction."""
        self.projection.end(self._head)
