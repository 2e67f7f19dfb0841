"""The lane of plain jobs: facts of one author and one type about jobs of one kind that are written, or received, as one
bundle. What has the same answer for all of them is asked once; then each is applied to its job without an op of its
own. It leaves the same rows as the fold. Everything that a set does not share goes the way of a single op.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec.structs import replace

from hocket.families.availability.facts import Availability
from hocket.families.jobs.rules import Job, new_job, plain_acceptance, plain_claim, plain_completion
from hocket.kernel.clock import Hlc
from hocket.kernel.ops import NO_ID, Op
from hocket.kernel.policy import readable_policy
from hocket.kernel.reasons import Reason
from hocket.kernel.vocabulary import AcceptWork, ClaimWork, CompleteJob, ScheduleJob
from hocket.log.job_projector import JobProjector
from hocket.log.projectors import Engine

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
