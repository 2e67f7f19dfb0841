"""What remains at a horizon: a pure function of the settled entries, of the owner's rules that the horizon names, and
of the subjects that it keeps all the same. The engine of each node computes it for itself.

Jobs and threads of messages go whole or not at all, with the artifacts of the jobs. Windows go by themselves. Of
families with bases, each op goes by itself, unless the state names it. Nothing goes that something which remains
refers to.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from hocket.families.inbox.facts import MESSAGE
from hocket.families.retention.facts import MoveHorizon
from hocket.families.retention.rules import RetentionRule
from hocket.kernel.arbitration import Reason
from hocket.kernel.clock import Hlc, pack
from hocket.kernel.family import FAMILIES
from hocket.kernel.ids import ulid_ms
from hocket.kernel.ops import Op
from hocket.kernel.policy import dependencies
from hocket.kernel.snapshots.horizon import NEVER_LATE
from hocket.kernel.vocabulary import (
    JOB,
    CreateArtifact,
    EraseContent,
    EvictArtifact,
    ScheduleJob,
    Subject,
    names_of,
    subject_of,
)
from hocket.log.citations import keyed
from hocket.log.projectors import rules_of
from hocket.log.retention.ended import EndedJobs, ended_threads, ended_window, named_by
from hocket.store import Session
from hocket.store.horizon_rows import BaseRow, PruningRow
from hocket.store.op_rows import PRUNED, OpRow

STEP = 2_000
# An offer that nobody has decided on stays for so long: the arbiter may still accept it.
OFFER_MS = 24 * 3_600_000
_UNDECIDED = (int(Reason.OFFERED), int(Reason.WAITING))
# What a horizon keeps besides subjects: an op by its id.
OP = ""


class Remains(NamedTuple):
    """`gone` are the ids of the ops that go, also those that went before; `bases` those of all subjects. `pruning` is
    what changes. `names` are all by which something could refer to what goes. `kept` are the subjects that only later
    ops have kept. `kinds` are the kinds of the jobs that go by themselves, and `windows` the times of the windows.
    """

    gone: set[bytes]
    bases: list[BaseRow]
    pruning: list[PruningRow]
    names: frozenset[bytes]
    kept: tuple[tuple[str, bytes], ...]
    kinds: Mapping[bytes, str]
    windows: Collection[int]


class _Unit:
    """What goes or stays together: a job with its artifacts, a thread, or an op."""

    __slots__ = ("is_kept", "names", "ops", "others", "subjects")

    def __init__(self, *subjects: Subject) -> None:
        self.subjects, self.is_kept = subjects, False
        self.ops: list[bytes] = []
        # Those of them that are not about its subjects.
        self.others: list[bytes] = []
        # What its ops refer to outside of it.
        self.names: set[bytes] = set()


def remains(
    session: Session,
    rules: Iterable[RetentionRule],
    at_ms: int,
    kept: Collection[tuple[str, bytes]] = (),
    later: Iterable[Op] = (),
) -> Remains:
    """What remains of the log in this session, which ends at the horizon and is folded. `later` are ops beyond it: what
    they refer to stays, too.
    """
    return _Decision(session, tuple(rules), at_ms).run(kept, later)


class _Decision:
    def __init__(self, session: Session, rules: tuple[RetentionRule, ...], at_ms: int) -> None:
        self._session, self._rules, self._at_ms = session, rules, at_ms
        jobs = EndedJobs(rules, at_ms)
        for entry in session.each_job():
            jobs.take(entry.job)
        self._kinds = jobs.gone()
        self._jobs = {job_id: _Unit(Subject(JOB, job_id)) for job_id in self._kinds}
        threads = ended_threads(session.each_message(), rules, at_ms)
        units = [(ids, _Unit(*(Subject(MESSAGE, each) for each in ids))) for ids in threads.values()]
        self._messages = {each: unit for ids, unit in units for each in ids}
        self._single: dict[bytes, _Unit] = {}
        # Of the ops that have made a window or its report: the window's time.
        self._windows: dict[bytes, int] = {}
        # By every name with which something can refer to it.
        self._by_name: dict[bytes, _Unit] = {**self._jobs, **self._messages}
        self._states: dict[Subject, set[bytes] | None] = {}
        # Of subjects with bases, the ops that go unless something names them; and the latest op.
        self._based: dict[Subject, list[bytes]] = {}
        self._units: list[_Unit] = [*self._jobs.values(), *(unit for _, unit in units)]
        self._gone_before: set[bytes] = set()
        # What remaining ops refer to and is not known yet.
        self._wanted: set[bytes] = set()

    def run(self, kept: Collection[tuple[str, bytes]], later: Iterable[Op]) -> Remains:
        for op, reason in self._ops():
            if reason == PRUNED:
                self._gone_before.add(op.id)
            else:
                self._place(op, reason)
        for name in self._wanted:
            self._keep(self._by_name.get(name))
        for _, name in kept:
            self._keep(self._by_name.get(name))
        chosen = {(family, name) for family, name in kept if name in self._by_name}
        for op in later:
            for name in references(op):
                unit = self._by_name.get(name)
                if unit is not None and not unit.is_kept:
                    chosen.add((unit.subjects[0].family, unit.subjects[0].key))
                    self._keep(unit)
        return self._result(tuple(sorted(chosen)))

    def _ops(self) -> Iterator[tuple[Op, int]]:
        after = bytes(20)
        while rows := self._session.ops_in_order(after, STEP):
            rows = _whole_times(self._session, rows, STEP)
            yield from ((keyed(row), row.reason) for row in rows)
            after = rows[-1].hlc

    def _place(self, op: Op, reason: int) -> None:
        """Puts an op into the unit with which it goes; one that stays keeps what it refers to."""
        if reason == Reason.BEHIND_HORIZON:
            # It goes, whatever refers to it: who begins with what remains could not tell that it came too late.
            self._alone(op).ops.append(op.id)
            return
        unit = self._unit_of(op, reason)
        names = references(op)
        if unit is None or unit.is_kept:
            for name in names:
                if name in self._by_name:
                    self._keep(self._by_name[name])
                else:
                    self._wanted.add(name)
            return
        unit.ops.append(op.id)
        if isinstance(op.payload, CreateArtifact | EvictArtifact | EraseContent):
            unit.others.append(op.id)
        for name in (op.id, *names_of(op.payload)):
            self._by_name.setdefault(name, unit)
        unit.names.update(name for name in names if self._by_name.get(name) is not unit)

    def _unit_of(self, op: Op, reason: int) -> _Unit | None:
        payload = op.payload
        if isinstance(payload, CreateArtifact):
            if payload.source_job is not None:
                return self._jobs.get(payload.source_job)
            if not ended_window(op, self._rules, self._at_ms):
                return None
            self._windows[op.id] = ulid_ms(payload.artifact_id)
            return self._alone(op)
        if isinstance(payload, EvictArtifact):
            return self._by_name.get(payload.artifact_id)
        if isinstance(payload, EraseContent):
            return self._jobs.get(payload.source_job)
        subject = subject_of(payload)
        if subject is None or isinstance(payload, NEVER_LATE):
            return None
        if subject.family == JOB:
            return self._jobs.get(subject.key)
        if subject.family == MESSAGE:
            return self._messages.get(subject.key)
        family = FAMILIES.get(subject.family)
        if family is None or family.based is None:
            return None
        is_undecided = reason in _UNDECIDED and op.timestamp.wall > self._at_ms - OFFER_MS
        if is_undecided or op.id in self._named_by_state(subject):
            return None
        self._based.setdefault(subject, []).append(op.id)
        return self._alone(op)

    def _alone(self, op: Op) -> _Unit:
        unit = self._single[op.id] = _Unit(Subject(OP, op.id))
        self._units.append(unit)
        return unit

    def _named_by_state(self, subject: Subject) -> Collection[bytes]:
        if subject not in self._states:
            state = self._session.subject_state(subject)
            based = FAMILIES[subject.family].based
            assert based is not None
            self._states[subject] = None if state is None else set(based(rules_of(subject.family).decode(state)))
        return self._states[subject] or ()

    def _keep(self, unit: _Unit | None) -> None:
        """Keeps a unit, and what it refers to."""
        todo = [unit]
        while todo:
            unit = todo.pop()
            if unit is None or unit.is_kept:
                continue
            unit.is_kept = True
            todo += [self._by_name.get(name) for name in unit.names]
            self._wanted.update(unit.names)

    def _result(self, kept: tuple[tuple[str, bytes], ...]) -> Remains:
        gone = set(self._gone_before)
        pruning: list[PruningRow] = []
        for unit in self._units:
            if unit.is_kept:
                continue
            gone.update(unit.ops)
            if unit.subjects[0].family != OP:
                pruning += [PruningRow(subject, None, None, ()) for subject in unit.subjects]
            pruning += [PruningRow(Subject(OP, op_id), None, None, ()) for op_id in unit.others]
        known = {op_id for ids in self._based.values() for op_id in ids}.union(self._windows)
        windows = {at_ms for op_id, at_ms in self._windows.items() if not self._single[op_id].is_kept}
        lone = [op_id for op_id, unit in self._single.items() if not unit.is_kept and op_id not in known]
        pruning += [PruningRow(Subject(OP, op_id), None, None, ()) for op_id in lone]
        bases = {base.subject: base for base in self._bases_before()}
        for subject, ids in self._based.items():
            going = [op_id for op_id in ids if not self._single[op_id].is_kept]
            if going:
                row = self._based_row(subject, set(going))
                pruning.append(row)
                if row.state is not None and row.last is not None:
                    bases[subject] = BaseRow(subject, row.last, row.state)
        pruning.sort(key=lambda row: row.subject)
        names = frozenset(name for name, unit in self._by_name.items() if not unit.is_kept)
        return Remains(gone, sorted(bases.values()), pruning, names, kept, self._kinds, windows)

    def _based_row(self, subject: Subject, going: set[bytes]) -> PruningRow:
        kept = tuple(row.id for row in self._session.ops_about(subject) if row.id not in going)
        state = self._session.subject_state(subject)
        if state is None:
            return PruningRow(subject, None, None, kept)
        rules = rules_of(subject.family)
        last: Hlc = rules.last(rules.decode(state))
        return PruningRow(subject, pack(last), state, kept)

    def _bases_before(self) -> Iterator[BaseRow]:
        after = Subject("", b"")
        while bases := self._session.bases(after, STEP):
            yield from bases
            after = bases[-1].subject


def _whole_times(session: Session, rows: list[OpRow], limit: int) -> list[OpRow]:
    """Ops of one time belong together; the last of a full page may have twins after it."""
    if len(rows) < limit:
        return rows
    return [row for row in rows if row.hlc != rows[-1].hlc] + session.ops_at(rows[-1].hlc)


def references(op: Op) -> list[bytes]:
    """Every name in an op that can be that of another op, a job, a message or an artifact."""
    if isinstance(op.payload, MoveHorizon):
        return list(op.cited)
    names = [*op.cited, *named_by(op.payload)]
    if isinstance(op.payload, ScheduleJob) and op.payload.policy_envelope:
        names += dependencies(op.payload.policy_envelope)
    return names
