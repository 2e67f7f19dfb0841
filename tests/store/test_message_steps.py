"""What the inbox asks costs the same however many messages are stored."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from hocket.families.inbox.rules import Message, MessageDelivery
from hocket.kernel.clock import Hlc, pack
from hocket.store import DeliveryStage, QueuedDelivery, Session
from hocket.store.sqlite import SqliteStore
from tests.store.test_sqlite import steps

THREAD = (1).to_bytes(16, "big")
FROM_THE_BEGINNING = ("", b"")


def put(store: SqliteStore, numbers: range) -> None:
    """Messages of one thread, to one agent and to its groups in turn."""
    with store.write() as session:
        for number in numbers:
            to, at = ("editor", "team/", "all")[number % 3], Hlc(1_000 + number, 0, 1)
            message_id, thread = number.to_bytes(16, "big"), None if number == 1 else THREAD
            alone = (MessageDelivery(),)
            session.put_message(Message(message_id, to, "writer", at, thread, None, 0, 9_000, 5, at, alone), 0)
            stage = DeliveryStage.READY if number % 2 else DeliveryStage.DEAD
            session.put_delivery(QueuedDelivery("editor", message_id, stage, 9_000, 0, pack(at), THREAD))


@pytest.mark.touches("VX-06")
@pytest.mark.parametrize(
    "ask",
    [
        lambda session: session.deliveries_ready("editor", 5),
        lambda session: session.deliveries_due(9_000, 5),
        lambda session: session.deliveries_of_thread("editor", THREAD, 5),
        lambda session: session.deliveries(["editor"], True, FROM_THE_BEGINNING, 5),
        lambda session: session.deliveries(["editor"], False, FROM_THE_BEGINNING, 5),
        lambda session: session.group_messages(["team/", "all"], 0, 5),
        lambda session: session.thread(THREAD, 5),
        lambda session: session.message(THREAD),
    ],
)
def test_a_page_of_messages_costs_the_same_however_many_there_are(
    tmp_path: Path, ask: Callable[[Session], object]
) -> None:
    with closing(SqliteStore(tmp_path / "log.db", create=True)) as store:
        put(store, range(1, 40))
        few = steps(store, ask)
        put(store, range(40, 3_000))
        assert 0 < steps(store, ask) <= few * 1.5


def test_pages_of_a_thread_and_of_groups_are_whole(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "log.db", create=True)) as store:
        put(store, range(1, 40))
        with store.read() as session:
            seen: list[bytes] = []
            while page := session.thread(THREAD, 7, seen[-1] if seen else b""):
                seen += [each.id for each in page]
            assert seen == [number.to_bytes(16, "big") for number in range(1, 40)]
            met: list[bytes] = []
            after = 0
            while part := session.group_messages(["team/", "all"], after, 7):
                met += [each.id for _, each in part]
                after = part[-1][0]
            assert met == [number.to_bytes(16, "big") for number in range(1, 40) if number % 3]
