"""What a node can do with messages, each as a request that runs inside one transaction of the log: send, claim,
acknowledge, return, retry. The rules of one message are in the kernel; this module chooses which messages an agent gets
and asks the arbiter where it decides.
"""

import getpass
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from hocket.errors import Conflict, HocketError, NotAuthorised, Unreachable, Usage
from hocket.families import artifacts
from hocket.families.access import NodeAccess, acceptance
from hocket.families.blobs import Blobs
from hocket.families.inbox.facts import (
    APPROVAL_TYPE,
    AcknowledgeMessage,
    ClaimMessage,
    RetryMessage,
    ReturnMessage,
    SendMessage,
)
from hocket.families.inbox.projector import messages_of
from hocket.families.inbox.rules import (
    ATTACHMENTS_MAX,
    BODY_BYTES_MAX,
    TTL_MS_MAX,
    TYPE_CHARS_MAX,
    Address,
    DeliveryState,
    Message,
    addresses_of,
    is_agent,
    read_address,
)
from hocket.families.jobs.requests import Content
from hocket.kernel.arbitration import UNAUTHORISED, Reason
from hocket.kernel.clock import U32_MAX, Hlc, pack
from hocket.kernel.ids import node_text, ulid_text
from hocket.kernel.ops import NO_ID, Op, decode
from hocket.kernel.policy import DELAY_MS_MAX, LEASE_MS_MAX, PRIORITY_MAX
from hocket.kernel.texts import span
from hocket.log import Log, Transaction
from hocket.log.transaction import NEWCOMER
from hocket.store import DeliveryStage, QueuedDelivery, Session

TTL_MS_DEFAULT = 7 * 24 * 3600 * 1000
LEASE_MS_DEFAULT = 60_000
TRIES_DEFAULT = 5
CLAIMED_MAX = 1_000
# How many messages a claim looks at beyond those that it wants, since others may take some of them.
LOOKED_AT_MAX = 100
# How often a claim tries again if the arbiter gave the messages to others.
ROUNDS_MAX = 3
# Programs that answer each other automatically stop after this many replies to replies.
REPLIES_MAX = 256
ATTACHMENT_TYPE = "attachment"


class MessageDraft(NamedTuple):
    """A message to send. A node in `to` is written as its id. `attachments` have a name each."""

    to: str
    body: bytes
    sender: str
    type: str = ""
    thread: bytes | None = None
    reply_to: bytes | None = None
    priority: int = 0
    ttl_ms: int = TTL_MS_DEFAULT
    attachments: tuple[tuple[str, Content], ...] = ()


class ClaimedMessage(NamedTuple):
    """A message, and the op by which this node holds it."""

    message_id: bytes
    claim_op: bytes


class MessageClaims(NamedTuple):
    """The messages that are claimed, the claims that the arbiter must accept, and the messages of both in order.
    `is_elsewhere`: another node decides about messages to plain agents. `is_withheld`: some were not claimed, because
    that node is not known or was out of reach.
    """

    taken: list[ClaimedMessage]
    offers: list[Op]
    order: list[bytes]
    is_elsewhere: bool
    is_withheld: bool

    def needs_arbiter(self, asks: bool) -> bool:
        """Whether the arbiter must be asked before there is anything to claim. `asks`: also if this node knows of no
        message, since the arbiter may.
        """
        return not self.order and (self.is_withheld or (asks and self.is_elsewhere))

    def with_accepted(self, accepted: Sequence[ClaimedMessage]) -> list[ClaimedMessage]:
        return sorted([*self.taken, *accepted], key=lambda each: self.order.index(each.message_id))


def default_agent() -> str:
    """The agent that a command acts for if none is named: $HOCKET_AGENT, else the user of this machine."""
    try:
        return os.environ.get("HOCKET_AGENT") or getpass.getuser()
    except (KeyError, OSError):
        return "user"


def check_agent(agent: str) -> str:
    if not is_agent(agent):
        raise Usage(
            f"{agent!r} is not the name of an agent; use up to 128 characters without spaces and @, like editor or"
            " team/editor"
        )
    return agent


def check_lease(lease_ms: int) -> int:
    if not 0 < lease_ms <= LEASE_MS_MAX:
        raise Usage(f"a lease must be more than 0 and at most {LEASE_MS_MAX // 86_400_000} days")
    return lease_ms


