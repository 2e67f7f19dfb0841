"""Keeps messages equal to the fold inside one transaction, and their queues: which message an agent may claim next. It
also decides what spans messages (the order within a thread) and what depends on this machine's clock (when a lease
ends), if this node decides about a message.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, cast

from hocket.families.inbox.facts import (
    JOB_AGENTS,
    MESSAGE,
    AcknowledgeMessage,
    ClaimMessage,
    RetryMessage,
    ReturnMessage,
    SendMessage,
)
from hocket.families.inbox.rules import (
    MESSAGES,
    Address,
    DeliveryState,
    Message,
    MessageDelivery,
    addresses_of,
    read_address,
)
from hocket.kernel.arbitration import Reason
from hocket.kernel.clock import pack
from hocket.kernel.ops import Op
from hocket.kernel.vocabulary import JOB, AcceptOffer, Subject
from hocket.log.citations import Memory
from hocket.log.limits import is_given_up
from hocket.log.projection import Projection
from hocket.log.projectors import Engine, is_wrong
from hocket.store import DeliveryStage, QueuedDelivery, Session

# How many deliveries whose time has come, and messages to groups, one transaction looks at.
STEP = 1_000
# How many messages of a thread one consumer may hold at once.
THREAD_HELD_MAX = 1_000


class _QueuePlace(NamedTuple):
    stage: DeliveryStage
    due: int


class MessageProjector:
    family = MESSAGES

    def __init__(self, session: Session, engine: Engine) -> None:
        self._session, self._engine = session, engine
        self.context = engine
        self._messages: dict[bytes, Message | None] = {}
        self._dirty: dict[bytes, None] = {}
        self.touched: set[bytes] = set()
        # The threads with what jobs asked and were answered. Each has the id of its job.
        self.questioned: set[bytes] = set()
        self.topics: Mapping[str, set[bytes]] = {JOB: self.questioned}
        self.memory = Memory((self._messages, self._dirty, self.touched, self.questioned))

    def state(self, key: bytes) -> Message | None:
        if key not in self._messages:
            subject = Subject(MESSAGE, key)
            self._session.lock_subjects((subject,))
            self._messages[key] = self._session.message(key)
            if is_wrong(self._session, subject):
                self._dirty[key] = None
        return self._messages[key]

    def keep(self, key: bytes, state: Message | None) -> None:
        self._messages[key] = state
        self._dirty[key] = None

    note = keep

    def prepare(self, keys: Sequence[bytes]) -> None:
        pass

    def is_new(self, key: bytes) -> bool:
        return False

    def not_new(self, key: bytes) -> None:
        pass

    def claim(self, key: bytes) -> bytes | None:
        message = self._messages.get(key)
        if message is None or len(message.deliveries) != 1:
            return None
        delivery = message.deliveries[0]
        return delivery.op if delivery.state is DeliveryState.LEASED else None

    def keys_since(self, hlc: bytes) -> Iterable[bytes]:
        return self._session.messages_since(hlc)

    def flush(self) -> None:
        while self._dirty:
            dirty = list(self._dirty)
            self._dirty.clear()
            self.touched.update(dirty)
            for key in dirty:
                message = self._messages[key]
                if message is None:
                    for dropped in self._session.drop_message(key):
                        self._let_next_in(dropped.queue, dropped.thread)
                else:
                    self._session.put_message(message, self._depth(message))
                    if message.thread is not None and JOB_AGENTS in (message.sender[:4], message.to[:4]):
                        self.questioned.add(message.thread)
                    self._queue(message)

    def _depth(self, message: Message) -> int:
        if message.reply_to is None:
            return 0
        return 1 + (self._session.reply_depth(message.reply_to) or 0)

    # What this node decides.

    def own_fault(self, state: Message | None, op: Op) -> Reason | None:
        payload, author, offered = op.payload, op.node_id, None
        if isinstance(payload, AcceptOffer):
            offered, _ = self._engine.known(payload.offer)
            if offered is None:
                return None
            payload, author = offered.payload, offered.node_id
        if state is None or isinstance(payload, SendMessage):
            return None
        if not state.is_open and self._engine.arbiter(op.timestamp) not in (None, op.node_id):
            return None  # it is an offer, and the arbiter decides
        now = self._engine.physical
        if isinstance(payload, RetryMessage):
            is_dead = any(each.is_dead(now, state.tries_max) for each in state.deliveries)
            return None if is_dead or now >= state.expires else Reason.NOT_DEAD
        assert isinstance(payload, ClaimMessage | AcknowledgeMessage | ReturnMessage)
        delivery = state.delivery(payload.agent, author)
        if isinstance(payload, ClaimMessage):
            if delivery.is_held(now):
                return Reason.MESSAGE_LEASED
            if offered is not None and is_given_up(offered, payload.lease_ms, now, self._engine.now):
                return Reason.GIVEN_UP
            return None if self._is_its_turn(state, payload.agent, author) else Reason.NOT_ITS_TURN
        return Reason.LEASE_PASSED if delivery.state is DeliveryState.LEASED and delivery.until < now else None

    def _is_its_turn(self, message: Message, agent: str, node: int) -> bool:
        """Whether every earlier message of its thread has ended, or is held by the same consumer."""
        self.flush()
        queue = str(Address(agent, node)) if message.is_group else message.to
        earlier = self._session.deliveries_of_thread(
            queue, message.thread or message.id, THREAD_HELD_MAX, before=pack(message.sent)
        )
        for each in earlier:
            other = self._placed(each)
            if other is None:
                continue
            delivery = other.delivery(agent, node)
            if not delivery.is_held(self._engine.physical) or (delivery.agent, delivery.node) != (agent, node):
                return False
        return len(earlier) < THREAD_HELD_MAX

    # Queues.

    def bring_up_to_date(self, agent: str, node: int) -> None:
        """Before an agent claims: moves the deliveries whose time has come, and gives the agent its share of the
        messages to groups.
        """
        self.move_due()
        session, queue = self._session, str(Address(agent, node))
        groups = [address for address in addresses_of(agent, node) if Address(address).is_group]
        new = session.group_messages(groups, session.group_cursor(queue), STEP)
        for _, message in new:
            if (message.sender, message.sent.node) != (agent, node):
                self._put_in_place(message.id, queue)
        if new:
            session.set_group_cursor(queue, new[-1][0])

    def move_due(self) -> None:
        """Moves the deliveries whose time has come: a lease or a delay is over, or the message has expired."""
        self.flush()
        for due in self._session.deliveries_due(self._engine.physical, STEP):
            self._put_in_place(due.message_id, due.queue)

    def _put_in_place(self, message_id: bytes, queue: str) -> None:
        message = self.state(message_id)
        if message is None or not _receives(queue, message):
            self._session.drop_delivery(queue, message_id)  # another program wrote it
        else:
            self._place(message, queue)

    def put_right(self, row: QueuedDelivery) -> None:
        """In a store that nodes share, another program may have moved a delivery whose message cannot be claimed."""
        if self._session.row_check is not None:
            self._put_in_place(row.message_id, row.queue)

    def _queue(self, message: Message) -> None:
        if not message.is_group:
            self._place(message, message.to)
            return
        for each in message.deliveries:
            self._place(message, str(Address(each.agent, each.node)))

    def _place(self, message: Message, queue: str) -> None:
        """Puts a message at its place in a queue, and lets the next one of its thread in if it has ended."""
        if self._put(message, queue):
            self._let_next_in(queue, message.thread or message.id)

    def _let_next_in(self, queue: str, thread: bytes) -> None:
        while (first := self._first(queue, thread)) is not None and first.stage is DeliveryStage.BLOCKED:
            following = self._placed(first)
            if following is not None:
                self._put(following, queue)

    def _placed(self, delivery: QueuedDelivery) -> Message | None:
        """The message of a delivery, if it has its place there. Another program may have written it elsewhere."""
        message, queue = self.state(delivery.message_id), delivery.queue
        if message is None or not _receives(queue, message):
            self._session.drop_delivery(queue, delivery.message_id)
            return None
        if (pack(message.sent), message.thread or message.id) != (delivery.sent, delivery.thread):
            self._put(message, queue)
            return None
        return message

    def _put(self, message: Message, queue: str) -> bool:
        """Of a thread only the first message that has not ended is ready. Returns whether this one has ended."""
        address = read_address(queue)
        assert address is not None
        delivery = message.delivery(address.name, address.node or 0)
        place, thread = _place_of(message, delivery, self._engine.physical), message.thread or message.id
        if place is None:
            self._session.drop_delivery(queue, message.id)
            return True
        stage, sent = place.stage, pack(message.sent)
        if stage is DeliveryStage.READY:
            first = self._first(queue, thread)
            if first is not None and first.sent < sent:
                stage = DeliveryStage.BLOCKED
            elif first is not None and first.sent > sent and first.stage is DeliveryStage.READY:
                self._session.put_delivery(first._replace(stage=DeliveryStage.BLOCKED))
        self._session.put_delivery(QueuedDelivery(queue, message.id, stage, place.due, message.priority, sent, thread))
        return stage is DeliveryStage.DEAD

    def _first(self, queue: str, thread: bytes) -> QueuedDelivery | None:
        return next(iter(self._session.deliveries_of_thread(queue, thread, 1)), None)


def messages_of(projection: Projection) -> MessageProjector:
    """The messages as a transaction sees them."""
    return cast(MessageProjector, projection.projectors[MESSAGE])


def _receives(queue: str, message: Message) -> bool:
    address = read_address(queue)
    if address is None or not message.is_group:
        return address is not None and queue == message.to
    return address.node is not None and message.to in addresses_of(address.name, address.node)


def _place_of(message: Message, delivery: MessageDelivery, now: int) -> _QueuePlace | None:
    """A delivery's place in its queue at that time; None if it has none."""
    if delivery.state is DeliveryState.ACKNOWLEDGED:
        return None
    if delivery.is_held(now):
        return _QueuePlace(DeliveryStage.RESTING, delivery.until + 1)
    if now >= message.expires:
        return None if message.is_group else _QueuePlace(DeliveryStage.DEAD, message.expires)
    if delivery.is_dead(now, message.tries_max):
        return _QueuePlace(DeliveryStage.DEAD, message.expires)
    if delivery.state is DeliveryState.READY and now < delivery.until:
        return _QueuePlace(DeliveryStage.RESTING, min(delivery.until, message.expires))
    return _QueuePlace(DeliveryStage.READY, message.expires)
