"""The engine that keeps the projections equal to the log inside one transaction. It applies the newest op about a
subject in place. After a late op, or when a dependency of an op begins or ceases to count, it refolds the subject and
every subject that depends on it. It judges an op without a subject alone and enters it in a register. It knows the
states that the transaction has read or made, its ops that are not stored yet, and the permissions, and answers what the
rules, the projectors and the registers ask about the rest of the log. It is made once for each writing session and
begins again for each transaction, because to make one costs more than most transactions do.

The engine knows no family: the kernel has the rules, and the projectors and registers store the results.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

from hocket.families.availability.facts import AVAILABILITY, Availability
from hocket.families.kinds.facts import KIND
from hocket.kernel import arbitration
from hocket.kernel.arbitration import UNAUTHORISED, Reason
from hocket.kernel.clock import Hlc, pack
from hocket.kernel.ops import Op
from hocket.kernel.policy import DEFAULT, Policy
from hocket.kernel.policy import names_of as kind_names
from hocket.kernel.vocabulary import (
    ACCEPTANCES,
    JOB,
    ReportFork,
    RevokeRoot,
    Subject,
    Unknown,
    discriminant,
    names_of,
    subject_of,
)
from hocket.log.citations import (
    ID_BYTES,
    LASTING_MAX,
    Citations,
    Clearable,
    Memory,
    Naming,
    UnstoredOps,
    keyed,
    names_others,
)
from hocket.log.job_projector import JobProjector
from hocket.log.permissions import Ownership, Permissions, PermissionsReader, trace
from hocket.log.projectors import (
    Projector,
    Projectors,
    Register,
    SubjectProjector,
    family_names,
    is_known,
    rules_of,
)
from hocket.log.registers import ArtifactRegister, CoordinatorRegister, GrantRegister, RouteRegister, ScheduleRegister
from hocket.store import Head, Session
from hocket.store.horizon_rows import BaseRow

if TYPE_CHECKING:
    from hocket.kernel.snapshots.horizon import SettledCut

_COUNTS = 0
_UNAUTHORISED = tuple(map(int, UNAUTHORISED))


def _is_settled() -> bool:
    return False


class Projection:
    """Call `begin` first, for each transaction."""

    def __init__(self, session: Session, permissions_reader: PermissionsReader) -> None:
        self.session = self._session = session
        self.permissions_reader = permissions_reader
        self.now = self.permissions_state = 0
        self._physical: int | Callable[[], int] = 0
        self.settle_log: Callable[[], bool] = _is_settled
        self._fresh = UnstoredOps()
        self._defaults: dict[str, Policy] = {}
        self.is_strict = permissions_reader.rules.is_strict
        self.is_bound = permissions_reader.rules.bounds is not None
        self._naming = Naming(session, self._fresh, self.is_strict)
        self._artifacts = ArtifactRegister(session, self, self.is_bound)
        self._routes = RouteRegister(session, self)
        self.jobs = JobProjector(session, self, self._routes, self._folded_anew)
        self.citations = Citations(
            session,
            self._fresh,
            self.jobs.entry,
            self._artifacts.artifact,
            self.arbiter,
            lambda: self.settle_log(),
            self.is_strict,
            self._is_gone,
        )
        # What must be judged again, each once: subjects, and ops without one. For a subject: whether to judge also the
        # ops that no delegation allowed, because the permissions have changed.
        self._again: OrderedDict[Subject, bool] = OrderedDict()
        self._doubted: OrderedDict[bytes, None] = OrderedDict()
        # Of the subjects in `_again`: the ops that lost their place to a twin. What cites those is judged afterwards.
        self._collided: dict[Subject, list[Op]] = {}
        # What is cleared after each transaction, and when the log has changed.
        self._passing: list[tuple[Clearable, ...]] = []
        self._firsts: list[Clearable] = []
        self._lasting: list[Clearable] = [self._defaults]
        parts = self._artifacts.memory, self.citations.memory, self.jobs.memory
        marks = Memory((self._again, self._collided)), Memory((self._doubted,))
        for memory in (*self._fresh.memories, *parts, *marks):
            self._remember(memory)
        self.projectors = Projectors(session, self, self.jobs, self._remember)
        self._kinds = cast(SubjectProjector, self.projectors[KIND])
        # Whether ops have come in late, or the permissions have changed: then stored states may be those of before.
        self._is_changing = False
        # The op that was just found to be allowed.
        self._allowed: Op | None = None
        # Whether a transaction has begun and not ended: then it was undone.
        self._is_open = False
        # The end of the log that the last transaction left.
        self._left: Head | None = None
        self._grants, self._schedules = GrantRegister(session), ScheduleRegister(session, self)
        self._coordinators = CoordinatorRegister(session, self, self.projectors)
        registers: tuple[Register, ...] = (self._coordinators, self._routes, self._artifacts, self._schedules)
        self._registers = {payload: register for register in registers for payload in register.payloads}
        known = lambda op_id: self.known(op_id)[0]  # noqa: E731
        self._ownership = Ownership(session, known, self.jobs.entry, self._artifacts.artifact, self.citations.cite)

    def begin(
        self,
        now: int,
        permissions_state: int,
        *,
        physical: Callable[[], int] | None = None,
        settle: Callable[[], bool] = _is_settled,
        head: Head | None = None,
    ) -> None:
        """A transaction begins. `permissions_state` is the number of the permissions in force. `settle` folds what is
        on the log but not in the projections yet; it gives False when there is nothing. `physical` is the machine's own
        clock, if it decides. With the `head` that the last transaction has left, nobody else has written since.
        """
        if self._is_open or head is None or head is not self._left:
            self._clear()
        if permissions_state != self.permissions_state or self._session.row_check is not None:
            self.__dict__.pop("permissions", None)
        self._is_open, self._is_changing, self._allowed = True, False, None
        self.now, self._physical = now, now if physical is None else physical
        self.permissions_state = permissions_state
        self.settle_log = settle

    def end(self, head: Head) -> None:
        """The transaction has stored everything, and leaves this end of the log. Frees its ops and its states."""
        if (check := self._session.row_check) is not None:
            check.wrote_jobs(self.jobs.written())
        if any(self._firsts):
            for passing in self._passing:
                if passing[0]:
                    for known in passing:
                        known.clear()
        self._is_open, self._left, self.settle_log = False, head, _is_settled

    def _remember(self, memory: Memory) -> None:
        self._passing.append(memory.passing)
        self._firsts.append(memory.passing[0])
        self._lasting += memory.lasting

    def _clear(self) -> None:
        """The last transaction was undone, or others may have written since."""
        for known in (*self._lasting, *chain(*self._passing)):
            known.clear()
        self.jobs.log_changed()
        self._routes.log_changed()
        self.__dict__.pop("permissions", None)

    @property
    def physical(self) -> int:
        """The reading of the machine's own clock: read once, when it is first needed."""
        if not isinstance(self._physical, int):
            self._physical = self._physical()
        return self._physical

    @cached_property
    def permissions(self) -> Permissions:
        """Read again when they have changed."""
        fresh = [op for op, _ in self._fresh.ops.values()]
        return self.permissions_reader.read(self._session, self.permissions_state, fresh)

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

    @property
    def cut(self) -> "SettledCut | None":
        """The horizon in force."""
        return self.permissions.cut

    def _is_late(self, op: Op) -> bool:
        cut = self.permissions.cut
        return cut is not None and cut.is_late(op)

    def _is_gone(self, name: bytes) -> bool:
        cut = self.permissions.cut
        return cut is not None and cut.is_gone(name[:ID_BYTES])

    # What projectors and registers ask.

    def known(self, op_id: bytes) -> tuple[Op | None, int]:
        if (fresh := self._fresh.get(op_id)) is not None:
            return fresh
        row = self.citations.row(op_id)
        return (None, _COUNTS) if row is None else (keyed(row), row.reason)

    def offered_since(self, at: Hlc) -> set[Subject]:
        """The subjects of mere offers that are later."""
        families = [name for name in family_names() if not self.projectors[name].family.is_open(None)]
        stored = {
            subject for name in families for subject in self._session.subjects_offered(name, Reason.OFFERED, pack(at))
        }
        fresh = {
            self._fresh.subject(op.id)
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

    def flush(self) -> None:
        """Writes what has changed, so that the store's queries see it."""
        self._artifacts.flush()
        if self._kinds.is_changed:
            self._defaults.clear()
        for projector in self.projectors.in_order:
            projector.flush()

    def defaults(self, kind: str) -> Policy:
        if self._kinds.is_changed:
            self._defaults.clear()
        policy = self._defaults.get(kind)
        if policy is None:
            definitions = (self._kinds.state(name.encode()) for name in kind_names(kind))
            policy = next((each.policy for each in definitions if each is not None), DEFAULT)
            if len(self._defaults) >= LASTING_MAX:
                self._defaults.clear()
            self._defaults[kind] = policy
        return policy

    def defined_at(self, kind: str) -> Hlc | None:
        """When the options of a kind were defined; None if they were not."""
        definitions = (self._kinds.state(name.encode()) for name in kind_names(kind))
        return next((each.defined for each in definitions if each is not None), None)

    def availability(self, node: int) -> Availability:
        state = self.projectors[AVAILABILITY].state(node.to_bytes(8, "big"))
        return Availability.ACTIVE if state is None else state.availability

    # What the transaction asks.

    def reason(self, op_id: bytes) -> int:
        """Whether an op of this transaction counts: 0, or why it does not."""
        reason = self._fresh.reason(op_id)
        assert reason is not None
        return reason

    def is_offered(self, op_id: bytes) -> bool:
        """Whether an op, of this transaction or of one before it, waits for the arbiter's word."""
        reason = self._fresh.reason(op_id)
        return (self.known(op_id)[1] if reason is None else reason) == Reason.OFFERED

    @property
    def changed(self) -> dict[bytes, int]:
        """The new reasons of ops of this transaction that had another one before."""
        return self._fresh.changed

    def standing(self, op_id: bytes) -> tuple[int, Subject | None]:
        """The reason of an op of this transaction, and what the op is about."""
        return self.reason(op_id), self._fresh.subject(op_id)

    def ask_again(self, subject: Subject, permissions: bool = False) -> None:
        self._again[subject] = permissions or self._again.get(subject, False)

    def doubt(self, op_id: bytes) -> None:
        self._doubted[op_id] = None

    def ask_again_about(self, op_id: bytes, subject: Subject | None, permissions: bool = False) -> None:
        """An op must be judged again, with all ops about its subject if it has one."""
        if subject is not None and is_known(subject.family):
            self.ask_again(subject, permissions)
        else:
            self.doubt(op_id)

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
        taken = {op.id for op in ops}
        offers = (op.payload.offer for op in ops if type(op.payload) in ACCEPTANCES)  # type: ignore[union-attr]
        self.citations.expect_ops([offer for offer in offers if offer not in taken])

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
        if self.is_strict:
            op = self._naming.resolved(op)
        subject = self._subject(op)
        if subject is None:
            reason = self._fault(op)
            if reason is None:
                self._fresh.put(op, _COUNTS)
                self._grants.introduce(op)
                self._enact(op)
                self._record(op, True)
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
        # Ops may already wait for an id that other nodes can make too, like that of a schedule's tick.
        names = names_of(op.payload)
        is_awaited = bool(names) and (type(op.payload) in ACCEPTANCES or not projector.is_new(subject.key))
        projector.keep(subject.key, verdict)
        if is_awaited:
            self.citations.expect_none(op.id)
            self.mark_leaners(op)
            self.settle()
        return None

    def put_set(self, bundle: Op, fact_ids: list[bytes], reason: int) -> None:
        """A judge of sets has applied these facts of the bundle."""
        self._fresh.put_set(bundle, fact_ids, reason)

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
        elif subject is not None and self._is_late(op):
            self._fresh.put(op, Reason.BEHIND_HORIZON)
            self.projectors[subject.family].not_new(subject.key)
            integrity = True
        if subject is None:
            self._grants.introduce(op)
            self.doubt(op.id)
        elif not integrity:
            self._arrived_at(subject, op)
        # Ops that cite this one have waited for it, even if only to learn that it is later than they are.
        self.mark_leaners(op)
        if subject is None:
            # The permissions, routes and coordinators decide about the ops that follow.
            while self._doubted:
                self._judge(self._doubted.popitem(last=False)[0])

    def arrived_in_set(self, judge: tuple[Callable[..., bool], int], op: Op, key: bytes) -> bool:
        """Takes in a fact about this job as `arrived` would, if it is plain for a judge of sets, which see in
        `set_judges`. False, and nothing has changed, if not.
        """
        applies, reason = judge
        if self._again and Subject(JOB, key) in self._again:
            return False
        citing = self.citations.citing
        if citing(op.id) or any(map(citing, names_of(op.payload))):
            return False  # those ops must be judged again
        if not applies(op.payload, op.cited, op.id, op.timestamp):
            return False
        self._is_changing = True
        self._fresh.put_fact(op, reason)
        self.jobs.not_new(key)
        return True

    def _share_id(self, op: Op) -> None:
        """Ops that cite the id may mean this op now. Those about the subject of the op that they meant before are found
        by that subject; the citations of all others are stored.
        """
        for other in self._naming.namesakes(op.id[:ID_BYTES]):
            if other.subject is not None and other.key != op.id:
                self.ask_again_about(other.key, other.subject)

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
        elif refused is None and is_certain and arbitration.is_late_offer(family, state, op, self):
            self._fresh.put(op, Reason.OFFERED)
            projector.touched.add(subject.key)
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
        if self._is_late(op):
            return Reason.BEHIND_HORIZON
        op = self._naming.resolved(op)
        subject = self._subject(op)
        if subject is not None:
            projector = self.projectors[subject.family]
            return self._in_place(projector, subject, projector.state(subject.key), op)
        reason = self._verdict(op)
        if reason == _COUNTS and not self._coordinators.has(op):
            self._record(op, True)
        return reason

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
        if (not cited or (len(cited) == 1 and cited[0] == claim)) and not names_others(op.payload):
            return None
        return self.citations.fault(op, newest_claim=claim)

    def _fault(self, op: Op) -> Reason | None:
        """Why an op without a subject does not count, if so."""
        from hocket.log.citations import unlinked

        known = lambda name: self.known(self._naming.key(name, op))[0]  # noqa: E731
        return (
            self.citations.fault(op)
            or self.permissions.refusal(op)
            or self.permissions.succession_fault(op)
            or unlinked(op, self.permissions.authority, self._artifacts.artifact, known, self.citations.cite)
            or self._ownership.fault(op, self.permissions)
        )

    def _verdict(self, op: Op) -> int:
        """Judges an op without a subject that is on the log in any case."""
        fault = Reason.BEHIND_HORIZON if self._is_late(op) else self._fault(op)
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
            self._collided.setdefault(subject, []).append(op)
            return
        if type(op.payload) in self._grants.payloads and self._grants.repeal(op):
            self.permissions_changed(op)
        if before == _COUNTS:
            self._record(op, False)
        self.mark_leaners(op)

    def _stands_alone(self, op: Op) -> bool:
        """Whether an op counts although its author wrote another one with the same timestamp: a proof needs no trust in
        its author, and for a replaced coordinator its successor's designation says which op counts.
        """
        return isinstance(op.payload, ReportFork | RevokeRoot) or op.id in self.permissions.pinned

    # Folding again.

    def mark_leaners(self, leaned_on: Op) -> None:
        """Marks every op that cites this one to be judged again, since this one may now count, or not."""
        names = {leaned_on.id, *names_of(leaned_on.payload)}
        for citing in [citing for name in names for citing in self.citations.citing(name)]:
            op, _ = self.known(citing)
            if op is not None:
                self.ask_again_about(op.id, subject_of(op.payload))

    def settle(self) -> None:
        """Judges until nothing is left to judge. This ends, because a verdict depends on earlier ops alone."""
        while self._again or self._doubted:
            self._session.lock_all()
            if self._again:
                self.refold(*self._again.popitem(last=False))
            else:
                self._judge(self._doubted.popitem(last=False)[0])

    def _judge(self, op_id: bytes) -> None:
        """Judges again an op without a subject."""
        op, before = self.known(op_id)
        if op is None:
            return  # in a store that nodes share, it is not the op that its author signed
        if before == Reason.PRUNED or (before == Reason.INTEGRITY and not self._stands_alone(op)):
            return
        op = self._naming.resolved(op)
        self._enact(op)
        reason = self._verdict(op)
        if reason == before:
            return
        self._set_reason(op, reason)
        if _COUNTS in (reason, before):
            self._record(op, reason == _COUNTS)
        self.mark_leaners(op)

    def refold(self, subject: Subject, permissions: bool) -> None:
        """Ops without a grant are left out unless the permissions have changed, so that they cost others nothing."""
        without = () if permissions else _UNAUTHORISED
        base = self._base(subject)
        ops: dict[bytes, tuple[Op, int]] = {
            row.id: (keyed(row), row.reason)
            for row in self._session.ops_about(subject, without, b"" if base is None else base.last)
        }
        fresh = self._fresh.about(subject)
        ops.update((op.id, (op, reason)) for op, reason in fresh if permissions or reason not in _UNAUTHORISED)
        state, verdicts = self._folded(subject, ops.values(), base)
        projector = self.projectors[subject.family]
        flipped = [op for op, reason in ops.values() if verdicts[op.id][1] != reason]
        for op in flipped:
            self._set_reason(op, verdicts[op.id][1])
        projector.keep(subject.key, state)
        for op in chain(flipped, self._collided.pop(subject, ())):
            self.mark_leaners(op)

    def _base(self, subject: Subject) -> BaseRow | None:
        """What the subject was at the horizon, if that stands in the place of ops."""
        return None if self.permissions.cut is None else self._session.base(subject)

    def _folded(
        self, subject: Subject, ops: Collection[tuple[Op, int]], base: BaseRow | None
    ) -> tuple[Any, arbitration.Standings]:
        """The state that these ops, each with its reason so far, make of a subject, and what becomes of each. They are
        later than the base.
        """
        verdicts = {
            op.id: (op.timestamp, reason)
            for op, reason in ops
            if reason == Reason.INTEGRITY and not self._stands_alone(op)
        }
        if self.permissions.cut is not None:
            late = int(Reason.BEHIND_HORIZON)
            verdicts |= {op.id: (op.timestamp, late) for op, _ in ops if op.id not in verdicts and self._is_late(op)}
        projector = self.projectors[subject.family]
        family, context = projector.family, projector.context
        resolved = (self._naming.resolved(op) for op, _ in ops)
        begin = None if base is None else rules_of(subject.family).decode(base.state)
        return arbitration.fold(family, subject, resolved, context, self.citations.fault, verdicts, begin), verdicts

    def _folded_anew(self, subject: Subject) -> tuple[Any, bool]:
        """For a store whose derived columns nobody has to believe: the state that the stored ops about a subject make
        of it, and whether the stored state must be the same.
        """
        base = self._base(subject)
        rows = self._session.ops_about(subject, (), b"" if base is None else base.last)
        ops = [(keyed(row), row.reason) for row in rows]
        twins = [
            (op, Reason.INTEGRITY if len(self._session.ops_at(pack(op.timestamp))) > 1 else _COUNTS)
            if reason == Reason.INTEGRITY
            else (op, reason)
            for op, reason in ops
        ]
        return self._folded(subject, twins, base)[0], not self._is_changing

    def _set_reason(self, op: Op, reason: int) -> None:
        if self._fresh.get(op.id) is not None:
            self._fresh.put(op, reason)
        else:
            self._session.set_reasons([(reason, op.id)])
            self.citations.changed(op.id)

    def _record(self, op: Op, counts: bool) -> None:
        """Enters an op in its register, or removes the entry of one that no longer counts."""
        if (register := self._registers.get(type(op.payload))) is not None:
            (register.enter if counts else register.strike)(op)

    # The permissions.

    def legislate(self, op: Op, integrity: bool) -> None:
        """Before a whole log is replayed: enters its delegations and revocations, since the permissions look back."""
        op = self._naming.resolved(op)
        self._grants.introduce(op)
        # Each read of the permissions decides which ops of an author with two histories count.
        is_good = not integrity or self._stands_alone(op) or self.permissions.is_forked(op)
        if is_good and self.citations.are_here(op) and self._grants.enact(op):
            self.change_permissions(op.id)

    def designate(self, op: Op, integrity: bool) -> None:
        """Before a whole log is replayed, but after its delegations: enters a designation, since those that pin
        something look back, and which tenure they bound depends on the others.
        """
        is_good = not integrity or self._stands_alone(op)
        if not op.cited and is_good and not self._is_late(op) and self.permissions.refusal(op) is None:
            self._coordinators.put(op)
            self.change_permissions(op.id)

    def _enact(self, op: Op) -> None:
        """A delegation, a revocation or a proof of a fork takes effect as soon as every op that it cites is here."""
        is_grant = type(op.payload) in self._grants.payloads
        if is_grant and self.citations.are_here(op) and self._grants.enact(op):
            self.permissions_changed(op)

    def change_permissions(self, name: bytes) -> None:
        self._is_changing = True
        self.permissions_state ^= trace(name)
        self.__dict__.pop("permissions", None)

    def permissions_changed(self, op: Op, name: bytes = b"") -> None:
        """This op has changed the permissions. Marks to be judged again: the ops of nodes that gained or lost
        delegations by it, and the revocations.
        """
        before = self.permissions
        self.change_permissions(name or op.id)
        self._coordinators.follow(before, self.permissions)
        losers, gainers = self.permissions.compared_with(before)
        for revocation in self._grants.revocations():
            self.doubt(revocation)
        for fresh, _ in list(self._fresh.ops.values()):
            if fresh.node_id in losers | gainers and fresh.id != op.id:
                self.ask_again_about(fresh.id, subject_of(fresh.payload), permissions=True)
        for node in losers | gainers:
            self._schedules.doubt_ticks_of(node)
        # What such a node has broken may have been only a part of what it may break now.
        breakers = {node for node in gainers if before.authority.breaks_some_locks(node)}
        for node in losers | breakers:
            self._session.order_ops()
            for op_id, subject in self._session.written_by(node.to_bytes(8, "big")):
                self.ask_again_about(op_id, subject, permissions=True)
        if gainers:
            for row in self._session.ops_refused_for(_UNAUTHORISED):
                self.ask_again_about(row.id, row.subject, permissions=True)
