"""Messages: send, claim, list, follow, acknowledge, return; dead messages and threads."""

import base64
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from hocket.api import ListPage, Service, ServiceAnswer
from hocket.api.operation import (
    ANSWER_BYTES,
    PAGE_DEFAULT,
    PAGE_MAX,
    STEP,
    ULID,
    After,
    InShell,
    Limit,
    OperationGroup,
    TokenNeed,
    json_size,
    operation,
)
from hocket.api.views import Line, at, table
from hocket.bus.hints import about
from hocket.errors import Conflict, NotFound, StoreAway, Unreachable, Usage
from hocket.families.inbox import requests as inbox
from hocket.families.inbox import rules
from hocket.families.inbox.facts import MESSAGE
from hocket.families.inbox.projector import messages_of
from hocket.families.inbox.requests import CLAIMED_MAX, LEASE_MS_DEFAULT
from hocket.families.inbox.rules import Address, addresses_of, read_address
from hocket.families.jobs.approving import kind_answered
from hocket.kernel.arbitration import Reason
from hocket.kernel.ids import node_text, parse_ulid, ulid_prefix_range, ulid_text
from hocket.kernel.ops import BeatPlace, Op
from hocket.kernel.policy import DELAY_MS_MAX, LEASE_MS_MAX, PRIORITY_MAX
from hocket.log import Transaction
from hocket.node import inbox as node_inbox
from hocket.node.inbox import AttachmentInfo, MessageData, message_data
from hocket.store import QueuedDelivery, Session

if TYPE_CHECKING:
    from hocket.node.spool import Spool

LIMIT_MAX = 10_000
BODY_CHARS_SHOWN = 60
AMBIGUOUS_SHOWN = 5
# The least characters by which a message may be named instead of its whole id.
PREFIX_CHARS_MIN = 4


MessageId = Annotated[
    str,
    Meta(pattern=ULID, description="A message's id."),
    InShell(metavar="ID", help="The message's id, or its beginning."),
]
AgentName = Annotated[
    str,
    Meta(min_length=1, max_length=rules.AGENT_CHARS_MAX, description="The agent; default: the token's name."),
    InShell(metavar="NAME", help="The agent that you act for. Default: $HOCKET_AGENT, else your user."),
]
MessageReason = Annotated[str, Meta(max_length=rules.REASON_CHARS_MAX, description="Why."), InShell(metavar="TEXT")]


class AttachmentToSend(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1, max_length=rules.ATTACHMENT_CHARS_MAX)]
    content_base64: bytes


class MessageShown(ServiceAnswer, frozen=True, rename={"sender": "from"}):
    """A message. `body` is text; a body that is not has `body_base64` instead. `state` is waiting, delayed, leased,
    acknowledged, dead or expired, or kept, while the database is away; `lease_until` is in milliseconds and only set
    while it is leased; `tries` counts its deliveries, the current one included. `thread` is the id of its thread's
    first message. `stamp` is the beat in which it was sent, if its node has a tempo.
    """

    id: str
    sender: str
    to: str
    type: str
    thread: str
    reply_to: str | None
    priority: int
    body: str | None
    attachments: list[AttachmentInfo]
    sent_ms: int
    expires_ms: int
    state: str
    lease_until: int | None
    tries: int
    body_base64: str | None = None
    stamp: BeatPlace | None = None


READ = TokenNeed("Inbox", "Read", lambda service, asked: [service.agent(asked["agent"])])
READ_ANY = TokenNeed("Inbox", "Read", is_judged_later=True)
SEND = TokenNeed("Inbox", "Write", lambda service, asked: [asked["to"]])
CLAIM = TokenNeed("Inbox", "Claim", lambda service, asked: [service.agent(asked["agent"])])
RETRY = TokenNeed("Inbox", "Claim", is_judged_later=True)


show_messages = table(
    MessageShown,
    "no messages",
    {
        "id": "id",
        "from": "sender",
        "to": "to",
        "state": "state",
        "tries": "tries",
        "sent": at("sent_ms"),
        "lease until": at("lease_until", "-"),
        "type": lambda each: each.type or "-",
        "body": lambda each: _short(each),
    },
)


