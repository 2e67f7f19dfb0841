"""The routes about messages."""

from typing import Annotated

import msgspec

from hocket.coordination.inbox import CLAIMED_MAX, LEASE_MS_DEFAULT
from hocket.errors import Unreachable, Usage
from hocket.kernel.messages import (
    AGENT_CHARS_MAX,
    ATTACHMENT_CHARS_MAX,
    ATTACHMENTS_MAX,
    REASON_CHARS_MAX,
    TTL_MS_MAX,
    TYPE_CHARS_MAX,
)
from hocket.kernel.policy import DELAY_MS_MAX, LEASE_MS_MAX, PRIORITY_MAX
from hocket.server.v1.routes import (
    ANSWER_BYTES,
    PAGE_DEFAULT,
    STEP,
    ULID,
    After,
    ApiCall,
    ApiRoute,
    FetchPage,
    Limit,
    RouteNeed,
    bounded_page,
    json_size,
)
from hocket.service import ListPage, inbox
from hocket.service.inbox import MessageShown

MessageId = Annotated[str, msgspec.Meta(pattern=ULID, description="A message's id.")]
AgentName = Annotated[
    str, msgspec.Meta(min_length=1, max_length=AGENT_CHARS_MAX, description="The agent; default: the token's name.")
]
MessageReason = Annotated[str, msgspec.Meta(max_length=REASON_CHARS_MAX)]


class AttachmentToSend(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=ATTACHMENT_CHARS_MAX)]
    content_base64: bytes


