"""Jobs as people and programs see them: the words for their states, and plain dictionaries made from the roster and the
ops. Nothing here changes anything.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from hocket.errors import Failed, NotFound, StoreError, Unreachable, Usage
from hocket.families.jobs.parts import PAYLOAD_TYPE, RESULT_TYPE, WHOLE_BYTES_TYPE, WHOLE_TYPES, decode_whole, joined
from hocket.families.jobs.progress import newest_notes
from hocket.families.jobs.rules import Job, Outcome, State
from hocket.kernel.arbitration import BY_NUMBER, Reason
from hocket.kernel.clock import hlc_text, unpack, wall_text
from hocket.kernel.ids import node_text, ulid_ending, ulid_prefix_range, ulid_text
from hocket.kernel.ops import Op, decode, stamp_json
from hocket.kernel.postcard import Malformed
from hocket.kernel.vocabulary import (
    JOB,
    NAMES,
    AcceptWork,
    ApproveJob,
    CancelJob,
    ClaimWork,
    CreateArtifact,
    EraseContent,
    ExpireWork,
    FailWork,
    Payload,
    PostponeJob,
    PostponeWork,
    RefuseJob,
    ReportProgress,
    RetryJob,
    SaveCheckpoint,
    ScheduleJob,
    Subject,
    YieldWork,
    number_of,
)
from hocket.store import Artifact, JobEntry, JobFilter, OpRow, Session, Stage

if TYPE_CHECKING:
    from hocket.families.jobs.apart import Erasure, FetchBlob, ReadsBlobs

_ABOUT_CLAIMS = (number_of(ClaimWork), number_of(AcceptWork))
# The reason of an offer that the coordinator has accepted, and how that of a claim begins that it has refused.
ACCEPTED = "accepted by the coordinator"
REFUSED = "refused: "

AMBIGUOUS_SHOWN = 5
DEPTH_MAX = 100
# A job can be named by the end of its id, from this length on. A shown end is shared with another of the node's jobs
# once in ENDING_ODDS times; `find` names both then.
ENDING_CHARS_MIN = 4
ENDING_ODDS = 1_000
ULID_CHARS = 26

# The type of the artifacts that say what a run did when its beats ran out.
DEGRADED_TYPE = "hocket.degraded"


_WAITING = (Stage.READY, Stage.DELAYED, Stage.BLOCKED)


class WaitReason(StrEnum):
    """What a job that has not ended waits for."""

    HELD = "held"
    APPROVAL = "approval"
    ANSWER = "answer"
    TIME = "time"
    JOB = "job"
    COORDINATOR = "coordinator"
    AWAY = "away"
    NO_WORKER = "no worker"
    NOT_ALLOWED = "not allowed"
    LIMIT = "limit"
    BUSY = "busy"
    UNAVAILABLE = "unavailable"


class JobState(StrEnum):
    """The states that users read and write. A pending job is ready, delayed or blocked. The kernel's own words, and
    those of earlier versions, are accepted.
    """

    pending = "pending"
    ready = "ready"
    delayed = "delayed"
    blocked = "blocked"
    running = "running"
    succeeded = "succeeded"
    failed = "failed"
    cancelled = "cancelled"
    completed = "completed"
    """Ended, with any outcome."""

    @classmethod
    def _missing_(cls, value: object) -> "JobState | None":
        return {"claimed": cls.running, "waiting": cls.pending}.get(str(value))

    @property
    def filter(self) -> JobFilter:
        """The jobs in this state."""
        if self is JobState.pending:
            return JobFilter(_WAITING)
        if self is JobState.running:
            return JobFilter((Stage.CLAIMED,))
        if self is JobState.completed:
            return JobFilter((Stage.DONE,))
        if self.name.upper() in Outcome.__members__:
            return JobFilter(outcome=Outcome[self.name.upper()])
        return JobFilter((Stage[self.name.upper()],))


# The words that people see; `completed` is an old one.
STATE_WORDS = tuple(each.value for each in JobState if each is not JobState.completed)


def state_of(job: Job) -> str:
    if job.outcome is not None:
        return job.outcome.name.lower()
    return "running" if job.state is State.CLAIMED else "pending"


def stage_of(entry: JobEntry) -> str:
    """Why a pending job waits: ready, delayed or blocked; else its state."""
    return entry.stage.name.lower() if entry.stage in _WAITING else state_of(entry.job)


def counted_as(stage: Stage, outcome: int | None) -> str:
    """The word under which a job is counted."""
    if stage is Stage.DONE and outcome is not None:
        return Outcome(outcome).name.lower()
    return "running" if stage is Stage.CLAIMED else stage.name.lower()


# The words under which jobs are counted, in the order of a job's life.
COUNTED = ("ready", "delayed", "blocked", "running", *(each.name.lower() for each in Outcome))


def find(session: Session, text: str) -> JobEntry:
    """The one job whose id begins with this text, or else ends with it. Raises Usage if there is none, or more than
    one.
    """
    found, place = _beginning(session, text), "beginning"
    if len(found) != 1 and (ending := _ending(session, text)):
        found, place = (ending, "end") if len(ending) == 1 or not found else (found, place)
    if not found:
        raise NotFound(f"no job {text!r}; `hocket jobs` lists them")
    if len(found) > 1:
        shown = ", ".join(ulid_text(each) for each in found[:AMBIGUOUS_SHOWN])
        more = ", …" if len(found) > AMBIGUOUS_SHOWN else ""
        raise Usage(f"{text!r} is the {place} of several job ids: {shown}{more}; give more of it")
    entry = session.job(found[0])
    assert entry is not None
    return entry


def ids_like(session: Session, text: str) -> list[bytes]:
    """The jobs that a person may mean by this text."""
    try:
        return _beginning(session, text) or _ending(session, text)
    except Usage:
        return []


def _beginning(session: Session, text: str) -> list[bytes]:
    try:
        low, high = ulid_prefix_range(text)
    except ValueError:
        return []
    return session.job_ids(low, high, AMBIGUOUS_SHOWN + 1) if text else []


def _ending(session: Session, text: str) -> list[bytes]:
    try:
        ending = ulid_ending(text) if text else b""
    except ValueError:
        raise Usage(f"{text!r} is not a job id; `hocket jobs` lists them") from None
    if not ENDING_CHARS_MIN <= len(text) < ULID_CHARS:
        return []
    return [each for each in session.job_ids_ending(ending) if ulid_text(each).endswith(text.upper())]


def ending_chars(job_ids: Sequence[str], jobs: int) -> int:
    """How many of the last characters of these ids tell them apart, and almost surely also from those of all jobs."""
    chars = ENDING_CHARS_MIN
    while chars < ULID_CHARS and (
        32**chars < jobs * ENDING_ODDS or len({each[-chars:] for each in job_ids}) < len(job_ids)
    ):
        chars += 1
    return chars


def brief(session: Session, entry: JobEntry, notes: Mapping[bytes, bytes] | None = None) -> dict[str, Any]:
    """One line of a list. `notes` are the newest progress notes of the jobs of the list, if they were read before."""
    job = entry.job
    note = (newest_notes(session, [job]) if notes is None else notes).get(job.id)
    return {
        "job_id": ulid_text(job.id),
        "kind": job.kind,
        "state": state_of(job),
        "stage": stage_of(entry),
        "outcome": None if job.outcome is None else job.outcome.name.lower(),
        "claimer": None if job.claimer is None else node_text(job.claimer),
        "fence": job.fence,
        "deadline_ms": job.deadline,
        "attempts": job.failures + (job.state is State.CLAIMED or job.outcome is Outcome.SUCCEEDED),
        "failures": job.failures,
        "returns": job.returns,
        "priority": job.policy.priority,
        "scheduled_ms": job.scheduled.wall,
        "ready_at_ms": job.ready_at if entry.stage is Stage.DELAYED and not job.waits_for_approval else None,
        "done_ms": None if job.done is None else job.done.wall,
        "progress": None if note is None else readable(note),
        "error": _error(session, job)[0],
    }


def full(session: Session, entry: JobEntry, blobs: "ReadsBlobs | None" = None) -> dict[str, Any]:
    """Everything about one job, with its ops. Content that is apart from the log is shown if it is in the blobs."""
    job = entry.job
    rows = session.ops_about(Subject(JOB, job.id))
    schedule = decode(next(row.body for row in rows if row.id == job.schedule_op)).payload
    assert isinstance(schedule, ScheduleJob)
    try:
        returned = result(session, job, blobs)
    except Failed:
        returned = None
    erasure = _erasure(session, job.id)
    return brief(session, entry) | {
        "payload": _shown_payload(session, job, schedule, blobs),
        "erased": None if erasure is None else erasure._asdict(),
        "options": msgspec.to_builtins(job.policy),
        "after": list(job.policy.after),
        "result": _shallow(returned),
        "artifacts": [
            _artifact_line(session, each) for each in session.artifacts_of_job(job.id) if each.type != PAYLOAD_TYPE
        ],
        "degraded": _degraded(session, job.id),
        "traceback": _error(session, job)[1],
        "ops": op_lines(session, rows),
    }


def _erasure(session: Session, job_id: bytes) -> "Erasure | None":
    if not session.erasure_ops(job_id):
        return None
    from hocket.families.jobs.apart import erasure_of

    return erasure_of(session, job_id)


def _shown_payload(session: Session, job: Job, schedule: ScheduleJob, blobs: "ReadsBlobs | None") -> Any:
    """A payload that is apart and not at hand is its hash and its size; one that is erased is None."""
    if job.policy.content is None:
        return readable(schedule.payload)
    from hocket.families.jobs.apart import NO_BLOBS, Erased, payload_of

    try:
        return readable(payload_of(session, blobs or NO_BLOBS, job, schedule.payload))
    except Erased:
        return None
    except (Unreachable, StoreError):
        return msgspec.to_builtins(job.policy.content)


def result(session: Session, job: Job, blobs: "ReadsBlobs | None" = None, fetch: "FetchBlob | None" = None) -> Any:
    """The handler's result, or else its parts together; None if there is neither. Raises Failed if it was evicted, or
    is not known here. Parts that are too large for a result are an artifact, whose id and size are the result; so is a
    result that is apart from the log, unless it is in the blobs. With `fetch` it comes from another node, or the call
    raises Unreachable.
    """
    named = [_creation(session, artifact_id) for artifact_id in job.artifacts]
    made = _of_type(named, (RESULT_TYPE,)) or _of_type(named, WHOLE_TYPES)
    if made is None:
        if None in named:
            raise Failed(f"the result of job {ulid_text(job.id)} is not on this log; grant this node artifact:read")
        return None
    if (erasure := _erasure(session, job.id)) is not None:
        raise Failed(erasure.sentence(job.id))
    if session.is_evicted(made.artifact_id):
        raise Failed(f"the result of job {ulid_text(job.id)} was evicted; its content is gone")
    if made.artifact_type in WHOLE_TYPES:
        return _joined(made)
    if made.content_inline is None and job.policy.content_apart is not None:
        from hocket.families.jobs.apart import NO_BLOBS, result_of

        content = result_of(blobs or NO_BLOBS, job, made, fetch)
        if content is None:
            return {"artifact_id": ulid_text(made.artifact_id), "size": made.size_bytes}
        return _json(content)
    return None if made.content_inline is None else _json(made.content_inline)


def whole(session: Session, job: Job) -> CreateArtifact | None:
    """The artifact with every part of the job's result, if it has parts."""
    return _of_type([_creation(session, artifact_id) for artifact_id in job.artifacts], WHOLE_TYPES)


