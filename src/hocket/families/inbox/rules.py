"""Messages between agents. `Messages` holds the rules of this family, which `arbitration` applies: a message is leased
to one consumer at a time, acknowledged only under that lease, delivered again after it, and dead after too many tries.
The rules read no clock and do not depend on the order of arrival.

    ready ──ClaimMessage──► leased ──AcknowledgeMessage──► acknowledged, for good
      ▲                       │
      ├── the lease runs out ─┤
      ├── ReturnMessage ──────┤
      │                       └── the last try fails ──► dead
      └─────────────── RetryMessage ◄──────────────────────┘

An address is `agent`, `agent@node`, a group, which ends with a slash and reaches every agent whose name begins with it,
or `all`. A message to an agent on any node has one delivery, and the arbiter decides who gets it. A message to
`agent@node` is open: only that node receives it, and its own store decides. A message to a group is open too, and has
one delivery for each agent on each node that claims it.
"""

from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from hocket.families.inbox.facts import AcknowledgeMessage, ClaimMessage, RetryMessage, ReturnMessage, SendMessage
from hocket.kernel.arbitration import Citing, FoldContext, Reason, SubjectRules
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import node_text, parse_node
from hocket.kernel.ops import Op
from hocket.kernel.policy import DELAY_MS_MAX, LEASE_MS_MAX, PRIORITY_MAX

ALL = "all"
AGENT_CHARS_MAX = 128
TYPE_CHARS_MAX = 255
REASON_CHARS_MAX = 500
BODY_BYTES_MAX = 1024 * 1024
TTL_MS_MAX = 366 * 24 * 3600 * 1000
TRIES_MAX = 1_000
ATTACHMENTS_MAX = 32
ATTACHMENT_CHARS_MAX = 255
# How many agents of one node can receive one message to a group.
RECEIVERS_MAX = 10_000


class Address(NamedTuple):
    """`node` is set only in `agent@node`."""

    name: str
    node: int | None = None

    @property
    def is_group(self) -> bool:
        return self.name == ALL or self.name.endswith("/")

    def __str__(self) -> str:
        return self.name if self.node is None else f"{self.name}@{node_text(self.node)}"


def is_agent(name: str) -> bool:
    """Whether this can be the name of an agent: parts joined by slashes, without spaces and `@`."""
    if not 0 < len(name) <= AGENT_CHARS_MAX or name == ALL or "" in name.split("/"):
        return False
    return name.isprintable() and "@" not in name and " " not in name


def read_address(text: str) -> Address | None:
    """None if it is not an address. A node is written as its id."""
    name, at, node = text.partition("@")
    if not at:
        is_good = text == ALL or is_agent(text) or (text.endswith("/") and is_agent(text[:-1]))
        return Address(text) if is_good else None
    try:
        known = parse_node(node)
    except ValueError:
        return None
    return Address(name, known) if is_agent(name) and node_text(known) == node else None


def addresses_of(agent: str, node: int) -> Iterator[str]:
    """Every address that reaches this agent on this node."""
    yield str(Address(agent, node))
    yield agent
    for end, character in enumerate(agent, 1):
        if character == "/":
            yield agent[:end]
    yield ALL


class DeliveryState(IntEnum):
    READY = 0
    LEASED = 1
    ACKNOWLEDGED = 2
    DEAD = 3


class MessageDelivery(msgspec.Struct, frozen=True, array_like=True):
    """What became of a message at one receiver. `agent` and `node` are those of the last claim. `until` is when the
    lease ends or, before a claim, when the message may be claimed. `op` is the claim or, after the end, the op that
    ended it.
    """

    agent: str = ""
    node: int = 0
    state: DeliveryState = DeliveryState.READY
    tries: int = 0
    until: int = 0
    op: bytes | None = None

    def is_held(self, wall: int) -> bool:
        return self.state is DeliveryState.LEASED and wall <= self.until

    def is_dead(self, wall: int, tries_max: int) -> bool:
        """Whether it has failed for the last time, or the lease of the last try has run out."""
        has_lapsed = self.state is DeliveryState.LEASED and wall > self.until and self.tries >= tries_max
        return self.state is DeliveryState.DEAD or has_lapsed


