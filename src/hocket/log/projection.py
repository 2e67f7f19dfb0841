"""Keeps the projections true to the log inside one transaction. The newest op of a job is applied in place; an
op that comes late, or one whose dependencies change their standing, makes its job be folded again, and whatever
leans on that job after it. The rules are the kernel's; this module only finds out which of them must be asked
again.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from hocket.bus.changes import JOB
from hocket.kernel import roster
from hocket.kernel.clock import Hlc, pack, unpack
from hocket.kernel.ids import ulid_ms
from hocket.kernel.ops import Op
from hocket.kernel.policy import Policy
from hocket.kernel.reasons import UNAUTHORISED, Reason
from hocket.kernel.roster import Job, Outcome, State
from hocket.kernel.schedules import tick_fault
from hocket.kernel.vocabulary import (
    NAMES,
    AcceptWork,
    ClaimWork,
    ClearSchedule,
    CreateArtifact,
    DelegateUcan,
    DesignateCoordinator,
    ReportFork,
    RevokeRoot,
    RevokeUcan,
    RouteKind,
    ScheduleJob,
    SetSchedule,
    discriminant,
    job_of,
    number_of,
)
from hocket.log.citations import Citations
from hocket.log.links import unlinked
from hocket.log.naming import ID_BYTES, Naming, keyed
from hocket.log.ownership import Ownership
from hocket.log.permissions import Permissions, PermissionsReader, trace
from hocket.log.registers import Registers
from hocket.log.ticks import could_be_newest
from hocket.log.unstored_ops import UnstoredOps
from hocket.store import JobEntry, Session, Stage

_CLAIMS = (number_of(ClaimWork), number_of(AcceptWork))
_COUNTS = 0
_LAW = (DelegateUcan, RevokeUcan, RevokeRoot, ReportFork)
_UNAUTHORISED = tuple(map(int, UNAUTHORISED))


class Projection:
    """The roster and its neighbours, as of one transaction. It is the context that the kernel's fold asks."""

    def __init__(
        self,
        session: Session,
        now: int,
        permissions_reader: PermissionsReader,
        permissions: int,
        settle: Callable[[], bool] = lambda: False,
    ) -> None:
        """`permissions` is the number of the permissions in force. `settle` folds what is on the log but not in the
        projections yet; it gives False when there is nothing.
        """
        self._session = session
        self._settle_log = settle
        self._now = now
        self._permissions_reader = permissions_reader
        self.permissions_state = permissions
        self._permissions: Permissions | None = None
        self._entries: dict[bytes, JobEntry | None] = {}
        self._dirty: set[bytes] = set()
        self._new: set[bytes] = set()
        self._fresh = UnstoredOps()
        # The op that the permissions allow, as was found out just now.
        self._allowed: Op | None = None
        # What is still to be asked again, each once: jobs, and ops that are about no job. Of a job, whether the ops
        # that no delegation allowed are to be asked too, because the permissions have changed.
        self._again: OrderedDict[bytes, bool] = OrderedDict()
        self._doubted: OrderedDict[bytes, None] = OrderedDict()
        self._naming = Naming(session, self._fresh, permissions_reader.rules.is_strict)
        is_bound = permissions_reader.rules.bounds is not None
        known = lambda op_id: self._known(op_id)[0]  # noqa: E731
        self._registers = Registers(session, known, self._counting, is_bound)
        artifact = self._registers.artifact
        self._citations = Citations(session, self._fresh, self.entry, artifact, self.arbiter, settle)
        self._ownership = Ownership(session, known, self.entry, artifact, self._citations.cite)
        # Asked once, when it matters: most logs have no dependencies.
        self._any_after: bool | None = None
        self._made_ready: set[bytes] = set()
        self._freed_kinds: set[str] = set()
        self.touched: set[bytes] = set()
        """The jobs whose entries were written or dropped."""
        self.lost_claims: set[bytes] = set()
        """The jobs that a worker of this node held, and holds no more."""

    @property
    def permissions(self) -> Permissions:
        if self._permissions is None:
            fresh = [op for op, _ in self._fresh.ops.values()]
            self._permissions = self._permissions_reader.read(self._session, self.permissions_state, fresh)
        return self._permissions

    def ready_kinds(self) -> set[str]:
        """The kinds of which a worker may find more to claim than before: a job became ready, or a job that counts
        against a limit ended.
        """
        entries = (self._entries[job_id] for job_id in self._made_ready)
        return self._freed_kinds.union(
            entry.job.kind for entry in entries if entry is not None and entry.stage is Stage.READY
        )

    # What the fold asks.

    def refusal(self, op: Op, kind: str) -> Reason | None:
        return None if op is self._allowed else self.permissions.refusal(op, kind)

    def tick_refusal(self, op: Op, policy: Policy) -> Reason | None:
        set_by = policy.set_by()
        schedule, _ = (None, _COUNTS) if set_by is None else self._known(set_by)
        ended: bytes | None = None
        if schedule is not None and isinstance(schedule.payload, SetSchedule):
            ended = self._session.schedule_after(schedule.payload.name, pack(schedule.timestamp))
        fault = tick_fault(op, schedule, None if ended is None else unpack(ended), could_be_newest)
        return fault or (None if schedule is None else self.permissions.tick_refusal(op, schedule.node_id))

    def arbiter(self, at: Hlc) -> int | None:
        return self.permissions.arbiter(at)

    def is_overtaken(self, at: Hlc) -> bool:
        return self.permissions.is_overtaken(at)

    def offer_of(self, op_id: bytes) -> bytes | None:
        op, _ = self._known(op_id)
        return op.payload.offer if op is not None and isinstance(op.payload, AcceptWork) else None

    def offered(self, op_id: bytes, job_id: bytes) -> Op | None:
        op, _ = self._known(op_id)
        return op if op is not None and job_of(op.payload) == job_id else None

    def route(self, kind: str, at: Hlc) -> int | None:
        return self._registers.route(kind, at)

    def succeeded(self, job_id: bytes) -> Hlc | None:
        entry = self.entry(job_id)
        return entry.job.done if entry is not None and entry.job.outcome is Outcome.SUCCEEDED else None

    def is_claim(self, op_id: bytes, job_id: bytes) -> bool:
        if op_id in self._fresh.ops:
            payload = self._fresh.ops[op_id][0].payload
            return isinstance(payload, ClaimWork | AcceptWork) and payload.job_id == job_id
        row = self._session.op(op_id)
        return row is not None and row.variant in _CLAIMS and row.job == job_id

    # Entries, read once and written together.

    def entry(self, job_id: bytes) -> JobEntry | None:
        if job_id not in self._entries:
            self._session.lock_subjects(((JOB, job_id),))
            found = self._session.job(job_id)
            if found is None and self._settle_log():
                found = self._session.job(job_id)
            self._entries[job_id] = found
        return self._entries[job_id]

    def load(self, job_ids: Iterable[bytes]) -> None:
        """Reads many entries at once."""
        unknown = [job_id for job_id in job_ids if job_id not in self._entries]
        self._session.lock_subjects((JOB, job_id) for job_id in unknown)
        for entry in self._session.jobs_by_id(unknown):
            self._entries[entry.job.id] = entry

    def prepare(self, ops: Sequence[Op]) -> None:
        """Reads at once what will be asked about ops that are about to arrive. The log must be settled."""
        jobs = list({job_id for op in ops if (job_id := job_of(op.payload)) is not None})
        self.load(jobs)
        for job_id in jobs:
            self._entries.setdefault(job_id, None)
        self._new |= set(jobs) - self._session.jobs_written_of(jobs)
        names = [op.id for op in ops] + jobs
        names += [op.payload.artifact_id for op in ops if type(op.payload) is CreateArtifact]
        self._citations.expect(names)

    def expect_new(self, job_id: bytes) -> None:
        """Takes the caller's word that no job has this id and nobody cites it, because it was made just now."""
        self._entries[job_id] = None
        self._new.add(job_id)

    def know(self, entry: JobEntry) -> JobEntry:
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
        """Writes the changed entries and the new artifacts, so that the store's queries see them."""
        self._registers.flush()
        if self._dirty:
            self._session.put_jobs([entry for i in self._dirty if (entry := self._entries[i]) is not None])
            self.touched |= self._dirty
            self._dirty.clear()

    def _put(self, entry: JobEntry) -> None:
        self._entries[entry.job.id] = entry
        self._dirty.add(entry.job.id)
        if entry.stage is Stage.READY:
            self._made_ready.add(entry.job.id)

    def _note(self, before: JobEntry | None, op: Op) -> None:
        """An op that changes nothing was written about the job all the same."""
        if before is not None and (moved := roster.seen(before.job, op)) is not None:
            self._entries[before.job.id] = before._replace(job=moved)
            self._dirty.add(before.job.id)

    # Ops that are later than everything on the log: this node's own.

    def newest(self, op: Op) -> Reason | None:
        """Applies an op that nothing on the log is later than. A refused one leaves no trace; an offer does."""
        op = self._naming.resolved(op)
        job_id = job_of(op.payload)
        if job_id is None:
            reason = self._citing_fault(op) or self.permissions.refusal(op) or self._unlinked(op)
            if reason is None:
                self._fresh.put(op, _COUNTS)
                self._registers.introduce(op)
                self._enact(op)
                self._project(op)
                self._settle()
            return reason
        before = self.entry(job_id)
        if type(op.payload) is ClaimWork and before is not None:
            # The fold believes the arbiter that it keeps to the routes that it knows; here is where it does.
            routed = self.route(before.job.kind, op.timestamp)
            if routed is not None and routed != op.node_id:
                return Reason.ROUTED_ELSEWHERE
        verdict = roster.apply(before.job if before else None, op, self, partial(self._citing_fault, op))
        if verdict is Reason.OFFERED:
            self._fresh.put(op, Reason.OFFERED)
            self._note(before, op)
            return None
        if isinstance(verdict, Reason):
            return verdict
        self._fresh.put(op, _COUNTS)
        self._keep(before, verdict)
        if type(op.payload) is AcceptWork:
            self._leaners(op)
            self._settle()
        if type(op.payload) is ScheduleJob and job_id not in self._new:
            # An id that others could make too, like that of a schedule's tick, may have been waited for.
            self._leaners(op)
            self._settle()
        return None

    # Ops in any order: received, imported, or met again in a rebuild.

    def arrived(self, op: Op, integrity: bool) -> None:
        """Takes in an op that may be older than others, before its row is stored. Jobs that have to be folded again are
        folded by `settle`, each once; `reason` tells afterwards whether the op counts.
        """
        job_id = job_of(op.payload)
        self._fresh.put(op, Reason.INTEGRITY if integrity else Reason.WAITING)
        if len(op.id) > ID_BYTES:
            self._share_id(op)
        if self.permissions.could_be_pinned(op):
            # If the op itself changes the permissions, the permissions change once more for that.
            self._judge_anew(op, b"arrived" + op.id)
        if job_id is None:
            self._registers.introduce(op)
            self._doubted[op.id] = None
        elif not integrity:
            self._arrived_at(job_id, op)
        # Whoever cites it has waited for it, and now learns what it is, be it only that it is later than themselves.
        self._leaners(op)
        if job_id is None:
            # The permissions, routes and coordinators are what the following ops are judged by.
            while self._doubted:
                self._judge(self._doubted.popitem(last=False)[0])

    def _share_id(self, op: Op) -> None:
        """Ops that cite the id may mean this op now. Those within the job of the op that they meant so far are found by
        that job; all others are remembered.
        """
        for other in self._naming.namesakes(op.id[:ID_BYTES]):
            if other.job is not None and other.key != op.id:
                self._doubt(other.key, other.job)

    def _arrived_at(self, job_id: bytes, op: Op) -> None:
        before = self.entry(job_id)
        # A tick is judged by its schedule's author.
        is_judged = before is not None and type(op.payload) is not ScheduleJob and op.timestamp > before.job.scheduled
        refused = self.permissions.refusal(op, before.job.kind) if is_judged else None  # type: ignore[union-attr]
        if refused is not None:
            # What its author may not write is no reason to fold the job again.
            self._fresh.put(op, refused)
        elif job_id in self._again:
            return
        elif before is not None and op.timestamp > before.job.last:
            self._allowed = op if is_judged else None
            self._fresh.put(op, self._in_place(before, op))
            self._allowed = None
        elif before is None and job_id in self._new and type(op.payload) is ScheduleJob:
            self._fresh.put(op, self._in_place(None, op))
        else:
            self._again[job_id] = False
        self._new.discard(job_id)

    def settle(self) -> None:
        """Folds again and asks again whatever what has arrived makes necessary."""
        self._settle()

    def legislate(self, op: Op, integrity: bool) -> None:
        """Before a whole log is replayed: enters its delegations and revocations, since the permissions look back."""
        op = self._naming.resolved(op)
        self._registers.introduce(op)
        if not integrity and self._citations.are_here(op) and self._registers.enact(op):
            self._change_permissions(op.id)

    def designate(self, op: Op, integrity: bool) -> None:
        """Before a whole log is replayed, but after its delegations: enters a designation that pins something, since
        that looks back, too.
        """
        if op.pin is not None and not op.cited and not integrity and self.permissions.refusal(op) is None:
            self._registers.enter(op)
            self._change_permissions(op.id)

    def replayed(self, op: Op, integrity: bool = False) -> int:
        """Applies the next op of the whole log in HLC order, whose row is stored. Gives its reason, 0 if it
        counts.
        """
        if integrity:
            return Reason.INTEGRITY
        op = self._naming.resolved(op)
        job_id = job_of(op.payload)
        if job_id is not None:
            return self._in_place(self.entry(job_id), op)
        reason = self._citing_fault(op) or self.permissions.refusal(op) or self._unlinked(op)
        if reason is None and not self._registers.is_designated(op):
            self._project(op)
        return reason or _COUNTS

    def reason(self, op_id: bytes) -> int:
        """Whether an op of this transaction counts."""
        return self._fresh.ops[op_id][1]

    def _in_place(self, before: JobEntry | None, op: Op) -> int:
        op = self._naming.resolved(op)
        verdict = roster.apply(before.job if before else None, op, self, partial(self._citing_fault, op))
        if not isinstance(verdict, Reason):
            self._keep(before, verdict)
            return _COUNTS
        if verdict not in UNAUTHORISED:
            self._note(before, op)
        return verdict

    def collide(self, op: Op) -> None:
        """An op turns out to share its timestamp with another of its author: it does not count any more."""
        assert (
            self.permissions is not None
        )  # read before it changes, or the new one would be kept under the old one's number
        _, before = self._known(op.id)
        if before == Reason.INTEGRITY:
            return
        self._set_reason(op, Reason.INTEGRITY)
        job_id = job_of(op.payload)
        if job_id is not None:
            self._again.setdefault(job_id, False)
        else:
            self._repeal(op)
            if before == _COUNTS:
                self._unproject(op)
        self._leaners(op)

    def _citing_fault(self, op: Op) -> Reason | None:
        """For the newest op of its job: the claim in force needs no looking up."""
        cited = op.cited
        if not cited or (job_id := job_of(op.payload)) is None:
            return self._citations.fault(op)
        entry = self._entries.get(job_id)
        newest = None if entry is None else entry.job.claim_op
        if len(cited) == 1 and cited[0] == newest and type(op.payload) not in (AcceptWork, ScheduleJob):
            return None
        return self._citations.fault(op, newest_claim=newest)

    def _unlinked(self, op: Op) -> Reason | None:
        known = lambda name: self._known(self._naming.key(name, op))[0]  # noqa: E731
        fault = unlinked(op, self.permissions.authority, self._registers.artifact, known, self._citations.cite)
        return fault or self._ownership.fault(op, self.permissions)

    # Folding again.

    def _leaners(self, leaned_on: Op) -> None:
        """Every op that cites this one is to be asked again, now that its standing may have changed."""
        payload = leaned_on.payload
        names = {leaned_on.id}
        if type(payload) is ScheduleJob:
            names.add(payload.job_id)
        elif type(payload) is CreateArtifact:
            names.add(payload.artifact_id)
        elif type(payload) is AcceptWork:
            # Whoever cites the offer has waited for its acceptance.
            names.add(payload.offer)
        citing_ops = [citing for name in names for citing in self._citations.citing(name)]
        for citing in citing_ops:
            op, _ = self._known(citing)
            if op is not None:
                self._doubt(op.id, job_of(op.payload))

    def _doubt(self, op_id: bytes, job_id: bytes | None, permissions: bool = False) -> None:
        """`permissions` says that it is asked again because the permissions have changed."""
        if job_id is not None:
            self._again[job_id] = permissions or self._again.get(job_id, False)
        else:
            self._doubted[op_id] = None

    def _settle(self) -> None:
        """Asks until nothing is left to ask. That ends, because a verdict hangs on earlier ops alone."""
        while self._again or self._doubted:
            if self._again:
                self._refold(*self._again.popitem(last=False))
            else:
                self._judge(self._doubted.popitem(last=False)[0])

    def _judge(self, op_id: bytes) -> None:
        """Asks again about an op that is about no job."""
        op, before = self._known(op_id)
        assert op is not None
        if before == Reason.INTEGRITY:
            return
        op = self._naming.resolved(op)
        self._enact(op)
        reason = int(self._citations.fault(op) or self.permissions.refusal(op) or self._unlinked(op) or _COUNTS)
        if reason == before:
            return
        self._set_reason(op, reason)
        if reason == _COUNTS:
            self._project(op)
        elif before == _COUNTS:
            self._unproject(op)
        self._leaners(op)

    def _refold(self, job_id: bytes, permissions: bool) -> None:
        """Ops without a grant are left out unless the permissions have changed, so that they cost others nothing."""
        without = () if permissions else _UNAUTHORISED
        ops: dict[bytes, tuple[Op, int]] = {
            row.id: (keyed(row), row.reason) for row in self._session.ops_of_job(job_id, without)
        }
        fresh = self._fresh.of_job(job_id)
        ops.update((op.id, (op, reason)) for op, reason in fresh if permissions or reason not in _UNAUTHORISED)
        verdicts = {op.id: (op.timestamp, reason) for op, reason in ops.values() if reason == Reason.INTEGRITY}
        job = roster.fold((self._naming.resolved(op) for op, _ in ops.values()), self, self._citations.fault, verdicts)
        flipped = [op for op, reason in ops.values() if verdicts[op.id][1] != reason]
        for op in flipped:
            self._set_reason(op, verdicts[op.id][1])
        self._keep(self.entry(job_id), job, job_id)
        for op in flipped:
            self._leaners(op)

    def _set_reason(self, op: Op, reason: int) -> None:
        if op.id in self._fresh.ops:
            self._fresh.put(op, reason)
        else:
            self._session.set_reasons([(reason, op.id)])

    def _known(self, op_id: bytes) -> tuple[Op | None, int]:
        if op_id in self._fresh.ops:
            return self._fresh.ops[op_id]
        row = self._session.op(op_id)
        return (None, _COUNTS) if row is None else (keyed(row), row.reason)

    # What follows from a job's change.

    def _keep(self, before: JobEntry | None, job: Job | None, job_id: bytes = b"") -> None:
        """Stores a job's new record and lets the jobs that come after it know when its success begins or ends."""
        if job is None:
            if before is not None:
                self._entries[job_id] = None
                self._dirty.discard(job_id)
                self.touched.add(job_id)
                if before.worker is not None:
                    self.lost_claims.add(job_id)
                self._session.drop_job(job_id)
                self._dependents(job_id, before.job.done, None)
                if (set_by := before.job.policy.set_by()) is not None:
                    self._untick(set_by)
            return
        if before is None or before.job.schedule_op != job.schedule_op:
            if before is not None:
                # An earlier ScheduleJob has come to light: what the other one said that it comes after is void.
                self._session.drop_job(job.id)
            self._scheduled(job)
        self._put(JobEntry(job, self._stage(job), self._worker(before, job)))
        if before is not None and before.stage is Stage.CLAIMED:
            is_over = job.outcome is Outcome.CANCELLED or job.claim_op != before.job.claim_op
            if is_over and before.worker is not None:
                self.lost_claims.add(job.id)
            if job.state is not State.CLAIMED and job.policy.concurrency is not None:
                self._freed_kinds.add(job.kind)
        was = before.job.done if before is not None and before.job.outcome is Outcome.SUCCEEDED else None
        now = job.done if job.outcome is Outcome.SUCCEEDED else None
        if was != now:
            self._dependents(job.id, was, now)

    def _worker(self, before: JobEntry | None, job: Job) -> int | None:
        """Which process of this node holds the job: the one that did, or the one whose offer was accepted."""
        if job.state is not State.CLAIMED or job.claim_op is None:
            return None
        if before is not None and before.job.claim_op == job.claim_op:
            return before.worker
        claim, _ = self._known(job.claim_op)
        return self._session.offered_by(claim.payload.offer) if claim and type(claim.payload) is AcceptWork else None

    def _scheduled(self, job: Job) -> None:
        if job.policy.after:
            self._any_after = True
            self._session.set_after(job.id, job.policy.dependencies())
        if (set_by := job.policy.set_by()) is not None:
            self._session.ticked(set_by, ulid_ms(job.id))

    def _untick(self, set_by: bytes) -> None:
        """A tick's job is gone, because its maker lost its word: the tick may be made again."""
        schedule, _ = self._known(set_by)
        if schedule is None:
            return
        ticks = [schedule.timestamp.wall]
        for citing in self._citations.citing(set_by):
            op, _ = self._known(citing)
            if op is not None and type(op.payload) is ScheduleJob and self.entry(op.payload.job_id) is not None:
                ticks.append(ulid_ms(op.payload.job_id))
        self._session.set_last_tick(set_by, max(ticks))

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
                self._again.setdefault(dependent, False)
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
        self._follow(op)
        self._reschedule(op, is_in_force=True)

    def _unproject(self, op: Op) -> None:
        """Takes back what an op projected that does not count any more."""
        self._registers.strike(op)
        self._follow(op)
        self._reschedule(op, is_in_force=False)

    def _reschedule(self, op: Op, is_in_force: bool) -> None:
        """A schedule that is set or cleared late, or is not any more, changes who could change it since then, and until
        when the one before it ticked.
        """
        if not isinstance(op.payload, SetSchedule | ClearSchedule):
            return
        at = pack(op.timestamp)
        self._doubted.update(dict.fromkeys(self._session.schedule_ops_after(op.payload.name, at)))
        earlier = self._session.schedule_before(op.payload.name, at)
        if earlier is not None and (not is_in_force or earlier.last_tick > op.timestamp.wall):
            self._doubt_ticks(earlier.op, op.timestamp.wall)

    def _doubt_ticks(self, schedule_op: bytes, since: int) -> None:
        """The jobs of the schedule's ticks after that time are to be asked again."""
        for citing in self._citations.citing(schedule_op):
            op, _ = self._known(citing)
            job_id = None if op is None else job_of(op.payload)
            if job_id is not None and ulid_ms(job_id) > since:
                self._again[job_id] = True

    def _counting(self, variants: tuple[int, ...]) -> Iterator[Op]:
        """The ops of these variants that count, of the store and of this transaction."""
        for row in self._session.ops_of_variants(variants):
            if row.reason == _COUNTS:
                yield keyed(row)
        for op, reason in list(self._fresh.ops.values()):
            if reason == _COUNTS and discriminant(op.payload) in variants:
                yield op

    def _follow(self, op: Op) -> None:
        """A route that comes late changes who could claim since then; a coordinator, who could decide."""
        payload = op.payload
        if isinstance(payload, RouteKind):
            self.flush()
            since = self._session.jobs_of_kind_since(payload.kind, pack(op.timestamp))
            for job_id in since:
                self._again.setdefault(job_id, False)
        elif isinstance(payload, DesignateCoordinator):
            self._judge_anew(op)
            self.flush()
            for job_id in self._session.jobs_since(self._decided_since(op)):
                self._again[job_id] = True
            derivations = tuple(number for number, name in NAMES.items() if name in self.permissions.derivation_ops)
            for row in self._session.ops_of_variants(derivations) if derivations else ():
                if row.hlc > pack(op.timestamp):
                    self._doubted[row.id] = None
            for row in self._session.ops_refused_for((Reason.WAITING,)):
                self._doubt(row.id, row.job)

    def _decided_since(self, designation: Op) -> bytes:
        """From when on a designation changes who decides: its own time, or the op of its predecessor that it pins."""
        pin = designation.pin
        if pin is None or designation.cited:
            return pack(designation.timestamp)
        return pack(min(designation.timestamp, Hlc(pin.wall, pin.logical, 0)))

    # The permissions.

    def _enact(self, op: Op) -> None:
        """A delegation, a revocation or a proof of a fork has force as soon as all that it cites is here."""
        if not isinstance(op.payload, _LAW) or not self._citations.are_here(op):
            return
        if self._registers.enact(op):
            self._judge_anew(op)

    def _repeal(self, op: Op) -> None:
        if isinstance(op.payload, _LAW) and self._registers.repeal(op):
            self._judge_anew(op)

    def _change_permissions(self, name: bytes) -> None:
        self.permissions_state ^= trace(name)
        self._permissions = None

    def _judge_anew(self, op: Op, name: bytes = b"") -> None:
        """The permissions have changed by this op. What is written by the nodes whose delegations it made or broke is
        to be asked again, and so are the revocations.
        """
        before = self.permissions
        self._change_permissions(name or op.id)
        losers, gainers = self.permissions.compared_with(before)
        self._doubted.update((revoked.op_id, None) for revoked in self._session.revocations())
        for fresh, _ in list(self._fresh.ops.values()):
            if fresh.node_id in losers | gainers and fresh.id != op.id:
                self._doubt(fresh.id, job_of(fresh.payload), permissions=True)
        for node in losers | gainers:
            for schedule_op in self._session.schedule_ops_by(node.to_bytes(8, "big")):
                self._doubt_ticks(schedule_op, 0)
        for node in losers:
            self._session.order_ops()
            for op_id, job_id in self._session.written_by(node.to_bytes(8, "big")):
                self._doubt(op_id, job_id, permissions=True)
        if gainers:
            for row in self._session.ops_refused_for(_UNAUTHORISED):
                self._doubt(row.id, row.job, permissions=True)
