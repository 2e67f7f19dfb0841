"""Checks the rows of jobs in a store that nodes share, before this node claims a job, writes about it, or grants its
claimer anything. The row of a job that nobody has touched must be what its ScheduleJob op says, and no op about it may
be later. The row of any other job must be one that this process has written or folded, as of the last op about the job.
A transaction folds the ops about a job whose row is not known (`JobProjector.sound`).
"""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from operator import itemgetter
from typing import NamedTuple, Protocol, TypeVar

from hocket.families.jobs.rules import Job, State, new_job, tick_fault
from hocket.kernel.arbitration import Reason
from hocket.kernel.clock import Hlc, pack
from hocket.kernel.ids import ulid_text
from hocket.kernel.ops import Op, decode, link_to, plain_schedule_link
from hocket.kernel.policy import DEFAULT
from hocket.kernel.vocabulary import JOB, AcceptWork, ClaimWork, Sanitised, ScheduleJob, Subject, subject_of
from hocket.log.citations import ID_BYTES
from hocket.log.permissions import Permissions
from hocket.log.registers import could_be_newest
from hocket.store import JobEntry, OpRow, Session, Stage
from hocket.store.job_rows import BundledOp, ReadyJob

# How many ops, jobs and claims are remembered as good.
REMEMBERED_MAX = 16_384
K = TypeVar("K")
V = TypeVar("V")


class OpCheck(Protocol):
    """What the checks of ops do for those of jobs."""

    @property
    def is_bound(self) -> bool: ...
    @property
    def is_strict(self) -> bool: ...
    def fault(self, session: Session, key: bytes, body: bytes) -> str | None:
        """What is wrong with the op, if anything."""

    def permissions(self, session: Session) -> Permissions: ...
    def refuse(self, table: str, row: str, what: str) -> None: ...


class _GoodJob(NamedTuple):
    """A row that was found to be right, as of the last op about the job, and for a new job the permissions under which
    its author may submit it. `worker` is the process of this node that holds the job.
    """

    job: Job
    other_last: bytes | None = None
    permissions: Permissions | None = None
    worker: int | None = None


