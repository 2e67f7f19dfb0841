"""Messages that can be believed: each is sealed by its author on the way out and opened on the way in, over any bus.
`bus.envelope` decides what counts; messages that do not are dropped, and counted by reason. A message whose author
is not known yet is kept aside for a while: a new member talks before every log has its invitation.
"""

import asyncio
import os
from collections import Counter, deque
from collections.abc import Callable

from hocket.bus.envelope import LIFE_MS, PROCESS_BYTES, Drop, Envelope, Seen, open_envelope, open_value, seal
from hocket.bus.messages import CAPACITY, BusMessage, MessageBus, MessageQueue, MessagesState, ask, subject_name
from hocket.kernel.clock import Hlc, tick
from hocket.kernel.ids import node_id
from hocket.kernel.keys import SigningKey

REPLIES = "reply"
# The messages of unknown authors that are kept, how long, and how often to look whether the authors are known by now.
EARLY_MAX = 16
EARLY_MS = 10_000
LOOK_S = 0.25


class MessageOpener:
    """`judge` decides whether a message counts, and `counts` has how many did not, by reason."""

    def __init__(
        self,
        judge: Callable[[BusMessage, Seen], Envelope | Drop],
        counts: Counter[Drop],
        now_ms: Callable[[], int],
    ) -> None:
        self._judge, self._counts, self._now_ms = judge, counts, now_ms
        self._seen = Seen()
        self._early: deque[tuple[int, BusMessage]] = deque(maxlen=EARLY_MAX)

    @property
    def has_early(self) -> bool:
        """Whether messages wait for their authors to be known."""
        return bool(self._early)

    def open(self, message: BusMessage) -> Envelope | None:
        """The content of a message that was received sealed; None if it does not count, or not yet."""
        judged = self._judge(message, self._seen)
        if isinstance(judged, Envelope):
            return judged
        self._counts[judged] += 1
        if judged is Drop.UNKNOWN:
            self._early.append((self._now_ms(), message))
        return None

    def open_early(self) -> list[tuple[BusMessage, Envelope]]:
        """The messages that count by now, as received and opened."""
        found = []
        for _ in range(len(self._early)):
            came_ms, message = self._early.popleft()
            judged = self._judge(message, self._seen)
            if isinstance(judged, Envelope):
                self._counts[Drop.UNKNOWN] -= 1
                found.append((message, judged))
            elif judged is Drop.UNKNOWN and self._now_ms() < came_ms + EARLY_MS:
                self._early.append((came_ms, message))
        return found


class SignedMessages:
    """`key_of` knows the keys of the members, `now_ms` the time of day, and `life_ms` by how much the clocks of this
    mesh may differ.
    """

    def __init__(
        self,
        messages: MessageBus,
        key: SigningKey,
        cluster: str,
        key_of: Callable[[int], bytes | None],
        now_ms: Callable[[], int],
        *,
        life_ms: int = LIFE_MS,
        randomness: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self.messages, self.cluster = messages, cluster
        self.counts: Counter[Drop] = Counter()
        """How many messages were dropped, by reason."""
        self._queues: set[_SignedQueue] = set()
        self._dropped_by_closed = 0
        self._key, self._key_of, self._now_ms, self._life_ms = key, key_of, now_ms, life_ms
        self._randomness = randomness
        self._process = randomness(PROCESS_BYTES)
        self._at = Hlc(0, 0, node_id(key.public))

    @property
    def state(self) -> MessagesState:
        return self.messages.state

    @property
    def dropped(self) -> int:
        """How many messages came while the queue of their subscription was full."""
        return self._dropped_by_closed + sum(each.dropped for each in list(self._queues))

    async def publish(self, subject: str, data: bytes, *, reply_to: str = "") -> None:
        await self.messages.publish(subject, self._sealed(subject, data, reply_to), reply_to=reply_to)

    async def announce(self, subject: str, data: bytes) -> None:
        await self.messages.announce(subject, self._sealed(subject, data, is_kept=True))

    async def subscribe(self, pattern: str, *, capacity: int = CAPACITY, since_s: float = 0.0) -> MessageQueue:
        queue = await self.messages.subscribe(pattern, capacity=capacity, since_s=since_s)
        made = _SignedQueue(queue, self.opener(), self._closed)
        self._queues.add(made)
        return made

    def _closed(self, queue: "_SignedQueue") -> None:
        if queue in self._queues:
            self._queues.discard(queue)
            self._dropped_by_closed += queue.dropped

    async def request(self, subject: str, data: bytes, timeout_s: float) -> BusMessage | None:
        inbox = subject_name(self.cluster, REPLIES, self._randomness(16).hex())
        return await ask(self, inbox, subject, data, timeout_s)

    @property
    def node(self) -> int:
        return self._at.node

    def seal_value(self, subject: str, data: bytes) -> bytes:
        """A value that stays on a server, signed by this node."""
        return self._sealed(subject, data)

    def open_value(self, subject: str, data: bytes) -> Envelope | None:
        """A value on a server, however old; None if no member has signed it for this subject."""
        return open_value(data, self.cluster, subject, self._key_of)

    def is_member(self, node: int) -> bool:
        return self._key_of(node) is not None

    async def close(self) -> None:
        await self.messages.close()

    def _sealed(self, subject: str, data: bytes, reply_to: str = "", *, is_kept: bool = False) -> bytes:
        self._at = tick(self._at, self._now_ms())
        envelope = Envelope(self.cluster, self._at, self._process, subject, data, reply_to, is_kept)
        return seal(envelope, self._key)

    def opener(self) -> MessageOpener:
        """Opens the messages of one subscription. Two subscriptions may get the same message, so each has its own."""
        return MessageOpener(self._judge, self.counts, self._now_ms)

    def _judge(self, message: BusMessage, seen: Seen) -> Envelope | Drop:
        return open_envelope(
            message.data, self.cluster, message.subject, self._key_of, self._now_ms(), seen, self._life_ms
        )


class _SignedQueue:
    def __init__(self, queue: MessageQueue, opener: MessageOpener, closed: "Callable[[_SignedQueue], None]") -> None:
        self._queue, self._opener, self._closed = queue, opener, closed
        self._early: deque[Envelope] = deque()
        self._looks_at = 0.0

    @property
    def dropped(self) -> int:
        return self._queue.dropped

    @property
    def is_closed(self) -> bool:
        return self._queue.is_closed

    async def get(self, timeout_s: float) -> BusMessage | None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            now = loop.time()
            if self._opener.has_early and now >= self._looks_at:
                # Not at every message: each look judges all that wait, and strangers can keep some waiting.
                self._looks_at = now + LOOK_S
                self._early.extend(opened for _, opened in self._opener.open_early())
            if self._early:
                return _message(self._early.popleft())
            until = min(deadline, self._looks_at) if self._opener.has_early else deadline
            message = await self._queue.get(max(0.0, until - now))
            if message is not None:
                if (opened := self._opener.open(message)) is not None:
                    return _message(opened)
            elif self.is_closed or until == deadline:
                return None

    def close(self) -> None:
        self._closed(self)
        self._queue.close()


def _message(opened: Envelope) -> BusMessage:
    return BusMessage(opened.subject, opened.data, opened.reply_to, opened.at)