def is_of_bytes(whole: CreateArtifact) -> bool:
    """Whether its parts are bytes."""
    return whole.artifact_type == WHOLE_BYTES_TYPE


def _of_type(made: Sequence[CreateArtifact | None], types: Sequence[str]) -> CreateArtifact | None:
    return next((each for each in made if each is not None and each.artifact_type in types), None)


def _joined(whole: CreateArtifact) -> Any:
    if whole.content_inline is None:
        return {"artifact_id": ulid_text(whole.artifact_id), "size": whole.size_bytes}
    try:
        parts = joined(decode_whole(whole.content_inline, is_of_bytes(whole)))
    except Malformed:
        return {"hex": whole.content_inline.hex()}
    return msgspec.to_builtins(parts) if isinstance(parts, bytes) else parts


def _creation(session: Session, artifact_id: bytes) -> CreateArtifact | None:
    """The op that made an artifact which a completion names. If the arbiter has accepted the completion, the artifacts
    that it names count too, whatever happens to their author's delegation.
    """
    artifact = session.artifact(artifact_id)
    row = session.op(artifact_id if artifact is None else artifact.op_id)
    payload = None if row is None else decode(row.body).payload
    return payload if isinstance(payload, CreateArtifact) else None


def _artifact_line(session: Session, artifact: Artifact) -> dict[str, Any]:
    return {
        "artifact_id": ulid_text(artifact.id),
        "type": artifact.type,
        "size": artifact.size,
        "evicted": session.is_evicted(artifact.id),
    }