class JobCheck:
    """The checks of one process."""

    def __init__(self, ops: OpCheck) -> None:
        self._ops = ops
        self._good: dict[bytes, _GoodJob] = {}
        # Claims that were found to be good: each with its job and its author.
        self._claims: dict[bytes, tuple[bytes | None, bytes]] = {}

    # What this process knows.

    def knows(self, entry: JobEntry) -> bool:
        good = self._good.get(entry.job.id)
        return good is not None and good.other_last == entry.other_last and good.job == entry.job

    def held(self, job_ids: Iterable[bytes]) -> list[JobEntry]:
        known = [good for job_id in job_ids if (good := self._good.get(job_id)) is not None]
        return [
            JobEntry(good.job, Stage.CLAIMED, good.worker)
            for good in known
            if good.job.state is State.CLAIMED and good.other_last is None
        ]

    def forget(self, entries: Iterable[JobEntry]) -> None:
        for entry in entries:
            self._good.pop(entry.job.id, None)

    def enter(self, entry: JobEntry) -> None:
        """A transaction has folded the ops about this job."""
        remember(self._good, entry.job.id, _GoodJob(entry.job, entry.other_last, worker=entry.worker))

    def wrote(self, entries: Sequence[JobEntry]) -> None:
        """A transaction that has written these is durable. Only jobs that were claimed are read again as they are:
        those that have ended are not, and others are compared with their ScheduleJob ops.
        """
        good = self._good
        for entry in entries:
            job = entry.job
            if job.fence and job.outcome is None:
                remember(good, job.id, _GoodJob(job, worker=entry.worker))
            elif job.id in good:
                del good[job.id]

    # Jobs that a worker may claim.

    def ready(self, session: Session, jobs: list[ReadyJob], bundled: Mapping[bytes, BundledOp]) -> list[ReadyJob]:
        permissions, is_bound = self._ops.permissions(session), self._ops.is_bound
        faults: dict[bytes, str] = {}
        plain: list[tuple[Hlc, bytes, Job, bytes]] = []
        # Each bundle is judged once. A caller reads it once for all of its facts.
        bundles = {each.bundle for each in bundled.values()}
        of_bundles = {bundle: self._ops.fault(session, bundle[:ID_BYTES], bundle) for bundle in bundles}
        allowed: set[tuple[int, str, int]] = set()
        for entry, body in jobs:
            job = entry.job
            if body is None:
                continue
            is_new = entry.other_last is None and job.last == job.scheduled
            came_in = bundled.get(job.schedule_op)
            link = _plain_link(job, body) if is_new and is_bound and came_in is None else None
            good = self._good.get(job.id)
            is_known = good is not None and good.permissions is permissions and good.job == job
            if link is not None:
                if not is_known:
                    plain.append((job.scheduled, link, job, body))
            elif (fault := self._fault(session, job.schedule_op, body, came_in, of_bundles)) is not None:
                faults[job.id] = fault
                self._ops.refuse("ops", shown(job.schedule_op), fault)
            elif is_new and not is_known:
                op = decode(body) if came_in is None or came_in.op is None else came_in.op
                self._judge_new(session, job, op, permissions, allowed, faults)
        if plain:
            self._judge_plain(session, plain, permissions, allowed, faults)
        return [each for each in jobs if each[0].job.id not in faults] if faults else jobs

    def _fault(
        self,
        session: Session,
        op_id: bytes,
        body: bytes,
        came_in: BundledOp | None,
        of_bundles: Mapping[bytes, str | None],
    ) -> str | None:
        """A fact is good if it is the one with this id, and the bundle that it came in is good."""
        if came_in is None:
            return self._ops.fault(session, op_id, body)
        if body[:ID_BYTES] != op_id:
            return "its index columns differ from its bytes"
        return of_bundles[came_in.bundle]

    def _judge_plain(
        self,
        session: Session,
        jobs: list[tuple[Hlc, bytes, Job, bytes]],
        permissions: Permissions,
        allowed: set[tuple[int, str, int]],
        faults: dict[bytes, str],
    ) -> None:
        """Judges jobs whose ids follow from the content of their ops, each with the link of its op. Nobody needs the
        signature of each: the signature of an op vouches for its author's op right before it, since its link commits to
        that op's id. Many jobs of one author and time are allowed together.
        """
        vouched: set[tuple[int, bytes]] = set()
        # The latest first: each op is vouched for by a later one.
        for (wall, _, node), link, job, body in sorted(jobs, key=itemgetter(0), reverse=True):
            job_id, kind = job.id, job.kind
            fault = None
            if (node, link_to(job_id)) not in vouched and (fault := self._ops.fault(session, job_id, body)) is not None:
                self._ops.refuse("ops", shown(job_id), fault)
            elif (node, kind, wall) not in allowed:
                op = Op(job_id, job.scheduled, node, (link,), ScheduleJob(job_id, kind, b"", b""))
                fault = self._unauthorised(session, job, op, permissions)
                if fault is None and node not in permissions.forks:
                    allowed.add((node, kind, wall))
                elif fault is not None:
                    self._ops.refuse("jobs", shown(job_id), fault)
            if fault is None:
                vouched.add((node, link))
                remember(self._good, job_id, _GoodJob(job, None, permissions))
            else:
                faults[job_id] = fault

    def _judge_new(
        self,
        session: Session,
        job: Job,
        op: Op,
        permissions: Permissions,
        allowed: set[tuple[int, str, int]],
        faults: dict[bytes, str],
    ) -> None:
        """The permissions of many plain jobs of one author and time are asked once."""
        fault, asked = None, (op.node_id, job.kind, op.timestamp.wall)
        is_plain = job.policy is DEFAULT and op.node_id not in permissions.forks
        if _new_job(op, self._ops.is_strict) != job:
            fault = "its row differs from its ScheduleJob op"
        elif not is_plain or asked not in allowed:
            fault = self._unauthorised(session, job, op, permissions)
            if fault is None and is_plain:
                allowed.add(asked)
        if fault is None:
            remember(self._good, job.id, _GoodJob(job, None, permissions))
        else:
            faults[job.id] = fault
            self._ops.refuse("jobs", shown(job.id), fault)

    def _unauthorised(self, session: Session, job: Job, op: Op, permissions: Permissions) -> str | None:
        set_by = job.policy.set_by()
        if job.policy.schedule_op is None or set_by is None:
            refused = permissions.refusal(op, job.kind)
        else:
            row = session.op(set_by)
            schedule = None if row is None else decode(row.body)
            refused = tick_fault(op, schedule, None, could_be_newest)
            if refused is None and schedule is not None:
                refused = permissions.tick_refusal(op, schedule.node_id)
        return None if refused is None else f"its author may not submit it: {refused.sentence}"

    # Jobs in a session that folds nothing.

    def sound(self, session: Session, entries: Sequence[JobEntry]) -> list[JobEntry]:
        """Those of the jobs that are as their ScheduleJob ops say and held by the authors of their claims, if no later
        op about them counts.
        """
        unknown = [each for each in entries if not self.knows(each)]
        claims = [
            claim
            for each in unknown
            if (claim := each.job.claim_op) is not None and each.job.claimer is not None and claim not in self._claims
        ]
        wanted = [*(each.job.schedule_op for each in unknown), *claims]
        rows = {row.id: row for row in session.ops_by_id(wanted)} if wanted else {}
        bad: set[bytes] = set()
        for entry in unknown:
            fault = _schedule_fault(entry.job, rows, self._ops.is_strict) or self._claim_fault(session, entry.job, rows)
            if fault is None and entry.other_last is not None:
                fault = _late_fault(session, entry.job)
            if fault is not None:
                bad.add(entry.job.id)
                self._ops.refuse("jobs", shown(entry.job.id), fault)
        return [each for each in entries if each.job.id not in bad]

    def _claim_fault(self, session: Session, job: Job, rows: Mapping[bytes, OpRow]) -> str | None:
        if job.claimer is None or job.claim_op is None:
            return None
        known = self._claims.get(job.claim_op)
        if known is None and (row := rows.get(job.claim_op)) is not None:
            op = decode(row.body)
            offer = session.op(op.payload.offer) if isinstance(op.payload, AcceptWork) else row
            claim = op if offer is row else None if offer is None else decode(offer.body)
            permissions = self._ops.permissions(session)
            if offer is not None and claim is not None and _is_claim(job, op, claim, permissions):
                known = offer.key, offer.hlc[12:]
                remember(self._claims, job.claim_op, known)
        is_held = known == (job.id, job.claimer.to_bytes(8, "big"))
        return None if is_held else "no claim of its claimer is there, or none that it may make"