def _short(message: MessageShown) -> str:
    text = "(not text)" if message.body is None else message.body
    text = text if len(text) <= BODY_CHARS_SHOWN else f"{text[:BODY_CHARS_SHOWN]}…"
    return f"{text} ({len(message.attachments)} attached)" if message.attachments else text


@operation("send_message", "POST /v1/inbox", SEND, creates=True)
def send_message(
    service: Service,
    to: Annotated[str, Meta(min_length=1, max_length=rules.AGENT_CHARS_MAX + 65)],
    body: str | None = None,
    body_base64: bytes | None = None,
    type: Annotated[str, Meta(max_length=rules.TYPE_CHARS_MAX)] = "",
    thread: MessageId | None = None,
    reply_to: MessageId | None = None,
    priority: Annotated[int, Meta(ge=0, le=PRIORITY_MAX)] = 0,
    ttl_ms: Annotated[int, Meta(ge=1, le=rules.TTL_MS_MAX)] | None = None,
    attachments: Annotated[list[AttachmentToSend], Meta(max_length=rules.ATTACHMENTS_MAX)] | None = None,
    agent: AgentName | None = None,
) -> MessageShown:
    """Send a message. `to` is an agent, `agent@node`, a group that ends with a slash, or `all`. The body is text, or
    any bytes in base64.
    """
    if body is not None and body_base64 is not None:
        raise Usage("a message has a body or a body_base64, not both")
    return send(
        service,
        to,
        (body or "").encode() if body_base64 is None else body_base64,
        agent=service.agent(agent),
        type=type,
        thread=thread,
        reply_to=reply_to,
        priority=priority,
        ttl_ms=ttl_ms,
        attachments=[(each.name, each.content_base64) for each in attachments or ()],
    )


def send(
    service: Service,
    to: str,
    body: bytes,
    *,
    agent: str = "",
    type: str = "",
    thread: str | None = None,
    reply_to: str | None = None,
    priority: int = 0,
    ttl_ms: int | None = None,
    attachments: Sequence[tuple[str, bytes | os.PathLike[str]]] = (),
) -> MessageShown:
    """Sends a message. A message that `--thread` and `--reply-to` name is known by the beginning of its id."""
    service.check_writer()
    runtime = service.runtime
    options: dict[str, Any] = {"agent": agent or None, "type": type, "priority": priority, "attachments": attachments}
    options["ttl"] = None if ttl_ms is None else ttl_ms / 1000

    def write() -> bytes:
        in_thread, answered = (None if each is None else find(service, each) for each in (thread, reply_to))
        if answered is not None:
            _check_answer(service, answered, body, agent)
        draft = node_inbox.draft_of(
            runtime.log, runtime.blobs, to, body, thread=in_thread, reply_to=answered, **options
        )
        message_id = runtime.log.run(lambda tx: inbox.send(tx, runtime.blobs, draft))
        service.wrote(node_inbox.node_of(draft))
        return message_id

    options_kept = options | {"thread": thread, "reply_to": reply_to}
    if runtime.spool is None:
        message_id = write()
    else:
        from hocket.node.kept_requests import keep_message, written_or_kept  # for a store in a database server

        message_id = written_or_kept(
            runtime, write, lambda error: keep_message(runtime, error, to, body, **options_kept)
        )
    if runtime.kept is not None:
        return shown_kept(message_id, runtime.log.node, to, body, **options_kept)
    return show(service, ulid_text(message_id))


def keep(
    spool: "Spool", error: StoreAway, to: str, body: bytes, *, ttl_ms: int | None = None, **options: Any
) -> MessageShown:
    """Keeps a message in the home of a process that could not open the database."""
    from hocket.node.kept_requests import kept_message

    options["ttl"] = None if ttl_ms is None else ttl_ms / 1000
    return shown_kept(kept_message(spool, error, to, body, **options), spool.node, to, body, **options)