class Message(msgspec.Struct, frozen=True):
    """One message according to the ops up to `last`. What it says stays in its op. A message to a group has a delivery
    for each agent that has claimed it, any other message has exactly one.
    """

    id: bytes
    to: str
    sender: str
    sent: Hlc
    thread: bytes | None
    reply_to: bytes | None
    priority: int
    expires: int
    tries_max: int
    last: Hlc
    deliveries: tuple[MessageDelivery, ...]

    @property
    def address(self) -> Address:
        name, at, node = self.to.partition("@")
        return Address(name, parse_node(node)) if at else Address(name)

    @property
    def is_group(self) -> bool:
        return self.to == ALL or self.to[-1] == "/"

    @property
    def is_open(self) -> bool:
        """Whether no arbiter is asked."""
        return self.is_group or "@" in self.to

    def delivery(self, agent: str, node: int) -> MessageDelivery:
        """The delivery that concerns this agent on this node."""
        if not self.is_group:
            return self.deliveries[0]
        found = (each for each in self.deliveries if each.agent == agent and each.node == node)
        return next(found, MessageDelivery(agent, node))

    def receivers(self, node: int) -> int:
        """How many agents of a node have claimed a message to a group."""
        return sum(each.node == node for each in self.deliveries) if self.is_group else 0

    def with_delivery(self, delivery: MessageDelivery, at: Hlc) -> "Message":
        if not self.is_group:
            return replace(self, deliveries=(delivery,), last=at)
        others = tuple(each for each in self.deliveries if (each.agent, each.node) != (delivery.agent, delivery.node))
        return replace(self, deliveries=(*others, delivery), last=at)


Verdict = Message | Reason


class Messages(SubjectRules[Message]):
    """The family of messages."""

    decided: frozenset[type] = frozenset((ClaimMessage, AcknowledgeMessage, ReturnMessage, RetryMessage))

    def refusal(self, message: Message | None, op: Op, context: FoldContext, citing: Citing) -> Reason | None:
        if type(op.payload) is SendMessage:
            return context.refusal(op, "") or citing()
        if message is None:
            return citing() or Reason.UNKNOWN_MESSAGE
        return context.refusal(op, message.to) or citing()

    def word(self, message: Message | None) -> str:
        return "" if message is None else message.to

    def is_certain(self, message: Message | None, op: Op) -> bool:
        return message is not None and type(op.payload) is not SendMessage and op.timestamp > message.sent

    def is_open(self, message: Message | None) -> bool:
        return message is None or message.is_open

    def apply(self, message: Message | None, op: Op, context: FoldContext) -> Verdict:
        if type(op.payload) is SendMessage:
            return _send(op, op.payload) if message is None else Reason.DUPLICATE_MESSAGE
        assert message is not None
        return _RULES[type(op.payload)](message, op, op.payload)


def _send(op: Op, payload: SendMessage) -> Verdict:
    if read_address(payload.to) is None:
        return Reason.BAD_ADDRESS
    if not is_agent(payload.sender) or not _is_sound(payload):
        return Reason.BAD_MESSAGE
    return Message(
        id=payload.message_id,
        to=payload.to,
        sender=payload.sender,
        sent=op.timestamp,
        thread=payload.thread,
        reply_to=payload.reply_to,
        priority=payload.priority,
        expires=op.timestamp.wall + payload.ttl_ms,
        tries_max=payload.tries_max,
        last=op.timestamp,
        deliveries=() if Address(payload.to).is_group else (MessageDelivery(),),
    )


def _is_sound(payload: SendMessage) -> bool:
    kind, names = payload.message_type, [name for name, _ in payload.attachments]
    return (
        len(kind) <= TYPE_CHARS_MAX
        and kind.isprintable()
        and abs(payload.priority) <= PRIORITY_MAX
        and 0 < payload.ttl_ms <= TTL_MS_MAX
        and 0 < payload.tries_max <= TRIES_MAX
        and len(payload.body) <= BODY_BYTES_MAX
        and len(names) <= ATTACHMENTS_MAX
        and all(0 < len(name) <= ATTACHMENT_CHARS_MAX and name.isprintable() for name in names)
        and all(reference is None or len(reference) == 16 for reference in (payload.thread, payload.reply_to))
    )


