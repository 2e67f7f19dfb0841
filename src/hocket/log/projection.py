"""The engine that keeps the projections equal to the log inside one transaction. It applies the newest op about a
subject in place. After a late op, or when a dependency of an op begins or ceases to count, it refolds the subject and
every subject that depends on it. It judges an op without a subject alone and enters it in a register.

The engine knows no family: the kernel has the rules, and the projectors and registers store the results.
"""

from collections import OrderedDict
from collections.abc import Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from hocket.kernel import arbitration
from hocket.kernel.bundles import Fact
from hocket.kernel.clock import pack
from hocket.kernel.ops import Op
from hocket.kernel.reasons import UNAUTHORISED, Reason
from hocket.kernel.vocabulary import (
    ACCEPTANCES,
    JOB,
    ReportFork,
    RevokeRoot,
    ScheduleJob,
    Subject,
    Unknown,
    names_of,
    subject_of,
)
from hocket.log.citations import names_others
from hocket.log.memory import Memory
from hocket.log.naming import ID_BYTES, keyed
from hocket.log.ownership import Ownership
from hocket.log.permissions import PermissionsReader, trace
from hocket.log.projected_state import ProjectedState
from hocket.log.projectors import Projector, Register, is_known
from hocket.log.registers import CoordinatorRegister, GrantRegister
from hocket.log.schedule_register import ScheduleRegister
from hocket.store import Session

if TYPE_CHECKING:
    from hocket.log.set_judges import Judge

_COUNTS = 0
_UNAUTHORISED = tuple(map(int, UNAUTHORISED))


class Projection(ProjectedState):
    """As of one transaction."""

    def __init__(self, session: Session, permissions_reader: PermissionsReader) -> None:
        # What must be judged again, each once: subjects, and ops without one. For a subject: whether to judge also the
        # ops that no delegation allowed, because the permissions have changed.
        self._again: OrderedDict[Subject, bool] = OrderedDict()
        self._doubted: OrderedDict[bytes, None] = OrderedDict()
        super().__init__(session, permissions_reader)
        self._remember(Memory((self._again,)))
        self._remember(Memory((self._doubted,)))
        self._grants, self._schedules = GrantRegister(session), ScheduleRegister(session, self)
        self._coordinators = CoordinatorRegister(session, self, self.projectors)
        registers: tuple[Register, ...] = (self._coordinators, self._routes, self._artifacts, self._schedules)
        self._registers = {payload: register for register in registers for payload in register.payloads}
        known = lambda op_id: self.known(op_id)[0]  # noqa: E731
        self._ownership = Ownership(session, known, self.jobs.entry, self._artifacts.artifact, self.citations.cite)

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
        # Ops may already wait for an id that other nodes can make too, like that of a schedule's tick.
        names = names_of(op.payload)
        is_awaited = bool(names) and (type(op.payload) in ACCEPTANCES or not projector.is_new(subject.key))
        projector.keep(subject.key, verdict)
        if is_awaited:
            self.citations.expect_none(op.id)
            self._leaners(op)
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

    def judge_of_received(self, facts: Sequence[Fact]) -> "Judge | None":
        """Judges the facts of a bundle that has just arrived and is later than all ops of its author here. None if each
        must be judged by itself.
        """
        from hocket.log import set_judges

        first, last = facts[0].op, facts[-1].op.timestamp
        payload = first.payload
        if isinstance(payload, ScheduleJob):
            kind = payload.kind
        else:
            job_id = getattr(payload, "job_id", None)
            job = None if job_id is None else self.jobs.state(job_id)
            if job is None:
                return None
            kind = job.kind
        return set_judges.judge_of(self, self.jobs, first, last, kind, is_own=False)

    def arrived_in_set(self, judge: "Judge", op: Op, key: bytes) -> bool:
        """Takes in a fact about this job as `arrived` would, if it is plain. False, and nothing has changed, if not."""
        if self._again and Subject(JOB, key) in self._again:
            return False
        citing = self.citations.citing
        if citing(op.id) or any(map(citing, names_of(op.payload))):
            return False  # those ops must be judged again
        if not judge.applies(op.payload, op.cited, op.id, op.timestamp):
            return False
        self._is_changing = True
        self._fresh.put_fact(op, judge.reason)
        self.jobs.not_new(key)
        return True

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
        op = self._naming.resolved(op)
        subject = self._subject(op)
        if subject is not None:
            projector = self.projectors[subject.family]
            return self._in_place(projector, subject, projector.state(subject.key), op)
        reason = self._verdict(op)
        if reason == _COUNTS and not self._coordinators.has(op):
            self._enter(op)
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
        if self._fresh.get(op.id) is not None:
            self._fresh.put(op, reason)
        else:
            self._session.set_reasons([(reason, op.id)])
            self.citations.changed(op.id)

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
        """Before a whole log is replayed, but after its delegations: enters a designation, since those that pin
        something look back, and which tenure they bound depends on the others.
        """
        is_good = not integrity or self._stands_alone(op)
        if not op.cited and is_good and self.permissions.refusal(op) is None:
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