def shown_kept(message_id: bytes, node: int, to: str, body: bytes, **options: Any) -> MessageShown:
    """A message that is kept in the home while the database is away."""
    draft = node_inbox.plain_draft(
        to.partition("@")[0], body, **{key: options[key] for key in options if key != "attachments"}
    )
    sent_ms, own = int.from_bytes(message_id[:6], "big"), ulid_text(message_id)
    address = f"{draft.sender}@{node_text(node)}"
    thread, reply_to = (None if each is None else ulid_text(each) for each in (draft.thread, draft.reply_to))
    times = (sent_ms, sent_ms + draft.ttl_ms, "kept", None, 0)
    return message_shown(
        MessageData(
            own, address, address, to, draft.type, thread or own, reply_to, draft.priority, draft.body, [], *times
        )
    )


@operation("claim_messages", "POST /v1/inbox/claim", CLAIM)
def claim_messages(
    service: Service,
    count: Annotated[int, Meta(ge=1, le=CLAIMED_MAX)] = 1,
    lease_ms: Annotated[int, Meta(ge=1, le=LEASE_MS_MAX)] = LEASE_MS_DEFAULT,
    agent: AgentName | None = None,
) -> list[MessageShown]:
    """Claim messages for an agent of this node, each under a lease. The list is empty if none waits, and shorter than
    `count` if they are large.
    """
    name, claimed, size = service.agent(agent), list[MessageShown](), 0
    while len(claimed) < count and size < ANSWER_BYTES:
        wanted = min(STEP, count - len(claimed))
        try:
            more = claim(service, name, wanted, lease_ms)
        except Unreachable:
            if claimed:
                break
            raise
        claimed += more
        size += json_size(more)
        if len(more) < wanted:
            break
    return claimed


def claim(service: Service, agent: str, count: int = 1, lease_ms: int = LEASE_MS_DEFAULT) -> list[MessageShown]:
    """Claims up to `count` messages for an agent of this node."""
    service.check_writer()
    if not 0 < count <= CLAIMED_MAX:
        raise Usage(f"claim 1 to {CLAIMED_MAX} messages at once, not {count}")
    return [message_shown(each.data) for each in service.node.inbox(agent).claim(count, lease_ms / 1000)]


def listing(
    service: Service, agent: str | None = None, limit: int = PAGE_DEFAULT, after: str | None = None
) -> ListPage[MessageShown]:
    """The messages that wait for an agent of this node, or for any, leased ones included; those to groups only once
    the agent has looked for them.
    """
    log = service.runtime.log
    queues = None
    if agent is not None:
        inbox.check_agent(agent)
        queues = [str(Address(agent, log.node)), agent]
        if service.principal.node == log.node:
            log.run(lambda tx: messages_of(tx.projection).bring_up_to_date(agent, tx.node))
    with service.read() as session:
        return _page(service, session, queues, limit, after, is_dead=False)


@operation("list_messages", "GET /v1/inbox", READ)
def list_messages(
    service: Service, agent: AgentName | None = None, limit: Limit = PAGE_DEFAULT, after: After | None = None
) -> ListPage[MessageShown]:
    """List the messages that wait for an agent of this node, leased ones included."""
    return listing(service, service.agent(agent), limit, after)


@operation("list_dead_messages", "GET /v1/inbox/dead", READ_ANY, command="dead list", show=show_messages)
def dead(service: Service, limit: Limit = PAGE_MAX, after: After | None = None) -> ListPage[MessageShown]:
    """List the messages that were tried too often or expired unclaimed, as far as you may read them.

    \b
      hocket mail dead list --json
    """
    log = service.runtime.log
    if service.principal.node == log.node:
        log.run(lambda tx: messages_of(tx.projection).move_due())
    with service.read() as session:
        return _readable(service, _page(service, session, None, limit, after, is_dead=True))


def _readable(service: Service, page: ListPage[MessageShown]) -> ListPage[MessageShown]:
    return ListPage([each for each in page.items if service.may("Inbox", "Read", each.to)], page.next)


def _page(
    service: Service, session: Session, queues: list[str] | None, limit: int, after: str | None, *, is_dead: bool
) -> ListPage[MessageShown]:
    beyond = ("", b"")
    if after is not None:
        queue, _, last = after.rpartition(" ")
        try:
            beyond = queue, parse_ulid(last)
        except ValueError:
            raise Usage(f"{after!r} is not the key of a page") from None
    rows = session.deliveries(queues, is_dead, beyond, limit + 1)
    items = [_of_row(service, session, row) for row in rows[:limit]]
    last_row = rows[limit - 1] if len(rows) > limit else None
    return ListPage(items, None if last_row is None else f"{last_row.queue} {ulid_text(last_row.message_id)}")


