"""The engine that keeps the projections equal to the log inside one transaction. It applies the newest op about a
subject in place. After a late op, or when a dependency of an op begins or ceases to count, it refolds the subject and
every subject that depends on it. It judges an op without a subject alone and enters it in a register.

The engine knows no family: the kernel has the rules, and the projectors and registers store the results.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, cast

from hocket.kernel import arbitration
from hocket.kernel.clock import Hlc, pack
from hocket.kernel.coordination_payloads import Availability
from hocket.kernel.kinds import names_of as kind_names
from hocket.kernel.ops import Op
from hocket.kernel.policy import DEFAULT, Policy
from hocket.kernel.reasons import UNAUTHORISED, Reason
from hocket.kernel.subjects import ACCEPTANCES, AVAILABILITY, JOB, KIND, LOCK, MESSAGE, Subject, names_of, subject_of
from hocket.kernel.vocabulary import ReportFork, RevokeRoot, Unknown, discriminant
from hocket.log.artifact_register import ArtifactRegister
from hocket.log.citations import Citations, names_others
from hocket.log.job_projector import JobProjector
from hocket.log.naming import ID_BYTES, Naming, keyed
from hocket.log.ownership import Ownership
from hocket.log.permissions import Permissions, PermissionsReader, trace
from hocket.log.projectors import Projector, Register, SubjectProjector, family_names, family_of, is_known
from hocket.log.registers import CoordinatorRegister, GrantRegister, RouteRegister
from hocket.log.schedule_register import ScheduleRegister
from hocket.log.unstored_ops import UnstoredOps
from hocket.store import Session

if TYPE_CHECKING:
    from hocket.log.lock_projector import LockProjector
    from hocket.log.message_projector import MessageProjector

_COUNTS = 0
_UNAUTHORISED = tuple(map(int, UNAUTHORISED))


class Projectors(dict[str, Projector[Any]]):
    """The projectors of a transaction by their families, each made with the first subject of its family."""

    def __init__(self, session: Session, engine: "Projection", jobs: JobProjector) -> None:
        super().__init__({JOB: jobs})
        self._session, self._engine = session, engine

    def __missing__(self, family: str) -> Projector[Any]:
        made = self[family] = self._new(family)
        return made

    def _new(self, family: str) -> Projector[Any]:
        if family == LOCK:
            from hocket.log.lock_projector import LockProjector

            return LockProjector(self._session, self._engine)
        if family == MESSAGE:
            from hocket.log.message_projector import MessageProjector

            return MessageProjector(self._session, self._engine)
        return SubjectProjector(self._session, self._engine, family, family_of(family))

    def made(self) -> list[Projector[Any]]:
        return [self[family] for family in family_names() if family in self]


class Projection:
    """As of one transaction. It also answers any family's questions about the rest of the log."""

    def __init__(
        self,
        session: Session,
        now: int,
        permissions_reader: PermissionsReader,
        permissions_state: int,
        settle: Callable[[], bool] = lambda: False,
        physical: int | None = None,
    ) -> None:
        """`permissions_state` is the number of the permissions in force. `settle` folds what is on the log but not in
        the projections yet; it gives False when there is nothing. `physical` is the machine's own clock, if it decides.
        """
        self._session = session
        self.now = now
        self.physical = now if physical is None else physical
        self._permissions_reader = permissions_reader
        self.permissions_state = permissions_state
        self._fresh = UnstoredOps()
        # The op that was just found to be allowed.
        self._allowed: Op | None = None
        # What must be judged again, each once: subjects, and ops without one. For a subject: whether to judge also the
        # ops that no delegation allowed, because the permissions have changed.
        self._again: OrderedDict[Subject, bool] = OrderedDict()
        self._doubted: OrderedDict[bytes, None] = OrderedDict()
        self._defaults: dict[str, Policy] = {}
        self.is_strict = permissions_reader.rules.is_strict
        self._naming = Naming(session, self._fresh, self.is_strict)
        artifacts = ArtifactRegister(session, self, permissions_reader.rules.bounds is not None)
        self._artifacts, self._grants, self._schedules = (
            artifacts,
            GrantRegister(session),
            ScheduleRegister(session, self),
        )
        routes = RouteRegister(session, self)
        self.jobs = JobProjector(session, self, routes, settle, self._folded_anew)
        # Whether ops have come in late, or the permissions have changed: then stored states may be those of before.
        self._is_changing = False
        self.citations = Citations(
            session, self._fresh, self.jobs.entry, artifacts.artifact, self.arbiter, settle, self.is_strict
        )
        self.projectors = Projectors(session, self, self.jobs)
        self._kinds = cast(SubjectProjector, self.projectors[KIND])
        self._coordinators = CoordinatorRegister(session, self, self.projectors)
        registers: tuple[Register, ...] = (self._coordinators, routes, artifacts, self._schedules)
        self._registers = {payload: register for register in registers for payload in register.payloads}
        known = lambda op_id: self.known(op_id)[0]  # noqa: E731
        self._ownership = Ownership(session, known, self.jobs.entry, artifacts.artifact, self.citations.cite)

    @cached_property
    def permissions(self) -> Permissions:
        """Read again when they have changed."""
        fresh = [op for op, _ in self._fresh.ops.values()]
        return self._permissions_reader.read(self._session, self.permissions_state, fresh)

    @property
    def locks(self) -> "LockProjector":
        return cast("LockProjector", self.projectors[LOCK])

    def no_longer_waiting(self) -> set[bytes]:
        """The ops that asked for locks and waited in a queue until this transaction."""
        return self.locks.no_longer_waiting if LOCK in self.projectors else set()

    @property
    def messages(self) -> "MessageProjector":
        return cast("MessageProjector", self.projectors[MESSAGE])

    # What the rules ask.

    def refusal(self, op: Op, word: str) -> Reason | None:
        return None if op is self._allowed else self.permissions.refusal(op, word)

    def arbiter(self, at: Hlc) -> int | None:
        return self.permissions.arbiter(at)

    def is_overtaken(self, at: Hlc) -> bool:
        return self.permissions.is_overtaken(at)

    def offered(self, op_id: bytes, subject: Subject) -> Op | None:
        op, _ = self.known(op_id)
        return op if op is not None and subject_of(op.payload) == subject else None

    # What projectors and registers ask.

    def known(self, op_id: bytes) -> tuple[Op | None, int]:
        if op_id in self._fresh.ops:
            return self._fresh.ops[op_id]
        row = self._session.op(op_id)
        return (None, _COUNTS) if row is None else (keyed(row), row.reason)

    def offered_since(self, at: Hlc) -> set[Subject]:
        """The subjects of mere offers that are later."""
        families = [name for name in family_names() if not self.projectors[name].family.is_open(None)]
        stored = {
            subject for name in families for subject in self._session.subjects_offered(name, Reason.OFFERED, pack(at))
        }
        fresh = {
            self._fresh.subjects[op.id]
            for op, reason in self._fresh.ops.values()
            if reason == Reason.OFFERED and op.timestamp > at
        }
        return stored | {subject for subject in fresh if subject is not None and subject.family in families}

    def counting(self, variants: tuple[int, ...]) -> Iterator[Op]:
        for row in self._session.ops_of_variants(variants):
            if row.reason == _COUNTS:
                yield keyed(row)
        for op, reason in list(self._fresh.ops.values()):
            if reason == _COUNTS and discriminant(op.payload) in variants:
                yield op

    def ask_again(self, subject: Subject, permissions: bool = False) -> None:
        self._again[subject] = permissions or self._again.get(subject, False)

    def doubt(self, op_id: bytes) -> None:
        self._doubted[op_id] = None

    def _doubt(self, op_id: bytes, subject: Subject | None, permissions: bool = False) -> None:
        """An op must be judged again, with all ops about its subject if it has one."""
        if subject is not None and is_known(subject.family):
            self.ask_again(subject, permissions)
        else:
            self.doubt(op_id)

    def flush(self) -> None:
        """Writes what has changed, so that the store's queries see it."""
        self._artifacts.flush()
        if self._kinds.is_changed:
            self._defaults.clear()
        for projector in self.projectors.made():
            projector.flush()

    def forget(self) -> None:
        """Frees the ops and the jobs of the transaction."""
        self._fresh.forget()
        self.jobs.forget()

    def defaults(self, kind: str) -> Policy:
        if self._kinds.is_changed:
            self._defaults.clear()
        if kind not in self._defaults:
            definitions = (self._kinds.state(name.encode()) for name in kind_names(kind))
            self._defaults[kind] = next((each.policy for each in definitions if each is not None), DEFAULT)
        return self._defaults[kind]

    def defined_at(self, kind: str) -> Hlc | None:
        """When the options of a kind were defined; None if they were not."""
        definitions = (self._kinds.state(name.encode()) for name in kind_names(kind))
        return next((each.defined for each in definitions if each is not None), None)

    def availability(self, node: int) -> Availability:
        state = self.projectors[AVAILABILITY].state(node.to_bytes(8, "big"))
        return Availability.ACTIVE if state is None else state.availability

    def _subject(self, op: Op) -> Subject | None:
        """What the op is about, if this node knows the family."""
        subject = subject_of(op.payload)
        return subject if subject is not None and is_known(subject.family) else None

    def prepare(self, ops: Sequence[Op]) -> None:
        """Reads at once what will be asked about ops that are about to arrive. The log must be settled."""
        keys: dict[str, dict[bytes, None]] = {}
        names: list[bytes] = []
        for op in ops:
            if (subject := self._subject(op)) is not None:
                keys.setdefault(subject.family, {})[subject.key] = None
            names += (op.id, *names_of(op.payload))
        for family, found in keys.items():
            self.projectors[family].prepare(list(found))
            names += found
        self.citations.expect(names)

    def is_unauthorised(self, op: Op) -> bool:
        """Whether no delegation allows an op that is about to arrive, or its variant is unknown here."""
        subject = self._subject(op)
        if subject is None:
            refused = self.permissions.refusal(op)
        else:
            projector = self.projectors[subject.family]
            state = projector.state(subject.key)
            is_certain = projector.family.is_certain(state, op)
            refused = self.permissions.refusal(op, projector.family.word(state)) if is_certain else None
        return refused in UNAUTHORISED or isinstance(op.payload, Unknown)

    def would_count(self, op: Op) -> bool:
        """Whether an op that is about to arrive would count as things stand, or could be accepted by the arbiter."""
        op = self._naming.resolved(op)
        subject = self._subject(op)
        if subject is None:
            return self._fault(op) is None
        projector = self.projectors[subject.family]
        state = projector.state(subject.key)
        verdict = self._applied(projector, subject, state, op)
        if verdict is Reason.OFFERED:
            verdict = projector.family.apply_decided(state, op, projector.context, op.node_id)
        return not isinstance(verdict, Reason)

    # Ops that are later than everything on the log: this node's own.

    def newest(self, op: Op) -> Reason | None:
        """Applies an op that is later than every op on the log. A refused op leaves no trace; an offer does."""
        op = self._naming.resolved(op)
        subject = self._subject(op)
        if subject is None:
            reason = self._fault(op)
            if reason is None:
                self._fresh.put(op, _COUNTS)
                self._grants.introduce(op)
                self._enact(op)
                self._enter(op)
                self.settle()
            return reason
        projector = self.projectors[subject.family]
        state = projector.state(subject.key)
        verdict = projector.own_fault(state, op) or self._applied(projector, subject, state, op)
        if verdict is Reason.OFFERED:
            self._fresh.put(op, Reason.OFFERED)
            self._note(projector, subject, state, op, verdict)
            return None
        if isinstance(verdict, Reason):
            return verdict
        self._fresh.put(op, _COUNTS, subject)
        is_new = projector.is_new(subject.key)
        projector.keep(subject.key, verdict)
        # Ops may already wait for an id that other nodes can make too, like that of a schedule's tick.
        if type(op.payload) in ACCEPTANCES or (not is_new and subject.key in names_of(op.payload)):
            self._leaners(op)
            self.settle()
        return None

    # Ops in any order: received, imported, or met again in a rebuild.

    def arrived(self, op: Op, integrity: bool) -> None:
        """Takes in an op that may be older than others, before its row is stored. Subjects that have to be folded again
        are folded by `settle`, each once; `reason` tells afterwards whether the op counts.
        """
        subject = self._subject(op)
        self._is_changing = True
        self._fresh.put(op, Reason.WAITING)
        if len(op.id) > ID_BYTES:
            self._share_id(op)
        if self.permissions.could_be_pinned(op):
            # If the op itself changes the permissions, they change once more for that.
            self.permissions_changed(op, b"arrived" + op.id)
        if integrity := integrity and not self._stands_alone(op):
            self._fresh.put(op, Reason.INTEGRITY)
        if subject is None:
            self._grants.introduce(op)
            self.doubt(op.id)
        elif not integrity:
            self._arrived_at(subject, op)
        # Ops that cite this one have waited for it, even if only to learn that it is later than they are.
        self._leaners(op)
        if subject is None:
            # The permissions, routes and coordinators decide about the ops that follow.
            while self._doubted:
                self._judge(self._doubted.popitem(last=False)[0])

    def _share_id(self, op: Op) -> None:
        """Ops that cite the id may mean this op now. Those about the subject of the op that they meant before are found
        by that subject; the citations of all others are stored.
        """
        for other in self._naming.namesakes(op.id[:ID_BYTES]):
            if other.subject is not None and other.key != op.id:
                self._doubt(other.key, other.subject)

    def _arrived_at(self, subject: Subject, op: Op) -> None:
        projector = self.projectors[subject.family]
        family, state = projector.family, projector.state(subject.key)
        is_certain = family.is_certain(state, op)
        refused = self.permissions.refusal(op, family.word(state)) if is_certain else None
        if refused in UNAUTHORISED:
            # It is no reason to refold the subject.
            self._fresh.put(op, refused)
        elif subject in self._again:
            return
        elif refused is None and is_certain and arbitration.could_offer(family, op, self) and self._cites_well(op):
            self._fresh.put(op, Reason.OFFERED)
        elif state is not None and op.timestamp > family.last(state):
            self._allowed = op if is_certain and refused is None else None
            self._fresh.put(op, self._in_place(projector, subject, state, op))
            self._allowed = None
        elif state is None and projector.is_new(subject.key) and subject.key in names_of(op.payload):
            self._fresh.put(op, self._in_place(projector, subject, None, op))
        else:
            self.ask_again(subject)
        projector.not_new(subject.key)

    def replayed(self, op: Op, integrity: bool = False) -> int:
        """Applies the next op of the whole log in HLC order, whose row is stored. Gives its reason, 0 if it
        counts.
        """
        if integrity and not self._stands_alone(op):
            return Reason.INTEGRITY
        op = self._naming.resolved(op)
        subject = self._subject(op)
        if subject is not None:
            projector = self.projectors[subject.family]
            return self._in_place(projector, subject, projector.state(subject.key), op)
        reason = self._verdict(op)
        if reason == _COUNTS and not self._coordinators.has(op):
            self._enter(op)
        return reason

    def reason(self, op_id: bytes) -> int:
        """Whether an op of this transaction counts."""
        return self._fresh.ops[op_id][1]

    def standing(self, op_id: bytes) -> tuple[int, Subject | None]:
        """Whether an op of this transaction counts, and its subject."""
        return self._fresh.ops[op_id][1], self._fresh.subjects[op_id]

    def _in_place(self, projector: Projector[Any], subject: Subject, state: Any, op: Op) -> int:
        op = self._naming.resolved(op)
        verdict = self._applied(projector, subject, state, op)
        if not isinstance(verdict, Reason):
            projector.keep(subject.key, verdict)
            return _COUNTS
        if verdict not in UNAUTHORISED:
            self._note(projector, subject, state, op, verdict)
        return verdict

    def _applied(self, projector: Projector[Any], subject: Subject, state: Any, op: Op) -> Any:
        citing = partial(self._citing_fault, projector, subject, op)
        return arbitration.apply(projector.family, state, subject, op, projector.context, citing)

    def _cites_well(self, op: Op) -> bool:
        return not op.cited or self.citations.fault(self._naming.resolved(op)) is None

    def _note(self, projector: Projector[Any], subject: Subject, state: Any, op: Op, verdict: Reason) -> None:
        """An op that changes nothing still moves the time of the latest op about the subject, unless it is an offer
        whatever the state.
        """
        if state is not None and not arbitration.is_mere_offer(projector.family, verdict):
            projector.note(subject.key, projector.family.seen(state, op))

    def _citing_fault(self, projector: Projector[Any], subject: Subject, op: Op) -> Reason | None:
        """For the newest op about its subject: the claim in force needs no looking up."""
        cited, claim = op.cited, projector.claim(subject.key)
        if len(cited) == 1 and cited[0] == claim and not names_others(op.payload):
            return None
        return self.citations.fault(op, newest_claim=claim)

    def _fault(self, op: Op) -> Reason | None:
        """Why an op without a subject does not count, if so."""
        from hocket.log.links import unlinked

        known = lambda name: self.known(self._naming.key(name, op))[0]  # noqa: E731
        return (
            self.citations.fault(op)
            or self.permissions.refusal(op)
            or unlinked(op, self.permissions.authority, self._artifacts.artifact, known, self.citations.cite)
            or self._ownership.fault(op, self.permissions)
        )

    def _verdict(self, op: Op) -> int:
        """Judges an op without a subject that is on the log in any case."""
        fault = self._fault(op)
        if fault is Reason.OTHERS_SCHEDULE:
            self._schedules.wait(op)
        return int(fault or _COUNTS)

    def collide(self, op: Op) -> None:
        """The op shares its timestamp with another of its author, so it no longer counts."""
        # Read before they change, or the new permissions would be kept under the old ones' number.
        assert self.permissions is not None
        _, before = self.known(op.id)
        if before == Reason.INTEGRITY or self._stands_alone(op):
            return
        self._is_changing = True
        self._set_reason(op, Reason.INTEGRITY)
        subject = self._subject(op)
        if subject is not None:
            self.ask_again(subject)
        else:
            if type(op.payload) in self._grants.payloads and self._grants.repeal(op):
                self.permissions_changed(op)
            if before == _COUNTS:
                self._strike(op)
        self._leaners(op)

    def _stands_alone(self, op: Op) -> bool:
        """Whether an op counts although its author wrote another one with the same timestamp: a proof needs no trust in
        its author, and for a replaced coordinator its successor's designation says which op counts.
        """
        return isinstance(op.payload, ReportFork | RevokeRoot) or op.id in self.permissions.pinned

    # Folding again.

    def _leaners(self, leaned_on: Op) -> None:
        """Marks every op that cites this one to be judged again, since this one may now count, or not."""
        names = {leaned_on.id, *names_of(leaned_on.payload)}
        for citing in [citing for name in names for citing in self.citations.citing(name)]:
            op, _ = self.known(citing)
            if op is not None:
                self._doubt(op.id, subject_of(op.payload))

    def settle(self) -> None:
        """Judges until nothing is left to judge. This ends, because a verdict depends on earlier ops alone."""
        while self._again or self._doubted:
            self._session.lock_all()
            if self._again:
                self._refold(*self._again.popitem(last=False))
            else:
                self._judge(self._doubted.popitem(last=False)[0])

    def _judge(self, op_id: bytes) -> None:
        """Judges again an op without a subject."""
        op, before = self.known(op_id)
        if op is None:
            return  # in a store that nodes share, it is not the op that its author signed
        if before == Reason.INTEGRITY and not self._stands_alone(op):
            return
        op = self._naming.resolved(op)
        self._enact(op)
        reason = self._verdict(op)
        if reason == before:
            return
        self._set_reason(op, reason)
        if reason == _COUNTS:
            self._enter(op)
        elif before == _COUNTS:
            self._strike(op)
        self._leaners(op)

    def _refold(self, subject: Subject, permissions: bool) -> None:
        """Ops without a grant are left out unless the permissions have changed, so that they cost others nothing."""
        without = () if permissions else _UNAUTHORISED
        ops: dict[bytes, tuple[Op, int]] = {
            row.id: (keyed(row), row.reason) for row in self._session.ops_about(subject, without)
        }
        fresh = self._fresh.about(subject)
        ops.update((op.id, (op, reason)) for op, reason in fresh if permissions or reason not in _UNAUTHORISED)
        state, verdicts = self._folded(subject, ops.values())
        projector = self.projectors[subject.family]
        flipped = [op for op, reason in ops.values() if verdicts[op.id][1] != reason]
        for op in flipped:
            self._set_reason(op, verdicts[op.id][1])
        projector.keep(subject.key, state)
        for op in flipped:
            self._leaners(op)

    def _folded(self, subject: Subject, ops: Collection[tuple[Op, int]]) -> tuple[Any, arbitration.Standings]:
        """The state that these ops, each with its reason so far, make of a subject, and what becomes of each."""
        verdicts = {
            op.id: (op.timestamp, reason)
            for op, reason in ops
            if reason == Reason.INTEGRITY and not self._stands_alone(op)
        }
        projector = self.projectors[subject.family]
        resolved = (self._naming.resolved(op) for op, _ in ops)
        state = arbitration.fold(projector.family, subject, resolved, projector.context, self.citations.fault, verdicts)
        return state, verdicts

    def _folded_anew(self, subject: Subject) -> tuple[Any, bool]:
        """For a store whose derived columns nobody has to believe: the state that the stored ops about a subject make
        of it, and whether the stored state must be the same.
        """
        rows = self._session.ops_about(subject)
        ops = [(keyed(row), row.reason) for row in rows]
        twins = [
            (op, Reason.INTEGRITY if len(self._session.ops_at(pack(op.timestamp))) > 1 else _COUNTS)
            if reason == Reason.INTEGRITY
            else (op, reason)
            for op, reason in ops
        ]
        return self._folded(subject, twins)[0], not self._is_changing

    def _set_reason(self, op: Op, reason: int) -> None:
        if op.id in self._fresh.ops:
            self._fresh.put(op, reason)
        else:
            self._session.set_reasons([(reason, op.id)])

    def _enter(self, op: Op) -> None:
        if (register := self._registers.get(type(op.payload))) is not None:
            register.enter(op)

    def _strike(self, op: Op) -> None:
        """Removes the entry of an op that no longer counts."""
        if (register := self._registers.get(type(op.payload))) is not None:
            register.strike(op)

    # The permissions.

    def legislate(self, op: Op, integrity: bool) -> None:
        """Before a whole log is replayed: enters its delegations and revocations, since the permissions look back."""
        op = self._naming.resolved(op)
        self._grants.introduce(op)
        # Each read of the permissions decides which ops of an author with two histories count.
        is_good = not integrity or self._stands_alone(op) or self.permissions.is_forked(op)
        if is_good and self.citations.are_here(op) and self._grants.enact(op):
            self._change_permissions(op.id)

    def designate(self, op: Op, integrity: bool) -> None:
        """Before a whole log is replayed, but after its delegations: enters a designation that pins something, since
        that looks back, too.
        """
        is_good = not integrity or self._stands_alone(op)
        if op.pin is not None and not op.cited and is_good and self.permissions.refusal(op) is None:
            self._coordinators.put(op)
            self._change_permissions(op.id)

    def _enact(self, op: Op) -> None:
        """A delegation, a revocation or a proof of a fork takes effect as soon as every op that it cites is here."""
        is_grant = type(op.payload) in self._grants.payloads
        if is_grant and self.citations.are_here(op) and self._grants.enact(op):
            self.permissions_changed(op)

    def _change_permissions(self, name: bytes) -> None:
        self._is_changing = True
        self.permissions_state ^= trace(name)
        self.__dict__.pop("permissions", None)

    def permissions_changed(self, op: Op, name: bytes = b"") -> None:
        """This op has changed the permissions. Marks to be judged again: the ops of nodes that gained or lost
        delegations by it, and the revocations.
        """
        before = self.permissions
        self._change_permissions(name or op.id)
        losers, gainers = self.permissions.compared_with(before)
        for revocation in self._grants.revocations():
            self.doubt(revocation)
        for fresh, _ in list(self._fresh.ops.values()):
            if fresh.node_id in losers | gainers and fresh.id != op.id:
                self._doubt(fresh.id, subject_of(fresh.payload), permissions=True)
        for node in losers | gainers:
            self._schedules.doubt_ticks_of(node)
        # What such a node has broken may have been only a part of what it may break now.
        breakers = {node for node in gainers if before.authority.breaks_some_locks(node)}
        for node in losers | breakers:
            self._session.order_ops()
            for op_id, subject in self._session.written_by(node.to_bytes(8, "big")):
                self._doubt(op_id, subject, permissions=True)
        if gainers:
            for row in self._session.ops_refused_for(_UNAUTHORISED):
                self._doubt(row.id, row.subject, permissions=True)
