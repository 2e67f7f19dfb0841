"""What agents answer about a job: whether it may start, if it waits for their approval, and what it asks as it runs."""

from typing import Annotated

from msgspec import Meta

from hocket.api import Service
from hocket.api.jobs import CHANGE, REASON_CHARS_MAX, JobBrief, JobDetails, JobText, brief, found_job
from hocket.api.operation import ULID, InShell, TokenNeed, operation
from hocket.api.views import Line
from hocket.families.inbox.questions import TEXT_CHARS_MAX, open_question
from hocket.families.jobs.view import WaitReason
from hocket.kernel.ids import node_text, ulid_text
from hocket.kernel.policy import APPROVER_LENGTH_MAX

APPROVE = TokenNeed("Job", "Approve", is_judged_later=True)

AnswerNote = Annotated[
    str, Meta(max_length=REASON_CHARS_MAX, description="Why; it is on the log."), InShell("--note", metavar="TEXT")
]
AnsweringAgent = Annotated[
    str,
    Meta(min_length=1, max_length=APPROVER_LENGTH_MAX, description="The agent; default: the token's own."),
    InShell(metavar="NAME", help="The agent that answers. Default: $HOCKET_AGENT, else your user."),
]


@operation(
    *("approve_job", "POST /v1/jobs/{job}/approve", APPROVE, "approve"),
    show=lambda done: [Line(f"approved {done.job_id}")],
)
def approve(service: Service, job: JobText, note: AnswerNote = "", agent: AnsweringAgent | None = None) -> JobBrief:
    """Let a job start that waits for your approval. Only the agent that the job names can, and it needs the grant
    job:approve for the kind.

    \b
      hocket job approve 01J9ZC --note "checked with the team"
      hocket job approve 01J9ZC --agent alice
    """
    service.check_writer()
    job_id, name = _asked_job(service, job, agent)
    service.node.job(job_id).approve(note, agent=name)
    return brief(service, job_id)


@operation(
    *("refuse_job", "POST /v1/jobs/{job}/refuse", APPROVE, "refuse"),
    show=lambda done: [Line(f"refused {done.job_id}")],
)
def refuse(service: Service, job: JobText, note: AnswerNote = "", agent: AnsweringAgent | None = None) -> JobBrief:
    """Refuse a job that waits for your approval: it is cancelled. Only the agent that the job names can.

    \b
      hocket job refuse 01J9ZC --note "not before the release"
    """
    service.check_writer()
    job_id, name = _asked_job(service, job, agent)
    service.node.job(job_id).refuse(note, agent=name)
    return brief(service, job_id)


def asks_caller(service: Service, job: JobDetails) -> bool:
    """Whether the job waits for the approval of the agent that asks, and it may give that."""
    approver, _, node = str(job.options.get("approval_by", "")).partition("@")
    is_here = node in ("", node_text(service.runtime.log.node))
    is_asked = job.wait_reason is WaitReason.APPROVAL and approver == service.own_agent(None, approver) and is_here
    return is_asked and service.may("Job", "Approve", job.kind)


def _asked_job(service: Service, job: str, agent: str | None) -> tuple[str, str]:
    """The job, and the agent in whose name its approval is answered."""
    with service.read() as session:
        found = found_job(service, session, job, "Approve")
    return ulid_text(found.id), service.own_agent(agent, (found.policy.approval_by or "").partition("@")[0])


@operation(
    *("answer_job", "POST /v1/jobs/{job}/answer", CHANGE, "answer"),
    show=lambda done: [Line(f"answered {done.job_id}")],
)
def answer(
    service: Service,
    job: JobText,
    text: Annotated[str, Meta(max_length=TEXT_CHARS_MAX, description="The answer."), InShell(metavar="TEXT")],
    question: Annotated[str, Meta(pattern=ULID, description="The question; default: the one that is open.")]
    | None = None,
    agent: AnsweringAgent | None = None,
) -> JobBrief:
    """Answer what a job asks while it runs. Only the agent that the job asks can.

    \b
      hocket job answer 01J9ZC "the second one"
    """
    service.check_writer()
    with service.read() as session:
        found = found_job(service, session, job, "Schedule")
        asked = open_question(session, found, service.runtime.log.physical())
    name = service.own_agent(agent, "" if asked is None else asked.agent)
    job_id = ulid_text(found.id)
    service.node.job(job_id).answer(text, agent=name, question=question)
    return brief(service, job_id)
