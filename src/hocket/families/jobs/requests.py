"""What a node can do with jobs, each as a request that runs inside one transaction of the log: submit, renew, finish,
fail, hand back, cancel, retry. `claiming` takes jobs from the queue and has the arbiter's part, `rescue` returns them.
These modules decide what spans jobs (unique keys, limits, order of the queue), because only the transaction sees all of
them at once; the roster decides what concerns one job alone.
"""

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from hocket.errors import Conflict, NotAuthorised, Usage
from hocket.families.inbox.facts import OWNER
from hocket.families.jobs.parts import PAYLOAD_TYPE, RESULT_TYPE
from hocket.families.jobs.rules import Job, Outcome, State
from hocket.families.jobs.tracing import SubmitTrace, tracer
from hocket.kernel.arbitration import UNAUTHORISED, Reason
from hocket.kernel.ids import content_hash, node_text, ulid_text
from hocket.kernel.ops import NO_ID, Op
from hocket.kernel.policy import (
    THE_OWNER,
    ApartContent,
    Policy,
    check_policy,
    completed,
    encode_policy,
    is_apart,
    with_defaults,
    with_open,
)
from hocket.kernel.vocabulary import (
    AcceptWork,
    CancelJob,
    ClaimWork,
    CompleteJob,
    CreateArtifact,
    FailWork,
    Ids,
    Payload,
    PostponeWork,
    ReportProgress,
    RetryJob,
    SaveCheckpoint,
    ScheduleJob,
    Subject,
    Telemetry,
    YieldWork,
)
from hocket.log import Transaction
from hocket.log.set_judges import WrittenOp
from hocket.store.statements import UNIQUE_KEY

if TYPE_CHECKING:
    from hocket.families.blobs import Staged

KIND = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
KIND_LENGTH_MAX = 255
PAYLOAD_BYTES_MAX = 1024 * 1024
RESULT_BYTES_MAX = 1024 * 1024
NEVER = 2**62
# Within this, the node's clock counts as right.
CLOCK_AHEAD_MS = 1_000


class Draft(NamedTuple):
    """A job to submit. `payload` is JSON; `job_id` is set only if every submitter must use the same id. `said` are the
    members of the policy that the submitter has chosen, even if they have Hocket's default; the kind decides the
    others. `trace` is the context that the submit belongs to, if the submitter has one.
    """

    kind: str
    payload: bytes
    policy: Policy
    job_id: bytes | None = None
    said: frozenset[str] = frozenset()
    trace: str | None = None


class Submitted(NamedTuple):
    """`created` is False if a job with the unique key, or with the id, already existed."""

    job_id: bytes
    created: bool


class Claim(NamedTuple):
    """A claimed job. `schedule` is the encoded op that carries the payload; `deaths` is how many workers of this node
    died with it.
    """

    job: Job
    schedule: bytes
    deaths: int = 0


class Offer(NamedTuple):
    """An op about a job that counts if the arbiter, another node, accepts it."""

    op_id: bytes
    job_id: bytes


class Held(NamedTuple):
    """A job, and the claim that holds it."""

    job_id: bytes
    claim_op: bytes


class Spare(NamedTuple):
    """A hold to give back, and why."""

    held: Held
    reason: str


# The arbiter's decision on an op about a job: the job after it, or the reason why it does not count.
Decision = Job | Reason
# The result of an op about a job: the decision on it, or an offer to the arbiter.
Result = Decision | Offer


class WrittenOutputs(NamedTuple):
    """What a run put on the log, for its completion to name. `records` are the ops that wrote the snapshots."""

    snapshots: Ids = ()
    artifacts: Ids = ()
    claims: Ids = ()
    records: Ids = ()


NOTHING = WrittenOutputs()


class Content(NamedTuple):
    """Where an artifact's bytes are: in the op, or in a blob."""

    hash: bytes
    size: int
    inline: bytes | None
    staged: "Staged | None"


def creation(
    made: bytes, type: str, source_job: bytes | None, inputs: Ids, content: Content, ttl_ms: int | None
) -> CreateArtifact:
    return CreateArtifact(
        made, type, source_job, inputs, content.hash, content.inline, None, None, content.size, ttl_ms
    )


def check_kind(kind: str) -> str:
    if len(kind) > KIND_LENGTH_MAX or not KIND.fullmatch(kind):
        raise Usage(
            f"illegal kind {kind!r}; use letters, digits, '-' and '_' in parts joined by dots, like acme.render,"
            f" at most {KIND_LENGTH_MAX} characters"
        )
    return kind