class MessageToSend(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`to` is an agent, `agent@node`, a group that ends with a slash, or `all`. The body is text, or any bytes in
    base64.
    """

    to: Annotated[str, msgspec.Meta(min_length=1, max_length=AGENT_CHARS_MAX + 65)]
    body: str | None = None
    body_base64: bytes | None = None
    type: Annotated[str, msgspec.Meta(max_length=TYPE_CHARS_MAX)] = ""
    thread: MessageId | None = None
    reply_to: MessageId | None = None
    priority: Annotated[int, msgspec.Meta(ge=0, le=PRIORITY_MAX)] = 0
    ttl_ms: Annotated[int, msgspec.Meta(ge=1, le=TTL_MS_MAX)] | None = None
    attachments: Annotated[list[AttachmentToSend], msgspec.Meta(max_length=ATTACHMENTS_MAX)] = []
    agent: AgentName | None = None


class InboxQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    agent: AgentName | None = None
    limit: Annotated[int, Limit] = PAGE_DEFAULT
    after: Annotated[str, After] | None = None


class MessagesQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limit: Annotated[int, Limit] = PAGE_DEFAULT
    after: Annotated[str, After] | None = None


class ClaimWanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    count: Annotated[int, msgspec.Meta(ge=1, le=CLAIMED_MAX)] = 1
    lease_ms: Annotated[int, msgspec.Meta(ge=1, le=LEASE_MS_MAX)] = LEASE_MS_DEFAULT
    agent: AgentName | None = None


class Acknowledgement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    agent: AgentName | None = None


class MessageReturn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    delay_ms: Annotated[int, msgspec.Meta(ge=0, le=DELAY_MS_MAX)] = 0
    reason: MessageReason = ""
    agent: AgentName | None = None


class RetryWanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reason: MessageReason = ""


def send_message(call: ApiCall, body: MessageToSend) -> MessageShown:
    """Send a message."""
    if body.body is not None and body.body_base64 is not None:
        raise Usage("a message has a body or a body_base64, not both")
    return inbox.send(
        call.service,
        body.to,
        (body.body or "").encode() if body.body_base64 is None else body.body_base64,
        agent=call.agent(body.agent),
        type=body.type,
        thread=body.thread,
        reply_to=body.reply_to,
        priority=body.priority,
        ttl_ms=body.ttl_ms,
        attachments=[(each.name, each.content_base64) for each in body.attachments],
    )


def list_messages(call: ApiCall, query: InboxQuery) -> ListPage[MessageShown]:
    """List the messages that wait for an agent of this node, leased ones included."""
    agent = call.agent(query.agent)
    return bounded_page(lambda limit, after: inbox.listing(call.service, agent, limit, after), query.limit, query.after)


def claim_messages(call: ApiCall, body: ClaimWanted) -> list[MessageShown]:
    """Claim messages for an agent of this node, each under a lease. The list is empty if none waits, and shorter than
    `count` if they are large.
    """
    agent, claimed, size = call.agent(body.agent), list[MessageShown](), 0
    while len(claimed) < body.count and size < ANSWER_BYTES:
        wanted = min(STEP, body.count - len(claimed))
        try:
            more = inbox.claim(call.service, agent, wanted, body.lease_ms)
        except Unreachable:
            if claimed:
                break
            raise
        claimed += more
        size += json_size(more)
        if len(more) < wanted:
            break
    return claimed


def acknowledge_message(call: ApiCall, message: MessageId, body: Acknowledgement) -> None:
    """Acknowledge a message that the agent holds."""
    inbox.ack(call.service, message, call.agent(body.agent))


def return_message(call: ApiCall, message: MessageId, body: MessageReturn) -> None:
    """Return a message that the agent holds, to be delivered again after the delay."""
    inbox.nack(call.service, message, call.agent(body.agent), body.delay_ms, body.reason)


def list_dead_messages(call: ApiCall, query: MessagesQuery) -> ListPage[MessageShown]:
    """List the messages that were tried too often or expired unclaimed, as far as the token may read them."""
    return _readable(call, query, lambda limit, after: inbox.dead(call.service, limit, after))


def retry_message(call: ApiCall, message: MessageId, body: RetryWanted) -> MessageShown:
    """Deliver a dead message again."""
    call.check("Inbox", "Claim", inbox.show(call.service, message).to)
    return inbox.retry(call.service, message, body.reason)


def show_thread(call: ApiCall, message: MessageId, query: MessagesQuery) -> ListPage[MessageShown]:
    """Show the thread of a message in the order of sending, as far as the token may read it."""
    return _readable(call, query, lambda limit, after: inbox.thread_page(call.service, message, limit, after))


def _readable(call: ApiCall, query: MessagesQuery, fetch: FetchPage[MessageShown]) -> ListPage[MessageShown]:
    found = bounded_page(fetch, query.limit, query.after)
    return ListPage([each for each in found.items if _may_read(call, each)], found.next)


def _may_read(call: ApiCall, message: MessageShown) -> bool:
    return call.program.may("Inbox", "Read", (message.to,))


READ = RouteNeed("Inbox", "Read", lambda call, asked: [call.agent(asked["query"].agent)])
READ_ANY = RouteNeed("Inbox", "Read", is_judged_later=True)
SEND = RouteNeed("Inbox", "Write", lambda call, asked: [asked["body"].to])
CLAIM = RouteNeed("Inbox", "Claim", lambda call, asked: [call.agent(asked["body"].agent)])
RETRY = RouteNeed("Inbox", "Claim", is_judged_later=True)

ROUTES = (
    ApiRoute("POST", "/v1/inbox", send_message, SEND, creates=True),
    ApiRoute("GET", "/v1/inbox", list_messages, READ),
    ApiRoute("POST", "/v1/inbox/claim", claim_messages, CLAIM),
    ApiRoute("GET", "/v1/inbox/dead", list_dead_messages, READ_ANY),
    ApiRoute("POST", "/v1/inbox/{message}/ack", acknowledge_message, CLAIM),
    ApiRoute("POST", "/v1/inbox/{message}/nack", return_message, CLAIM),
    ApiRoute("POST", "/v1/inbox/{message}/retry", retry_message, RETRY),
    ApiRoute("GET", "/v1/inbox/{message}/thread", show_thread, READ_ANY),
)