def _degraded(session: Session, job_id: bytes) -> list[Any]:
    """What the runs of a job did when the beats of its score ran out."""
    found = [each.id for each in session.artifacts_of_job(job_id) if each.type == DEGRADED_TYPE]
    made = [_creation(session, each) for each in found]
    return [readable(each.content_inline) for each in made if each is not None and each.content_inline is not None]


def error_of(session: Session, job: Job) -> str | None:
    """The last error, or why the job was cancelled."""
    return _error(session, job)[0]


def _error(session: Session, job: Job) -> tuple[str | None, str | None]:
    """The last error, or why the job was cancelled, with the traceback if there is one."""
    payload = None if job.error_op is None else _payload(session, job.error_op)
    if payload is None:
        if job.outcome is not None and job.returns and job.outcome.name == "FAILED":
            last = _last_return(session, job)
            return f"returned or lost {job.returns} times without completing; the last time: {last}", None
        return None, None
    if isinstance(payload, FailWork):
        return payload.error, payload.traceback
    if isinstance(payload, RefuseJob):
        return refusal_text(payload), None
    assert isinstance(payload, CancelJob)
    return payload.reason, None


def refusal_text(payload: RefuseJob) -> str:
    return _signed("refused", payload)


def _signed(answer: str, payload: ApproveJob | RefuseJob) -> str:
    return f"{answer} by {payload.agent}{f': {payload.note}' if payload.note else ''}"