def check_draft(draft: MessageDraft) -> MessageDraft:
    """Raises Usage for a message that no node would take."""
    check_agent(draft.sender)
    if read_address(draft.to) is None:
        raise Usage(
            f"{draft.to!r} is not an address; write an agent (editor, editor@gpu-box), a group that ends with a slash"
            " (team/), or all"
        )
    if len(draft.body) > BODY_BYTES_MAX:
        raise Usage(
            f"the message has more than {BODY_BYTES_MAX} bytes, the most possible; attach what is larger as a file"
        )
    if len(draft.type) > TYPE_CHARS_MAX or not draft.type.isprintable():
        raise Usage(f"illegal type {draft.type!r}; use at most {TYPE_CHARS_MAX} printable characters")
    if not 0 <= draft.priority <= PRIORITY_MAX:
        raise Usage(f"a message's priority lies between 0 and {PRIORITY_MAX}, not at {draft.priority}")
    if not 0 < draft.ttl_ms <= TTL_MS_MAX:
        raise Usage(f"the ttl must be more than 0 and at most {TTL_MS_MAX // 86_400_000} days")
    if len(draft.attachments) > ATTACHMENTS_MAX:
        raise Usage(f"{len(draft.attachments)} attachments are too many, at most {ATTACHMENTS_MAX}")
    return draft


def send(tx: Transaction, blobs: Blobs, draft: MessageDraft, message_id: bytes = NO_ID) -> bytes:
    """Puts a message on the log and returns its id, which is that of its op unless it was given one before. A reply
    belongs to the thread of the message that it answers, and any message of a thread names the thread.
    """
    tx.check_outbox()
    thread = draft.thread
    if thread is not None and (named := messages_of(tx.projection).state(thread)) is not None:
        thread = named.thread or thread
    if draft.reply_to is not None:
        answered = messages_of(tx.projection).state(draft.reply_to)
        if answered is None:
            raise Usage(f"no message {ulid_text(draft.reply_to)} to reply to")
        thread = thread or answered.thread or answered.id
        messages_of(tx.projection).flush()
        if (tx.session.reply_depth(draft.reply_to) or 0) >= REPLIES_MAX:
            raise Conflict(
                f"message {ulid_text(draft.reply_to)} ends a chain of {REPLIES_MAX} replies, the most possible; if"
                " programs answer each other automatically, stop one of them, else send a new message"
            )
    attached = tuple(
        (name, artifacts.put(tx, blobs, ATTACHMENT_TYPE, content, None)) for name, content in draft.attachments
    )
    payload = SendMessage(
        message_id,
        draft.to,
        draft.sender,
        draft.type,
        thread,
        draft.reply_to,
        draft.priority,
        draft.ttl_ms,
        TRIES_DEFAULT,
        draft.body,
        attached,
    )
    op = tx.author(payload)
    if op in UNAUTHORISED:
        raise NotAuthorised(f"this node may not send messages to {draft.to}: {op.sentence}")
    if isinstance(op, Reason):
        raise Usage(f"the message to {draft.to} cannot be sent: {op.sentence}")
    if draft.reply_to is not None:
        _answer_request(tx, draft, draft.reply_to)
    return op.id if message_id == NO_ID else message_id


def _answer_request(tx: Transaction, draft: MessageDraft, asked_in: bytes) -> None:
    """A reply to a message that asks for an approval is an answer."""
    try:
        asked, message = sending_of(tx.session, asked_in)
    except Usage:
        return
    if message.message_type == APPROVAL_TYPE:
        from hocket.families.jobs.approving import answer_by_mail

        answer_by_mail(tx, asked, draft.body.decode(errors="replace"), draft.sender)


# Claims.


def has_mail(session: Session, agent: str, node: int, now: int) -> bool:
    """Whether a claim of this agent may find something."""
    queue = str(Address(agent, node))
    if session.deliveries_ready(queue, 1) or session.deliveries_ready(agent, 1) or session.deliveries_due(now, 1):
        return True
    groups = [address for address in addresses_of(agent, node) if Address(address).is_group]
    return bool(session.group_messages(groups, session.group_cursor(queue), 1))


