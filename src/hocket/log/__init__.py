"""The one way in. Every change of a node's knowledge is an op. `commit` runs requests that write this node's own ops
inside one transaction; `admit` verifies ops from elsewhere and folds them. Both write to the same store; nothing else
does.
"""

from __future__ import annotations

import gc
import threading
from contextlib import suppress
from functools import cached_property, partial
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

from hocket.bus.changes import ANYTHING, LOG, NOTHING, Changes
from hocket.errors import NotAuthorised, StoreError
from hocket.kernel.clock import U32_MAX, WALL_MAX, Hlc, pack
from hocket.kernel.ids import make_ulid, next_ulid, node_id
from hocket.kernel.ops import NO_ID, Op, decode, link_to, plain_schedule, verify_op
from hocket.kernel.postcard import Malformed
from hocket.kernel.row_mac import RowMac
from hocket.kernel.rules import HOCKET, Rules, decode_kept_rules
from hocket.kernel.subjects import JOB
from hocket.kernel.vocabulary import ScheduleJob, number_of
from hocket.log.outbox import OutboxBound
from hocket.log.permissions import Permissions, PermissionsReader
from hocket.store import Head, MustBeAlone, NewOp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from hocket.bus import Bus
    from hocket.kernel.authority import Authority
    from hocket.kernel.keys import SigningKey
    from hocket.kernel.reasons import Reason
    from hocket.kernel.signing import OpSigner
    from hocket.log.audit import AuditFinding
    from hocket.log.author_check import AuthorCheck
    from hocket.log.checked_registers import RevocationFile
    from hocket.log.intake import Admission
    from hocket.log.op_costs import Slice, WorkCharge
    from hocket.log.parallel import Helpers
    from hocket.log.sealing import LogEnd, Sealer
    from hocket.log.short_transaction import LockTransaction
    from hocket.log.state_check import CheckedStates
    from hocket.log.store_check import StoreCheck
    from hocket.log.transaction import BeatOf, Transaction, Wall
    from hocket.store import Session, Store
    from hocket.store.row_macs import EndedMacs

    X = TypeVar("X", bound=LockTransaction)
    Request = Callable[[Transaction], Any]
    Received = tuple[bytes, Op | Malformed]
    Decide = Callable[[Transaction, Sequence[Op]], object]

__all__ = ["SETTLE_STEP", "Admission", "LockTransaction", "Log", "Transaction"]

T = TypeVar("T")
# Loaded on first use: a command that only reads needs none of them.
_PARTS = {"Admission": "intake", "LockTransaction": "short_transaction", "Transaction": "transaction"}


def __getattr__(name: str) -> Any:
    if name not in _PARTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{_PARTS[name]}"), name)
    globals()[name] = value
    return value


ADMIT_BATCH = 1_000
SETTLE_STEP = 1_000
# Where the store keeps the mesh-rules document.
RULES = "rules"
SCHEDULE_JOB = number_of(ScheduleJob)


def load() -> None:
    """Loads what a log needs to write ops and to admit them. A process that stays calls it at its start, so that no
    request waits for a module.
    """
    from importlib import import_module

    for name in ("author_check", "intake", "links", "lock_projector", "message_projector", "output_quota", "sealing"):
        import_module(f"{__name__}.{name}")
    for family in ("availability", "locks", "rows"):
        import_module(f"hocket.kernel.{family}")


