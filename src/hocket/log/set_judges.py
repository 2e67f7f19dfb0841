"""How facts of one author and one type about jobs of one kind are written, or received, as one bundle. In the lane of
plain jobs, what has the same answer for all of them is asked once; then each is applied to its job without an op of its
own. It leaves the same rows as the fold. Everything that a set does not share goes the way of a single op.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from hocket.families.availability.facts import Availability
from hocket.families.jobs.rules import Job, new_job, plain_acceptance, plain_claim, plain_completion
from hocket.kernel.arbitration import Reason
from hocket.kernel.bundles import BundleDraft, Fact
from hocket.kernel.clock import Hlc, pack
from hocket.kernel.ops import NO_ID, Op
from hocket.kernel.policy import readable_policy
from hocket.kernel.vocabulary import (
    JOB,
    AcceptWork,
    Bundle,
    ClaimWork,
    CompleteJob,
    Payload,
    ScheduleJob,
    discriminant,
    number_of,
)
from hocket.log.job_projector import JobProjector
from hocket.log.projection import Projection
from hocket.log.projectors import Engine
from hocket.store import NewOp

_COUNTS = 0
# Applies a fact by its payload, what it cites, its id and its time. False if the fact must be judged by itself: then
# nothing has changed.
Applies = Callable[[Any, tuple[bytes, ...], bytes, Hlc], bool]


class Judge(NamedTuple):
    """How the facts of a set are judged. `reason` is that of each fact that is applied."""

    applies: Applies
    reason: int


def judge_of(
    engine: Engine, jobs: JobProjector, first: Op, last: Hlc, kind: str, *, is_own: bool = True
) -> Judge | None:
    """A judge for facts with times from that of `first` to `last`, with payloads of its type about jobs of that kind.
    None if each must be judged by itself. They are this node's own, and new, or were received.
    """
    permissions, payload, begin = engine.permissions, first.payload, first.timestamp
    if engine.is_strict or permissions.forks or permissions.refusal(first, kind) is not None:
        return None
    if isinstance(payload, ScheduleJob):
        applies = _judge_of_new_jobs(jobs, first, payload, is_own)
        return None if applies is None else Judge(applies, _COUNTS)
    if not isinstance(payload, ClaimWork | CompleteJob | AcceptWork):
        return None
    if is_own and isinstance(payload, ClaimWork):
        is_available = engine.availability(last.node) is Availability.ACTIVE
        if not is_available or jobs.route(kind, last) not in (None, last.node):
            return None
    arbiter = permissions.arbiter(begin)
    if arbiter is None or permissions.arbiter(last) != arbiter or permissions.is_divided(begin, last):
        return None
    if arbiter != first.node_id:
        is_offer = not isinstance(payload, AcceptWork)
        return Judge(_judge_of_offers(jobs, kind), Reason.OFFERED) if is_offer else None
    if permissions.is_overtaken(begin) or permissions.is_overtaken(last):
        return None
    if isinstance(payload, ClaimWork):
        return Judge(_judge_of_claims(jobs, kind), _COUNTS)
    may_end = not jobs.has_dependents and not jobs.is_limited_kind(kind)
    if isinstance(payload, AcceptWork):
        return Judge(_judge_of_acceptances(engine, jobs, kind, may_end), _COUNTS)
    return Judge(_judge_of_completions(jobs, kind), _COUNTS) if may_end else None


def judge_of_received(projection: Projection, facts: Sequence[Fact]) -> Judge | None:
    """Judges the facts of a bundle that has just arrived and is later than all ops of its author here. None if each
    must be judged by itself.
    """
    first, last = facts[0].op, facts[-1].op.timestamp
    payload, job_id = first.payload, getattr(first.payload, "job_id", None)
    if isinstance(payload, ScheduleJob):
        return judge_of(projection, projection.jobs, first, last, payload.kind, is_own=False)
    job = None if job_id is None else projection.jobs.state(job_id)
    return None if job is None else judge_of(projection, projection.jobs, first, last, job.kind, is_own=False)


def _judge_of_new_jobs(jobs: JobProjector, first: Op, payload: ScheduleJob, is_own: bool) -> Applies | None:
    """For jobs with one policy that depend on nothing. All have the time of the first, but for the logical clock."""
    envelope, kind = payload.policy_envelope, payload.kind
    like = new_job(first, payload, is_strict=False)
    policy = readable_policy(envelope)
    if policy is None or policy.after or policy.schedule_op is not None or isinstance(like, Reason):
        return None
    stage = jobs.stage(like)

    def applies(payload: ScheduleJob, cited: tuple[bytes, ...], fact_id: bytes, at: Hlc) -> bool:
        is_plain = payload.policy_envelope == envelope and payload.kind == kind and not cited
        is_new = payload.job_id == NO_ID if is_own else payload.job_id == fact_id and jobs.is_new(fact_id)
        if is_plain and is_new:
            jobs.add(replace(like, id=fact_id, schedule_op=fact_id, scheduled=at, last=at), stage)
        return is_plain and is_new

    return applies


def _judge_of_offers(jobs: JobProjector, kind: str) -> Applies:
    """For claims and completions on which another node decides. They change nothing but the time of the latest op."""

    def applies(payload: ClaimWork | CompleteJob, cited: tuple[bytes, ...], fact_id: bytes, at: Hlc) -> bool:
        job = jobs.state(payload.job_id)
        if job is None or job.kind != kind or job.policy.open or at <= job.scheduled:
            return False
        if cited and (at <= job.last or cited != (job.claim_op,)):
            return False
        jobs.note_offer(job, at)
        return True

    return applies


def _judge_of_claims(jobs: JobProjector, kind: str) -> Applies:
    def applies(payload: ClaimWork, cited: tuple[bytes, ...], fact_id: bytes, at: Hlc) -> bool:
        job = _newer(jobs, payload.job_id, kind, at)
        claimed = None if job is None or cited else plain_claim(job, payload, at.node, fact_id, at)
        if claimed is not None:
            jobs.move(claimed)
        return claimed is not None

    return applies


def _judge_of_completions(jobs: JobProjector, kind: str) -> Applies:
    def applies(payload: CompleteJob, cited: tuple[bytes, ...], fact_id: bytes, at: Hlc) -> bool:
        job = _newer(jobs, payload.job_id, kind, at)
        if job is None or job.policy.concurrency is not None:
            return False
        completed = plain_completion(job, payload, at.node, cited, at)
        if completed is not None:
            jobs.move(completed)
        return completed is not None

    return applies


def _judge_of_acceptances(engine: Engine, jobs: JobProjector, kind: str, may_end: bool) -> Applies:
    """For what the arbiter says to the offers of other nodes. `may_end` is whether the end of a job of the kind changes
    nothing else.
    """
    allowed: set[tuple[int, type, int]] = set()

    def applies(payload: AcceptWork, cited: tuple[bytes, ...], fact_id: bytes, at: Hlc) -> bool:
        job = _newer(jobs, payload.job_id, kind, at)
        offered, _ = engine.known(payload.offer)
        if job is None or cited or offered is None or offered.timestamp >= at:
            return False
        if getattr(offered.payload, "job_id", None) != job.id:
            return False
        author = offered.node_id, type(offered.payload), offered.timestamp.wall
        if author not in allowed:
            if engine.permissions.refusal(offered, kind) is not None:
                return False
            allowed.add(author)
        accepted = plain_acceptance(job, offered, fact_id, at)
        if accepted is None or (accepted.outcome is not None and not (may_end and job.policy.concurrency is None)):
            return False
        jobs.move(accepted, payload.offer)
        return True

    return applies


def _newer(jobs: JobProjector, job_id: bytes, kind: str, at: Hlc) -> Job | None:
    """A job of that kind on which every op is earlier."""
    entry = jobs.entry(job_id)
    return None if entry is None or entry.job.kind != kind or at <= entry.job.last else entry.job


_SCHEDULE_JOB = number_of(ScheduleJob)
_SETTLED = 1
# A payload, and what its op depends on.
Asked = tuple[Payload, tuple[bytes, ...]]


class WrittenOp(NamedTuple):
    """An op of this node that was written. An offer waits for the arbiter's word."""

    id: bytes
    is_offer: bool