def claim(
    tx: Transaction,
    agent: str,
    count: int,
    lease_ms: int,
    *,
    is_in_touch: bool = False,
    note: Callable[[Transaction, ClaimedMessage], None] | None = None,
) -> MessageClaims:
    """Claims up to `count` messages for an agent of this node, the most urgent first, and those of a thread in the
    order in which they were sent. If the arbiter was out of reach when it was last asked, and the caller does not know
    better (`is_in_touch`), claims only messages that need no arbiter: other claims could not be decided. Calls `note`
    with each claim that is no offer.
    """
    only_open = tx.is_uninformed or (tx.is_out_of_touch and not is_in_touch)
    is_elsewhere = tx.is_uninformed or tx.projection.arbiter(tx.latest) not in (None, tx.node)
    is_withheld = False
    projector = messages_of(tx.projection)
    projector.bring_up_to_date(agent, tx.node)
    taken: list[ClaimedMessage] = []
    offers: list[Op] = []
    order: list[bytes] = []
    refused: Reason | None = None
    for row in _by_urgency(tx.session, agent, tx.node, count):
        message = projector.state(row.message_id)
        if message is None:
            projector.put_right(row)
            continue
        if only_open and not message.is_open:
            is_withheld = True
            continue
        op = tx.author(ClaimMessage(row.message_id, agent, lease_ms), is_awaited=True)
        if isinstance(op, Reason):
            refused = op if op in UNAUTHORISED or op is Reason.TOO_MANY_RECEIVERS else refused
            projector.put_right(row)
            continue
        order.append(row.message_id)
        if tx.is_offer(op):
            offers.append(op)
        else:
            taken.append(ClaimedMessage(row.message_id, op.id))
            if note is not None:
                note(tx, taken[-1])
        if len(order) >= count:
            break
    if refused is Reason.TOO_MANY_RECEIVERS and not taken and not offers:
        raise Conflict(f"{agent} cannot receive a message to a group: {refused.sentence}")
    if refused is not None and not taken and not offers:
        raise NotAuthorised(f"this node may not receive messages for {agent}: {refused.sentence}")
    return MessageClaims(taken, offers, order, is_elsewhere, is_withheld)


def _by_urgency(session: Session, agent: str, node: int, count: int) -> Iterator[QueuedDelivery]:
    """What an agent may claim: the first of each thread that is ready, and after it those that follow in the thread.
    Looks further only if some of the first ones could not be claimed.
    """
    queues, given = (str(Address(agent, node)), agent), set[bytes]()
    for limit in (count, count + LOOKED_AT_MAX):
        ready = [row for queue in queues for row in session.deliveries_ready(queue, limit)]
        for row in sorted(ready, key=lambda row: (-row.priority, row.sent)):
            if row.message_id in given:
                continue
            given.add(row.message_id)
            yield row
            for following in session.deliveries_of_thread(row.queue, row.thread, count, after=row.sent):
                if following.stage is not DeliveryStage.BLOCKED:
                    break
                yield following
        if len(ready) < limit:
            return


def may_be_elsewhere(log: Log, session: Session) -> bool:
    """Whether another node may decide about messages to plain agents, and so know of some that this node does not."""
    latest = Hlc(max(session.head().wall, log.physical()), U32_MAX, log.node)
    leader = log.permissions(session).leader(latest)
    return session.own_meta(NEWCOMER) is not None if leader is None else leader != log.node


async def claim_messages(
    access: NodeAccess,
    agent: str,
    count: int,
    lease_ms: int,
    now: Callable[[], float],
    *,
    asks: bool = True,
    note: Callable[[Transaction, ClaimedMessage], None] | None = None,
) -> list[tuple[float, ClaimedMessage]]:
    """Claims up to `count` messages and has the claims decided. If this node knows of none and another node decides,
    asks that node once, if it `asks` at all. Returns each with the time, by the clock `now`, until which its
    lease surely lasts: counted from before the claim. Calls `note` in the transaction of each claim, or once another
    node has accepted it. Raises Unreachable if only the arbiter can say whether there is a
    message, and it cannot be asked.
    """
    is_in_touch = False
    taken: list[tuple[float, ClaimedMessage]] = []
    for _ in range(ROUNDS_MAX):
        until, wanted = now() + lease_ms / 1000, count - len(taken)
        request = partial(claim, agent=agent, count=wanted, lease_ms=lease_ms, is_in_touch=is_in_touch, note=note)
        made = await access.run(request)
        try:
            if made.needs_arbiter(asks) and not taken and not is_in_touch:
                await ask_arbiter(access)
                is_in_touch = True
                continue
            accepted_offers = await settled(access, made.offers) if made.offers else []
            if note is not None and accepted_offers:
                await access.run(partial(_note_all, note, accepted_offers))
            decided = made.with_accepted(accepted_offers) if made.offers else made.taken
        except Unreachable:
            if not taken and not made.taken:
                raise
            return taken + [(until, each) for each in made.taken]
        taken += [(until, each) for each in decided]
        if not made.offers or len(taken) >= count:
            break
    return taken


def _note_all(
    note: Callable[[Transaction, ClaimedMessage], None], claimed: Sequence[ClaimedMessage], tx: Transaction
) -> None:
    for each in claimed:
        note(tx, each)


async def ask_arbiter(access: NodeAccess) -> None:
    """Gets the messages that the arbiter has and this node lacks. Raises Unreachable."""
    await access.consult(())
    if await access.run(lambda tx: tx.is_uninformed):
        raise Unreachable("this node does not know its coordinator yet; run `hocket mesh sync`")