class Log:
    """`wall` gives the time and `randomness` that many random bytes; both are arguments, so that a simulation can
    choose them. `physical` is the machine's own clock in milliseconds; `wall` may run ahead of it once another node has
    sent a later time. With `helpers`, ops are verified in parallel and the end of the log is signed in the background;
    without helpers the caller's thread does everything. After each commit the log publishes the changes on `bus`. In a
    store that nodes share, rows that `ended` count no more, `revocations` keeps those that were seen, and `checked`
    states that were compared with their ops. `stopwatch` counts the seconds that ops from elsewhere are charged for.
    Close the log before the store.
    """

    def __init__(
        self,
        store: Store,
        key: SigningKey,
        user: str,
        *,
        wall: Wall,
        randomness: Callable[[int], bytes],
        physical: Callable[[], int] | None = None,
        helpers: Helpers | None = None,
        bus: Bus | None = None,
        ended: EndedMacs | None = None,
        stopwatch: Callable[[], float] = perf_counter,
        revocations: RevocationFile | None = None,
        checked: CheckedStates | None = None,
    ) -> None:
        self.store = store
        store.mac_rows(RowMac(key), ended)
        self._stopwatch = stopwatch
        self.node = node_id(key.public)
        self._author = self.node.to_bytes(8, "big")
        self.user = user
        self.is_shared = is_shared = store.server_clock is not None
        self._key = key
        self._wall = wall
        self.physical = physical or (lambda: wall(0))
        self._randomness = randomness
        self._helpers = helpers
        self._bus: Bus = bus or _own_bus()
        with store.read() as session:
            kept = session.meta(RULES)
        rules = HOCKET if kept is None else decode_kept_rules(kept)
        self.permissions_reader = PermissionsReader(user, rules, revocations if is_shared else None)
        self.store_check: StoreCheck | None = None
        if is_shared:
            self.store_check = self._new_check(key, checked)
            store.check_rows(self.store_check)
        self._sealed_store, self._sealer_lock = store, threading.Lock()
        self._outbox = OutboxBound()
        self.beat: BeatOf | None = None
        """Given on a node with a tempo: what its ops carry of their beat."""
        self._last_id = bytes(16)
        self._last_id_ms = 0
        self._id_lock = threading.Lock()
        self._authors: set[int] = set()

    @cached_property
    def signer(self) -> OpSigner:
        from hocket.kernel.signing import OpSigner

        return OpSigner(self._key, self.node, at_once=self.is_shared)

    @cached_property
    def _sealer(self) -> Sealer:
        """Made for the first write. Two threads may write first, and share one sealer."""
        with self._sealer_lock:
            made: Sealer = self.__dict__.get("_sealer") or self._new_sealer()
            self.__dict__["_sealer"] = made
            return made

    def _new_sealer(self) -> Sealer:
        from hocket.log.sealing import OwnSealer, SharedSealer

        if self.store_check is not None:
            return SharedSealer(self.store_check.wrote)
        return OwnSealer(self._sealed_store, self.signer, self._helpers)

    def _new_check(self, key: SigningKey, checked: CheckedStates | None = None) -> StoreCheck:
        from hocket.log.store_check import StoreCheck

        return StoreCheck(self.user, self.node, key, lambda: self.permissions_reader, self._helpers, checked)

    def audit_rows(self, key: SigningKey) -> list[AuditFinding]:
        """What is wrong with the derived rows of a store that nodes share. `key` is this node's own."""
        if not self.is_shared:
            return []
        from hocket.log.row_audit import audit_rows

        return audit_rows(self.store, self._new_check(key))

    def commit(self, requests: Sequence[Request], *, beside: bool = False) -> list[Any]:
        """Runs the requests in one durable transaction and returns their results in order. If a request raises, its
        result is the error and it changes nothing; the other requests still count. An error of the store is raised, and
        nothing is kept. `beside` is as in `run`.
        """
        try:
            return self.run(lambda tx: [request(tx) for request in requests], beside=beside)
        except StoreError:
            raise
        except Exception as error:
            if len(requests) == 1:
                return [error]
        results: list[Any] = []
        for request in requests:
            results += self.commit([request], beside=beside)
        return results

    def run(self, request: Callable[[Transaction], T], *, beside: bool = False) -> T:
        """Runs one request in its own transaction, and raises its error. In a store that nodes share, the transaction
        may run `beside` those of other nodes, if the request only submits jobs, or claims, ends and renews them.
        Otherwise it is undone, and the request runs again alone.
        """
        if beside and self._can_be_beside:
            with suppress(MustBeAlone):
                return self._run(self.begin, request, self._author)
        return self._run(self.begin, request)

    @property
    def _can_be_beside(self) -> bool:
        """Ids that are not bound to content must be compared with those of all others."""
        return self.is_shared and self.rules.bounds is not None

    def run_short(self, request: Callable[[LockTransaction], T]) -> T:
        """Runs one request about locks in its own transaction, which is short if this node is the arbiter."""
        return self._run(self._short_transaction, request)

    def _run(self, begin: Callable[[Session], X], request: Callable[[X], T], author: bytes | None = None) -> T:
        with self.store.write(author) as session:
            transaction = begin(session)
            result = request(transaction)
            transaction.close(self._sealer.append)
            if changes := transaction.changes if self._bus.is_heard() else NOTHING:
                self._bus.announce(session, changes)
        transaction.forget()
        if changes:
            self._bus.publish(changes)
        return result

    def run_each(self, requests: Iterable[Callable[[Transaction], object]]) -> None:
        """Runs the requests one after the other in one durable transaction: all of them count, or none, and the error
        of the one that fails is raised. What each has written is stored before the next begins, so that they need
        little memory, however many there are.
        """
        with self.store.write() as session:
            for request in requests:
                transaction = self.begin(session)
                request(transaction)
                transaction.close(self._sealer.append)
                # A transaction and its projection refer to each other, and would be freed much later.
                del transaction
                gc.collect()
            self._bus.announce(session, ANYTHING)
        if self._bus.is_heard():
            self._bus.publish(ANYTHING)
        self.seal()

    def begin(self, session: Session) -> Transaction:
        """A transaction in a session of the caller's, who closes it."""
        from hocket.log.transaction import Transaction

        return Transaction(
            session,
            self.signer,
            self.permissions_reader,
            self._wall,
            self.physical(),
            self.new_id,
            self._outbox,
            self.beat,
        )

    def _short_transaction(self, session: Session) -> LockTransaction:
        from hocket.log.short_transaction import ShortTransaction
        from hocket.log.transaction import being_rebuilt

        session.lock_author(self._author)
        session.lock_permissions(exclusive=False)
        head = session.head()
        if head.rebuilding is not None:
            raise being_rebuilt()
        now = self._wall(head.wall)
        permissions = self.permissions_reader.read(session, head.permissions_state)
        if self.rules.bounds is None or permissions.arbiter(Hlc(now, U32_MAX, self.node)) != self.node:
            return self.begin(session)
        return ShortTransaction(session, head, self.signer, permissions, now, self.physical(), self.beat)

    def append_plain(self, kind: str, payload: bytes) -> bytes | None:
        """Schedules one new job without a policy and returns its id, which is that of the op. This is the short way for
        the commonest op: the op always counts, so it is only put on the log. The next transaction that reads the roster
        folds and indexes many such ops at once. Returns None, and writes nothing, if the kind has options, or this
        node a tempo.
        """
        if self.beat is not None:
            return None
        from hocket.kernel.policy import DEFAULT
        from hocket.log.projectors import defaults_of
        from hocket.log.transaction import being_rebuilt, next_stamp

        author = self._author if self._can_be_beside else None
        with self.store.write(author, at_end=True) as session:
            session.lock_author(self._author)
            session.lock_permissions(exclusive=False)
            head = session.head()
            if head.rebuilding is not None:
                raise being_rebuilt()
            if defaults_of(session, kind) is not DEFAULT:
                return None
            stamp = next_stamp(Hlc(head.wall, head.logical, self.node), self._wall(head.wall))
            permissions = self.permissions_reader.read(session, head.permissions_state)
            if permissions.delegations:
                schedule = ScheduleJob(NO_ID, kind, b"", b"")
                refused = permissions.authority.refusal(self.node, schedule, stamp.wall, kind)
                if refused is not None:
                    raise NotAuthorised(f"this node may not submit {kind} jobs: {refused.sentence}")
                self._outbox.check(session, self.node, lambda: permissions.awaited(stamp), head.seq + 1)
            is_bound = self.permissions_reader.rules.bounds is not None
            link_back = link_to(head.last) if is_bound else None
            new_id = None if is_bound else self._free_id(session, stamp.wall)
            job_id, body = plain_schedule(new_id, stamp, link_back, kind, payload)
            body = self.signer.for_log(body)
            new = NewOp(job_id, pack(stamp), SCHEDULE_JOB, JOB, job_id, 0, 0, body)
            seq, chain, seal = self._sealer.append(session, head, (new,))
            settled = head.settled if head.unsettled else head.seq
            session.put_head(
                Head(
                    stamp.wall,
                    stamp.logical,
                    seq,
                    chain,
                    settled,
                    head.unsettled + 1,
                    None,
                    head.permissions_state,
                    job_id,
                    seal,
                )
            )
            changes = NOTHING
            if self._bus.is_heard():
                changes = Changes(frozenset((kind,)), frozenset(((JOB, job_id), (LOG, b""))))
                self._bus.announce(session, changes)
        if changes:
            self._bus.publish(changes)
        return job_id

    def settle(self) -> None:
        """Folds every op on the log into the projections, in steps that block other writers only briefly."""
        with self.store.read() as session:
            unsettled = session.head().unsettled
        while unsettled > 0:
            unsettled = self.run(_settle_some)

    def reading(self) -> Hlc:
        """The time of the log's clock, as far as this process knows: not behind the wall, and no later than the next
        op. Any thread may call this; it does not touch the store.
        """
        return Hlc(self._wall(0), 0, self.node)

    def new_id(self, ms: int) -> bytes:
        """A fresh ULID, later than every other one of this process."""
        with self._id_lock:
            if ms > self._last_id_ms:
                self._last_id_ms = ms
                self._last_id = make_ulid(ms, self._randomness(10))
            else:
                self._last_id = next_ulid(self._last_id)
            return self._last_id

    def _free_id(self, session: Session, ms: int) -> bytes:
        """An id that no op and no job has. In a strict mesh another node can guess the next id, and take it."""
        op_id = self.new_id(ms)
        if self.rules.is_strict:
            from hocket.log.naming import is_taken

            while is_taken(session, op_id):
                op_id = self.new_id(ms)
        return op_id

    def signed(self, op: bytes) -> bytes:
        """An op of the log as it may leave the node: with its signature."""
        from hocket.log.sealing import signed

        return signed(self.signer, op)

    def seal(self) -> None:
        """Signs the end of the log, if only this node writes it."""
        self._sealer.seal()

    def append_received(self, session: Session, head: Head, ops: Sequence[NewOp]) -> LogEnd:
        """Adds ops to the log that are folded already. The caller puts its new end into the head."""
        return self._sealer.append(session, head, ops)

    def end_at(self, seq: int, chain: bytes) -> LogEnd:
        """The end of a log from which the ops after that one were taken."""
        return self._sealer.moved(seq, chain)

    def close(self) -> None:
        if "_sealer" in self.__dict__:
            self._sealer.close()

    def permissions(self, session: Session | None = None) -> Permissions:
        """The permissions as the session sees them, or as they are now."""
        if session is None:
            with self.store.read() as own:
                return self.permissions(own)
        return self.permissions_reader.read(session, session.head().permissions_state)

    def authority(self) -> Authority:
        return self.permissions().authority

    @property
    def rules(self) -> Rules:
        return self.permissions_reader.rules

    def admit(
        self,
        ops: Iterable[Received],
        decide: Decide | None = None,
        *,
        sender: int | None = None,
        costs: WorkCharge | None = None,
        decide_held: Decide | None = None,
    ) -> Admission:
        """Admits ops from elsewhere, in any order, any number of times. Refuses and counts those that it cannot verify.
        Calls `decide` with the new ops, inside the transaction that admits them. `sender` is the node that sends them,
        None for the operator. With `costs`, the time is charged to the authors, and admission may stop before the end.
        Held ops whose time has come are admitted first, with `decide_held` if it is given.
        """
        # Held ops of an author come before its later ops.
        self.release(decide_held or decide)
        return self._admit(ops, decide, sender, costs)

    def _admit(
        self,
        ops: Iterable[Received],
        decide: Decide | None,
        sender: int | None,
        costs: WorkCharge | None = None,
        *,
        is_vouched: bool = True,
    ) -> Admission:
        with self.store.read() as session:
            keys = {int.from_bytes(node, "big"): public for node, (public, _) in session.nodes().items()}
            permissions = self.permissions(session)
        is_vouched = is_vouched if sender is None else permissions.is_trusted(sender, self._wall(0))
        from hocket.log.author_check import AuthorCheck
        from hocket.log.intake import Admission, add

        door = AuthorCheck(self.user, keys, self._has_written, permissions, self.node, self._wall(0))
        total = Admission(0, 0, {})
        waiting: Callable[[], Admission] | None = None
        for batch, is_costly in _batches(ops, costs):
            # While one batch is folded, the helpers verify the next.
            following = self._begin(batch, door, decide, is_vouched, sender, costs, is_costly)
            if waiting is not None:
                total = add(total, waiting())
            if total.is_stopped:
                return total
            waiting = following
        return total if waiting is None else add(total, waiting())

    def _has_written(self, node: int) -> bool:
        """Whether an op of this node is on the log. Ops stay on the log, so a yes is remembered."""
        if node not in self._authors:
            with self.store.read() as session:
                if session.ops_of_author(node.to_bytes(8, "big"), bytes(20), 1):
                    self._authors.add(node)
        return node in self._authors

    def _begin(
        self,
        batch: list[Received],
        door: AuthorCheck,
        decide: Decide | None,
        is_vouched: bool,
        sender: int | None,
        costs: WorkCharge | None,
        is_costly: bool,
    ) -> Callable[[], Admission]:
        """Begins to verify a batch. The returned function finishes that and admits the good ops. Ops that members send,
        or whose author is costly, are admitted in slices.
        """
        from hocket.log.intake import Admission, Intake, add
        from hocket.log.op_costs import Slice

        good = sorted(((raw, op) for raw, op in batch if isinstance(op, Op)), key=lambda item: item[1].timestamp)
        judging = door.judge(good, self._helpers)
        is_sliced = costs is not None and (is_costly or not is_vouched)
        # The time of an op is measured alone only if another author's could be beside it.
        is_mixed = costs is not None and len({op.node_id for _, op in good}) > 1

        def finish() -> Admission:
            rest = [(raw, op, reason) for (raw, op), reason in zip(good, judging.finish(), strict=True)]
            limit = self.physical() + self._skew
            unreadable = [(raw, op) for raw, op in batch if isinstance(op, Malformed)]
            total = Admission(0, 0, {})
            while True:
                slice_ = Slice(self._stopwatch, is_sliced)
                total = add(total, self.run(partial(request, slice_, limit, rest, unreadable)))
                del rest[: slice_.taken]
                unreadable = []
                may_go_on = costs is None or costs.charge(slice_.work())
                if not rest:
                    return total
                if not may_go_on:
                    return total._replace(is_stopped=True)

        def request(
            slice_: Slice,
            limit: int,
            rest: list[tuple[bytes, Op, Reason | None]],
            unreadable: list[tuple[bytes, Malformed]],
            tx: Transaction,
        ) -> Admission:
            tx.lock_permissions_for(op.payload for _, op, _ in rest)
            tx.session.order_ops()
            tx.settle()
            slice_.begin()
            intake = Intake(tx, limit, [op for _, op, _ in rest], is_vouched, sender)
            for raw, error in unreadable:
                intake.unreadable(raw, error)
            for step in slice_.steps(rest):
                first = len(intake.taken)
                for raw, op, reason in step:
                    intake.take(raw, op, reason)
                    if is_mixed:
                        slice_.note(op.node_id)
                intake.settle()
                taken = intake.taken[first:]
                if decide is not None and taken and not is_mixed:
                    decide(tx, taken)
                elif decide is not None:
                    for op in taken:
                        decide(tx, (op,))
                        slice_.note(op.node_id)
                if not is_mixed:
                    slice_.note(op.node_id)
            return intake.admission()

        return finish

    def hear(self, ops: Iterable[tuple[bytes, Op]]) -> None:
        """In a mesh that keeps to Likewise v0.1: moves the clock past the times of ops that are refused without a look
        at them, as far as members have signed them. Elsewhere such ops move it no further than the machine's own clock,
        which the next op is not behind anyway.
        """
        if not self.rules.is_strict:
            return
        with self.store.read() as session:
            ahead = session.head().wall
            keys = {int.from_bytes(node, "big"): public for node, (public, _) in session.nodes().items()}
        # Only ops that would move the clock are worth a look at their signatures.
        later = [(raw, op) for raw, op in ops if ahead <= op.timestamp.wall <= WALL_MAX]
        signed = [
            op.timestamp for raw, op in later if (key := keys.get(op.node_id)) is not None and verify_op(raw, op, key)
        ]
        if signed:
            self.run(lambda tx: tx.hear(max(signed)))

    def release(self, decide: Decide | None = None) -> Admission | None:
        """Admits the held ops whose time has come; returns None if there are none. `decide` is as in `admit`."""
        until = self.physical() + self._skew
        with self.store.read() as session:
            first = session.held()[1]
        if first is None or first > until:
            return None
        with self.store.read() as session:
            due = session.due(until, ADMIT_BATCH)
        # Where nodes share the store, any of them can have put an op there, so that nobody vouches for it.
        admission = self._admit(((body, _read(body)) for body in due), decide, None, is_vouched=not self.is_shared)
        self.run(lambda tx: tx.session.drop_held([body[:16] for body in due]))
        return admission

    def decide_late(self, node: int, accept: bool) -> int:
        """Admits or drops the ops of a node that came long after its delegation had ended. Returns how many there were.
        Raises NotAuthorised unless this node is the owner's or the coordinator: all other nodes follow those.
        """
        if not self.permissions().is_trusted(self.node, self._wall(0)):
            raise NotAuthorised("the owner decides on late ops; do this on the owner's node or on the coordinator")
        with self.store.read() as session:
            late = session.late_ops(node.to_bytes(8, "big"))
        if accept and late:
            self._admit(((each.body, _read(each.body)) for each in late), None, None)
        self.run(lambda tx: tx.session.drop_late([each.id for each in late]))
        return len(late)

    @property
    def _skew(self) -> int:
        """How far ahead of this machine's clock an op may be."""
        extensions = self.rules.extensions
        return WALL_MAX if extensions is None else extensions.skew_ms


def _own_bus() -> Bus:
    from hocket.bus.memory import MemoryBus

    return MemoryBus()


def _read(body: bytes) -> Op | Malformed:
    """A held op, or why it cannot be read: a damaged op must not keep the others out."""
    try:
        return decode(body)
    except Malformed as error:
        return error


def _settle_some(tx: Transaction) -> int:
    tx.settle(SETTLE_STEP)
    return tx.unsettled


def _batches(ops: Iterable[Received], costs: WorkCharge | None) -> Iterator[tuple[list[Received], bool]]:
    """The ops in batches, each with whether its authors are costly. Those come after the others."""
    ops = iter(ops)
    while batch := list(islice(ops, ADMIT_BATCH)):
        authors = set() if costs is None else {op.node_id for _, op in batch if isinstance(op, Op)}
        costly = {author for author in authors if costs is not None and costs.is_costly(author)}
        if costly:
            apart = [item for item in batch if isinstance(item[1], Op) and item[1].node_id in costly]
            batch = [item for item in batch if not isinstance(item[1], Op) or item[1].node_id not in costly]
            if batch:
                yield batch, False
            yield apart, True
        else:
            yield batch, False