def submit(tx: Transaction, drafts: Sequence[Draft]) -> list[Submitted]:
    """Submits all of them or, if one is refused, none."""
    made: dict[int, Submitted] = {}
    waiting: dict[int, _Prepared] = {}
    is_ranked = False

    def write() -> None:
        ops = tx.author_all([(each.schedule, each.deps) for each in waiting.values()], at_once=is_ranked)
        for (number, each), op in zip(waiting.items(), ops, strict=True):
            made[number] = _submitted(tx, each, op)
        waiting.clear()

    for number, draft in enumerate(drafts):
        policy = chosen_policy(tx, draft)
        if draft.job_id is not None or policy.unique is not None or policy.after:
            # It depends on the others.
            write()
            made[number] = submit_one(tx, draft)
        else:
            if is_ranked != policy.is_ranked:
                write()
                is_ranked = not is_ranked
            tx.check_outbox(len(waiting))
            waiting[number] = _prepared(tx, draft, policy)
    write()
    return [made[number] for number in range(len(drafts))]


def submit_chain(tx: Transaction, drafts: Sequence[Draft]) -> list[Submitted]:
    """Submits all of them or none; each comes after the one before it."""
    made: list[Submitted] = []
    for draft in drafts:
        made.append(submit_one(tx, after(draft, [each.job_id for each in made[-1:]])))
    return made


def after(draft: Draft, before: Iterable[bytes]) -> Draft:
    """A job that starts only when these have succeeded as well."""
    named = dict.fromkeys((*draft.policy.after, *map(ulid_text, before)))
    try:
        policy = check_policy(replace(draft.policy, after=tuple(named)))
    except ValueError as error:
        raise Usage(f"bad after: {error}") from None
    return draft._replace(policy=policy)


class _Prepared(NamedTuple):
    draft: Draft
    schedule: ScheduleJob
    deps: tuple[bytes, ...]
    trace: SubmitTrace | None
    policy: Policy


def submit_one(tx: Transaction, draft: Draft) -> Submitted:
    tx.check_outbox()
    policy = chosen_policy(tx, draft)
    if draft.job_id is not None and tx.projection.jobs.entry(draft.job_id) is not None:
        return Submitted(draft.job_id, created=False)
    if policy.unique is not None:
        holder = _unique_holder(tx, draft.kind, policy)
        if holder is not None:
            return Submitted(holder, created=False)
    prepared = _prepared(tx, draft, policy)
    # Workers rank themselves by the signature. Each of them would make it, until the sealer has stored it.
    return _submitted(tx, prepared, tx.author(prepared.schedule, prepared.deps, at_once=policy.is_ranked))


def _prepared(tx: Transaction, draft: Draft, policy: Policy) -> _Prepared:
    deps = tuple(_dependency(tx, job_id).schedule_op for job_id in policy.dependencies()) if policy.after else ()
    policy = _in_node_time(tx, policy)
    if policy.ttl_ms is not None and tx.is_strict:
        raise Usage(f"this {draft.kind} job cannot have a ttl: this is a strict mesh, which cannot cancel it")
    if policy.approval_by is not None and tx.is_strict:
        raise Usage(f"this {draft.kind} job cannot wait for an approval: this is a strict mesh, which has no such op")
    payload = draft.payload
    if is_apart(policy, len(payload)):
        policy, payload = _kept_apart(tx, draft, policy), b""
    tracing = tracer()
    # Submitters that use the same id must write the same op.
    trace = None if tracing is None or draft.job_id is not None else tracing.submit(draft.kind, draft.trace)
    policy = completed(policy, None if trace is None else trace.context)
    schedule = ScheduleJob(draft.job_id or NO_ID, draft.kind, payload, encode_policy(policy))
    return _Prepared(draft, schedule, deps, trace, policy)


def _kept_apart(tx: Transaction, draft: Draft, policy: Policy) -> Policy:
    """Keeps the payload of a job beside the log. Its op says where it is."""
    what = f"this {draft.kind} job cannot keep its payload apart from the log"
    if tx.is_strict:
        raise Usage(f"{what}: this is a strict mesh, which cannot erase it")
    if policy.claim == "sticky":
        raise Usage(f"{what}: it is sticky, and every node finds its worker by the payload")
    if draft.job_id is not None:
        raise Usage(f"{what}: its id follows from the payload, because the database was away; submit it again")
    hash, size = tx.keep_apart(draft.payload)
    return replace(policy, content=ApartContent(hash.hex(), size))