async def settled(access: NodeAccess, offers: Sequence[Op]) -> list[ClaimedMessage]:
    """Has offered claims decided, and returns those that were accepted."""
    await access.consult(())
    return await access.peek(lambda session: accepted(session, offers))


def accepted(session: Session, offers: Sequence[Op]) -> list[ClaimedMessage]:
    """Those of the offered claims that the arbiter has accepted."""
    found = [(op.payload.message_id, acceptance(session, op)) for op in offers]  # type: ignore[union-attr]
    return [ClaimedMessage(message_id, op_id) for message_id, op_id in found if op_id is not None]


# What follows a claim.


def acknowledge(tx: Transaction, message_id: bytes, agent: str, claim_op: bytes | None = None) -> Op | Reason:
    """Without a `claim_op`, under whatever lease the agent has on this node."""
    held = _held(tx, message_id, agent, claim_op)
    return held if isinstance(held, Reason) else tx.author(AcknowledgeMessage(message_id, agent), (held,))


def hand_back(
    tx: Transaction, message_id: bytes, agent: str, delay_ms: int, reason: str, claim_op: bytes | None = None
) -> Op | Reason:
    if not 0 <= delay_ms <= DELAY_MS_MAX:
        raise Usage(f"a delay is not negative, and at most {DELAY_MS_MAX // 86_400_000} days")
    held = _held(tx, message_id, agent, claim_op)
    return held if isinstance(held, Reason) else tx.author(ReturnMessage(message_id, agent, delay_ms, reason), (held,))


def retry(tx: Transaction, message_id: bytes, reason: str) -> Op | Reason:
    return tx.author(RetryMessage(message_id, reason))


def _held(tx: Transaction, message_id: bytes, agent: str, claim_op: bytes | None) -> bytes | Reason:
    """The claim by which the agent holds the message, or why it does not."""
    message = messages_of(tx.projection).state(message_id)
    if message is None:
        return Reason.UNKNOWN_MESSAGE
    delivery = message.delivery(agent, tx.node)
    if delivery.state is DeliveryState.ACKNOWLEDGED:
        return Reason.MESSAGE_ACKNOWLEDGED
    if delivery.state is not DeliveryState.LEASED or delivery.op is None:
        return Reason.NOT_LEASED
    if (delivery.agent, delivery.node) != (agent, tx.node):
        return Reason.NOT_HOLDER
    return delivery.op if claim_op in (None, delivery.op) else Reason.STALE_LEASE


_HELD_BY_ANOTHER = (Reason.MESSAGE_LEASED, Reason.NOT_HOLDER, Reason.STALE_LEASE, Reason.NOT_ACCEPTED)


def refused(session: Session, message_id: bytes, reason: Reason, now: int) -> HocketError:
    """The error for a request about a message that was not accepted."""
    name = f"message {ulid_text(message_id)}"
    if reason is Reason.UNKNOWN_MESSAGE:
        return Usage(f"no {name} is known here")
    if reason in UNAUTHORISED:
        return NotAuthorised(f"this node may not do that to {name}: {reason.sentence}")
    message = session.message(message_id)
    if reason in _HELD_BY_ANOTHER and message is not None and len(message.deliveries) == 1:
        (delivery,) = message.deliveries
        if delivery.is_held(now):
            holder = f"{delivery.agent} on node {node_text(delivery.node)} holds it for {span(delivery.until - now)}"
            return Conflict(f"{name}: {reason.sentence}; {holder}")
    return Conflict(f"{name}: {reason.sentence}")


def content_of(session: Session, message_id: bytes) -> SendMessage:
    """What a message says."""
    return sending_of(session, message_id)[1]


def sending_of(session: Session, message_id: bytes) -> tuple[Op, SendMessage]:
    """The op that sent a message, and what the message says."""
    row = session.op(message_id)
    op = None if row is None else decode(row.body)
    if op is None and (message := session.message(message_id)) is not None:
        # It was kept before it could be sent, so its id is not that of its op.
        op = next((decode(each.body) for each in session.ops_at(pack(message.sent))), None)
    if op is None or not isinstance(op.payload, SendMessage):
        raise Usage(f"what message {ulid_text(message_id)} says is not here")
    return op, op.payload


def state_of(message: Message, agent: str, node: int, now: int) -> str:
    """The state of a message for an agent, as people call it."""
    delivery = message.delivery(agent, node)
    if delivery.state is DeliveryState.ACKNOWLEDGED:
        return "acknowledged"
    if delivery.is_held(now):
        return "leased"
    if now >= message.expires:
        return "expired"
    if delivery.is_dead(now, message.tries_max):
        return "dead"
    return "delayed" if delivery.state is DeliveryState.READY and now < delivery.until else "waiting"
