"""Messages, and the queues that agents take them from. A queue is known by its address: `agent`, or `agent@node`, which
also has that agent's share of the messages to groups.
"""

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol

from hocket.families.inbox.rules import Message


class DeliveryStage(IntEnum):
    """The place of a delivery in its queue. A resting one is leased or delayed; a blocked one comes after an earlier
    message of its thread. Acknowledged messages are in no queue.
    """

    READY = 0
    RESTING = 1
    BLOCKED = 2
    DEAD = 3


class QueuedDelivery(NamedTuple):
    """`due` is the time at which its stage must be looked at again. `sent` is packed."""

    queue: str
    message_id: bytes
    stage: DeliveryStage
    due: int
    priority: int
    sent: bytes
    thread: bytes


class MessageSession(Protocol):
    def message(self, message_id: bytes) -> Message | None: ...

    def put_message(self, message: Message, depth: int) -> None:
        """`depth` is how many replies lead to it, and is stored with a new message."""

    def drop_message(self, message_id: bytes) -> list[QueuedDelivery]:
        """Also takes it out of every queue. Returns its places there."""

    def reply_depth(self, message_id: bytes) -> int | None:
        """None if there is no such message."""

    def messages_since(self, hlc: bytes) -> list[bytes]:
        """The messages with ops later than this."""

    def each_message(self) -> Iterator[Message]: ...
    def thread(self, thread: bytes, limit: int, after: bytes = b"") -> list[Message]:
        """The messages of a thread, the first one included, in the order of their ids, after this id."""

    def replies(self, message_id: bytes) -> list[Message]: ...
    def message_ids(self, low: bytes, high: bytes, limit: int) -> list[bytes]: ...

    def put_delivery(self, delivery: QueuedDelivery) -> None: ...
    def drop_delivery(self, queue: str, message_id: bytes) -> None: ...
    def deliveries_ready(self, queue: str, limit: int) -> list[QueuedDelivery]:
        """The most urgent deliveries of a queue."""

    def deliveries_of_thread(
        self, queue: str, thread: bytes, limit: int, after: bytes = b"", before: bytes | None = None
    ) -> list[QueuedDelivery]:
        """The deliveries of a thread that have not ended, in the order of their times: those sent after and before
        these times.
        """

    def deliveries_due(self, now: int, limit: int) -> list[QueuedDelivery]:
        """Those whose stage must be looked at again."""

    def deliveries_resting(self, limit: int) -> list[QueuedDelivery]: ...

    def deliveries(
        self, queues: Sequence[str] | None, is_dead: bool, beyond: tuple[str, bytes], limit: int
    ) -> list[QueuedDelivery]:
        """A page of these queues, or of all, in the order of queue and message: what waits there, or what is dead."""

    def group_messages(self, groups: Sequence[str], after: int, limit: int) -> list[tuple[int, Message]]:
        """Messages to these groups in the order of arrival, each with its number there."""

    def group_cursor(self, queue: str) -> int:
        """The number of the last message to a group that this queue has its share of."""

    def set_group_cursor(self, queue: str, number: int) -> None: ...