def _submitted(tx: Transaction, prepared: _Prepared, op: WrittenOp | Op | Reason) -> Submitted:
    draft, trace = prepared.draft, prepared.trace
    if isinstance(op, Reason):
        if op in UNAUTHORISED:
            raise NotAuthorised(f"this node may not submit {draft.kind} jobs: {op.sentence}")
        raise Usage(f"this {draft.kind} job cannot be submitted: {op.sentence}")
    job_id = draft.job_id or op.id
    if trace is not None:
        trace.end(ulid_text(job_id))
    if (apart := prepared.policy.content) is not None:
        content = Content(apart.digest, apart.size, None, None)
        made = tx.author(creation(NO_ID, PAYLOAD_TYPE, job_id, (), content, None))
        if isinstance(made, Reason):
            raise NotAuthorised(
                f"this node may not keep the payload of {draft.kind} jobs apart from the log, which needs"
                f" artifact:write: {made.sentence}"
            )
    if prepared.policy.approval_by is not None:
        from hocket.families.jobs import approval_mail

        approval_mail.ask(tx, job_id, prepared.schedule, prepared.policy)
    return Submitted(job_id, created=True)


def chosen_policy(tx: Transaction, draft: Draft) -> Policy:
    """The draft's policy, with the options of its kind and the rules of the mesh for what its submitter left open."""
    policy = with_defaults(draft.policy, draft.said, tx.projection.defaults(draft.kind))
    if THE_OWNER in (policy.approval_by, policy.questions_to):
        policy = _with_owner(tx, policy)
    return with_open(policy, tx.projection.permissions.rules.ranked_open)


def _with_owner(tx: Transaction, policy: Policy) -> Policy:
    """With the agent that is the owner of the mesh, instead of the word for it."""
    owner = f"{OWNER}@{node_text(tx.projection.permissions.owner_node(tx.latest))}"
    people = {"approval_by": policy.approval_by, "questions_to": policy.questions_to}
    return replace(policy, **{name: owner for name, each in people.items() if each == THE_OWNER})


def _in_node_time(tx: Transaction, policy: Policy) -> Policy:
    if policy.not_before is None:
        return policy
    not_before = in_node_time(tx, policy.not_before)
    return policy if not_before == policy.not_before else replace(policy, not_before=not_before)


