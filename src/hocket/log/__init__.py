"""The one way in. Every change of a node's knowledge is an op. `commit` runs requests that write this node's own ops
inside one transaction; `admit` verifies ops from elsewhere and folds them. Both write to the same store; nothing else
does.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import cached_property
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from hocket.bus.hints import ANYTHING
from hocket.errors import StoreError, StoreWentBack, Unconfirmed
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import make_ulid, next_ulid, node_id
from hocket.kernel.keys import RowMac
from hocket.kernel.mesh_rules import HOCKET, Rules, decode_kept_rules
from hocket.log.limits import OutboxBound
from hocket.log.permissions import Permissions, PermissionsReader, writers
from hocket.store import MustBeAlone, Outdated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from hocket.bus.hints import Bus
    from hocket.kernel.authority import Authority
    from hocket.kernel.keys import SigningKey
    from hocket.kernel.ops import Op
    from hocket.kernel.signing import OpSigner
    from hocket.log.admitting import Admitter, Decide, Received
    from hocket.log.audit import AuditFinding
    from hocket.log.checkpoints.keeper import CheckpointKeeper
    from hocket.log.intake import Admission
    from hocket.log.limits import WorkCharge
    from hocket.log.parallel import Helpers
    from hocket.log.permissions import RevocationFile
    from hocket.log.projection import Projection
    from hocket.log.retention.horizons import HorizonKeeper
    from hocket.log.sealing import LogEnd, Sealer
    from hocket.log.state_check import CheckedStates
    from hocket.log.store_check import StoreCheck
    from hocket.log.succession.leading import CoordinatorLead
    from hocket.log.transaction import BeatOf, KeepApart, Transaction, Wall
    from hocket.log.written.journal import WrittenEntries
    from hocket.store import Head, NewOp, Session, Store
    from hocket.store.statements import EndedMacs

    Request = Callable[[Transaction], Any]

__all__ = ["SETTLE_STEP", "Admission", "Log", "Transaction"]

T = TypeVar("T")
# Loaded on first use: a command that only reads needs none of them.
_PARTS = {"Admission": "intake", "Transaction": "transaction"}


def __getattr__(name: str) -> Any:
    if name not in _PARTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{_PARTS[name]}"), name)
    globals()[name] = value
    return value


SETTLE_STEP = 1_000
# Where the store keeps the mesh-rules document.
RULES = "rules"


class Committed(NamedTuple):
    """The results of requests. Some have decided something as the coordinator: by their places, the time of the last op
    that is to be confirmed before they are told.
    """

    results: list[Any]
    unconfirmed: dict[int, bytes]


def load() -> None:
    """Loads what a log needs to write ops and to admit them. A process that stays calls it at its start, so that no
    request waits for a module.
    """
    from importlib import import_module

    from hocket.kernel.family import FAMILIES
    from hocket.log.projectors import rules_of

    for name in ("admitting", "author_check", "intake", "limits", "sealing", "succession.leading"):
        import_module(f"{__name__}.{name}")
    for family in FAMILIES.values():
        rules_of(family.name)
        if family.projector is not None:
            family.projector()


class Log:
    """`wall` gives the time and `randomness` that many random bytes; both are arguments, so that a simulation can
    choose them. `physical` is the machine's own clock in milliseconds; `wall` may run ahead of it once another node has
    sent a later time. With `helpers`, ops are verified in parallel and the end of the log is signed in the background;
    without helpers the caller's thread does everything. After each commit the log publishes the changes on `bus`. In a
    store that nodes share, rows that `ended` count no more, `revocations` keeps those that were seen, and `checked`
    states that were compared with their ops, and `written` is what this node has written there last. `stopwatch` counts
    the seconds that ops from elsewhere are charged for. Close the log before the store.
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
        monotonic: Callable[[], float] = monotonic,
        revocations: RevocationFile | None = None,
        checked: CheckedStates | None = None,
        written: WrittenEntries | None = None,
    ) -> None:
        self.store = store
        self.written = written
        store.mac_rows(RowMac(key), ended)
        self.stopwatch, self._monotonic = stopwatch, monotonic
        self.node = node_id(key.public)
        self.author = self.node.to_bytes(8, "big")
        self.user = user
        self.is_shared = is_shared = store.server_clock is not None
        self._key = key
        self.wall = wall
        self.physical = physical or (lambda: wall(0))
        self._randomness = randomness
        self.helpers = helpers
        self._bus: Bus = bus or _own_bus()
        with store.read() as session:
            kept = session.meta(RULES)
        rules = HOCKET if kept is None else decode_kept_rules(kept)
        self.permissions_reader = PermissionsReader(user, rules, revocations if is_shared else None)
        self.store_check: StoreCheck | None = None
        if is_shared:
            self.store_check = self._new_check(key, checked, written)
            store.check_rows(self.store_check)
        self._sealed_store, self._sealer_lock = store, threading.Lock()
        self.outbox = OutboxBound()
        self._projection: Projection | None = None
        self.beat: BeatOf | None = None
        """Given on a node with a tempo: what its ops carry of their beat."""
        self.keep_apart: KeepApart | None = None
        """Given on a node with blobs: keeps content of jobs beside the log."""
        self._last_id = bytes(16)
        self._last_id_ms = 0
        self._id_lock = threading.Lock()

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
            return SharedSealer()
        return OwnSealer(self._sealed_store, self.signer, self.helpers)

    def _new_check(
        self, key: SigningKey, checked: CheckedStates | None = None, written: WrittenEntries | None = None
    ) -> StoreCheck:
        from hocket.log.store_check import StoreCheck

        return StoreCheck(self.user, self.node, key, lambda: self.permissions_reader, self.helpers, checked, written)

    def audit_rows(self, key: SigningKey) -> list[AuditFinding]:
        """What is wrong with the derived rows of a store that nodes share. `key` is this node's own."""
        if not self.is_shared:
            return []
        from hocket.log.audit import audit_rows

        return audit_rows(self.store, self._new_check(key))

    def commit(self, requests: Sequence[Request], *, beside: bool = False) -> list[Any]:
        """Runs the requests in one durable transaction and returns their results in order. If a request raises, its
        result is the error and it changes nothing; the other requests still count. An error of the store is raised, and
        nothing is kept. `beside` is as in `run`.
        """
        committed = self.commit_unconfirmed(requests, beside=beside)
        for index, at in committed.unconfirmed.items():
            try:
                self.lead.wait(at)
            except Unconfirmed as error:
                committed.results[index] = error
        return committed.results

    def commit_unconfirmed(self, requests: Sequence[Request], *, beside: bool = False) -> Committed:
        """Does not wait until other nodes have what this one has decided as the coordinator."""
        firsts: list[int] = []

        def run_all(tx: Transaction) -> list[Any]:
            firsts.clear()
            results = []
            for request in requests:
                firsts.append(tx.drafted)
                results.append(request(tx))
            return results

        try:
            results, decided = self._run(run_all, beside=beside, firsts=firsts)
            return Committed(results, decided)
        except Exception as error:
            if isinstance(error, StoreError) and not isinstance(error, Unconfirmed):
                raise
            if len(requests) == 1:
                return Committed([error], {})
        found = Committed([], {})
        for request in requests:
            one = self.commit_unconfirmed([request], beside=beside)
            found.unconfirmed.update({len(found.results): at for at in one.unconfirmed.values()})
            found.results.extend(one.results)
        return found

    def run(self, request: Callable[[Transaction], T], *, beside: bool = False) -> T:
        """Runs one request in its own transaction, and raises its error. In a store that nodes share, the transaction
        may run `beside` those of other nodes, if the request only submits jobs, or claims, ends and renews them.
        Otherwise it is undone, and the request runs again alone. What this node decides as the coordinator is confirmed
        by the nodes that may follow it when this returns; if it is not, this raises Unconfirmed.
        """
        result, decided = self._run(request, beside=beside)
        for at in decided.values():
            self.lead.wait(at)
        return result

    def run_unconfirmed(self, request: Callable[[Transaction], T]) -> T:
        """As `run`, but the caller tells nobody of what it decides, so that it need not be confirmed."""
        return self._run(request, firsts=())[0]

    def _run(
        self, request: Callable[[Transaction], T], *, beside: bool = False, firsts: Sequence[int] = (0,)
    ) -> tuple[T, dict[int, bytes]]:
        """Also returns which of the requests, that begin after so many ops each, have decided something which is to be
        confirmed, and the time of the last op.
        """
        if beside and self._can_be_beside:
            with suppress(MustBeAlone):
                return self._run_again(request, self.author, firsts=firsts)
        return self._run_again(request, firsts=firsts)

    @property
    def _can_be_beside(self) -> bool:
        """Ids that are not bound to content must be compared with those of all others."""
        return self.is_shared and self.rules.bounds is not None

    def _run_again(
        self,
        request: Callable[[Transaction], T],
        author: bytes | None = None,
        *,
        at_end: bool = False,
        firsts: Sequence[int] = (0,),
    ) -> tuple[T, dict[int, bytes]]:
        while True:
            try:
                return self._run_once(request, author, at_end, firsts)
            except Outdated:
                continue
            except StoreWentBack:
                if self.written is None:
                    raise
                from hocket.log.written.offering import offer_again

                offer_again(self, self.written)

    def _run_once(
        self, request: Callable[[Transaction], T], author: bytes | None, at_end: bool, firsts: Sequence[int]
    ) -> tuple[T, dict[int, bytes]]:
        with self.store.write(author, at_end=at_end) as session:
            transaction = self.begin(session)
            result = request(transaction)
            is_led = self.is_shared_out(transaction.projection.permissions)
            decided = self._decided(transaction, firsts) if is_led else {}
            transaction.close(self._sealer.append)
            if changes := transaction.changes if self._bus.is_heard() else None:
                self._bus.announce(session, changes)
            transaction.forget()
        if changes:
            self._bus.publish(changes)
        return result, decided

    def _decided(self, tx: Transaction, firsts: Sequence[int]) -> dict[int, bytes]:
        """Which requests of a transaction have decided something, and the time of its last op. Raises Unconfirmed if
        this node may decide nothing now.
        """
        from hocket.log.succession.leading import decided_types, decided_variants

        types, numbers = decided_types(), decided_variants()
        if not (found := [index for index, first in enumerate(firsts) if tx.has_decided(first, types, numbers)]):
            return {}
        if (fault := self.lead.fault(tx.session, tx.projection.permissions)) is not None:
            raise Unconfirmed(f"the coordinator cannot decide now: {fault}")
        if not self.lead.bound_by(tx.session, tx.projection.permissions):
            return {}
        at, _ = tx.latest_of(self.node)
        return dict.fromkeys(found, at)

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
                transaction.forget()
            self._bus.announce(session, ANYTHING)
        if self._bus.is_heard():
            self._bus.publish(ANYTHING)
        self.seal()

    def begin(self, session: Session) -> Transaction:
        """A transaction in a session of the caller's, who closes it. A session has one at a time: all use the same
        projection.
        """
        projection = self._projection
        reader = self.permissions_reader
        if projection is None or projection.session is not session or projection.permissions_reader is not reader:
            from hocket.log.projection import Projection

            projection = self._projection = Projection(session, reader)
        return self._new_transaction(projection, self)

    @cached_property
    def _new_transaction(self) -> type[Transaction]:
        from hocket.log.transaction import Transaction

        return Transaction

    def append_plain(self, kind: str, payload: bytes) -> bytes | None:
        """Schedules one new job without a policy in its own transaction: see `Transaction.append_plain`."""
        author = self.author if self._can_be_beside else None
        return self._run_again(lambda tx: tx.append_plain(kind, payload), author, at_end=True)[0]

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
        return Hlc(self.wall(0), 0, self.node)

    def new_id(self, ms: int) -> bytes:
        """A fresh ULID, later than every other one of this process."""
        with self._id_lock:
            if ms > self._last_id_ms:
                self._last_id_ms = ms
                self._last_id = make_ulid(ms, self._randomness(10))
            else:
                self._last_id = next_ulid(self._last_id)
            return self._last_id

    def is_shared_out(self, permissions: Permissions) -> bool:
        """Whether this node is the coordinator and others may follow it. Most logs have no successions, and load
        nothing of them.
        """
        return permissions.has_successions and self.lead.is_shared_out(permissions)

    @cached_property
    def lead(self) -> CoordinatorLead:
        """What this node may decide and tell if it is the coordinator and others may follow it."""
        from hocket.log.succession.leading import CoordinatorLead

        return CoordinatorLead(self, self._monotonic, self._bus)

    @cached_property
    def checkpoints(self) -> CheckpointKeeper:
        """The trees over the entries of each author, and what authors have signed of them."""
        from hocket.log.checkpoints.keeper import CheckpointKeeper

        return CheckpointKeeper(self)

    @cached_property
    def horizons(self) -> HorizonKeeper:
        """Up to where the log is settled, and what its retention lets go."""
        from hocket.log.retention.horizons import HorizonKeeper

        return HorizonKeeper(self)

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
        if self.written is not None:
            self.written.close()

    def permissions(self, session: Session | None = None) -> Permissions:
        """The permissions as the session sees them, or as they are now."""
        if session is None:
            with self.store.read() as own:
                return self.permissions(own)
        return self.permissions_reader.read(session, session.head().permissions_state)

    def sharers(self, session: Session) -> set[int]:
        """The other nodes that may write into this store."""
        return writers(session, self.permissions(session)) - {self.node} if self.is_shared else set()

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
        return self._admitter.admit(ops, decide, sender=sender, costs=costs, decide_held=decide_held)

    @cached_property
    def _admitter(self) -> Admitter:
        from hocket.log.admitting import Admitter

        return Admitter(self)

    def hear(self, ops: Iterable[tuple[bytes, Op]]) -> None:
        """In a mesh that keeps to Likewise v0.1: moves the clock past the times of ops that are refused without a look
        at them, as far as members have signed them. Elsewhere such ops move it no further than the machine's own clock,
        which the next op is not behind anyway.
        """
        if self.rules.is_strict:
            self._admitter.hear(ops)

    def release(self, decide: Decide | None = None) -> Admission | None:
        """Admits the held ops whose time has come; returns None if there are none. `decide` is as in `admit`."""
        return self._admitter.release(decide)

    def decide_late(self, node: int, accept: bool) -> int:
        """Admits or drops the ops of a node that came long after its delegation had ended. Returns how many there were.
        Raises NotAuthorised unless this node is the owner's or the coordinator: all other nodes follow those.
        """
        return self._admitter.decide_late(node, accept)


def _own_bus() -> Bus:
    from hocket.bus.memory import MemoryBus

    return MemoryBus()


def _settle_some(tx: Transaction) -> int:
    tx.settle(SETTLE_STEP)
    return tx.unsettled
