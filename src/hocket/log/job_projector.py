"""Keeps the roster equal to the fold inside one transaction. It also updates what depends on a job: the jobs that come
after it, its stage in the queue, and which process of this node holds it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from hocket.bus.hints import CLAIM
from hocket.families.availability.rules import allows
from hocket.families.jobs.index import indexed_arguments
from hocket.families.jobs.rules import JOBS, Job, Outcome, State, tick_fault
from hocket.kernel.arbitration import Reason
from hocket.kernel.clock import Hlc, pack, unpack
from hocket.kernel.ids import ulid_ms
from hocket.kernel.ops import Op
from hocket.kernel.policy import Policy
from hocket.kernel.vocabulary import (
    JOB,
    AcceptWork,
    ClaimWork,
    ScheduleJob,
    SetSchedule,
    Subject,
    discriminant,
    number_of,
    subject_of,
)
from hocket.log.citations import Memory
from hocket.log.job_check import shown
from hocket.log.projectors import Engine
from hocket.log.registers import RouteRegister, could_be_newest
from hocket.store import JobEntry, RowCheck, Session, Stage

_CLAIMS = (number_of(ClaimWork), number_of(AcceptWork))
_COUNTS = 0
# The job that the stored ops make, and whether its entry must be the same.
Fold = Callable[[Subject], tuple[Job | None, bool]]


class JobProjector:
    """It also answers the job rules' questions about the rest of the log."""

    family = JOBS

    def __init__(self, session: Session, engine: Engine, routes: RouteRegister, fold: Fold) -> None:
        self._session, self._engine, self._routes, self._fold = session, engine, routes, fold
        self.is_rebuilding = False
        """Whether more ops about the jobs are stored than were folded."""
        self.context = self
        self.refusal, self.arbiter = engine.refusal, engine.arbiter
        self.is_overtaken, self.offered = engine.is_overtaken, engine.offered
        self.route = routes.route
        self._entries: dict[bytes, JobEntry | None] = {}
        # In the order of the changes: the store keeps new jobs in this order.
        self._dirty: dict[bytes, None] = {}
        # Those of which only what a claim or a completion changes has changed.
        self._moved: dict[bytes, None] = {}
        self._new: set[bytes] = set()
        # The new jobs that are found by their arguments.
        self._indexed: dict[bytes, Job] = {}
        # Read once, on first use: most logs have no dependencies.
        self._any_after: bool | None = None
        # The offers of this node that were open before this transaction, once they are read: no other can be accepted
        # in it.
        self._offers: list[dict[bytes, int]] = []
        self._made_ready: set[bytes] = set()
        self._freed_kinds: set[str] = set()
        self.touched: set[bytes] = set()
        """The jobs whose entries were written or dropped."""
        self.lost_claims: set[bytes] = set()
        """The jobs that a worker of this node held, and no longer holds."""
        self.topics: Mapping[str, set[bytes]] = {CLAIM: self.lost_claims}
        changes = self._dirty, self._moved, self.touched, self.lost_claims, self._made_ready, self._freed_kinds
        self.memory = Memory((self._entries, *changes, self._new, self._indexed, self._offers))

    def ready_kinds(self) -> set[str]:
        """The kinds of which a worker may find more to claim than before: a job became ready, or a job that counts
        against a limit ended.
        """
        entries = (self._entries[job_id] for job_id in self._made_ready)
        return self._freed_kinds.union(
            entry.job.kind for entry in entries if entry is not None and entry.stage is Stage.READY
        )

    # What the rules ask.

    @property
    def is_strict(self) -> bool:
        return self._engine.is_strict

    def tick_refusal(self, op: Op, policy: Policy) -> Reason | None:
        set_by = policy.set_by()
        schedule, _ = (None, _COUNTS) if set_by is None else self._engine.known(set_by)
        ended: bytes | None = None
        if schedule is not None and isinstance(schedule.payload, SetSchedule):
            ended = self._session.schedule_after(schedule.payload.name, pack(schedule.timestamp))
        if self._is_forgotten(op):
            return Reason.BEHIND_HORIZON
        fault = tick_fault(op, schedule, None if ended is None else unpack(ended), could_be_newest)
        return fault or (None if schedule is None else self._engine.permissions.tick_refusal(op, schedule.node_id))

    def _is_forgotten(self, op: Op) -> bool:
        """Whether the job of this tick may have been here, and gone."""
        cut, payload = self._engine.cut, op.payload
        return cut is not None and isinstance(payload, ScheduleJob) and cut.is_forgotten(payload.job_id, op.timestamp)

    def offer_of(self, op_id: bytes) -> bytes | None:
        op, _ = self._engine.known(op_id)
        return op.payload.offer if op is not None and isinstance(op.payload, AcceptWork) else None

    def succeeded(self, job_id: bytes) -> Hlc | None:
        entry = self.entry(job_id)
        return entry.job.done if entry is not None and entry.job.outcome is Outcome.SUCCEEDED else None

    def is_claim(self, op_id: bytes, job_id: bytes) -> bool:
        op, _ = self._engine.known(op_id)
        return op is not None and discriminant(op.payload) in _CLAIMS and subject_of(op.payload) == (JOB, job_id)

    # Entries, read once and written together.

    def entry(self, job_id: bytes) -> JobEntry | None:
        if job_id not in self._entries:
            self._session.lock_subjects((Subject(JOB, job_id),))
            found = self._session.job(job_id)
            if found is None and self._engine.settle_log():
                found = self._session.job(job_id)
            if found is None or self.sound((found,)):
                self._entries[job_id] = found
        return self._entries[job_id]

    def sound(self, entries: Sequence[JobEntry]) -> Sequence[JobEntry]:
        """Those of the entries that a query has just read that are as their ops say. The others are put right."""
        check = self._session.row_check
        if check is None or not entries or self.is_rebuilding:
            return entries
        return [entry for entry in entries if check.knows_job(entry) or self._is_as_folded(check, entry)]

    def _is_as_folded(self, check: RowCheck, entry: JobEntry) -> bool:
        """Compares an entry with what the stored ops about the job say. A transaction that is alone puts right an entry
        that differs.
        """
        job_id = entry.job.id
        job, must_be_same = self._fold(Subject(JOB, job_id))
        if job == entry.job:
            check.enter_job(entry)
            return True
        if must_be_same:
            check.refuse("jobs", shown(job_id), "its row differs from what the ops about it say")
        self._session.lock_all()
        self._entries[job_id] = entry
        self.keep(job_id, job)
        return False

    def load(self, job_ids: Iterable[bytes]) -> None:
        """Reads many entries at once."""
        unknown = [job_id for job_id in job_ids if job_id not in self._entries]
        self._session.lock_subjects(Subject(JOB, job_id) for job_id in unknown)
        for entry in self.sound(self._session.jobs_by_id(unknown)):
            self._entries[entry.job.id] = entry

    def expect_new(self, job_id: bytes) -> None:
        """Takes the caller's word that no job has this id and that no op cites it, because it is new."""
        self._entries[job_id] = None
        self._new.add(job_id)

    def know(self, entry: JobEntry) -> JobEntry | None:
        """Takes over an entry that a query has just read, unless this transaction holds a newer one. None if it is not
        as its ops say.
        """
        job_id = entry.job.id
        if job_id not in self._entries:
            check = self._session.row_check
            if check is None or check.knows_job(entry) or self.sound((entry,)):
                self._entries[job_id] = entry
                return entry
        return self._entries.get(job_id)

    def assign(self, job_id: bytes, worker: int | None) -> Job:
        """Records which process of this node holds the job, and returns the job."""
        entry = self.entry(job_id)
        assert entry is not None
        self._entries[job_id] = JobEntry(entry.job, entry.stage, worker)
        if job_id not in self._dirty:
            self._moved[job_id] = None
        return entry.job

    def is_blocked(self, job: Job) -> bool:
        """Whether the job waits for others to succeed."""
        return bool(job.policy.after) and any(self.succeeded(each) is None for each in job.policy.dependencies())

    def _put(self, entry: JobEntry) -> None:
        self._entries[entry.job.id] = entry
        self._dirty[entry.job.id] = None
        if entry.stage is Stage.READY:
            self._made_ready.add(entry.job.id)

    # What sets of plain jobs ask.

    def add(self, job: Job, stage: Stage) -> None:
        """A new job that depends on nothing."""
        self._new.add(job.id)
        if job.policy.index:
            self._indexed[job.id] = job
        self._put(JobEntry(job, stage, None))

    def move(self, job: Job, offer: bytes | None = None) -> None:
        """A job that a claim or a completion has changed, on which nothing else depends. It may have been an offer."""
        is_claimed = job.outcome is None
        worker = self._worker_of(offer) if offer is not None and is_claimed else None
        self._entries[job.id] = JobEntry(job, Stage.CLAIMED if is_claimed else Stage.DONE, worker)
        self._moved[job.id] = None

    def note_offer(self, job: Job, at: Hlc) -> None:
        """An offer at that time, which changes nothing else. A late one has come between ops that stay as they are."""
        if at > job.last:
            self.note(job.id, replace(job, last=at))
        else:
            self.touched.add(job.id)

    @property
    def has_dependents(self) -> bool:
        """Whether any job comes after another."""
        if self._any_after is None:
            self._any_after = self._session.has_after()
        return self._any_after

    def is_limited_kind(self, kind: str) -> bool:
        return self._engine.defaults(kind).concurrency is not None

    # What the engine asks.

    def state(self, key: bytes) -> Job | None:
        entry = self.entry(key)
        return None if entry is None else entry.job

    def note(self, key: bytes, state: Job) -> None:
        before = self._entries[key]
        assert before is not None
        self._entries[key] = before._replace(job=state)
        self._moved[key] = None

    def prepare(self, keys: Sequence[bytes]) -> None:
        self.load(keys)
        for job_id in keys:
            self._entries.setdefault(job_id, None)
        self._new |= set(keys) - self._session.jobs_written_of(keys)

    def is_new(self, key: bytes) -> bool:
        return key in self._new

    def not_new(self, key: bytes) -> None:
        self._new.discard(key)

    def claim(self, key: bytes) -> bytes | None:
        entry = self._entries.get(key)
        return None if entry is None else entry.job.claim_op

    def own_fault(self, state: Job | None, op: Op) -> Reason | None:
        """The fold trusts the arbiter to follow the routes and the availability that it knows. Here the arbiter follows
        them.
        """
        if type(op.payload) is not ClaimWork or state is None:
            return None
        availability = self._engine.availability(op.node_id)
        if not allows(availability, op.payload, is_held=state.state is State.CLAIMED):
            return Reason.NOT_AVAILABLE
        routed = self.route(state.kind, op.timestamp)
        return None if routed is None or routed == op.node_id else Reason.ROUTED_ELSEWHERE

    def keys_since(self, hlc: bytes) -> Iterable[bytes]:
        return self._session.jobs_since(hlc)

    def flush(self) -> None:
        if self._dirty:
            self._session.put_jobs([entry for i in self._dirty if (entry := self._entries[i]) is not None])
            self.touched.update(self._dirty)
        if self._moved:
            moved = [i for i in self._moved if i not in self._dirty]
            self._session.move_jobs([entry for i in moved if (entry := self._entries[i]) is not None])
            self.touched.update(moved)
            self._moved.clear()
        self._dirty.clear()
        for job in self._indexed.values():
            self._put_arguments(job)
        self._indexed.clear()

    def _put_arguments(self, job: Job) -> None:
        op, _ = self._engine.known(job.schedule_op)
        if op is not None and type(op.payload) is ScheduleJob:
            self._session.put_arguments(job.id, indexed_arguments(op.payload.payload, job.policy.index))

    def log_changed(self) -> None:
        """Others may have written since."""
        self._any_after = None

    def written(self) -> list[JobEntry]:
        """The entries that the transaction has written."""
        return [entry for i in self.touched if (entry := self._entries.get(i)) is not None]

    # What follows from a job's change.

    def keep(self, key: bytes, state: Job | None) -> None:
        """Also updates the jobs that come after it when its success begins or ends."""
        before, job = self.entry(key), state
        if job is None:
            if before is not None:
                self._drop(before)
            return
        if before is None or before.job.schedule_op != job.schedule_op:
            if before is not None:
                # An earlier ScheduleJob has arrived: the dependencies of the other one are void.
                self._session.drop_job(job.id)
            self._scheduled(job)
        self._put(JobEntry(job, self.stage(job), self._worker(before, job)))
        if before is not None and before.stage is Stage.CLAIMED:
            is_over = job.outcome is Outcome.CANCELLED or job.claim_op != before.job.claim_op
            if is_over and before.worker is not None:
                self.lost_claims.add(job.id)
            if job.state is not State.CLAIMED and self._is_limited(job):
                self._freed_kinds.add(job.kind)
        was = before.job.done if before is not None and before.job.outcome is Outcome.SUCCEEDED else None
        now = job.done if job.outcome is Outcome.SUCCEEDED else None
        if was != now:
            self._dependents(job.id, was, now)

    def _is_limited(self, job: Job) -> bool:
        """Whether only some jobs of its kind may be claimed at once."""
        return job.policy.concurrency is not None or self.is_limited_kind(job.kind)

    def _drop(self, before: JobEntry) -> None:
        job_id = before.job.id
        self._entries[job_id] = None
        self._dirty.pop(job_id, None)
        self._indexed.pop(job_id, None)
        self.touched.add(job_id)
        if before.worker is not None:
            self.lost_claims.add(job_id)
        self._session.drop_job(job_id)
        self._dependents(job_id, before.job.done, None)
        cut, set_by = self._engine.cut, before.job.policy.set_by()
        if set_by is not None and (cut is None or ulid_ms(job_id) > cut.forgotten_ms):
            self._untick(set_by)

    def _worker(self, before: JobEntry | None, job: Job) -> int | None:
        """Which process of this node holds the job: the previous holder, or the one whose offer was accepted."""
        if job.state is not State.CLAIMED or job.claim_op is None:
            return None
        if before is not None and before.job.claim_op == job.claim_op:
            return before.worker
        offer = self.offer_of(job.claim_op)
        return None if offer is None else self._worker_of(offer)

    def _worker_of(self, offer: bytes) -> int | None:
        """Which process of this node has made an offer that was open before this transaction."""
        if not self._offers:
            self._offers.append(self._session.offers())
        return self._offers[0].get(offer)

    def _scheduled(self, job: Job) -> None:
        if job.policy.after or job.policy.set_by() is not None or job.id not in self._new:
            # Others have to notice that jobs depend on each other, and may make the same tick or the same job.
            self._session.lock_all()
        if job.policy.index:
            self._indexed[job.id] = job
        if job.policy.after:
            self._any_after = True
            self._session.set_after(job.id, job.policy.dependencies())
        if (set_by := job.policy.set_by()) is not None:
            self._session.ticked(set_by, ulid_ms(job.id))

    def _untick(self, set_by: bytes) -> None:
        """A tick's job is gone, since its ScheduleJob no longer counts: the tick may be made again."""
        schedule, _ = self._engine.known(set_by)
        if schedule is None:
            return
        ticks = [schedule.timestamp.wall]
        for citing in self._engine.citations.citing(set_by):
            op, _ = self._engine.known(citing)
            if op is not None and type(op.payload) is ScheduleJob and self.entry(op.payload.job_id) is not None:
                ticks.append(ulid_ms(op.payload.job_id))
        self._session.set_last_tick(set_by, max(ticks))

    def _dependents(self, job_id: bytes, was: Hlc | None, now: Hlc | None) -> None:
        if not self.has_dependents:
            return
        changed_at = min(at for at in (was, now) if at is not None) if was or now else None
        for dependent in self._session.dependents(job_id):
            entry = self.entry(dependent)
            if entry is None:
                continue
            if changed_at is not None and entry.job.last > changed_at:
                self._engine.ask_again(Subject(JOB, dependent))
            else:
                self._put(entry._replace(stage=self.stage(entry.job)))

    def stage(self, job: Job) -> Stage:
        if job.state is State.COMPLETED:
            return Stage.DONE
        if job.state is State.CLAIMED:
            return Stage.CLAIMED
        if self.is_blocked(job):
            return Stage.BLOCKED
        return Stage.DELAYED if job.ready_at > self._engine.now else Stage.READY
