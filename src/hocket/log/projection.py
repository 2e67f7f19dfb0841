"""Keeps the projections true to the log inside one transaction. The newest op of a job is applied in place; an
op that comes late, or one whose dependencies change their standing, makes its job be folded again, and whatever
leans on that job after it. The rules are the kernel's; this module only finds out which of them must be asked
again.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator

from hocket.kernel import roster
from hocket.kernel.clock import Hlc, pack, unpack
from hocket.kernel.ids import ulid_ms
from hocket.kernel.ops import Op, decode
from hocket.kernel.policy import dependencies
from hocket.kernel.reasons import Reason
from hocket.kernel.roster import Job, Outcome, Standings, State
from hocket.kernel.vocabulary import ClaimWork, RouteKind, ScheduleJob, discriminant, job_of, number_of
from hocket.log.registers import Registers
from hocket.store import Entry, Session, Stage

_CLAIM = number_of(ClaimWork)
_COUNTS = 0


class Projection:
    """The roster and its neighbours, as of one transaction. It is the context that the kernel's fold asks."""

    def __init__(self, session: Session, now: int, settle: Callable[[], bool] = lambda: False) -> None:
        """`settle` folds what is on the log but not in the projections yet; it gives False when there is
        nothing.
        """
        self._session = session
        self._settle_log = settle
        self._now = now
        self._entries: dict[bytes, Entry | None] = {}
        self._dirty: set[bytes] = set()
        self._new: set[bytes] = set()
        self._fresh: dict[bytes, tuple[Op, int]] = {}
        self._fresh_of_job: dict[bytes, list[bytes]] = {}
        # What is still to be asked again, each once: jobs, and ops that are about no job.
        self._again: OrderedDict[bytes, None] = OrderedDict()
        self._doubted: OrderedDict[bytes, None] = OrderedDict()
        self._registers = Registers(session, lambda op_id: self._known(op_id)[0], self._counting)
        # Asked once, when it matters: most logs have no dependencies.
        self._any_after: bool | None = None
        self._made_ready: set[bytes] = set()
        self._called_off = False

    @property
    def stirring(self) -> bool:
        """Whether workers should look: something can start that nobody has claimed, or something that one of
        them runs was called off.
        """
        return self._called_off or any(
            (entry := self._entries[job_id]) is not None and entry.stage is Stage.READY for job_id in self._made_ready
        )

    # What the fold asks.

    def route(self, kind: str, at: Hlc) -> int | None:
        return self._registers.route(kind, at)

    def succeeded(self, job_id: bytes) -> Hlc | None:
        entry = self.entry(job_id)
        return entry.job.done if entry is not None and entry.job.outcome is Outcome.SUCCEEDED else None

    def is_claim(self, op_id: bytes, job_id: bytes) -> bool:
        if op_id in self._fresh:
            payload = self._fresh[op_id][0].payload
            return type(payload) is ClaimWork and payload.job_id == job_id
        row = self._session.op(op_id)
        return row is not None and row.variant == _CLAIM and row.job == job_id

    # Entries, read once and written together.

    def entry(self, job_id: bytes) -> Entry | None:
        if job_id not in self._entries:
            found = self._session.job(job_id)
            if found is None and self._settle_log():
                found = self._session.job(job_id)
            self._entries[job_id] = found
        return self._entries[job_id]

    def load(self, job_ids: Iterable[bytes]) -> None:
        """Reads many entries at once."""
        for entry in self._session.jobs_by_id([i for i in job_ids if i not in self._entries]):
            self._entries[entry.job.id] = entry

    def expect_new(self, job_id: bytes) -> None:
        """Takes the caller's word that no job has this id and nobody cites it, because it was made just now."""
        self._entries[job_id] = None
        self._new.add(job_id)

    def know(self, entry: Entry) -> Entry:
        """Takes over an entry that a query has just read, unless this transaction holds a newer one."""
        known = self._entries.setdefault(entry.job.id, entry)
        assert known is not None
        return known

    def assign(self, job_id: bytes, worker: int | None) -> None:
        """Notes which process of this node holds the job."""
        entry = self.entry(job_id)
        assert entry is not None
        self._put(entry._replace(worker=worker))

    def flush(self) -> None:
        """Writes the changed entries, so that the store's queries see them."""
        if self._dirty:
            self._session.put_jobs([entry for i in self._dirty if (entry := self._entries[i]) is not None])
            self._dirty.clear()

    def _put(self, entry: Entry) -> None:
        self._entries[entry.job.id] = entry
        self._dirty.add(entry.job.id)
        if entry.stage is Stage.READY:
            self._made_ready.add(entry.job.id)

    # Ops that are later than everything on the log: this node's own.

    def newest(self, op: Op) -> Reason | None:
        """Applies an op that nothing on the log is later than. A refused one leaves no trace."""
        reason = self._dependencies(op)
        if reason is not None:
            return reason
        job_id = job_of(op.payload)
        if job_id is None:
            self._fresh[op.id] = (op, _COUNTS)
            self._registers.introduce(op)
            self._project(op)
            self._settle()
            return None
        before = self.entry(job_id)
        verdict = roster.apply(before.job if before else None, op, self)
        if isinstance(verdict, Reason):
            return verdict
        self._fresh[op.id] = (op, _COUNTS)
        self._fresh_of_job.setdefault(job_id, []).append(op.id)
        self._keep(before, verdict)
        if type(op.payload) is ScheduleJob and job_id not in self._new:
            # An id that others could make too, like that of a schedule's tick, may have been waited for.
            self._leaners(op)
            self._settle()
        return None

    # Ops in any order: received, imported, or met again in a rebuild.

    def arrived(self, op: Op, integrity: bool) -> None:
        """Takes in an op that may be older than others, before its row is stored; `reason` tells afterwards
        whether it counts.
        """
        job_id = job_of(op.payload)
        self._fresh[op.id] = (op, Reason.INTEGRITY if integrity else Reason.WAITING)
        if job_id is None:
            self._registers.introduce(op)
            self._doubted[op.id] = None
        else:
            self._fresh_of_job.setdefault(job_id, []).append(op.id)
            if not integrity:
                self._arrived_at(job_id, op)
        # Whoever cites it has waited for it, and now learns what it is, be it only that it is later than themselves.
        self._leaners(op)
        self._settle()

    def _arrived_at(self, job_id: bytes, op: Op) -> None:
        before = self.entry(job_id)
        if before is not None and op.timestamp > before.job.last:
            self._fresh[op.id] = (op, self._in_place(before, op))
        else:
            self._again[job_id] = None

    def replayed(self, op: Op, integrity: bool = False) -> int:
        """Applies the next op of the whole log in HLC order, whose row is stored. Gives its reason, 0 if it
        counts.
        """
        self._registers.introduce(op)
        if integrity:
            return Reason.INTEGRITY
        job_id = job_of(op.payload)
        if job_id is not None:
            return self._in_place(self.entry(job_id), op)
        reason = self._dependencies(op)
        if reason is None:
            self._project(op)
        return reason or _COUNTS

    def reason(self, op_id: bytes) -> int:
        """Whether an op of this transaction counts."""
        return self._fresh[op_id][1]

    def _in_place(self, before: Entry | None, op: Op) -> int:
        verdict: Job | Reason | None = self._dependencies(op)
        if verdict is None:
            verdict = roster.apply(before.job if before else None, op, self)
        if not isinstance(verdict, Reason):
            self._keep(before, verdict)
            return _COUNTS
        if before is not None and (moved := roster.seen(before.job, op)) is not None:
            self._put(before._replace(job=moved))
        return verdict

    def collide(self, op: Op) -> None:
        """An op turns out to share its timestamp with another of its author: it does not count any more."""
        _, before = self._known(op.id)
        if before == Reason.INTEGRITY:
            return
        self._set_reason(op, Reason.INTEGRITY)
        job_id = job_of(op.payload)
        if job_id is not None:
            self._again[job_id] = None
        elif before == _COUNTS:
            self._unproject(op)
        self._leaners(op)
        self._settle()

    # Folding again.

    def _leaners(self, leaned_on: Op) -> None:
        """Every op that cites this one is to be asked again, now that its standing may have changed."""
        citing_ops = self._session.citing(leaned_on.id)
        if type(leaned_on.payload) is ScheduleJob:
            citing_ops += self._session.citing(leaned_on.payload.job_id)
        for citing in citing_ops:
            op, _ = self._known(citing)
            if op is None:
                continue
            job_id = job_of(op.payload)
            if job_id is not None:
                self._again[job_id] = None
            else:
                self._doubted[citing] = None

    def _settle(self) -> None:
        """Asks until nothing is left to ask. That ends, because a verdict hangs on earlier ops alone."""
        while self._again or self._doubted:
            if self._again:
                self._refold(self._again.popitem(last=False)[0])
            else:
                self._judge(self._doubted.popitem(last=False)[0])

    def _judge(self, op_id: bytes) -> None:
        """Asks again about an op that is about no job."""
        op, before = self._known(op_id)
        assert op is not None
        if before == Reason.INTEGRITY:
            return
        reason = int(self._dependencies(op) or _COUNTS)
        if reason == before:
            return
        self._set_reason(op, reason)
        if reason == _COUNTS:
            self._project(op)
        elif before == _COUNTS:
            self._unproject(op)
        self._leaners(op)

    def _refold(self, job_id: bytes) -> None:
        ops: dict[bytes, tuple[Op, int]] = {
            row.id: (decode(row.body), row.reason) for row in self._session.ops_of_job(job_id)
        }
        ops.update((op_id, self._fresh[op_id]) for op_id in self._fresh_of_job.get(job_id, ()))
        verdicts = {op.id: (op.timestamp, reason) for op, reason in ops.values() if reason == Reason.INTEGRITY}
        job = roster.fold((op for op, _ in ops.values()), self, self._dependencies, verdicts)
        flipped = [op for op, reason in ops.values() if verdicts[op.id][1] != reason]
        for op in flipped:
            self._set_reason(op, verdicts[op.id][1])
        self._keep(self.entry(job_id), job, job_id)
        for op in flipped:
            self._leaners(op)

    def _set_reason(self, op: Op, reason: int) -> None:
        if op.id in self._fresh:
            self._fresh[op.id] = (op, reason)
        else:
            self._session.set_reasons([(reason, op.id)])

    def _known(self, op_id: bytes) -> tuple[Op | None, int]:
        if op_id in self._fresh:
            return self._fresh[op_id]
        row = self._session.op(op_id)
        return (None, _COUNTS) if row is None else (decode(row.body), row.reason)

    def _dependencies(self, op: Op, verdicts: Standings | None = None) -> Reason | None:
        """Whether everything that the op cites is on the log, earlier than itself, and counts. `verdicts` are
        those of the job's earlier ops while it is folded again; without them the op is its job's newest.
        """
        payload = op.payload
        if not op.causal_deps and not (type(payload) is ScheduleJob and payload.policy_envelope):
            return None
        job_id = job_of(payload)
        reason: Reason | None = None
        for standing in self._cited(op, job_id, verdicts):
            if standing is None:
                reason = reason or Reason.WAITING
                continue
            at, why = standing
            if at >= op.timestamp:
                return Reason.DEPENDENCY_CYCLE
            if why == Reason.WAITING:
                reason = reason or Reason.WAITING
            elif why != _COUNTS:
                reason = Reason.DEPENDENCY_REJECTED
        return reason

    def _cited(self, op: Op, job_id: bytes | None, verdicts: Standings | None) -> Iterator[tuple[Hlc, int] | None]:
        """When each cited op was written and whether it counts; None for one that is not here. A ScheduleJob
        cites, beside what it says, the schedules of the jobs that it comes after: so no job can come after one
        that is scheduled later, and there are no cycles.
        """
        entry = self._entries.get(job_id) if job_id is not None and verdicts is None else None
        for dep in op.causal_deps:
            if entry is None or dep != entry.job.claim_op:
                yield (verdicts and verdicts.get(dep)) or self._standing(dep, op.id, job_id)
        payload = op.payload
        if type(payload) is ScheduleJob and payload.policy_envelope:
            for earlier in dependencies(payload.policy_envelope):
                yield self._schedule_standing(earlier, op)

    def _schedule_standing(self, job_id: bytes, op: Op) -> tuple[Hlc, int] | None:
        """The same for the schedule of a job that the op's comes after. Of several the best of the earlier ones
        is taken.
        """
        self._session.cite(job_id, op.id)
        entry = self.entry(job_id)
        if entry is not None and entry.job.scheduled < op.timestamp:
            return entry.job.scheduled, _COUNTS
        known = [(decode(row.body), row.reason) for row in self._session.ops_of_job(job_id)]
        known += [self._fresh[op_id] for op_id in self._fresh_of_job.get(job_id, ())]
        schedules = [
            (each.timestamp, reason)
            for each, reason in known
            if type(each.payload) is ScheduleJob and reason != Reason.INTEGRITY
        ]
        earlier = [standing for standing in schedules if standing[0] < op.timestamp]
        return min(earlier, key=lambda standing: standing[1], default=None) or min(schedules, default=None)

    def _standing(self, dep: bytes, op_id: bytes, job_id: bytes | None) -> tuple[Hlc, int] | None:
        """When a cited op was written and whether it counts. Citations out of the job are remembered, so that a
        change there is followed here.
        """
        if dep in self._fresh:
            op, reason = self._fresh[dep]
            at, cited_job = op.timestamp, job_of(op.payload)
        else:
            row = self._session.op(dep)
            if row is None and self._settle_log():
                row = self._session.op(dep)
            if row is None:
                self._session.cite(dep, op_id)
                return None
            at, cited_job, reason = unpack(row.hlc), row.job, row.reason
        if cited_job is None or cited_job != job_id:
            self._session.cite(dep, op_id)
        return at, reason

    # What follows from a job's change.

    def _keep(self, before: Entry | None, job: Job | None, job_id: bytes = b"") -> None:
        """Stores a job's new record and lets the jobs that come after it know when its success begins or ends."""
        if job is None:
            if before is not None:
                self._entries[job_id] = None
                self._dirty.discard(job_id)
                self._session.drop_job(job_id)
                self._dependents(job_id, before.job.done, None)
            return
        if before is None or before.job.schedule_op != job.schedule_op:
            if before is not None:
                # An earlier ScheduleJob has come to light: what the other one said that it comes after is void.
                self._session.drop_job(job.id)
            self._scheduled(job)
        held = before is not None and before.job.claim_op == job.claim_op and job.state is State.CLAIMED
        self._put(Entry(job, self._stage(job), before.worker if before is not None and held else None))
        if before is not None and before.stage is Stage.CLAIMED and job.state is not State.CLAIMED:
            # The holder of a cancelled job must hear of it, and so must whoever waits for a place under a limit.
            self._called_off |= job.outcome is Outcome.CANCELLED or job.policy.concurrency is not None
        was = before.job.done if before is not None and before.job.outcome is Outcome.SUCCEEDED else None
        now = job.done if job.outcome is Outcome.SUCCEEDED else None
        if was != now:
            self._dependents(job.id, was, now)

    def _scheduled(self, job: Job) -> None:
        if job.policy.after:
            self._any_after = True
            self._session.set_after(job.id, job.policy.dependencies())
        if job.policy.schedule is not None:
            self._session.ticked(job.policy.schedule, ulid_ms(job.id))

    def _dependents(self, job_id: bytes, was: Hlc | None, now: Hlc | None) -> None:
        if self._any_after is None:
            self._any_after = self._session.has_after()
        if not self._any_after:
            return
        changed_at = min(at for at in (was, now) if at is not None) if was or now else None
        for dependent in self._session.dependents(job_id):
            entry = self.entry(dependent)
            if entry is None:
                continue
            if changed_at is not None and entry.job.last > changed_at:
                self._again[dependent] = None
            else:
                self._put(entry._replace(stage=self._stage(entry.job)))

    def _stage(self, job: Job) -> Stage:
        if job.state is State.COMPLETED:
            return Stage.DONE
        if job.state is State.CLAIMED:
            return Stage.CLAIMED
        if job.policy.after and any(self.succeeded(dep) is None for dep in job.policy.dependencies()):
            return Stage.BLOCKED
        return Stage.DELAYED if job.ready_at > self._now else Stage.READY

    # Everything that is not a job.

    def _project(self, op: Op) -> None:
        self._registers.enter(op)
        self._reroute(op)

    def _unproject(self, op: Op) -> None:
        """Takes back what an op projected that does not count any more."""
        self._registers.strike(op)
        self._reroute(op)

    def _counting(self, variants: tuple[int, ...]) -> Iterator[Op]:
        """The ops of these variants that count, of the store and of this transaction."""
        for row in self._session.ops_of_variants(variants):
            if row.reason == _COUNTS:
                yield decode(row.body)
        for op, reason in self._fresh.values():
            if reason == _COUNTS and discriminant(op.payload) in variants:
                yield op

    def _reroute(self, op: Op) -> None:
        """A route that comes late changes who could claim since then."""
        if isinstance(op.payload, RouteKind):
            self.flush()
            since = self._session.jobs_of_kind_since(op.payload.kind, pack(op.timestamp))
            self._again.update(dict.fromkeys(since))
