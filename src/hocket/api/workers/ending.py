"""How workers in any language end what they hold: complete, fail, postpone or yield, one job or many. The fence names
the hold, and each end can be repeated with the same content.
"""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta

from hocket.api import Service, ServiceAnswer
from hocket.api.jobs import JobText
from hocket.api.operation import operation
from hocket.api.workers.claiming import HOLD, Fence, JobId, WorkerName, kind_check
from hocket.errors import Conflict, HocketError, NotAuthorised, NotFound, StaleFence, Usage
from hocket.families.jobs.parts import PARTS_MAX
from hocket.families.jobs.view import state_of
from hocket.kernel.policy import DELAY_MS_MAX
from hocket.node.calls import id_of
from hocket.work.context import NOTE_BYTES_MAX
from hocket.work.remote.remote_holds import GIVEN_BACK, POSTPONED, End, HoldEnded, json_of

if TYPE_CHECKING:
    from hocket.node.node import Node

ENDS_MAX = 1_000
TEXT_CHARS_MAX = 16_384
PARTS_AT_ONCE_MAX = 1_000

DelayMs = Annotated[int, Meta(ge=1, le=DELAY_MS_MAX, description="How long until the job may run again.")]
Text = Annotated[str, Meta(max_length=TEXT_CHARS_MAX)]
Checkpoint = Annotated[
    Any, Meta(description=f"State for the next try of the job, at most {NOTE_BYTES_MAX} bytes as JSON; null for none.")
]
JobResultValue = Annotated[Any, Meta(description="The result, any JSON value; null for none.")]


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


class PartSent(ServiceAnswer, frozen=True):
    """A part of a result: text, or any other JSON value. `index` counts from 0 under each fence."""

    index: Annotated[int, Meta(ge=0, lt=PARTS_MAX)]
    data: Any


class PartsKept(ServiceAnswer, frozen=True):
    """`next` is the index of the part that comes next."""

    job_id: str
    next: int


@operation("send_parts", "POST /v1/jobs/{job}/parts", HOLD)
async def send_parts(
    service: Service,
    node: "Node",
    job: JobText,
    fence: Fence,
    parts: Annotated[list[PartSent], Meta(max_length=PARTS_AT_ONCE_MAX)],
) -> PartsKept:
    """Give parts of the result of a job to those who follow it. All parts together are the result, unless the
    completion has one. A part that was sent before changes nothing. If parts are missing, the error is a conflict which
    says with which part to go on; an empty list asks for that.
    """
    service.check_writer()
    values = [(each.index, each.data) for each in parts]
    agent = service.agent(None)
    following = await node.remote_workers.add_parts(agent, id_of(job), fence, values, kind_check(service))
    return PartsKept(job, following)


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


async def _end(service: Service, node: "Node", asked: JobEnd) -> JobEnded:
    (found,) = await _ended(service, node, [asked])
    if isinstance(found, HocketError):
        raise found
    return JobEnded(asked.job_id, state_of(found.job))


async def _ended(service: Service, node: "Node", asked: list[JobEnd]) -> list[HoldEnded | HocketError]:
    service.check_writer()
    ends = [_read(each) for each in asked]
    return await node.remote_workers.end(service.agent(None), ends, kind_check(service))


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
