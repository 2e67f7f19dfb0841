"""The statements about messages and their queues."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from hocket.families.inbox.facts import MESSAGE
from hocket.families.inbox.rules import MESSAGES, Message
from hocket.kernel.clock import pack
from hocket.kernel.subjects import Subject
from hocket.store.messages import DeliveryStage, QueuedDelivery
from hocket.store.sqlite.statements import Statements
from hocket.store.sqlite.subjects import LATEST_ABOUT

_DELIVERY = "queue, message, stage, due, priority, sent, thread"
_CHECKED_STATE = (
    "id, state, (SELECT hlc FROM ops WHERE key = messages.id AND settled = 1 AND family = 'message'"
    " ORDER BY hlc DESC LIMIT 1)"
)
_STAGES = tuple(DeliveryStage)


class MessageStatements(Statements):
    def message(self, message_id: bytes) -> Message | None:
        if self.row_check is None:
            state = self._one("SELECT state FROM messages WHERE id = ?", message_id)
        else:
            sql = f"SELECT (SELECT state FROM messages WHERE id = ?2), ({LATEST_ABOUT})"
            subject = Subject(MESSAGE, message_id)
            state = self.row_check.state(subject, *self._sql(sql, subject).fetchone())
        return None if state is None else MESSAGES.decode(state)

    @property
    def _state(self) -> str:
        """The columns that `_messages` reads."""
        return "id, state, NULL" if self.row_check is None else _CHECKED_STATE

    def _messages(self, rows: Iterable[Any]) -> list[Message]:
        check = self.row_check
        checked = (
            state if check is None else check.state(Subject(MESSAGE, message_id), state, latest)
            for message_id, state, latest in list(rows)
        )
        return [MESSAGES.decode(state) for state in checked if state is not None]

    def put_message(self, message: Message, depth: int) -> None:
        state, last = MESSAGES.encode(message), pack(message.last)
        if self.row_check is not None:
            self.row_check.wrote_state(Subject(MESSAGE, message.id), state, last)
        if not self._sql(
            "UPDATE messages SET last = ?, state = ? WHERE id = ? RETURNING 1", (last, state, message.id)
        ).fetchall():
            self._sql(
                "INSERT INTO messages (id, receiver, thread, reply_to, depth, last, state)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (message.id, message.to, message.thread, message.reply_to, depth, last, state),
            )

    def drop_message(self, message_id: bytes) -> list[QueuedDelivery]:
        if self.row_check is not None:
            self.row_check.wrote_state(Subject(MESSAGE, message_id), None, b"")
        self._sql("DELETE FROM messages WHERE id = ?", (message_id,))
        return _read(self._sql(f"DELETE FROM deliveries WHERE message = ? RETURNING {_DELIVERY}", (message_id,)))

    def reply_depth(self, message_id: bytes) -> int | None:
        depth: int | None = self._one("SELECT depth FROM messages WHERE id = ?", message_id)
        return depth

    def messages_since(self, hlc: bytes) -> list[bytes]:
        return [row[0] for row in self._sql("SELECT id FROM messages WHERE last > ?", (hlc,))]

    def each_message(self) -> Iterator[Message]:
        for row in self._sql("SELECT state FROM messages ORDER BY id"):
            yield MESSAGES.decode(row[0])

    def thread(self, thread: bytes, limit: int, after: bytes = b"") -> list[Message]:
        # An OR would sort the whole thread for each page.
        sql = (
            f"SELECT {self._state} FROM messages WHERE id = ?1 AND id > ?2"
            f" UNION ALL SELECT {self._state} FROM messages WHERE thread = ?1 AND id > ?2 ORDER BY id LIMIT ?3"
        )
        return self._messages(self._sql(sql, (thread, after, limit)))

    def replies(self, message_id: bytes) -> list[Message]:
        return self._messages(
            self._sql(f"SELECT {self._state} FROM messages WHERE reply_to = ? ORDER BY id", (message_id,))
        )

    def message_ids(self, low: bytes, high: bytes, limit: int) -> list[bytes]:
        rows = self._sql("SELECT id FROM messages WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?", (low, high, limit))
        return [row[0] for row in rows]

    def put_delivery(self, delivery: QueuedDelivery) -> None:
        self._sql(f"REPLACE INTO deliveries ({_DELIVERY}) VALUES (?, ?, ?, ?, ?, ?, ?)", delivery)

    def drop_delivery(self, queue: str, message_id: bytes) -> None:
        self._sql("DELETE FROM deliveries WHERE queue = ? AND message = ?", (queue, message_id))

    def deliveries_ready(self, queue: str, limit: int) -> list[QueuedDelivery]:
        return _read(
            self._sql(
                f"SELECT {_DELIVERY} FROM deliveries WHERE stage = 0 AND queue = ?"
                " ORDER BY priority DESC, sent LIMIT ?",
                (queue, limit),
            )
        )

    def deliveries_of_thread(
        self, queue: str, thread: bytes, limit: int, after: bytes = b"", before: bytes | None = None
    ) -> list[QueuedDelivery]:
        until, values = ("", ()) if before is None else (" AND sent < ?", (before,))
        return _read(
            self._sql(
                f"SELECT {_DELIVERY} FROM deliveries WHERE stage < 3 AND queue = ? AND thread = ? AND sent > ?{until}"
                " ORDER BY sent LIMIT ?",
                (queue, thread, after, *values, limit),
            )
        )

    def deliveries_due(self, now: int, limit: int) -> list[QueuedDelivery]:
        sql = f"SELECT {_DELIVERY} FROM deliveries WHERE stage < 3 AND due <= ? ORDER BY due LIMIT ?"
        return _read(self._sql(sql, (now, limit)))

    def deliveries_resting(self, limit: int) -> list[QueuedDelivery]:
        return _read(self._sql(f"SELECT {_DELIVERY} FROM deliveries WHERE stage = 1 ORDER BY due LIMIT ?", (limit,)))

    def deliveries(
        self, queues: Sequence[str] | None, is_dead: bool, beyond: tuple[str, bytes], limit: int
    ) -> list[QueuedDelivery]:
        stage = "stage = 3" if is_dead else "stage < 3"
        chosen = "" if queues is None else f" AND queue IN ({', '.join('?' * len(queues))})"
        return _read(
            self._sql(
                f"SELECT {_DELIVERY} FROM deliveries WHERE {stage}{chosen} AND (queue, message) > (?, ?)"
                " ORDER BY queue, message LIMIT ?",
                (*(queues or ()), *beyond, limit),
            )
        )

    def group_messages(self, groups: Sequence[str], after: int, limit: int) -> list[tuple[int, Message]]:
        rows = self._sql(
            f"SELECT number, {self._state} FROM messages INDEXED BY messages_to_groups"
            f" WHERE receiver IN ({', '.join('?' * len(groups))}) AND number > ?"
            " AND (receiver = 'all' OR substr(receiver, -1) = '/') ORDER BY number LIMIT ?",
            (*groups, after, limit),
        )
        return [(number, message) for number, *row in list(rows) for message in self._messages((row,))]

    def group_cursor(self, queue: str) -> int:
        return self._one("SELECT number FROM group_cursors WHERE queue = ?", queue) or 0

    def set_group_cursor(self, queue: str, number: int) -> None:
        self._sql("REPLACE INTO group_cursors VALUES (?, ?)", (queue, number))


def _read(rows: Any) -> list[QueuedDelivery]:
    return [
        QueuedDelivery(queue, message, _STAGES[stage], due, priority, sent, thread)
        for queue, message, stage, due, priority, sent, thread in rows
    ]
