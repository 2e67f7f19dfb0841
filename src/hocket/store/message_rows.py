"""Messages, and the queues that agents take them from. A queue is known by its address: `agent`, or `agent@node`, which
also has that agent's share of the messages to groups.
"""

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from functools import cache
from typing import NamedTuple

from hocket.families.inbox.facts import MESSAGE
from hocket.families.inbox.rules import MESSAGES, Message
from hocket.kernel.clock import pack
from hocket.kernel.vocabulary import Subject
from hocket.store.statements import Dialect, Row, Statements, insert, upsert
from hocket.store.subjects import LATEST_ABOUT, ChecksStates

_DELIVERY = "queue, message, stage, due, priority, sent, thread"
_DELIVERIES = f"SELECT {_DELIVERY} FROM deliveries WHERE"
_PUT_DELIVERY = upsert("deliveries", _DELIVERY, "queue, message")
_DROP_DELIVERIES = f"DELETE FROM deliveries WHERE message = ? RETURNING {_DELIVERY}"
_SET_GROUP_CURSOR = upsert("group_cursors", "queue, number", "queue")
_PUT_MESSAGE = (
    insert("messages", "id, receiver, thread, reply_to, depth, last, state")
    + " ON CONFLICT (id) DO UPDATE SET last = excluded.last, state = excluded.state"
)
_MESSAGE = "SELECT state FROM messages WHERE id = ?"
_CHECKED_MESSAGE = f"SELECT ({_MESSAGE}), ({LATEST_ABOUT})"
_CHECKED_STATE = (
    "id, state, (SELECT hlc FROM ops WHERE key = messages.id AND settled = 1 AND family = 'message'"
    " ORDER BY hlc DESC LIMIT 1)"
)


def _either(sql: str) -> tuple[str, str]:
    """A statement about messages for a session without a check, and for one with."""
    return sql.replace("{state}", "id, state, NULL"), sql.replace("{state}", _CHECKED_STATE)


# An OR would sort the whole thread for each page.
_THREAD = _either(
    "SELECT {state} FROM messages WHERE id = ?1 AND id > ?2"
    " UNION ALL SELECT {state} FROM messages WHERE thread = ?1 AND id > ?2 ORDER BY id LIMIT ?3"
)
_REPLIES = _either("SELECT {state} FROM messages WHERE reply_to = ? ORDER BY id")


@cache
def _to_groups(dialect: Dialect) -> tuple[str, str]:
    to_groups = f"(receiver = 'all' OR {dialect.last_character.format('receiver')} = '/')"
    return _either(
        f"SELECT number, {{state}} FROM messages {dialect.using.format('messages_to_groups')}"
        f" WHERE receiver {{}} AND number > ? AND {to_groups} ORDER BY number LIMIT ?"
    )


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


_STAGES = tuple(DeliveryStage)


