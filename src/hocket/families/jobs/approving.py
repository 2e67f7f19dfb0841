"""Answers to jobs that wait for an approval. Each is an op of the approver's own node, in the name of the agent, and
needs the grant `job:approve`; the fold counts it only if the job names that agent.
"""

from hocket.errors import Conflict, NotAuthorised, Usage
from hocket.families.inbox.facts import APPROVAL_TYPE, SendMessage
from hocket.families.jobs.approval_mail import answer_of, job_of, text_of
from hocket.families.jobs.requests import Offer, author, decided_job, must
from hocket.families.jobs.rules import Job
from hocket.families.jobs.view import state_of
from hocket.kernel.arbitration import Reason
from hocket.kernel.ids import ulid_text
from hocket.kernel.ops import Op, decode
from hocket.kernel.vocabulary import ApproveJob, RefuseJob, ScheduleJob
from hocket.log import Transaction
from hocket.store import Session

NOTE_CHARS_MAX = 500


def answer(tx: Transaction, job_id: bytes, agent: str, note: str, *, is_approved: bool) -> Job | Offer:
    """Approves or refuses a job for an agent of this node. Raises Conflict if the job waits for no approval, and
    NotAuthorised if another agent must give it.
    """
    op = _written(tx, job_id, agent, note, is_approved=is_approved)
    return decided_job(tx, must(op, job_id), job_id)


def _written(tx: Transaction, job_id: bytes, agent: str, note: str, *, is_approved: bool) -> Op | Reason:
    if len(note) > NOTE_CHARS_MAX:
        raise Usage(f"a note has at most {NOTE_CHARS_MAX} characters, not {len(note)}")
    op = author(tx, (ApproveJob if is_approved else RefuseJob)(job_id, agent, note))
    entry = tx.projection.jobs.entry(job_id)
    if not isinstance(op, Reason) or entry is None:
        return op
    name = f"job {ulid_text(job_id)}"
    if op is Reason.NOT_APPROVER:
        raise NotAuthorised(f"{name} waits for the approval of {entry.job.policy.approval_by}, not of {agent} here")
    if op in (Reason.COMPLETED, Reason.NO_APPROVAL, Reason.APPROVAL_LATE):
        why = op.sentence if op is Reason.APPROVAL_LATE else f"it is {state_of(entry.job)}"
        raise Conflict(f"{name} waits for no approval: {why}")
    return op


def kind_answered(session: Session, message_id: bytes, reply: bytes) -> str | None:
    """The kind of the job about which such a reply to this message decides; None if it decides nothing."""
    row = session.op(message_id)
    asked = None if row is None else decode(row.body).payload
    if not isinstance(asked, SendMessage) or asked.message_type != APPROVAL_TYPE:
        return None
    if answer_of(reply.decode(errors="replace")) is None:
        return None
    job_id = job_of(asked.body.decode(errors="replace"))
    entry = None if job_id is None else session.job(job_id)
    return None if entry is None else entry.job.kind


def answer_by_mail(tx: Transaction, asked: Op, reply: str, agent: str) -> None:
    """Takes the reply of an agent of this node to a message that asks for an approval. It counts only if the node that
    submitted the job has sent the message, and the message says what the job is. Any other reply is only a message.
    """
    message, said = asked.payload, answer_of(reply)
    if not isinstance(message, SendMessage) or message.message_type != APPROVAL_TYPE or said is None:
        return
    text = message.body.decode(errors="replace")
    job_id = job_of(text)
    entry = None if job_id is None else tx.projection.jobs.entry(job_id)
    if job_id is None or entry is None:
        raise Conflict("the job that the message asks about is not known here")
    schedule = decode(tx.body(entry.job.schedule_op))
    assert isinstance(schedule.payload, ScheduleJob)
    if schedule.node_id != asked.node_id or text_of(job_id, schedule.payload, entry.job.policy) != text:
        raise Conflict(
            f"the message does not come from the submitter of job {ulid_text(job_id)}, or does not say what it is;"
            " look at the job and use `hocket job approve`"
        )
    must(_written(tx, job_id, agent, said.note[:NOTE_CHARS_MAX], is_approved=said.is_approved), job_id)
