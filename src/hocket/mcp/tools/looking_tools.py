"""Tools that change nothing: wait for a job or for mail, and see what there is and why a job does not run."""

from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal

from msgspec import Meta

from hocket.api.jobs import JobDetails
from hocket.api.workers.claiming import held_by_agent
from hocket.families.jobs.view import JobState
from hocket.kernel.ids import node_text
from hocket.kernel.texts import counted
from hocket.mcp.answers import LINES_MAX, Data, Lines, ToolAnswer, bounded, joined, line, present
from hocket.mcp.caller import McpCaller
from hocket.mcp.resources import job_uri
from hocket.mcp.tools.declared import WAIT_S_MAX, Tool, ToolArguments, ToolNeed, WaitSeconds

JOB, LOCK, INBOX, MESH = (ToolNeed(each, "Read") for each in ("Job", "Lock", "Inbox", "Mesh"))
MAIL = "mail"


class WaitAsked(ToolArguments, frozen=True):
    handle: Annotated[str, Meta(description="a job id, mail, or an ask_again")]
    wait_s: WaitSeconds = WAIT_S_MAX


class WaitOutcome(ToolAnswer, frozen=True):
    """`ask_again` is set while what was waited for has not come."""

    state: str
    job: str = ""
    outcome: str = ""
    ask_again: str = ""
    data: Data = None


async def wait(caller: McpCaller, asked: WaitAsked) -> WaitOutcome:
    if asked.handle == MAIL:
        return await _waited_for_mail(caller, asked.wait_s)
    return await waited_for(caller, asked.handle, asked.wait_s)


async def waited_for(caller: McpCaller, job: str, wait_s: int) -> WaitOutcome:
    """What became of a job by then."""
    found = await caller.do("job_result", job=job, wait_ms=wait_s * 1000)
    if found.outcome is None:
        return await _not_ended(caller, job, found.state)
    data = {"error": found.error} if found.error is not None else {"result": found.result}
    return WaitOutcome(
        state=found.state, job=found.job_id, outcome=found.outcome, data=bounded(data, job_uri(found.job_id))
    )


async def _not_ended(caller: McpCaller, job: str, state: str) -> WaitOutcome:
    """Why a job has not ended, and its newest progress note."""
    shown = await caller.do("show_job", job=job)
    data = present(why=shown.waits_for, asks=_asks(shown), progress=shown.progress)
    return WaitOutcome(state=state, job=job, ask_again=job, data=bounded(data, job_uri(job)))


def _asks(job: JobDetails) -> str | None:
    return None if job.question is None else job.question.text


async def _waited_for_mail(caller: McpCaller, wait_s: int) -> WaitOutcome:
    caller.service.check("Inbox", "Read", caller.agent)
    if await caller.node.inbox(caller.agent).has_mail(wait_s):
        return WaitOutcome(state="mail has come; read it with the tool mail")
    return WaitOutcome(state="no mail", ask_again=MAIL)


class StatusAsked(ToolArguments, frozen=True):
    of: Literal["mine", "jobs", "locks", "agents", "nodes", "kinds"] = "mine"
    job: Annotated[str, Meta(description="one job: its state, and why it does not run")] | None = None
    state: Annotated[JobState, Meta(description="of jobs")] | None = None
    kind: str | None = None
    cursor: Annotated[str, Meta(description="next of the answer before")] | None = None


class StatusShown(ToolAnswer, frozen=True):
    """Ten lines of a list, or one job."""

    you: str = ""
    job: str = ""
    state: str = ""
    fence: int = 0
    attempts: int = 0
    next: str = ""
    lines: Lines = []  # noqa: RUF012
    data: Data = None


async def status(caller: McpCaller, asked: StatusAsked) -> StatusShown:
    if asked.job is not None:
        return await _one_job(caller, asked.job)
    if asked.of == "mine":
        return await _mine(caller)
    filters = {"state": asked.state, "kind": asked.kind} if asked.of == "jobs" else {}
    operation, shown = _LISTS[asked.of]
    page = await caller.do(operation, limit=LINES_MAX, after=asked.cursor, **filters)
    found = [line(*shown(each)) for each in page.items]
    return StatusShown(lines=found, next=page.next or "", state="" if found or page.next else f"no {asked.of}")


_LISTS: dict[str, tuple[str, Callable[[Any], Iterable[object]]]] = {
    "jobs": ("list_jobs", lambda each: (each.job_id, each.kind, each.state, each.claimer, each.error)),
    "locks": (
        "list_locks",
        lambda each: (joined(each.keys), each.scope, each.mode, each.agent, each.holder, f"fence {each.fence}"),
    ),
    "agents": ("list_agents", lambda each: (each.name, each.node_name or each.node, each.grade, each.doing)),
    "nodes": (
        "list_live_nodes",
        lambda each: (each.name or each.node, each.grade, f"runs {each.running}", joined(each.labels)),
    ),
    "kinds": ("list_kinds", lambda each: (each.kind, each.author_name or each.author)),
}


async def _one_job(caller: McpCaller, job: str) -> StatusShown:
    found = await caller.do("show_job", job=job)
    data = present(kind=found.kind, why=found.waits_for, asks=_asks(found), progress=found.progress, error=found.error)
    return StatusShown(
        job=found.job_id,
        state=found.state,
        fence=found.fence,
        attempts=found.attempts,
        data=bounded(data, job_uri(found.job_id)),
    )


async def _mine(caller: McpCaller) -> StatusShown:
    """What the caller holds, on this node."""
    agent, node = caller.agent, node_text(caller.node.log.node)
    lines: list[str] = []
    if caller.may("Job", "Claim"):
        held = await caller.api.read(lambda: held_by_agent(caller.service))
        lines += [line("job", job, f"fence {fence}") for job, fence in held]
    if caller.may("Lock", "Read"):
        page = await caller.do("list_locks", limit=1_000)
        own = [each for each in page.items if each.agent == agent and each.node == node]
        lines += [line("lock", joined(each.keys), each.scope, f"fence {each.fence}") for each in own]
    if caller.service.may("Inbox", "Read", agent):
        mail = await caller.do("list_messages", limit=LINES_MAX)
        if mail.items:
            lines.append(line("mail", f"{counted(len(mail.items), 'message')}{' or more' if mail.next else ''}"))
    return StatusShown(you=caller.address, lines=lines[:LINES_MAX])


LOOKING_TOOLS = (
    Tool("wait", "Wait for a job to end or for mail.", wait, WaitAsked, WaitOutcome, (JOB, INBOX), is_reading=True),
    Tool(
        "status",
        "What you hold (mine), lists, or one job.",
        status,
        StatusAsked,
        StatusShown,
        (JOB, LOCK, INBOX, MESH),
        is_reading=True,
    ),
)