def _claim(message: Message, op: Op, payload: ClaimMessage) -> Verdict:
    if not 0 < payload.lease_ms <= LEASE_MS_MAX:
        return Reason.BAD_LEASE
    if not is_agent(payload.agent) or message.to not in addresses_of(payload.agent, op.node_id):
        return Reason.NOT_RECEIVER
    wall = op.timestamp.wall
    if wall >= message.expires:
        return Reason.MESSAGE_EXPIRED
    delivery = message.delivery(payload.agent, op.node_id)
    if delivery.state is DeliveryState.ACKNOWLEDGED:
        return Reason.MESSAGE_ACKNOWLEDGED
    if delivery.is_dead(wall, message.tries_max):
        return Reason.MESSAGE_DEAD
    if delivery.is_held(wall):
        return Reason.MESSAGE_LEASED
    if delivery.state is DeliveryState.READY and wall < delivery.until:
        return Reason.MESSAGE_DELAYED
    if delivery.op is None and message.receivers(op.node_id) >= RECEIVERS_MAX:
        return Reason.TOO_MANY_RECEIVERS
    tries, until = delivery.tries + 1, wall + payload.lease_ms
    leased = MessageDelivery(payload.agent, op.node_id, DeliveryState.LEASED, tries, until, op.id)
    return message.with_delivery(leased, op.timestamp)


def _held(message: Message, op: Op, agent: str) -> MessageDelivery | Reason:
    """The delivery that the author holds, or why it holds none. An op about a lease cites the claim that began it, so
    that a consumer whose lease has gone to another one cannot speak for that one. When the lease ends is checked by
    the node that decides, by its own clock.
    """
    delivery = message.delivery(agent, op.node_id)
    if delivery.state is DeliveryState.ACKNOWLEDGED:
        return Reason.MESSAGE_ACKNOWLEDGED
    if delivery.state is not DeliveryState.LEASED:
        return Reason.NOT_LEASED
    if (delivery.agent, delivery.node) != (agent, op.node_id):
        return Reason.NOT_HOLDER
    return delivery if delivery.op in op.cited else Reason.STALE_LEASE


def _acknowledge(message: Message, op: Op, payload: AcknowledgeMessage) -> Verdict:
    held = _held(message, op, payload.agent)
    if isinstance(held, Reason):
        return held
    ended = replace(held, state=DeliveryState.ACKNOWLEDGED, until=op.timestamp.wall, op=op.id)
    return message.with_delivery(ended, op.timestamp)


def _return(message: Message, op: Op, payload: ReturnMessage) -> Verdict:
    held = _held(message, op, payload.agent)
    if isinstance(held, Reason):
        return held
    if not 0 <= payload.delay_ms <= DELAY_MS_MAX or len(payload.reason) > REASON_CHARS_MAX:
        return Reason.BAD_DELAY
    is_last = held.tries >= message.tries_max
    state = DeliveryState.DEAD if is_last else DeliveryState.READY
    until = op.timestamp.wall + (0 if is_last else payload.delay_ms)
    return message.with_delivery(replace(held, state=state, until=until, op=op.id), op.timestamp)


def _retry(message: Message, op: Op, payload: RetryMessage) -> Verdict:
    """Delivers a dead message again, with all its tries; one to a group to every agent for which it is dead."""
    wall = op.timestamp.wall
    if wall >= message.expires:
        return Reason.MESSAGE_EXPIRED
    dead = [each for each in message.deliveries if each.is_dead(wall, message.tries_max)]
    if not dead:
        return Reason.NOT_DEAD
    for each in dead:
        ready = replace(each, state=DeliveryState.READY, tries=0, until=0, op=op.id)
        message = message.with_delivery(ready, op.timestamp)
    return message


_RULES: dict[type, Callable[[Message, Op, Any], Verdict]] = {
    ClaimMessage: _claim,
    AcknowledgeMessage: _acknowledge,
    ReturnMessage: _return,
    RetryMessage: _retry,
}

MESSAGES = Messages(Message)