class OpDraft(NamedTuple):
    """An op of this transaction. `body` is the whole op: signed if it was received, marked if it is this node's own. A
    bundle is followed by its facts, which have a `place` in it.
    """

    op: Op
    body: bytes
    is_received: bool
    place: int | None = None

    @property
    def id(self) -> bytes:
        return self.op.id

    @property
    def hlc(self) -> bytes:
        return pack(self.op.timestamp)

    @property
    def is_op(self) -> bool:
        """Whether it is a fact or an op by itself, and no bundle."""
        return type(self.op.payload) is not Bundle


class BundleFacts(NamedTuple):
    """What became of the first payloads of those that were asked for, as many as found room. `drafts` are the facts
    that were written, those of `set_ids` by a judge of sets, with that `reason`; `last` is the time of the last one.
    """

    answers: list[WrittenOp | Reason]
    drafts: list[OpDraft | NewOp]
    set_ids: list[bytes]
    last: Hlc
    reason: int


def write_facts(projection: Projection, draft: BundleDraft, asked: Sequence[Asked], kind: str | None) -> BundleFacts:
    """Puts facts with payloads of one type about jobs of one kind into a bundle, and applies them."""
    answers, drafts, set_ids, last = list[WrittenOp | Reason](), list[OpDraft | NewOp](), list[bytes](), draft.at
    number, judge = discriminant(asked[0][0]), _judge(projection, draft, asked[0], kind)
    applies, reason = judge or (_applies_none, 0)
    is_new, is_offer = number == _SCHEDULE_JOB, reason == Reason.OFFERED
    for payload, deps in asked:
        at = draft.at
        fact_id = draft.name(deps, payload, at)
        if fact_id is None:
            break
        if applies(payload, deps, fact_id, at):
            key = fact_id if is_new else payload.job_id  # type: ignore[union-attr]
            drafts.append(NewOp(fact_id, pack(at), number, JOB, key, reason, _SETTLED, b"", draft.count))
            answers.append(WrittenOp(fact_id, is_offer))
            set_ids.append(fact_id)
        else:
            op, body = draft.fact(deps, payload, at)
            if isinstance(op.payload, ScheduleJob) and op.payload.job_id == fact_id:
                projection.jobs.expect_new(fact_id)
            refused = projection.newest(op)
            if refused is not None:
                answers.append(refused)
                continue
            answers.append(WrittenOp(fact_id, projection.reason(fact_id) == Reason.OFFERED))
            drafts.append(OpDraft(op, body, False, draft.count))
        draft.keep()
        last = at
    return BundleFacts(answers, drafts, set_ids, last, reason)


def _applies_none(payload: Payload, cited: tuple[bytes, ...], fact_id: bytes, at: Hlc) -> bool:
    """For facts that must be judged one by one."""
    return False


def _judge(projection: Projection, draft: BundleDraft, first: Asked, kind: str | None) -> Judge | None:
    """Judges facts like the first. None if each must be judged by itself."""
    (payload, deps), at = first, draft.at
    if kind is None or draft.name(deps, payload, at) is None:
        return None
    return judge_of(projection, projection.jobs, draft.fact(deps, payload, at).op, draft.end, kind)
