"""Questions of a job that runs. Each is a message in the thread that has the job's id, to the agent whom the submitter
named, else to the owner of the submitter's node; a reply of that agent is the answer. So questions and answers are on
the log, and a run that follows a dead one finds them there: it gets the old answer and does not ask again.
"""

from typing import Any, NamedTuple

from hocket.errors import Conflict, NotAuthorised, Usage
from hocket.families.blobs import Blobs
from hocket.families.inbox import requests as inbox
from hocket.families.inbox.facts import JOB_AGENTS, OWNER, ClaimMessage
from hocket.families.inbox.requests import MessageDraft, content_of
from hocket.families.inbox.rules import Message
from hocket.families.jobs.rules import Job, State
from hocket.kernel.arbitration import Reason
from hocket.kernel.clock import unpack
from hocket.kernel.ids import node_text, ulid_text
from hocket.kernel.ops import decode
from hocket.kernel.vocabulary import JOB, ClaimWork, RetryJob, Subject, number_of
from hocket.log import Transaction
from hocket.store import Session

QUESTION_TYPE = "hocket.question"
TEXT_CHARS_MAX = 16_384
# The most messages of a job's thread that are looked at.
MESSAGES_MAX = 1_000
_LEASE_MS = 60_000
_CLAIM, _RETRY = number_of(ClaimWork), number_of(RetryJob)


class AskedQuestion(NamedTuple):
    """`to` is the agent, with its node, who must answer. `answer` is None while it has not."""

    id: bytes
    number: int
    text: str
    to: str
    until_ms: int
    answer: str | None

    @property
    def agent(self) -> str:
        return self.to.partition("@")[0]

    def shown(self, *, asks_you: bool, has_text: bool = True) -> dict[str, Any]:
        text = self.text if has_text else None
        members = {"message_id": ulid_text(self.id), "to": self.to, "text": text, "until_ms": self.until_ms}
        return members | {"asks_you": asks_you}

    def is_open(self, now_ms: int) -> bool:
        return self.answer is None and now_ms < self.until_ms


def asker(job_id: bytes, number: int) -> str:
    """The agent in whose name a job asks. `number` tells questions with the same text apart."""
    return f"{JOB_AGENTS}{ulid_text(job_id).lower()}/{number}"


def answerer(session: Session, job: Job) -> str:
    """The agent and the node to whom the job's questions go."""
    row = session.op(job.schedule_op)
    if row is None:
        raise Usage(f"the op that submitted job {ulid_text(job.id)} is not here")
    name = job.policy.questions_to or OWNER
    return name if "@" in name else f"{name}@{node_text(decode(row.body).node_id)}"


def questions(session: Session, job: Job) -> list[AskedQuestion]:
    """What the nodes that held the job have asked for it since its submit or its last RetryJob, in that order."""
    thread = session.thread(job.id, MESSAGES_MAX)
    if not thread:
        return []
    to, rows = answerer(session, job), session.ops_about(Subject(JOB, job.id))
    holders = {unpack(row.hlc).node for row in rows if row.variant == _CLAIM and row.reason in (0, Reason.OFFERED)}
    since = max((unpack(row.hlc) for row in rows if row.variant == _RETRY and not row.reason), default=None)
    found = []
    for each in thread:
        number = each.sender.removeprefix(asker(job.id, 0)[:-1])
        if each.sent.node not in holders or each.to != to or each.reply_to is not None or not number.isdecimal():
            continue
        content = content_of(session, each.id)
        if content.message_type == QUESTION_TYPE and (since is None or each.sent > since):
            text = content.body.decode(errors="replace")
            found.append(AskedQuestion(each.id, int(number), text, to, each.expires, _answer(session, each, to)))
    return found


def _answer(session: Session, asked: Message, to: str) -> str | None:
    """The first reply of the agent that was asked. What others reply is no answer."""
    replies = [each for each in session.replies(asked.id) if f"{each.sender}@{node_text(each.sent.node)}" == to]
    first = min(replies, key=lambda each: each.sent, default=None)
    return None if first is None else content_of(session, first.id).body.decode(errors="replace")


def open_question(session: Session, job: Job, now_ms: int) -> AskedQuestion | None:
    """The first question that waits for its answer. It outlives the worker that has asked: the next run gets the
    answer.
    """
    if job.state is State.COMPLETED:
        return None
    return next((each for each in questions(session, job) if each.is_open(now_ms)), None)


def asked(session: Session, job: Job, text: str, number: int) -> AskedQuestion | None:
    """The question if a run has asked it: with its answer, if there is one, else the newest."""
    found = [each for each in questions(session, job) if (each.text, each.number) == (text, number)]
    return next((each for each in found if each.answer is not None), found[-1] if found else None)


def ask(tx: Transaction, blobs: Blobs, job_id: bytes, text: str, number: int, wait_ms: int) -> AskedQuestion:
    """Asks, unless an earlier run has asked the same and its question is answered or still open."""
    if not 0 < len(text) <= TEXT_CHARS_MAX:
        raise Usage(f"a question has 1 to {TEXT_CHARS_MAX} characters, not {len(text)}")
    entry = tx.projection.jobs.entry(job_id)
    if entry is None:
        raise Usage(f"no job {ulid_text(job_id)}")
    known = asked(tx.session, entry.job, text, number)
    if known is not None and (known.answer is not None or known.is_open(tx.physical)):
        return known
    to = answerer(tx.session, entry.job)
    draft = MessageDraft(to, text.encode(), asker(job_id, number), QUESTION_TYPE, job_id, ttl_ms=wait_ms)
    return AskedQuestion(inbox.send(tx, blobs, draft), number, text, to, tx.physical + wait_ms, None)


def answer(
    tx: Transaction, blobs: Blobs, job_id: bytes, text: str, agent: str | None, message_id: bytes | None = None
) -> AskedQuestion:
    """Answers the open question, for that agent of this node, and acknowledges it. With a `message_id` answers only
    that one. Raises Conflict if the job waits for no answer, and NotAuthorised if another agent must give it.
    """
    name, entry = f"job {ulid_text(job_id)}", tx.projection.jobs.entry(job_id)
    found = None if entry is None else open_question(tx.session, entry.job, tx.physical)
    if found is None or message_id not in (None, found.id):
        raise Conflict(f"{name} waits for no answer{'' if found is None else ' to that question'}")
    agent = agent or found.agent
    if found.to != f"{agent}@{node_text(tx.node)}":
        raise NotAuthorised(f"{name} waits for an answer by {found.to}, not by {agent} of this node")
    tx.author(ClaimMessage(found.id, agent, _LEASE_MS))  # refused if the agent holds it already
    asking = content_of(tx.session, found.id).sender
    row = tx.session.message(found.id)
    assert row is not None
    draft = MessageDraft(f"{asking}@{node_text(row.sent.node)}", text.encode(), agent, reply_to=found.id)
    inbox.send(tx, blobs, draft)
    done = inbox.acknowledge(tx, found.id, agent)
    assert not isinstance(done, Reason) or done is Reason.NOT_HOLDER
    return found._replace(answer=text)
