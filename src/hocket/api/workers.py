"""Workers in any language: claim jobs, renew their leases and end them. docs/http-workers.md explains the protocol. The
fence of a claim names the hold, and no other may use it than the agent of the token that has claimed it.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from hocket.api import Service, ServiceAnswer
from hocket.api.jobs import JobText, id_of
from hocket.api.operation import ULID, Arguments, TokenNeed, operation
from hocket.errors import Conflict, HocketError, NotAuthorised, NotFound, StaleFence, Usage
from hocket.families.jobs.requests import KIND_LENGTH_MAX
from hocket.families.jobs.view import state_of
from hocket.kernel.ids import ulid_text
from hocket.kernel.policy import DELAY_MS_MAX, LEASE_MS_DEFAULT, LEASE_MS_MAX, check_labels
from hocket.work.context import NOTE_BYTES_MAX
from hocket.work.remote.remote_holds import (
    FENCE_MAX,
    GIVEN_BACK,
    POSTPONED,
    CheckKind,
    End,
    HoldEnded,
    HoldState,
    RemoteName,
    Renewal,
    json_of,
)
from hocket.work.remote.remote_workers import CLAIMED_MAX, ClaimAsked, GivenJob

if TYPE_CHECKING:
    from hocket.node.node import Node

WAIT_MS_MAX = 50_000
LEASE_MS_MIN = 1_000
KINDS_MAX = 64
LABELS_MAX = 64
ENDS_MAX = 1_000
TEXT_CHARS_MAX = 16_384

WorkerName = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._~-]{0,63}$",
        description="The worker's name, which it chooses anew for each process. It belongs to the token's agent.",
    ),
]
Kind = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=KIND_LENGTH_MAX,
        description="A kind, or `acme.*` for all kinds below acme.",
    ),
]
Fence = Annotated[int, Meta(ge=1, le=FENCE_MAX, description="The fence of the hold, as the claim gave it.")]
JobId = Annotated[str, Meta(pattern=ULID, description="The job's id.")]
LeaseMs = Annotated[int, Meta(ge=LEASE_MS_MIN, le=LEASE_MS_MAX, description="How long the lease lasts from now on.")]
DelayMs = Annotated[int, Meta(ge=1, le=DELAY_MS_MAX, description="How long until the job may run again.")]
Text = Annotated[str, Meta(max_length=TEXT_CHARS_MAX)]
Checkpoint = Annotated[
    Any, Meta(description=f"State for the next try of the job, at most {NOTE_BYTES_MAX} bytes as JSON; null for none.")
]
JobResultValue = Annotated[Any, Meta(description="The result, any JSON value; null for none.")]


class ClaimedJob(ServiceAnswer, frozen=True):
    """A job that the worker holds now. `lease_ms` is what remains of the lease; `attempt` is 1 for the first try, and
    `checkpoint` what an earlier try has kept.
    """

    job_id: str
    kind: str
    payload: Any
    fence: int
    attempt: int
    checkpoint: Any
    lease_ms: int


class JobsClaimed(ServiceAnswer, frozen=True):
    """A worker that is to `drain` ends what it holds, claims no more, and stops."""

    jobs: list[ClaimedJob]
    drain: bool


class HoldToRenew(ServiceAnswer, frozen=True):
    """A hold to renew, with the newest progress note and checkpoint."""

    job_id: JobId
    fence: Fence
    progress: Any = None
    checkpoint: Any = None


class HoldRenewed(ServiceAnswer, frozen=True, omit_defaults=True):
    """`held`: the lease lasts `lease_ms` from now on. `cancel`: the job was cancelled, stop it. `lost`: the lease has
    ended, stop the job and drop its result.
    """

    job_id: str
    fence: int
    state: HoldState
    lease_ms: int | None = None


class HoldsRenewed(ServiceAnswer, frozen=True):
    holds: list[HoldRenewed]
    drain: bool


class JobEnd(ServiceAnswer, frozen=True):
    """How a hold ends. `result` is for `complete`, `error` and `retry` are for `fail`, `delay_ms` is for `postpone`."""

    job_id: JobId
    fence: Fence
    do: Literal["complete", "fail", "postpone", "yield"]
    result: Any = None
    error: Text | None = None
    retry: bool = False
    delay_ms: DelayMs | None = None
    reason: Text | None = None
    checkpoint: Any = None


class JobEnded(ServiceAnswer, frozen=True):
    """The state of the job after the end of the hold."""

    job_id: str
    state: str


class JobEndAnswer(ServiceAnswer, frozen=True, omit_defaults=True):
    """The state of the job after the end of the hold, or the word and the sentence of an error."""

    job_id: str
    state: str | None = None
    error: str | None = None
    message: str | None = None


class EndsAnswer(ServiceAnswer, frozen=True):
    ends: list[JobEndAnswer]


class Goodbye(ServiceAnswer, frozen=True):
    """How many jobs went back to the queue."""

    returned: int


def _prefixes(kinds: Iterable[str]) -> list[str]:
    """The kinds as grants and queues have them: `acme.` for all below acme."""
    return [each[:-1] if each.endswith(".*") else each for each in kinds]


def _kinds_asked(service: Service, asked: Arguments) -> list[str]:
    return _prefixes(asked["kinds"])


CLAIM = TokenNeed("Job", "Claim", _kinds_asked)
HOLD = TokenNeed("Job", "Claim", is_judged_later=True)


@operation("claim_jobs", "POST /v1/jobs/claim", CLAIM)
async def claim(
    service: Service,
    node: "Node",
    worker: WorkerName,
    claim_id: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=64,
            description="An id that the worker chooses anew after each answer with jobs. The same id again gives the"
            " holds of that claim which still stand, and nothing new.",
        ),
    ],
    kinds: Annotated[list[Kind], Meta(min_length=1, max_length=KINDS_MAX)],
    count: Annotated[int, Meta(ge=1, le=CLAIMED_MAX, description="How many jobs at most.")] = 1,
    lease_ms: LeaseMs = LEASE_MS_DEFAULT,
    wait_ms: Annotated[
        int, Meta(ge=0, le=WAIT_MS_MAX, description="How long to wait for the first job; default: not at all.")
    ] = 0,
    labels: Annotated[
        list[str], Meta(max_length=LABELS_MAX, description="What the worker has that jobs may need.")
    ] = [],  # noqa: B006
) -> JobsClaimed:
    """Claim jobs under a lease. The answer comes when there are jobs, or with none when the time is over. If the worker
    disconnects before the answer is written, its jobs go back.
    """
    service.check_writer()
    try:
        asked = ClaimAsked(
            RemoteName(service.agent(None), worker),
            *(claim_id, tuple(sorted(set(_prefixes(kinds)))), count, lease_ms, tuple(sorted(check_labels(labels)))),
        )
    except ValueError as error:
        raise Usage(str(error)) from None
    desk = node.remote_workers
    given = await desk.claim(asked, wait_ms / 1000)
    service.undelivered = lambda: desk.undelivered(asked, given)
    return JobsClaimed([_claimed(each) for each in given.jobs], given.is_draining)


def _claimed(given: GivenJob) -> ClaimedJob:
    job = given.job
    checkpoint = None if given.checkpoint is None else msgspec.json.decode(given.checkpoint)
    payload = msgspec.json.decode(given.payload or b"{}")
    return ClaimedJob(ulid_text(job.id), job.kind, payload, job.fence, job.failures + 1, checkpoint, given.lease_ms)


@operation("renew_jobs", "POST /v1/jobs/renew", HOLD)
async def renew(
    service: Service,
    node: "Node",
    worker: WorkerName,
    holds: Annotated[list[HoldToRenew], Meta(max_length=CLAIMED_MAX)] = [],  # noqa: B006
    lease_ms: LeaseMs | None = None,
) -> HoldsRenewed:
    """Renew the leases of all jobs that a worker holds, in one request. Each hold can bring the newest progress note
    and checkpoint. What became of each hold is in the answer; a lost hold is no error. An empty list asks whether to
    drain.
    """
    service.check_writer()
    renewals = [
        Renewal(
            id_of(each.job_id),
            each.fence,
            json_of(each.progress, "the progress note", NOTE_BYTES_MAX),
            json_of(each.checkpoint, "the checkpoint", NOTE_BYTES_MAX),
        )
        for each in holds
    ]
    name = RemoteName(service.agent(None), worker)
    found, drain = await node.remote_workers.renew(name, renewals, lease_ms, _kind_check(service))
    renewed = [
        HoldRenewed(hold.job_id, hold.fence, each.state, each.lease_ms or None)
        for hold, each in zip(holds, found, strict=True)
    ]
    return HoldsRenewed(renewed, drain)


@operation("complete_job", "POST /v1/jobs/{job}/complete", HOLD)
async def complete(
    service: Service, node: "Node", job: JobText, fence: Fence, result: JobResultValue = None
) -> JobEnded:
    """Complete a job that the worker holds. The same request again gets the same answer. If the hold is over, the
    error is `stale-fence` and final: drop the result.
    """
    return await _end(service, node, JobEnd(job, fence, "complete", result))


@operation("fail_job", "POST /v1/jobs/{job}/fail", HOLD)
async def fail(
    service: Service,
    node: "Node",
    job: JobText,
    fence: Fence,
    error: Annotated[Text, Meta(min_length=1, description="What went wrong, for people.")],
    retry: Annotated[
        bool, Meta(description="Whether another try may help. The job's own limit of retries counts, too.")
    ] = False,
    checkpoint: Checkpoint = None,
) -> JobEnded:
    """Report that a job has failed. With `retry` it runs again after a rest, as often as it may."""
    return await _end(service, node, JobEnd(job, fence, "fail", None, error, retry, checkpoint=checkpoint))


@operation("postpone_job", "POST /v1/jobs/{job}/postpone", HOLD)
async def postpone(
    service: Service,
    node: "Node",
    job: JobText,
    fence: Fence,
    delay_ms: DelayMs,
    reason: Annotated[Text, Meta(min_length=1, description="Why; it is on the log.")] = POSTPONED,
    checkpoint: Checkpoint = None,
) -> JobEnded:
    """Put a job off: it may run again after the delay. That is no failure."""
    end = JobEnd(job, fence, "postpone", delay_ms=delay_ms, reason=reason, checkpoint=checkpoint)
    return await _end(service, node, end)


@operation("yield_job", "POST /v1/jobs/{job}/yield", HOLD)
async def yield_(
    service: Service,
    node: "Node",
    job: JobText,
    fence: Fence,
    reason: Annotated[Text, Meta(min_length=1, description="Why; it is on the log.")] = GIVEN_BACK,
    checkpoint: Checkpoint = None,
) -> JobEnded:
    """Give a job back to the queue at once."""
    return await _end(service, node, JobEnd(job, fence, "yield", reason=reason, checkpoint=checkpoint))


@operation("end_jobs", "POST /v1/jobs/end", HOLD)
async def end(
    service: Service,
    node: "Node",
    ends: Annotated[list[JobEnd], Meta(min_length=1, max_length=ENDS_MAX)],
    worker: WorkerName | None = None,
) -> EndsAnswer:
    """Complete, fail, postpone or yield many jobs in one request. Each is judged on its own, and its answer has the
    state of the job, or an error.
    """
    found = await _ended(service, node, ends)
    return EndsAnswer([_answer(each.job_id, end) for each, end in zip(ends, found, strict=True)])


@operation("goodbye_worker", "POST /v1/jobs/goodbye", HOLD)
async def goodbye(service: Service, node: "Node", worker: WorkerName) -> Goodbye:
    """Return all jobs of a worker at once: it stops. Its waiting claim ends."""
    service.check_writer()
    return Goodbye(await node.remote_workers.goodbye(RemoteName(service.agent(None), worker)))


def _kind_check(service: Service) -> CheckKind:
    return lambda kind: service.check("Job", "Claim", kind)


async def _end(service: Service, node: "Node", asked: JobEnd) -> JobEnded:
    (found,) = await _ended(service, node, [asked])
    if isinstance(found, HocketError):
        raise found
    return JobEnded(asked.job_id, state_of(found.job))


async def _ended(service: Service, node: "Node", asked: list[JobEnd]) -> list[HoldEnded | HocketError]:
    service.check_writer()
    ends = [_read(each) for each in asked]
    return await node.remote_workers.end(service.agent(None), ends, _kind_check(service))


def _read(asked: JobEnd) -> End:
    text = asked.error if asked.do == "fail" else asked.reason
    if asked.do == "fail" and not text:
        raise Usage(f"the failure of job {asked.job_id} needs an error")
    if asked.do == "postpone" and asked.delay_ms is None:
        raise Usage(f"postponing job {asked.job_id} needs delay_ms")
    return End(
        id_of(asked.job_id),
        asked.fence,
        asked.do,
        json_of(asked.result, "the result") if asked.do == "complete" else None,
        text or {"yield": GIVEN_BACK, "postpone": POSTPONED}.get(asked.do, ""),
        asked.retry,
        asked.delay_ms or 0,
        json_of(asked.checkpoint, "the checkpoint", NOTE_BYTES_MAX),
    )


# The words for errors inside an answer are those of the single requests.
_WORDS: tuple[tuple[type[HocketError], str], ...] = (
    (StaleFence, "stale-fence"),
    (NotFound, "not_found"),
    (NotAuthorised, "not_authorised"),
    (Conflict, "conflict"),
    (HocketError, "usage"),
)


def _answer(job_id: str, found: HoldEnded | HocketError) -> JobEndAnswer:
    if isinstance(found, HocketError):
        word = next(word for kind, word in _WORDS if isinstance(found, kind))
        return JobEndAnswer(job_id, None, word, str(found))
    return JobEndAnswer(job_id, state_of(found.job))
