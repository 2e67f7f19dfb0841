"""Messages for programs: `node.send`, `node.inbox` and `node.ask`, for async and for synchronous code. A received
message is held under a lease; the program acknowledges it, returns it or answers it.
"""

import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypedDict, Unpack

import msgspec

from hocket.bus.hints import about
from hocket.errors import Unreachable, Usage
from hocket.families.access import decide
from hocket.families.blobs import Blobs
from hocket.families.inbox import requests as inbox
from hocket.families.inbox.facts import MESSAGE, OWNER
from hocket.families.inbox.requests import LEASE_MS_DEFAULT, TTL_MS_DEFAULT, ClaimedMessage, MessageDraft
from hocket.families.inbox.rules import Message, read_address
from hocket.kernel.arbitration import Reason
from hocket.kernel.clock import U32_MAX, Hlc
from hocket.kernel.ids import hash_text, node_text, parse_ulid, ulid_text
from hocket.kernel.ops import BeatPlace, Op, stamp_of
from hocket.kernel.policy import THE_OWNER
from hocket.kernel.texts import duration_ms
from hocket.log import Log, Transaction
from hocket.mesh import membership
from hocket.mesh.names import names
from hocket.node.calls import Blocking, ProgramNode, each, kept, now
from hocket.store import Session

Body = bytes | str | Any
Attached = tuple[str, bytes | os.PathLike[str]] | os.PathLike[str]
Duration = str | float
_MAIL = about(MESSAGE)


class AttachmentInfo(msgspec.Struct, frozen=True):
    """A named artifact. Its hash and size are None if this node does not know the artifact."""

    name: str
    artifact_id: str
    hash: str | None
    size: int | None


class MessageData(msgspec.Struct, frozen=True):
    """A message as an agent sees it. `sender` is the agent and the name of its node; `sender_address` names the node by
    its id, and is the address for a reply.
    """

    id: str
    sender: str
    sender_address: str
    to: str
    type: str
    thread: str
    reply_to: str | None
    priority: int
    body: bytes
    attachments: list[AttachmentInfo]
    sent_ms: int
    expires_ms: int
    state: str
    lease_until_ms: int | None
    tries: int
    stamp: BeatPlace | None = None
    """The beat in which it was sent, if its node has a tempo."""


def message_data(log: Log, session: Session, message: Message, agent: str | None) -> MessageData:
    """`agent` is whose delivery of a message to a group is shown."""
    called, author = names(log.permissions(session)), message.sent.node
    op, payload = inbox.sending_of(session, message.id)
    address, now = message.address, log.physical()
    receiver = agent or address.name
    node = log.node if address.node is None else address.node
    delivery = message.delivery(receiver, node)
    state = inbox.state_of(message, receiver, node, now)
    to = message.to if address.node is None else f"{address.name}@{called.get(address.node) or node_text(address.node)}"
    return MessageData(
        ulid_text(message.id),
        f"{message.sender}@{called.get(author) or node_text(author)}",
        f"{message.sender}@{node_text(author)}",
        to,
        payload.message_type,
        ulid_text(message.thread or message.id),
        None if message.reply_to is None else ulid_text(message.reply_to),
        message.priority,
        payload.body,
        [_attachment(session, name, artifact_id) for name, artifact_id in payload.attachments],
        message.sent.wall,
        message.expires,
        state,
        delivery.until if state == "leased" else None,
        delivery.tries,
        stamp_of(op),
    )


def _attachment(session: Session, name: str, artifact_id: bytes) -> AttachmentInfo:
    found = session.artifact(artifact_id)
    known = (None, None) if found is None else (hash_text(found.hash), found.size)
    return AttachmentInfo(name, ulid_text(artifact_id), *known)


def resolved(log: Log, session: Session, to: str) -> str:
    """The address with the id of the node that it names, or on which the owner of the mesh is reached."""
    if to == THE_OWNER:
        latest = Hlc(max(session.head().wall, log.physical()), U32_MAX, log.node)
        return f"{OWNER}@{node_text(log.permissions(session).owner_node(latest))}"
    name, at, node = to.partition("@")
    if not at:
        return to
    if not node:
        raise Usage(f"{to!r} names no node; write it like editor@gpu-box")
    return f"{name}@{membership.find(membership.members(log, session), node).id}"


def message_id_of(text: str) -> bytes:
    try:
        return parse_ulid(text)
    except ValueError as error:
        raise Usage(f"{text!r} is not the id of a message: {error}") from None


def milliseconds(value: Duration, what: str) -> int:
    try:
        return duration_ms(value)
    except ValueError as error:
        raise Usage(f"bad {what}: {error}") from None


class MessageOptions(TypedDict, total=False):
    """`agent`: who sends it; default $HOCKET_AGENT, else this machine's user. `thread`: the first message of a thread.
    `reply_to`: the message that it answers. `priority`: higher ones are delivered first. `ttl`: when it expires if
    nobody claims it; default 7 days.
    """

    agent: str | None
    type: str
    thread: str | None
    reply_to: str | None
    priority: int
    ttl: Duration | None