def _last_return(session: Session, job: Job) -> str:
    """Why the job was last returned to the queue. In a strict mesh this is where a handler's error is."""
    for row in reversed(session.ops_about(Subject(JOB, job.id))):
        payload = _payload(session, row.id)
        if row.reason == 0 and isinstance(payload, YieldWork | ExpireWork):
            return payload.reason
    return "not known here"


def _payload(session: Session, op_id: bytes) -> Payload | None:
    """The payload of an op; for an acceptance, that of the accepted op."""
    row = session.op(op_id)
    payload = None if row is None else decode(row.body).payload
    return _payload(session, payload.offer) if isinstance(payload, AcceptWork) else payload


def op_lines(session: Session, rows: Sequence[OpRow]) -> list[dict[str, Any]]:
    """Ops as lines of the log. An offer that the coordinator has decided on says how."""
    decided = decided_offers(session, rows)
    return [op_line(row) | ({"reason": decided[row.id]} if row.id in decided else {}) for row in rows]


def decided_offers(session: Session, rows: Iterable[OpRow]) -> dict[bytes, str]:
    """Which of these ops were offers about jobs that the coordinator has accepted, or claims that it has refused, and
    why.
    """
    offered = {row.job: None for row in rows if row.reason == Reason.OFFERED}
    decided: dict[bytes, str] = {}
    for entry in session.jobs_by_id([job_id for job_id in offered if job_id is not None]):
        about = session.ops_about(Subject(JOB, entry.job.id))
        ops = [(row, decode(row.body)) for row in about if row.variant in _ABOUT_CLAIMS]
        decided |= refused_claims(ops, entry.job, session.head().wall)
        counting = [op.payload for row, op in ops if not row.reason]
        decided |= {each.offer: ACCEPTED for each in counting if isinstance(each, AcceptWork)}
    return decided