def _of_row(service: Service, session: Session, row: QueuedDelivery) -> MessageShown:
    message = session.message(row.message_id)
    address = read_address(row.queue)
    assert message is not None and address is not None
    return message_shown(message_data(service.runtime.log, session, message, address.name))


def follow(
    service: Service, agent: str, count: int | None = None, lease_ms: int = LEASE_MS_DEFAULT
) -> Iterator[MessageShown]:
    """Every message for an agent as it comes, without end. With a `count`, claims up to so many at once; without, each
    is shown once and stays where it is.
    """
    node = service.node
    if count is not None:
        while True:
            claimed = node.inbox(agent).claim(count, lease_ms / 1000, wait=3600)
            yield from (message_shown(each.data) for each in claimed)
    log, shown = service.runtime.log, set[str]()
    while True:
        page = listing(service, agent, LIMIT_MAX)
        yield from (each for each in page.items if each.id not in shown)
        shown = {each.id for each in page.items}

        def is_new(session: Session, known: frozenset[str] = frozenset(shown)) -> tuple[bool, None]:
            queues = [str(Address(agent, log.node)), agent]
            rows = session.deliveries(queues, False, ("", b""), LIMIT_MAX)
            groups = [each for each in addresses_of(agent, log.node) if Address(each).is_group]
            has_group = bool(session.group_messages(groups, session.group_cursor(queues[0]), 1))
            return has_group or any(ulid_text(row.message_id) not in known for row in rows), None

        node.until(is_new, None, about(MESSAGE))


def ask(service: Service, to: str, body: bytes, *, agent: str | None, type: str, wait: float) -> MessageShown:
    """Sends a message and returns the reply, which is acknowledged. Raises Unreachable if none comes in time."""
    service.check_writer()
    try:
        return message_shown(service.node.ask(to, body, wait=wait, agent=agent, type=type))
    except TimeoutError as error:
        raise Unreachable(str(error)) from None


def _check_answer(service: Service, answered: str, body: bytes, agent: str) -> None:
    """A reply that approves or refuses a job needs what `hocket job approve` needs."""
    with service.read() as session:
        kind = kind_answered(session, parse_ulid(answered), body)
    if kind is not None:
        service.check("Job", "Approve", kind)
        service.own_agent(agent or None)


def reply(service: Service, id: str, body: bytes, agent: str) -> MessageShown:
    """Answers the sender of a message that the agent holds on this node, and acknowledges the message. Raises Conflict
    if nobody holds it; nothing is sent then.
    """
    asked = show(service, id)
    if asked.state != "leased":
        raise Conflict(
            f"message {asked.id} is {asked.state}; claim it with `hocket mail inbox --agent {agent} --claim 1`"
        )
    sent = send(service, asked.sender, body, agent=agent, reply_to=asked.id)
    ack(service, asked.id, agent)
    return sent


def _decided(service: Service, message_id: bytes, request: Callable[[Transaction], Op | Reason]) -> None:
    service.node.direct(lambda node: node_inbox.decided(node, message_id, request))


@operation("acknowledge_message", "POST /v1/inbox/{message}/ack", CLAIM)
def ack(service: Service, message: MessageId, agent: AgentName | None = None) -> None:
    """Acknowledge a message that the agent holds on this node. If it does not, this is refused as a conflict (exit
    code 3, status 409).
    """
    service.check_writer()
    message_id, name = parse_ulid(find(service, message)), inbox.check_agent(service.agent(agent))
    _decided(service, message_id, lambda tx: inbox.acknowledge(tx, message_id, name))


@operation("return_message", "POST /v1/inbox/{message}/nack", CLAIM)
def nack(
    service: Service,
    message: MessageId,
    agent: AgentName | None = None,
    delay_ms: Annotated[int, Meta(ge=0, le=DELAY_MS_MAX)] = 0,
    reason: MessageReason = "",
) -> None:
    """Return a message that the agent holds, to be delivered again after the delay."""
    service.check_writer()
    message_id, name = parse_ulid(find(service, message)), inbox.check_agent(service.agent(agent))
    _check_reason(reason)
    _decided(service, message_id, lambda tx: inbox.hand_back(tx, message_id, name, delay_ms, reason))