class MessageSession(Statements):
    row_check: ChecksStates | None

    def message(self, message_id: bytes) -> Message | None:
        if self.row_check is None:
            state = self._one(_MESSAGE, message_id)
        else:
            subject = Subject(MESSAGE, message_id)
            state = self.row_check.state(subject, *self._rows(_CHECKED_MESSAGE, message_id, *subject)[0])
        return None if state is None else MESSAGES.decode(state)

    def _messages(self, rows: Iterable[Row]) -> list[Message]:
        check = self.row_check
        checked = (
            state if check is None else check.state(Subject(MESSAGE, message_id), state, latest)
            for message_id, state, latest in rows
        )
        return [MESSAGES.decode(state) for state in checked if state is not None]

    def put_message(self, message: Message, depth: int) -> None:
        """`depth` is how many replies lead to it, and is stored with a new message."""
        state, last = MESSAGES.encode(message), pack(message.last)
        if self.row_check is not None:
            self.row_check.wrote_state(Subject(MESSAGE, message.id), state, last)
        place = (message.id, message.to, message.thread, message.reply_to, depth)
        self._put(_PUT_MESSAGE, (*place, last, state))

    def drop_message(self, message_id: bytes) -> list[QueuedDelivery]:
        """Also takes it out of every queue. Returns its places there."""
        if self.row_check is not None:
            self.row_check.wrote_state(Subject(MESSAGE, message_id), None, b"")
        self._put("DELETE FROM messages WHERE id = ?", (message_id,))
        return _deliveries(self._rows(_DROP_DELIVERIES, message_id))

    def reply_depth(self, message_id: bytes) -> int | None:
        """None if there is no such message."""
        depth: int | None = self._one("SELECT depth FROM messages WHERE id = ?", message_id)
        return depth

    def messages_since(self, hlc: bytes) -> list[bytes]:
        """The messages with ops later than this."""
        return self._column("SELECT id FROM messages WHERE last > ?", hlc)

    def each_message(self) -> Iterator[Message]:
        for _, state in self._pages("SELECT id, state FROM messages WHERE id > ? ORDER BY id LIMIT ?"):
            yield MESSAGES.decode(state)

    def thread(self, thread: bytes, limit: int, after: bytes = b"") -> list[Message]:
        """The messages of a thread, the first one included, in the order of their ids, after this id."""
        return self._messages(self._rows(_THREAD[self.row_check is not None], thread, after, limit))

    def replies(self, message_id: bytes) -> list[Message]:
        return self._messages(self._rows(_REPLIES[self.row_check is not None], message_id))

    def message_ids(self, low: bytes, high: bytes, limit: int) -> list[bytes]:
        return self._column("SELECT id FROM messages WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?", low, high, limit)

    def newest_messages(self, limit: int) -> list[bytes]:
        """Their ids, the newest first."""
        return self._column("SELECT id FROM messages ORDER BY id DESC LIMIT ?", limit)

    def put_delivery(self, delivery: QueuedDelivery) -> None:
        self._put(_PUT_DELIVERY, delivery)

    def drop_delivery(self, queue: str, message_id: bytes) -> None:
        self._put("DELETE FROM deliveries WHERE queue = ? AND message = ?", (queue, message_id))

    def deliveries_ready(self, queue: str, limit: int) -> list[QueuedDelivery]:
        """The most urgent deliveries of a queue."""
        sql = f"{_DELIVERIES} stage = 0 AND queue = ? ORDER BY priority DESC, sent LIMIT ?"
        return _deliveries(self._rows(sql, queue, limit))

    def deliveries_of_thread(
        self, queue: str, thread: bytes, limit: int, after: bytes = b"", before: bytes | None = None
    ) -> list[QueuedDelivery]:
        """The deliveries of a thread that have not ended, in the order of their times: those sent after and before
        these times.
        """
        until, values = ("", ()) if before is None else (" AND sent < ?", (before,))
        sql = f"{_DELIVERIES} stage < 3 AND queue = ? AND thread = ? AND sent > ?{until} ORDER BY sent LIMIT ?"
        return _deliveries(self._rows(sql, queue, thread, after, *values, limit))

    def deliveries_due(self, now: int, limit: int) -> list[QueuedDelivery]:
        """Those whose stage must be looked at again."""
        return _deliveries(self._rows(f"{_DELIVERIES} stage < 3 AND due <= ? ORDER BY due LIMIT ?", now, limit))

    def deliveries_resting(self, limit: int) -> list[QueuedDelivery]:
        return _deliveries(self._rows(f"{_DELIVERIES} stage = 1 ORDER BY due LIMIT ?", limit))

    def deliveries(
        self, queues: Sequence[str] | None, is_dead: bool, beyond: tuple[str, bytes], limit: int
    ) -> list[QueuedDelivery]:
        """A page of these queues, or of all, in the order of queue and message: what waits there, or what is dead."""
        sql = f"{'stage = 3' if is_dead else 'stage < 3'} AND (queue, message) > (?, ?) ORDER BY queue, message LIMIT ?"
        if queues is None:
            return _deliveries(self._rows(f"{_DELIVERIES} {sql}", *beyond, limit))
        return _deliveries(self._among(f"{_DELIVERIES} queue {{}} AND {sql}", queues, *beyond, limit))

    def group_messages(self, groups: Sequence[str], after: int, limit: int) -> list[tuple[int, Message]]:
        """Messages to these groups in the order of arrival, each with its number there."""
        rows = self._among(_to_groups(self.dialect)[self.row_check is not None], groups, after, limit)
        return [(number, message) for number, *row in rows for message in self._messages((tuple(row),))]

    def group_cursor(self, queue: str) -> int:
        """The number of the last message to a group that this queue has its share of."""
        return self._one("SELECT number FROM group_cursors WHERE queue = ?", queue) or 0

    def set_group_cursor(self, queue: str, number: int) -> None:
        self._put(_SET_GROUP_CURSOR, (queue, number))


def _deliveries(rows: Iterable[Row]) -> list[QueuedDelivery]:
    return [
        QueuedDelivery(queue, message, _STAGES[stage], due, priority, sent, thread)
        for queue, message, stage, due, priority, sent, thread in rows
    ]