def in_node_time(tx: Transaction, at_ms: int) -> int:
    """A job waits until a time of the real day, but the node's clock decides when that is. While that clock is ahead it
    runs at half speed, until the real time has caught up.
    """
    if tx.now - tx.physical <= CLOCK_AHEAD_MS:
        return at_ms
    left = max(0, at_ms - tx.physical)
    return max(at_ms, tx.now + left // 2)


def _unique_holder(tx: Transaction, kind: str, policy: Policy) -> bytes | None:
    assert policy.unique is not None
    tx.session.lock_subjects((Subject(UNIQUE_KEY, policy.unique.encode()),))
    tx.projection.flush()
    for entry in tx.session.jobs_by_unique_key(policy.unique):
        job = entry.job
        recent = policy.unique_for_ms is not None and job.scheduled.wall + policy.unique_for_ms > tx.now
        if job.kind == kind and (job.state is not State.COMPLETED or recent):
            return job.id
    return None


def _dependency(tx: Transaction, job_id: bytes) -> Job:
    entry = tx.projection.jobs.entry(job_id)
    if entry is None:
        raise Usage(f"no job {ulid_text(job_id)} to come after")
    if entry.job.outcome in (Outcome.FAILED, Outcome.CANCELLED):
        raise Conflict(
            f"job {ulid_text(job_id)} has {'failed' if entry.job.outcome is Outcome.FAILED else 'been cancelled'};"
            " nothing can come after it until it is retried"
        )
    return entry.job


def renew(tx: Transaction, held: Held, lease_ms: int) -> Result:
    entry = tx.projection.jobs.entry(held.job_id)
    if entry is not None and _has_run_out(tx, entry.job):
        return Reason.LEASE_PASSED
    return _speak(tx, held, ClaimWork(held.job_id, tx.node, lease_ms))


def _has_run_out(tx: Transaction, job: Job) -> bool:
    """Whether this node is the arbiter of the job, and its machine's own clock has passed the deadline."""
    if job.policy.open or job.deadline is None or tx.projection.arbiter(tx.latest) != tx.node:
        return False
    return tx.physical > job.deadline


class Completion(NamedTuple):
    """The end of a run that has succeeded."""

    held: Held
    result: bytes | None
    duration_ms: int
    made: WrittenOutputs = NOTHING


def complete(
    tx: Transaction, held: Held, result: bytes | None, duration_ms: int, made: WrittenOutputs = NOTHING
) -> Result:
    return complete_all(tx, [Completion(held, result, duration_ms, made)])[0]


def complete_all(tx: Transaction, ends: Sequence[Completion]) -> list[Result]:
    """Completes jobs. A result goes on the log as an artifact, before the completion that names it. Besides the claim,
    a completion cites only records of model calls: it must also count on nodes that may not read artifacts.
    """
    outcomes: dict[int, Result] = {}
    for number, end in enumerate(ends):
        if (stale := stale_claim(tx, end.held)) is not None:
            outcomes[number] = stale
    results = {
        number: _result(tx, end.held.job_id, end.result)
        for number, end in enumerate(ends)
        if end.result is not None and number not in outcomes
    }
    written = tx.author_all([(payload, ends[number].made.records) for number, payload in results.items()])
    made = dict(zip(results, written, strict=True))
    for number, op in made.items():
        if isinstance(op, Reason):
            error = f"its result would not count: {op.sentence}"
            outcomes[number] = fail(tx, ends[number].held, error, "", retry=False)
    asked: dict[int, tuple[Payload, tuple[bytes, ...]]] = {}
    for number, (held, _, duration_ms, outputs) in enumerate(ends):
        if number not in outcomes:
            result = made.get(number)
            artifacts = outputs.snapshots + outputs.artifacts
            if isinstance(result, WrittenOp):
                artifacts += (result.id,)
            payload = CompleteJob(held.job_id, outputs.claims, artifacts, Telemetry(duration_ms, None, None, None))
            asked[number] = payload, (held.claim_op, *outputs.records)
    for number, op in zip(asked, tx.author_all(list(asked.values())), strict=True):
        outcomes[number] = op if isinstance(op, Reason) else _completed(tx, op, ends[number].held.job_id)
    return [outcomes[number] for number in range(len(ends))]


def _result(tx: Transaction, job_id: bytes, result: bytes) -> CreateArtifact:
    entry = tx.projection.jobs.entry(job_id)
    if entry is not None and is_apart(entry.job.policy, len(result)):
        content = Content(*tx.keep_apart(result), None, None)
    else:
        content = Content(content_hash(result), len(result), result, None)
    return creation(NO_ID, RESULT_TYPE, job_id, (), content, None)


def fail(tx: Transaction, held: Held, error: str, traceback: str, retry: bool) -> Result:
    """In a strict mesh a failure is a yield: Likewise v0.1 has no other op for it. The job is then retried as often as
    one that was handed back.
    """
    if tx.is_strict:
        return hand_back(tx, held, error)
    return _speak(tx, held, FailWork(held.job_id, tx.node, error, traceback, retry))


def hand_back(tx: Transaction, held: Held, reason: str) -> Result:
    return _speak(tx, held, YieldWork(held.job_id, tx.node, reason))


def postpone(tx: Transaction, held: Held, delay_ms: int, reason: str) -> Result:
    """In a strict mesh this is a yield without a delay: Likewise v0.1 has no other op for it."""
    if tx.is_strict:
        return hand_back(tx, held, reason)
    return _speak(tx, held, PostponeWork(held.job_id, tx.node, delay_ms, reason))


def report(tx: Transaction, held: Held, note: bytes) -> Result:
    return _speak(tx, held, ReportProgress(held.job_id, tx.node, note))


def checkpoint(tx: Transaction, held: Held, state: bytes) -> Result:
    return _speak(tx, held, SaveCheckpoint(held.job_id, tx.node, state))


def cancel(tx: Transaction, job_id: bytes, reason: str) -> Job | Offer:
    """Raises Usage in a strict mesh."""
    if tx.is_strict:
        raise Usage(
            f"job {ulid_text(job_id)} cannot be cancelled: this is a strict mesh, and Likewise v0.1 has no op that"
            " cancels a job; let it run, or stop the workers of its kind"
        )
    op = author(tx, CancelJob(job_id, reason))
    if op is Reason.COMPLETED:
        raise Conflict(f"job {ulid_text(job_id)} is completed already; there is nothing to cancel")
    return decided_job(tx, must(op, job_id), job_id)


def call_off(tx: Transaction, job_id: bytes, reason: str) -> Job | Offer:
    """Cancels a job whose result is no longer needed. In a strict mesh it stays as it is."""
    return _job(tx, job_id) if tx.is_strict else cancel(tx, job_id, reason)


def retry(tx: Transaction, job_id: bytes, reason: str) -> Job | Offer:
    """Raises Usage in a strict mesh."""
    if tx.is_strict:
        raise Usage(
            f"job {ulid_text(job_id)} cannot be retried: this is a strict mesh, and Likewise v0.1 has no op that"
            " retries a job; submit it again"
        )
    entry = tx.projection.jobs.entry(job_id)
    for dependency in entry.job.policy.dependencies() if entry is not None else ():
        _dependency(tx, dependency)
    op = author(tx, RetryJob(job_id, reason))
    if op is Reason.NOT_FAILED:
        job = _job(tx, job_id)
        state = "has succeeded" if job.outcome is Outcome.SUCCEEDED else f"is {job.state.name.lower()}"
        raise Conflict(f"job {ulid_text(job_id)} {state}; only a failed or cancelled job can be retried")
    return decided_job(tx, must(op, job_id), job_id)


def stamp(tx: Transaction, job_id: bytes, completion: bytes) -> bool:
    """Accepts the completion of an open job."""
    entry = tx.projection.jobs.entry(job_id)
    if entry is None or not entry.job.policy.open or entry.job.is_settled or not tx.counts(completion):
        return False
    if tx.projection.arbiter(tx.latest) != tx.node:
        return False
    return not isinstance(tx.author(AcceptWork(job_id, completion)), Reason)


def _speak(tx: Transaction, held: Held, payload: Payload, deps: tuple[bytes, ...] = ()) -> Result:
    """Writes an op about a claim. The op cites the claim, and is not written if that claim no longer holds."""
    stale = stale_claim(tx, held)
    if stale is not None:
        return stale
    op = author(tx, payload, (held.claim_op, *deps))
    return op if isinstance(op, Reason) else decided_job(tx, op, held.job_id)


def _completed(tx: Transaction, end: WrittenOp, job_id: bytes) -> Job | Offer:
    if end.is_offer:
        return Offer(end.id, job_id)
    job = _job(tx, job_id)
    # The arbiter's own completion of an open job also stands, even if an earlier claim arrives later.
    return _job(tx, job_id) if job.policy.open and stamp(tx, job_id, end.id) else job


def decided_job(tx: Transaction, op: Op, job_id: bytes) -> Job | Offer:
    """The job after an op about it, or the offer if the arbiter has yet to decide."""
    return Offer(op.id, job_id) if tx.is_offer(op) else _job(tx, job_id)


def stale_claim(tx: Transaction, held: Held) -> Reason | None:
    """Why the claim no longer holds; None while it does."""
    entry = tx.projection.jobs.entry(held.job_id)
    if entry is None:
        return Reason.UNKNOWN_JOB
    if entry.job.state is State.COMPLETED:
        return Reason.COMPLETED
    return None if entry.job.claim_op == held.claim_op else Reason.STALE_CLAIM


def author(tx: Transaction, payload: Payload, deps: tuple[bytes, ...] = ()) -> Op | Reason:
    """Writes an op about a job. If the job thereby fails or is cancelled, cancels the jobs that come after it: no job
    waits for ever.
    """
    op = tx.author(payload, deps)
    if not isinstance(op, Reason) and type(payload) is not CompleteJob:
        call_off_dependents(tx, payload.job_id)  # type: ignore[union-attr]
    return op


def call_off_dependents(tx: Transaction, job_id: bytes) -> None:
    """If a job has failed or was cancelled, cancels the jobs that come after it, and those after them."""
    waiting = [job_id]
    while waiting:
        entry = tx.projection.jobs.entry(waiting.pop())
        if entry is None or entry.job.outcome not in (Outcome.FAILED, Outcome.CANCELLED):
            continue
        job = entry.job
        verb = "failed" if job.outcome is Outcome.FAILED else "was cancelled"
        cancel = f"job {ulid_text(job.id)}, which it comes after, {verb}"
        for dependent in tx.session.dependents(job.id):
            after = tx.projection.jobs.entry(dependent)
            comes_after = after is not None and job.id in after.job.policy.dependencies()
            if comes_after and not isinstance(tx.author(CancelJob(dependent, cancel)), Reason):
                waiting.append(dependent)


def _job(tx: Transaction, job_id: bytes) -> Job:
    entry = tx.projection.jobs.entry(job_id)
    assert entry is not None
    return entry.job


def must(op: Op | Reason, job_id: bytes) -> Op:
    """For ops that can only be refused because the request itself was wrong."""
    job = f"job {ulid_text(job_id)}"
    if op in (Reason.UNAUTHORISED, Reason.REVOKED):
        raise NotAuthorised(f"this node may not do that to {job}: {op.sentence}")
    if isinstance(op, Reason):
        raise Usage(f"{job}: {op.sentence}")
    return op
