"""The message that asks an agent to approve a job. The submitter's node writes it beside the job. A reply to it that
begins with `approve` or `refuse` is the answer: the approver's node writes that as an op of its own (`approving`), so
the message decides nothing.
"""

from typing import NamedTuple

from hocket.families.inbox.facts import APPROVAL_TYPE, SendMessage
from hocket.kernel.ids import parse_ulid, ulid_text
from hocket.kernel.ops import NO_ID
from hocket.kernel.policy import DELAY_MS_MAX, Policy
from hocket.kernel.vocabulary import ScheduleJob
from hocket.log import Transaction

# The agent in whose name a node asks.
SENDER = "hocket"
# Longer payloads are cut.
PAYLOAD_CHARS_MAX = 2_000
TRIES = 25
_BEGINNING = "Job "
_APPROVE, _REFUSE = ("approve", "approved", "yes"), ("refuse", "refused", "no")


class ApprovalAnswer(NamedTuple):
    """What a reply says: whether the job may run, and why."""

    is_approved: bool
    note: str


def text_of(job_id: bytes, schedule: ScheduleJob, policy: Policy) -> str:
    """What the approver reads."""
    payload = schedule.payload.decode(errors="replace")
    if len(payload) > PAYLOAD_CHARS_MAX:
        payload = f"{payload[:PAYLOAD_CHARS_MAX]}… ({len(schedule.payload)} bytes)"
    name = ulid_text(job_id)
    return (
        f"{_BEGINNING}{name} of kind {schedule.kind} waits for the approval of {policy.approval_by}.\n\n{payload}\n\n"
        f"Reply `approve` or `refuse`, with a reason if you like, or run `hocket job approve {name}`."
    )


def job_of(text: str) -> bytes | None:
    """The job that such a message is about."""
    try:
        return parse_ulid(text.removeprefix(_BEGINNING)[:26]) if text.startswith(_BEGINNING) else None
    except ValueError:
        return None


def answer_of(text: str) -> ApprovalAnswer | None:
    """None if it is neither a yes nor a no."""
    words = text.strip().split(maxsplit=1)
    first, note = (words[0].lower().rstrip(".,:;!"), "".join(words[1:])) if words else ("", "")
    return ApprovalAnswer(first in _APPROVE, note) if first in (*_APPROVE, *_REFUSE) else None


def ask(tx: Transaction, job_id: bytes, schedule: ScheduleJob, policy: Policy) -> None:
    """Sends the message. A node that may not send it submits the job all the same: the approver sees it in lists."""
    assert policy.approval_by is not None
    ttl_ms = policy.approval_within_ms or DELAY_MS_MAX
    body = text_of(job_id, schedule, policy).encode()
    tx.author(SendMessage(NO_ID, policy.approval_by, SENDER, APPROVAL_TYPE, None, None, 0, ttl_ms, TRIES, body))
