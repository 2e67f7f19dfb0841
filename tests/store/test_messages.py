"""The part of every store's contract that concerns messages and their queues."""

from collections.abc import Iterator

import pytest

from hocket.families.inbox.rules import Message, MessageDelivery
from hocket.kernel.clock import Hlc, pack
from hocket.kernel.ids import derived_ulid
from hocket.store import DeliveryStage, QueuedDelivery, Session, Store
from tests.stores import STORES

FROM_THE_BEGINNING = ("", b"")


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    made = STORES[request.param].new()
    yield made
    made.close()


def message_id(number: int) -> bytes:
    return derived_ulid(1_000 + number, b"message", bytes([number]))


def message(number: int, to: str = "editor", thread: bytes | None = None, reply_to: bytes | None = None) -> Message:
    sent = Hlc(1_000 + number, 0, 2**63 + 5)
    alone = (MessageDelivery(),)
    return Message(message_id(number), to, "writer", sent, thread, reply_to, 0, 9_000, 5, sent, alone)


def queued(number: int, stage: DeliveryStage, due: int = 0, priority: int = 0, queue: str = "editor") -> QueuedDelivery:
    sent = pack(Hlc(1_000 + number, 0, 1))
    return QueuedDelivery(queue, message_id(number), stage, due, priority, sent, message_id(0))


def ids(rows: list[QueuedDelivery]) -> list[bytes]:
    return [row.message_id for row in rows]


def test_messages_are_kept_as_they_are_put_and_gone_when_dropped(store: Store) -> None:
    first, second = message(1), message(2, thread=message_id(1), reply_to=message_id(1))
    with store.write() as session:
        session.put_message(first, 0)
        session.put_message(second, 3)
        session.put_delivery(queued(2, DeliveryStage.READY))
    later = Message(**{name: getattr(first, name) for name in first.__struct_fields__} | {"last": Hlc(5_000, 1, 7)})
    with store.write() as session:
        session.put_message(later, 9)
    with store.read() as session:
        assert session.message(first.id) == later and session.message(second.id) == second
        assert (session.reply_depth(first.id), session.reply_depth(second.id), session.reply_depth(bytes(16))) == (
            0,
            3,
            None,
        )
        assert list(session.each_message()) == [later, second]
        assert session.messages_since(pack(Hlc(1_002, 0, 2**63 + 5))) == [first.id]
        assert session.thread(first.id, 10) == [later, second] and session.thread(first.id, 1) == [later]
        assert session.replies(first.id) == [second] and session.replies(second.id) == []
        assert session.message_ids(first.id, second.id, 1) == [first.id]
    with store.write() as session:
        assert session.drop_message(second.id) == [queued(2, DeliveryStage.READY)]
    with store.read() as session:
        assert session.message(second.id) is None
        assert session.deliveries(None, False, FROM_THE_BEGINNING, 10) == []


def fill(session: Session) -> None:
    session.put_delivery(queued(1, DeliveryStage.READY, due=900))
    session.put_delivery(queued(2, DeliveryStage.READY, due=900, priority=5))
    session.put_delivery(queued(3, DeliveryStage.RESTING, due=100))
    session.put_delivery(queued(4, DeliveryStage.BLOCKED, due=200))
    session.put_delivery(queued(5, DeliveryStage.DEAD, due=50))
    session.put_delivery(queued(6, DeliveryStage.READY, due=900, queue="critic"))


def test_a_queue_gives_what_is_ready_by_priority_and_time(store: Store) -> None:
    with store.write() as session:
        fill(session)
        assert ids(session.deliveries_ready("editor", 10)) == [message_id(2), message_id(1)]
        assert ids(session.deliveries_ready("editor", 1)) == [message_id(2)]
        session.put_delivery(queued(2, DeliveryStage.RESTING, due=300, priority=5))
        session.drop_delivery("editor", message_id(1))
        assert session.deliveries_ready("editor", 10) == []
        assert ids(session.deliveries_ready("critic", 10)) == [message_id(6)]


def test_a_thread_is_in_order_and_without_what_has_ended(store: Store) -> None:
    with store.write() as session:
        fill(session)
        thread = session.deliveries_of_thread("editor", message_id(0), 10)
        assert ids(thread) == [message_id(number) for number in (1, 2, 3, 4)]
        between = session.deliveries_of_thread("editor", message_id(0), 10, thread[0].sent, thread[3].sent)
        assert ids(between) == [message_id(2), message_id(3)]
        assert session.deliveries_of_thread("editor", message_id(9), 10) == []


def test_what_is_due_comes_once_its_time_has_come(store: Store) -> None:
    with store.write() as session:
        fill(session)
        assert session.deliveries_due(99, 10) == []
        assert ids(session.deliveries_due(200, 10)) == [message_id(3), message_id(4)]
        assert ids(session.deliveries_due(200, 1)) == [message_id(3)]


def test_what_is_leased_or_delayed_comes_by_its_time(store: Store) -> None:
    with store.write() as session:
        for number, stage in enumerate(DeliveryStage):
            session.put_delivery(queued(number, stage, due=9))
        session.put_delivery(queued(9, DeliveryStage.RESTING, due=5, queue="tester"))
    with store.read() as session:
        assert ids(session.deliveries_resting(10)) == [message_id(9), message_id(1)]
        assert ids(session.deliveries_resting(1)) == [message_id(9)]


def test_pages_of_queues_go_on_where_the_last_one_ended(store: Store) -> None:
    with store.write() as session:
        fill(session)
        whole = session.deliveries(None, False, FROM_THE_BEGINNING, 10)
        assert ids(whole) == [message_id(number) for number in (6, 1, 2, 3, 4)]
        place = whole[2].queue, whole[2].message_id
        assert session.deliveries(None, False, place, 10) == whole[3:]
        assert ids(session.deliveries(["critic"], False, FROM_THE_BEGINNING, 10)) == [message_id(6)]
        assert ids(session.deliveries(None, True, FROM_THE_BEGINNING, 10)) == [message_id(5)]


def test_messages_to_groups_come_in_the_order_of_arrival(store: Store) -> None:
    with store.write() as session:
        for number, to in ((3, "team/"), (1, "all"), (2, "editor"), (4, "other/")):
            session.put_message(message(number, to), 0)
        session.put_message(message(3, "team/"), 0)  # it keeps its number
        found = session.group_messages(["team/", "all"], 0, 10)
        assert [each.id for _, each in found] == [message_id(3), message_id(1)]
        assert session.group_messages(["team/", "all"], found[0][0], 10) == found[1:]
        assert session.group_cursor("editor") == 0
        session.set_group_cursor("editor", found[1][0])
        assert session.group_cursor("editor") == found[1][0]


def test_a_rebuild_drops_messages_and_queues(store: Store) -> None:
    with store.write() as session:
        session.put_message(message(1, "all"), 0)
        fill(session)
        session.set_group_cursor("editor", 7)
        session.drop_projections()
        assert list(session.each_message()) == [] and session.group_cursor("editor") == 0
        assert session.deliveries(None, False, FROM_THE_BEGINNING, 10) == []