def draft_of(
    log: Log,
    blobs: Blobs,
    to: str,
    body: Body,
    attachments: Iterable[Attached] = (),
    **options: Unpack[MessageOptions],
) -> MessageDraft:
    """The message that a program wants to send. A body that is neither text nor bytes is sent as JSON."""
    with log.store.read() as session:
        receiver = resolved(log, session, to)
    plain = plain_draft(receiver, body, **options)
    if not attachments:
        return inbox.check_draft(plain)
    from hocket.work.run_outputs import contain

    named = [each if isinstance(each, tuple) else (Path(each).name, each) for each in attachments]
    return inbox.check_draft(
        plain._replace(attachments=tuple((name, contain(blobs, content)) for name, content in named))
    )


def plain_draft(to: str, body: Body, **options: Unpack[MessageOptions]) -> MessageDraft:
    """A message without attachments, to an address that names its node by the id."""
    data = body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else msgspec.json.encode(body)
    thread, reply_to, ttl = options.get("thread"), options.get("reply_to"), options.get("ttl")
    return inbox.check_draft(
        MessageDraft(
            to,
            data,
            options.get("agent") or inbox.default_agent(),
            options.get("type", ""),
            None if thread is None else message_id_of(thread),
            None if reply_to is None else message_id_of(reply_to),
            options.get("priority", 0),
            TTL_MS_DEFAULT if ttl is None else milliseconds(ttl, "ttl"),
        )
    )


def node_of(draft: MessageDraft) -> int | None:
    """The node that a message is for, if it is for one."""
    address = read_address(draft.to)
    return None if address is None else address.node


class _Received:
    """What async and synchronous programs see of a message that they hold."""

    def __init__(self, data: MessageData, agent: str) -> None:
        self.data, self.agent = data, agent

    @property
    def id(self) -> str:
        return self.data.id

    @property
    def sender(self) -> str:
        return self.data.sender

    @property
    def body(self) -> bytes:
        return self.data.body

    @property
    def text(self) -> str:
        return self.data.body.decode()

    def json(self) -> Any:
        return msgspec.json.decode(self.data.body)


class ReceivedMessage(_Received):
    """A message that an agent of this node holds."""

    def __init__(self, node: ProgramNode, data: MessageData, agent: str, claim_op: bytes) -> None:
        super().__init__(data, agent)
        self._node, self._id, self.claim_op = node, parse_ulid(data.id), claim_op

    async def ack(self) -> None:
        """The message is processed. Raises Conflict if the lease was lost."""
        await decided(self._node, self._id, lambda tx: inbox.acknowledge(tx, self._id, self.agent, self.claim_op))

    async def nack(self, delay: Duration = 0, reason: str = "") -> None:
        """Returns the message, to be delivered again after the delay."""
        delay_ms = milliseconds(delay, "delay")
        await decided(
            self._node,
            self._id,
            lambda tx: inbox.hand_back(tx, self._id, self.agent, delay_ms, reason, self.claim_op),
        )

    async def reply(self, body: Body, **options: Any) -> str:
        """Answers the sender; the message itself is still to be acknowledged. Returns the id of the reply."""
        given = {"agent": self.agent, "reply_to": self.id} | options
        return await self._node.send(self.data.sender_address, body, **given)


