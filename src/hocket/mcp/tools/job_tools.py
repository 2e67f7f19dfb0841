"""Tools about jobs: take one, say how it goes on, finish it, submit one."""

import os
from typing import Annotated, Any, Literal

from msgspec import Meta

from hocket.api.job_operations.job_submits import JobSubmitted
from hocket.errors import Conflict, Usage
from hocket.mcp.answers import Data, ToolAnswer, bounded, present
from hocket.mcp.caller import McpCaller
from hocket.mcp.resources import job_uri
from hocket.mcp.tools.declared import Tool, ToolArguments, ToolNeed, WaitSeconds
from hocket.mcp.tools.looking_tools import WaitOutcome, waited_for
from hocket.work.presence import DOING_CHARS_MAX

CLAIM, SUBMIT = ToolNeed("Job", "Claim"), ToolNeed("Job", "Schedule")
KINDS_MAX = 16
# The kind of jobs that are commands, and how long one may take.
COMMAND_KIND = "hocket.run"
COMMAND_TIMEOUT_S = 3_600
# How long a question about a job stays open.
QUESTION_MS = 86_400_000

TakenJobId = Annotated[str, Meta(description="job id")]
TakenFence = Annotated[int, Meta(ge=1, description="from take")]


class TakeAsked(ToolArguments, frozen=True):
    kinds: Annotated[list[str], Meta(min_length=1, max_length=KINDS_MAX, description="like acme.review or acme.*")]
    wait_s: WaitSeconds = 0


class JobTaken(ToolAnswer, frozen=True):
    """A job that the agent holds now, or none."""

    state: Literal["held", "none"]
    job: str = ""
    fence: int = 0
    attempt: int = 0
    lease_s: int = 0
    data: Data = None


async def take(caller: McpCaller, asked: TakeAsked) -> JobTaken:
    claim_id, lease_ms = os.urandom(16).hex(), caller.lease_ms
    claimed = await caller.do(
        "claim_jobs",
        worker=caller.worker,
        claim_id=claim_id,
        kinds=asked.kinds,
        lease_ms=lease_ms,
        wait_ms=asked.wait_s * 1000,
    )
    if not claimed.jobs:
        return JobTaken(state="none")
    (job,) = claimed.jobs
    if caller.holds is not None:
        caller.holds.add_job(job.job_id, job.fence)
    data = {"kind": job.kind, "payload": job.payload} | present(checkpoint=job.checkpoint)
    return JobTaken(
        state="held",
        job=job.job_id,
        fence=job.fence,
        attempt=job.attempt,
        lease_s=job.lease_ms // 1000,
        data=bounded(data, job_uri(job.job_id)),
    )


class NoteAsked(ToolArguments, frozen=True):
    text: Annotated[str, Meta(max_length=DOING_CHARS_MAX)]
    job: TakenJobId | None = None
    fence: TakenFence | None = None
    checkpoint: Annotated[Any, Meta(description="state for the next try")] = None
    ask: Annotated[str, Meta(description="question to who submitted the job; again: get the answer")] | None = None
    wait_s: WaitSeconds = 0


class NoteTaken(ToolAnswer, frozen=True):
    state: str
    lease_s: int = 0
    data: Data = None


async def note(caller: McpCaller, asked: NoteAsked) -> NoteTaken:
    if caller.may("Mesh", "Read"):
        await caller.do("beat", doing=asked.text, every_ms=caller.lease_ms)
    if asked.job is None:
        return NoteTaken(state="noted")
    if asked.fence is None:
        raise Usage("a note about a job needs the fence that take gave")
    hold = {"job_id": asked.job, "fence": asked.fence, "progress": asked.text, "checkpoint": asked.checkpoint}
    renewed = await caller.do("renew_jobs", worker=caller.worker, holds=[hold], lease_ms=caller.lease_ms)
    (found,) = renewed.holds
    if found.state == "cancel":
        raise Conflict(f"job {asked.job} was cancelled: stop, and drop what you did for it")
    if found.state == "lost":
        raise Conflict(f"you do not hold job {asked.job} under fence {asked.fence}: stop, and drop what you did for it")
    lease_s = (found.lease_ms or 0) // 1000
    if asked.ask is None:
        return NoteTaken(state="held", lease_s=lease_s)
    question = await caller.do(
        "ask_for_job",
        job=asked.job,
        fence=asked.fence,
        question=asked.ask,
        within_ms=QUESTION_MS,
        wait_ms=asked.wait_s * 1000,
    )
    if question.answer is None:
        return NoteTaken(state=f"held; {question.to} has not answered: ask the same again", lease_s=lease_s)
    return NoteTaken(state="held", lease_s=lease_s, data={"answer": question.answer})