@operation(
    "retry_message",
    "POST /v1/inbox/{message}/retry",
    RETRY,
    command="dead retry",
    show=lambda shown: [Line(f"message {shown.id} is {shown.state} again")],
)
def retry(
    service: Service,
    message: MessageId,
    reason: Annotated[MessageReason, InShell(metavar="TEXT", help="Why it will work now.")] = "",
) -> MessageShown:
    """Deliver a dead message again, with all its tries. One that has expired must be sent anew.

    \b
      hocket mail dead retry 01JC8M…
    """
    service.check_writer()
    found = show(service, message)
    service.check("Inbox", "Claim", found.to)
    message_id = parse_ulid(found.id)
    _check_reason(reason)
    _decided(service, message_id, lambda tx: inbox.retry(tx, message_id, reason))
    return show(service, found.id)


@operation("show_thread", "GET /v1/inbox/{message}/thread", READ_ANY, command="thread", show=show_messages)
def thread(
    service: Service, message: MessageId, limit: Limit = PAGE_MAX, after: After | None = None
) -> ListPage[MessageShown]:
    """Show the thread of a message, in the order in which its messages were sent, as far as you may read it. What a job
    has asked stands in the thread that has the job's id.

    \b
      hocket mail thread 01JC8M…
    """
    beyond = b"" if after is None else node_inbox.message_id_of(after)
    with service.read() as session:
        part = session.thread(_thread_of(service, session, message), limit + 1, beyond)
        shown = [message_shown(message_data(service.runtime.log, session, each, None)) for each in part[:limit]]
    return _readable(service, ListPage(shown, shown[-1].id if len(part) > limit else None))


def _thread_of(service: Service, session: Session, text: str) -> bytes:
    """The thread of a message, or the one that has this id itself."""
    with suppress(ValueError):
        if session.message(id := parse_ulid(text)) is None and session.thread(id, 1):
            return id
    first = session.message(parse_ulid(find(service, text)))
    assert first is not None
    return first.thread or first.id


def show(service: Service, id: str) -> MessageShown:
    found = parse_ulid(find(service, id))
    with service.read() as session:
        message = session.message(found)
        assert message is not None
        return message_shown(message_data(service.runtime.log, session, message, None))


def find(service: Service, prefix: str) -> str:
    """The id of the one message whose id begins with this text. Raises Usage if there is none, or more than one."""
    try:
        low, high = ulid_prefix_range(prefix)
    except ValueError:
        raise Usage(f"{prefix!r} is not the id of a message") from None
    with service.read() as session:
        found = session.message_ids(low, high, AMBIGUOUS_SHOWN + 1) if len(prefix) >= PREFIX_CHARS_MIN else []
    if not found:
        raise NotFound(f"no message {prefix!r} is known here")
    if len(found) > 1:
        shown = ", ".join(map(ulid_text, found[:AMBIGUOUS_SHOWN]))
        raise Usage(f"{prefix!r} is the beginning of several ids: {shown}; give more of it")
    return ulid_text(found[0])


def _check_reason(reason: str) -> None:
    if len(reason) > rules.REASON_CHARS_MAX:
        raise Usage(f"a reason has at most {rules.REASON_CHARS_MAX} characters, not {len(reason)}")


def message_shown(data: MessageData) -> MessageShown:
    try:
        body, encoded = data.body.decode(), None
    except UnicodeDecodeError:
        body, encoded = None, base64.b64encode(data.body).decode()
    fields = msgspec.structs.asdict(data) | {"body": body, "body_base64": encoded}
    fields["lease_until"] = fields.pop("lease_until_ms")
    del fields["sender_address"]
    return MessageShown(**fields)


dead_commands = OperationGroup(
    """List the messages that could not be delivered, and retry them: those that were tried too often, and those that
    nobody claimed before they expired.

    \b
      hocket mail dead list
      hocket mail dead retry 01JC8M…
    """,
    *(dead, retry),
    alone=dead,
)