class Inbox:
    """The messages of one agent of this node."""

    def __init__(self, node: ProgramNode, agent: str | None) -> None:
        self._node, self.agent = node, inbox.check_agent(agent or inbox.default_agent())

    async def claim(
        self, count: int = 1, lease: Duration = LEASE_MS_DEFAULT / 1000, wait: Duration = 0
    ) -> list[ReceivedMessage]:
        """Claims up to `count` messages, the most urgent first. If there are none, waits so long for the first; without
        a `wait`, asks the coordinator once. Raises Unreachable if only the coordinator can say whether there is one.
        """
        return await self._claim(count, milliseconds(lease, "lease"), milliseconds(wait, "wait"), None)

    async def claim_bound(self, count: int, lease_ms: int) -> list[ReceivedMessage]:
        """Claims messages that are returned when this process ends, however it ends."""

        def bind(tx: Transaction, claimed: ClaimedMessage) -> None:
            self._node.lock_processes.bind(tx, claimed.claim_op, "", lease_ms)

        return await self._claim(count, lease_ms, 0, bind)

    async def _claim(
        self, count: int, lease_ms: int, wait_ms: int, note: Callable[[Transaction, ClaimedMessage], None] | None
    ) -> list[ReceivedMessage]:
        node, agent, log, monotonic = self._node, self.agent, self._node.log, self._node.environment.monotonic
        lease_ms = inbox.check_lease(lease_ms)

        def may_find(session: Session) -> bool:
            return inbox.has_mail(session, agent, log.node, log.physical()) or (
                not wait_ms and inbox.may_be_elsewhere(log, session)
            )

        async def look() -> tuple[bool, list[tuple[float, ClaimedMessage]]]:
            if not await node.peek(may_find):
                return False, []
            taken = await inbox.claim_messages(node, agent, count, lease_ms, monotonic, asks=not wait_ms, note=note)
            return bool(taken), taken

        taken: list[tuple[float, ClaimedMessage]] = []
        if wait_ms:
            with suppress(TimeoutError):
                taken = await node.until(look, wait_ms / 1000, _MAIL)
        else:
            _, taken = await look()
        if taken:
            node.wrote()
        read = await node.peek(lambda session: [(until, self._received(session, each)) for until, each in taken])
        # After the lease another consumer may have the message.
        return [message for until, message in read if monotonic() < until]

    async def has_mail(self, wait: Duration = 0) -> bool:
        """Whether a claim may find something; waits so long for that."""
        log = self._node.log

        async def look() -> tuple[bool, None]:
            return await self._node.peek(
                lambda session: inbox.has_mail(session, self.agent, log.node, log.physical())
            ), None

        if (await look())[0]:
            return True
        with suppress(TimeoutError):
            await self._node.until(look, milliseconds(wait, "wait") / 1000, _MAIL)
            return True
        return False

    async def let_go(self, claims: Mapping[str, bytes], *, reason: str | None = None) -> None:
        """These claims no longer end with this process. With a `reason` the messages are returned now."""

        def write(tx: Transaction) -> None:
            for text, claim in claims.items():
                if reason is not None:
                    inbox.hand_back(tx, message_id_of(text), self.agent, 0, reason, claim)
                self._node.lock_processes.free(tx, claim)

        if claims:
            await self._node.run(write)

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        """Every message as it comes, one at a time, without end."""
        while True:
            for message in await self.claim(wait=3600):
                yield message

    def _received(self, session: Session, taken: ClaimedMessage) -> ReceivedMessage:
        message = session.message(taken.message_id)
        assert message is not None
        data = message_data(self._node.log, session, message, self.agent)
        return ReceivedMessage(self._node, data, self.agent, taken.claim_op)


async def decided(node: ProgramNode, message_id: bytes, request: Callable[[Transaction], Op | Reason]) -> None:
    """Has an op about a message decided. Raises Conflict and others if it is refused."""
    try:
        answer = await decide(node, request)
    except Unreachable as error:
        raise kept(error) from error
    node.wrote()
    if isinstance(answer, Reason):
        reason = answer
        raise await node.peek(lambda session: inbox.refused(session, message_id, reason, node.log.physical()))


async def ask(
    node: ProgramNode, to: str, body: Body, wait: Duration, agent: str | None, options: dict[str, Any]
) -> ReceivedMessage:
    """Sends a message and waits for the reply to it, which is acknowledged when it is here. The reply goes to an agent
    of its own, so that no other consumer gets it.
    """
    wait_ms, log = milliseconds(wait, "wait"), node.log
    asking = f"{agent or inbox.default_agent()}/ask-{ulid_text(log.new_id(log.physical()))[-12:].lower()}"
    message_id = message_id_of(await node.send(to, body, agent=asking, ttl=wait_ms / 1000, **options))

    async def look() -> tuple[bool, bool]:
        return bool(await node.peek(lambda session: session.replies(message_id))), True

    try:
        await node.until(look, wait_ms / 1000, _MAIL)
    except TimeoutError:
        raise TimeoutError(f"no reply from {to} within {wait_ms / 1000:g} seconds") from None
    (reply,) = await Inbox(node, asking).claim(wait=10)
    await reply.ack()
    return reply


class SyncReceivedMessage(_Received):
    """A message that an agent of this node holds, for synchronous code."""

    def __init__(self, target: ReceivedMessage) -> None:
        super().__init__(target.data, target.agent)
        self._target = target

    ack = Blocking(ReceivedMessage.ack)
    nack = Blocking(ReceivedMessage.nack)

    def reply(self, body: Body, **options: Any) -> str:
        """Answers the sender, as `ReceivedMessage.reply` does. Returns the id of the reply."""
        return now(self._target.reply(body, **options))


class SyncInbox:
    """The messages of one agent of this node, for synchronous code."""

    def __init__(self, target: Inbox) -> None:
        self._target, self.agent = target, target.agent

    def claim(
        self, count: int = 1, lease: Duration = LEASE_MS_DEFAULT / 1000, wait: Duration = 0
    ) -> list[SyncReceivedMessage]:
        """Claims up to `count` messages, the most urgent first, as `Inbox.claim` does."""
        return [SyncReceivedMessage(message) for message in now(self._target.claim(count, lease, wait))]

    def __iter__(self) -> Iterator[SyncReceivedMessage]:
        """Every message as it comes, one at a time, without end."""
        return (SyncReceivedMessage(message) for message in each(aiter(self._target)))