class FinishAsked(ToolArguments, frozen=True):
    job: TakenJobId
    fence: Annotated[int, Meta(ge=1, description="from take; none for cancel")] | None = None
    how: Annotated[
        Literal["done", "failed", "retry", "give_back", "later", "cancel"],
        Meta(description="retry: failed, may be tried again"),
    ] = "done"
    result: Any = None
    text: Annotated[str, Meta(description="error or reason")] = ""
    delay_s: Annotated[int, Meta(ge=1, description="for later")] | None = None


class JobFinished(ToolAnswer, frozen=True):
    job: str
    state: str


async def finish(caller: McpCaller, asked: FinishAsked) -> JobFinished:
    if asked.how == "cancel":
        brief = await caller.do("cancel_job", job=asked.job, reason=asked.text or f"cancelled by {caller.agent}")
        return JobFinished(job=asked.job, state=brief.state)
    if asked.fence is None:
        raise Usage("finish needs the fence that take gave")
    hold = {"job": asked.job, "fence": asked.fence}
    if asked.how == "done":
        ended = await caller.do("complete_job", **hold, result=asked.result)
    elif asked.how in ("failed", "retry"):
        ended = await caller.do("fail_job", **hold, error=asked.text or "failed", retry=asked.how == "retry")
    elif asked.how == "give_back":
        ended = await caller.do("yield_job", **hold, reason=asked.text or None)
    elif asked.delay_s is None:
        raise Usage("a job that is to run later needs delay_s")
    else:
        ended = await caller.do("postpone_job", **hold, delay_ms=asked.delay_s * 1000, reason=asked.text or None)
    if caller.holds is not None:
        caller.holds.drop_job(asked.job)
    return JobFinished(job=asked.job, state=ended.state)


class SubmitAsked(ToolArguments, frozen=True):
    kind: str | None = None
    payload: dict[str, Any] | None = None
    command: Annotated[list[str], Meta(min_length=1, description="argv instead of a kind: run with a proof")] | None = (
        None
    )
    timeout_s: Annotated[int, Meta(ge=1)] | None = None
    unique: Annotated[str, Meta(description="no second job with this key")] | None = None
    after: Annotated[list[str], Meta(description="jobs that must succeed first")] | None = None
    wait_s: WaitSeconds = 0


async def submit(caller: McpCaller, asked: SubmitAsked) -> WaitOutcome:
    made = await _submitted(caller, asked)
    if not asked.wait_s:
        return WaitOutcome(state="pending" if made.created else "known", job=made.job_id, ask_again=made.job_id)
    return await waited_for(caller, made.job_id, asked.wait_s)


async def submit_as_task(caller: McpCaller, asked: SubmitAsked) -> str | None:
    """The job, if the agent wants its result now, and may see it. Who does not wait goes on with something else, and
    perhaps takes this job: a client may keep the agent waiting until a task has ended.
    """
    if not asked.wait_s or not caller.service.may("Job", "Read", asked.kind or COMMAND_KIND):
        return None
    return (await _submitted(caller, asked)).job_id


async def _submitted(caller: McpCaller, asked: SubmitAsked) -> JobSubmitted:
    if (asked.kind is None) == (asked.command is None):
        raise Usage("submit a kind with its payload, or a command")
    options: dict[str, Any] = {"unique": asked.unique, "after": asked.after, "questions_to": caller.address}
    if asked.command is None:
        options |= {"kind": asked.kind, "payload": asked.payload or {}}
        options["timeout_ms"] = None if asked.timeout_s is None else asked.timeout_s * 1000
    else:
        manifest = {"command": asked.command, "args": [], "timeout": asked.timeout_s or COMMAND_TIMEOUT_S}
        options |= {"kind": COMMAND_KIND, "payload": manifest}
    made: JobSubmitted = await caller.do("submit_job", **options)
    return made


JOB_TOOLS = (
    Tool("take", "Take one job to work on.", take, TakeAsked, JobTaken, (CLAIM,)),
    Tool(
        "note",
        "Say what you do; with a job also note its progress and renew its lease.",
        note,
        NoteAsked,
        NoteTaken,
        (CLAIM,),
    ),
    Tool("finish", "End a job that you took, or cancel any job.", finish, FinishAsked, JobFinished, (CLAIM, SUBMIT)),
    Tool("submit", "Submit a job for any worker.", submit, SubmitAsked, WaitOutcome, (SUBMIT,), task_of=submit_as_task),
)