def _plain_link(job: Job, body: bytes) -> bytes | None:
    """The link of the ScheduleJob op, if the job has no options and its row is as that op says."""
    if job != Job(job.id, job.kind, job.id, job.scheduled, DEFAULT, job.scheduled):
        return None
    return plain_schedule_link(body, job.id, job.scheduled, job.kind)


def _is_claim(job: Job, op: Op, claim: Op, permissions: Permissions) -> bool:
    """Whether the op decides that this claim holds the job: it is that claim, or the arbiter's word on it."""
    is_decided = permissions.arbiter(op.timestamp) in (None, op.node_id)
    return (
        isinstance(claim.payload, ClaimWork)
        and subject_of(op.payload) == subject_of(claim.payload) == Subject(JOB, job.id)
        and (is_decided or (op is claim and job.policy.open is True))
        and permissions.refusal(claim, job.kind) is None
    )


def _new_job(op: Op, is_strict: bool) -> Job | Reason | None:
    """The job that this op schedules, before any other op about it."""
    payload = op.payload.payload if isinstance(op.payload, Sanitised) else op.payload
    if not isinstance(payload, ScheduleJob):
        return None
    return new_job(op, payload, is_strict)


def _schedule_fault(job: Job, rows: Mapping[bytes, OpRow], is_strict: bool) -> str | None:
    row = rows.get(job.schedule_op)
    if row is None:
        return "its ScheduleJob op is not there"
    new = _new_job(decode(row.body), is_strict)
    if not isinstance(new, Job) or new.id != job.id:
        return "its ScheduleJob op schedules no such job"
    says = new.kind, new.scheduled, new.policy
    return None if says == (job.kind, job.scheduled, job.policy) else "its row differs from its ScheduleJob op"


def _late_fault(session: Session, job: Job) -> str | None:
    later = session.ops_about(Subject(JOB, job.id), after=pack(job.last))
    return "a later op about it counts" if any(not row.reason for row in later) else None


def sound_job(session: Session, job_id: bytes) -> JobEntry | None:
    """The job, if its row is as its ops say."""
    entry = session.job(job_id)
    check = session.row_check
    return entry if entry is None or check is None else next(iter(check.jobs((entry,))), None)


def digest(body: bytes) -> bytes:
    return blake2b(body, digest_size=16).digest()


def shown(key: bytes) -> str:
    return ulid_text(key[:ID_BYTES]) if len(key) >= ID_BYTES else key.hex()


def remember(known: dict[K, V], key: K, value: V, limit: int = REMEMBERED_MAX) -> None:
    while len(known) >= limit:
        known.pop(next(iter(known)), None)
    known[key] = value