def refused_claims(ops: Iterable[tuple[OpRow, Op]], job: Job, now: int) -> dict[bytes, str]:
    """The offered claims that the coordinator has not accepted and will not accept any more, each with the reason."""
    ops = list(ops)
    claims = {op.id: op for _, op in ops if isinstance(op.payload, ClaimWork)}
    accepted = {op.payload.offer: op for row, op in ops if not row.reason and isinstance(op.payload, AcceptWork)}
    decided = [op.timestamp for offer, op in accepted.items() if offer in claims]
    decided += [op.timestamp for row, op in ops if not row.reason and isinstance(op.payload, ClaimWork)]
    latest = max(decided, default=None)
    refused = {}
    for row, op in ops:
        if row.reason != Reason.OFFERED or op.id not in claims or op.id in accepted:
            continue
        if latest is not None and latest > op.timestamp:
            refused[op.id] = f"{REFUSED}the coordinator accepted another claim"
        elif job.state is State.COMPLETED:
            refused[op.id] = f"{REFUSED}the job has ended"
        elif op.deadline is not None and now > op.deadline:
            refused[op.id] = f"{REFUSED}the coordinator did not accept it in time"
    return refused


def op_line(row: OpRow) -> dict[str, Any]:
    """One op as a line of the log."""
    stamp = unpack(row.hlc)
    line: dict[str, Any] = {
        "seq": row.seq,
        "id": ulid_text(row.id[:16]),
        "type": NAMES.get(row.variant, str(row.variant)),
        "hlc": hlc_text(stamp),
        "author": node_text(stamp.node),
        "job_id": None if row.job is None else ulid_text(row.job),
        "counts": row.reason == 0,
        "reason": BY_NUMBER[row.reason].sentence if row.reason else None,
    }
    op = decode(row.body)
    return line | {"detail": detail_of(op.payload), "stamp": stamp_json(op)}


def detail_of(payload: Payload) -> str:
    """What people read beside the type of an op: its error, reason, type or name."""
    if isinstance(payload, ScheduleJob):
        return payload.kind
    if isinstance(payload, FailWork):
        return payload.error
    if isinstance(payload, YieldWork | ExpireWork | CancelJob | RetryJob | PostponeWork):
        return payload.reason
    if isinstance(payload, EraseContent):
        return f"job {ulid_text(payload.source_job)}: {payload.reason}"
    if isinstance(payload, PostponeJob):
        return f"not before {wall_text(payload.until_ms)}: {payload.reason}" if payload.until_ms else payload.reason
    if isinstance(payload, ApproveJob | RefuseJob):
        return refusal_text(payload) if isinstance(payload, RefuseJob) else _signed("approved", payload)
    if isinstance(payload, CreateArtifact):
        return payload.artifact_type
    if isinstance(payload, ReportProgress):
        return payload.note.decode(errors="replace")
    if isinstance(payload, SaveCheckpoint):
        return f"{len(payload.state)} bytes"
    if isinstance(payload, AcceptWork):
        return f"accepts {ulid_text(payload.offer)}"
    return str(getattr(payload, "name", ""))


def readable(data: bytes) -> Any:
    """Data from another node, as plain values that can be written as JSON."""
    return _shallow(_json(data))


def _json(data: bytes) -> Any:
    """Payloads of other software need not be JSON; then they are shown as hexadecimal digits."""
    try:
        return msgspec.json.decode(data)
    except (ValueError, RecursionError):
        return {"hex": data.hex()}


def _shallow(value: Any) -> Any:
    """The value, unless it is nested too deeply to be written."""
    level = [value]
    for _ in range(DEPTH_MAX):
        level = [
            below
            for each in level
            if isinstance(each, dict | list)
            for below in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return value
    return {"omitted": f"it is nested more than {DEPTH_MAX} levels deep"}


def results_before(
    session: Session, job: Job, blobs: "ReadsBlobs | None" = None, fetch: "FetchBlob | None" = None
) -> list[tuple[Job, Any]]:
    """The jobs that this one comes after, in the order in which it names them, with their results."""
    return [(each, result(session, each, blobs, fetch)) for each in _before(session, job)]


def _before(session: Session, job: Job) -> Iterator[Job]:
    for job_id in job.policy.dependencies():
        entry = session.job(job_id)
        if entry is None:
            raise Failed(f"job {ulid_text(job_id)}, before this one, is not on this log")
        yield entry.job
