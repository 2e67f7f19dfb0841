"""The statements about messages and their queues."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from hocket.families.inbox.facts import MESSAGE
from hocket.families.inbox.rules import MESSAGES, Message
from hocket.kernel.clock import pack
from hocket.kernel.subjects import Subject
from hocket.store.messages import DeliveryStage, QueuedDelivery
from hocket.store.postgres.statements import PostgresStatements, insert, upsert
from hocket.store.postgres.told import LATEST_ABOUT

_MESSAGE = "id, receiver, thread, reply_to, depth, last, state"
_DELIVERY = "queue, message, stage, due, priority, sent, thread"
_STATE = (
    "id, state, (SELECT hlc FROM ops WHERE key = messages.id AND settled = 1 AND family = 'message'"
    " ORDER BY hlc DESC LIMIT 1)"
)
_STAGES = tuple(DeliveryStage)


class PostgresMessages(PostgresStatements):
    def message(self, message_id: bytes) -> Message | None:
        subject = Subject(MESSAGE, message_id)
        if self.row_check is None:
            state = self._one("SELECT state FROM messages WHERE id = %s", message_id)
        else:
            sql = f"SELECT (SELECT state FROM messages WHERE id = %s), ({LATEST_ABOUT})"
            state = self.row_check.state(subject, *self._rows(sql, message_id, *subject)[0])
        return None if state is None else MESSAGES.decode(state)

    def _messages(self, rows: Iterable[tuple[Any, ...]]) -> list[Message]:
        check = self.row_check
        checked = (
            state if check is None else check.state(Subject(MESSAGE, message_id), state, latest)
            for message_id, state, latest in rows
        )
        return [MESSAGES.decode(state) for state in checked if state is not None]

    def put_message(self, message: Message, depth: int) -> None:
        state, last = MESSAGES.encode(message), pack(message.last)
        if self.row_check is not None:
            self.row_check.wrote_state(Subject(MESSAGE, message.id), state, last)
        changed = "last = excluded.last, state = excluded.state"
        place = (message.id, message.to, message.thread, message.reply_to, depth)
        self._put(
            f"{insert('messages', _MESSAGE)} ON CONFLICT (id) DO UPDATE SET {changed}",
            (*place, last, state),
        )

    def drop_message(self, message_id: bytes) -> list[QueuedDelivery]:
        if self.row_check is not None:
            self.row_check.wrote_state(Subject(MESSAGE, message_id), None, b"")
        self._put("DELETE FROM messages WHERE id = %s", (message_id,))
        return self._deliveries_by(f"DELETE FROM deliveries WHERE message = %s RETURNING {_DELIVERY}", message_id)

    def reply_depth(self, message_id: bytes) -> int | None:
        depth: int | None = self._one("SELECT depth FROM messages WHERE id = %s", message_id)
        return depth

    def messages_since(self, hlc: bytes) -> list[bytes]:
        return self._column("SELECT id FROM messages WHERE last > %s", hlc)

    def each_message(self) -> Iterator[Message]:
        for row in self._pages("SELECT id, state FROM messages WHERE id > %s ORDER BY id LIMIT %s"):
            yield MESSAGES.decode(row[1])

    def thread(self, thread: bytes, limit: int, after: bytes = b"") -> list[Message]:
        # An OR would sort the whole thread for each page.
        sql = (
            f"SELECT {_STATE} FROM messages WHERE id = %s AND id > %s"
            f" UNION ALL SELECT {_STATE} FROM messages WHERE thread = %s AND id > %s ORDER BY id LIMIT %s"
        )
        return self._messages(self._rows(sql, thread, after, thread, after, limit))

    def replies(self, message_id: bytes) -> list[Message]:
        return self._messages(self._rows(f"SELECT {_STATE} FROM messages WHERE reply_to = %s ORDER BY id", message_id))

    def message_ids(self, low: bytes, high: bytes, limit: int) -> list[bytes]:
        return self._column("SELECT id FROM messages WHERE id BETWEEN %s AND %s ORDER BY id LIMIT %s", low, high, limit)

    def put_delivery(self, delivery: QueuedDelivery) -> None:
        self._put(upsert("deliveries", _DELIVERY, "queue, message"), delivery)

    def drop_delivery(self, queue: str, message_id: bytes) -> None:
        self._put("DELETE FROM deliveries WHERE queue = %s AND message = %s", (queue, message_id))

    def deliveries_ready(self, queue: str, limit: int) -> list[QueuedDelivery]:
        return self._queued("stage = 0 AND queue = %s ORDER BY priority DESC, sent LIMIT %s", queue, limit)

    def deliveries_of_thread(
        self, queue: str, thread: bytes, limit: int, after: bytes = b"", before: bytes | None = None
    ) -> list[QueuedDelivery]:
        until, values = ("", ()) if before is None else (" AND sent < %s", (before,))
        where = f"stage < 3 AND queue = %s AND thread = %s AND sent > %s{until} ORDER BY sent LIMIT %s"
        return self._queued(where, queue, thread, after, *values, limit)

    def deliveries_due(self, now: int, limit: int) -> list[QueuedDelivery]:
        return self._queued("stage < 3 AND due <= %s ORDER BY due LIMIT %s", now, limit)

    def deliveries_resting(self, limit: int) -> list[QueuedDelivery]:
        return self._queued("stage = 1 ORDER BY due LIMIT %s", limit)

    def deliveries(
        self, queues: Sequence[str] | None, is_dead: bool, beyond: tuple[str, bytes], limit: int
    ) -> list[QueuedDelivery]:
        stage = "stage = 3" if is_dead else "stage < 3"
        chosen, values = ("", ()) if queues is None else (" AND queue = ANY(%s)", (list(queues),))
        where = f"{stage}{chosen} AND (queue, message) > (%s, %s) ORDER BY queue, message LIMIT %s"
        return self._queued(where, *values, *beyond, limit)

    def group_messages(self, groups: Sequence[str], after: int, limit: int) -> list[tuple[int, Message]]:
        rows = self._rows(
            f"SELECT number, {_STATE} FROM messages WHERE receiver = ANY(%s) AND number > %s"
            " AND (receiver = 'all' OR right(receiver, 1) = '/') ORDER BY number LIMIT %s",
            *(list(groups), after, limit),
        )
        return [(number, message) for number, *row in rows for message in self._messages((tuple(row),))]

    def group_cursor(self, queue: str) -> int:
        return self._one("SELECT number FROM group_cursors WHERE queue = %s", queue) or 0

    def set_group_cursor(self, queue: str, number: int) -> None:
        self._put(upsert("group_cursors", "queue, number", "queue"), (queue, number))

    def _queued(self, where: str, *values: Any) -> list[QueuedDelivery]:
        return self._deliveries_by(f"SELECT {_DELIVERY} FROM deliveries WHERE {where}", *values)

    def _deliveries_by(self, sql: str, *values: Any) -> list[QueuedDelivery]:
        return [
            QueuedDelivery(queue, message, _STAGES[stage], due, priority, sent, thread)
            for queue, message, stage, due, priority, sent, thread in self._rows(sql, *values)
        ]
