"""The payloads about messages."""

from hocket.kernel.family import FamilyPayload, ForeseenId, Judged, Variant
from hocket.kernel.postcard import BYTES, STR, U64, ULID, encode, option, pair, seq
from hocket.kernel.postcard import struct as fields

MESSAGE = "message"
# The agent that is the person who owns the home of a node.
OWNER = "owner"
# The agents in whose names jobs ask begin with it.
JOB_AGENTS = "job/"
# The type of messages by which a node asks an agent to approve a job.
APPROVAL_TYPE = "hocket.approval"


class SendMessage(FamilyPayload, frozen=True):
    """`to` is `agent`, `agent@node`, a group, which ends with a slash and reaches every agent whose name begins with
    it, or `all`. The message's id is that of its op. `attachments` are names and artifacts.
    """

    message_id: bytes
    to: str
    sender: str
    message_type: str
    thread: bytes | None
    reply_to: bytes | None
    priority: int
    ttl_ms: int
    tries_max: int
    body: bytes
    attachments: tuple[tuple[str, bytes], ...] = ()


class ClaimMessage(FamilyPayload, frozen=True):
    message_id: bytes
    agent: str
    lease_ms: int


class AcknowledgeMessage(FamilyPayload, frozen=True):
    """The agent has processed the message. The op cites the claim under which it did."""

    message_id: bytes
    agent: str


class ReturnMessage(FamilyPayload, frozen=True):
    """The agent has not processed the message. It is delivered again after the delay, or is dead after too many
    tries. The op cites the claim.
    """

    message_id: bytes
    agent: str
    delay_ms: int
    reason: str


class RetryMessage(FamilyPayload, frozen=True):
    """A dead message is to be delivered again."""

    message_id: bytes
    reason: str


def _foreseen(payload: SendMessage) -> bytes:
    """The receiver is left out: the log decides on it when the op is written."""
    return encode(STR, payload.sender) + encode(STR, payload.message_type) + encode(BYTES, payload.body)


_RECEIVE = Judged("Inbox", "Claim", "key_prefix", "agent")
# What happens to a message is no secret; what it says is.
_FOLLOW = _RECEIVE._replace(caveat=None, field=None)

VARIANTS = (
    Variant(
        1043,
        fields(
            SendMessage,
            *(ULID, STR, STR, STR, option(ULID), option(ULID), U64, U64, U64, BYTES, seq(pair(STR, ULID), limit=64)),
        ),
        Judged("Inbox", "Write", "key_prefix", "to"),
        json=("body",),
        made="message_id",
        foreseen=ForeseenId(b"hocket message\0", _foreseen),
        event="message.sent",
    ),
    Variant(1044, fields(ClaimMessage, ULID, STR, U64), _RECEIVE, read=_FOLLOW, event="message.claimed"),
    Variant(1045, fields(AcknowledgeMessage, ULID, STR), _RECEIVE, read=_FOLLOW, event="message.acknowledged"),
    Variant(
        1046,
        fields(ReturnMessage, ULID, STR, U64, STR),
        _RECEIVE,
        read=_FOLLOW,
        texts=("reason",),
        gives_back=True,
        event="message.returned",
    ),
    Variant(
        1047,
        fields(RetryMessage, ULID, STR),
        _RECEIVE._replace(field=None),
        read=_FOLLOW,
        texts=("reason",),
        event="message.retried",
    ),
)
