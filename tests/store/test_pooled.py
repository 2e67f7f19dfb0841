"""A store behind a pooler in transaction mode: each transaction gets another session of the server."""

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hocket import store as stores
from hocket.bus.hints import ANYTHING, Changes, Pipes
from hocket.bus.shared import SharedBus
from hocket.log.audit import verify
from hocket.store import WakeUp
from hocket.store.postgres import PostgresStore
from hocket.store.postgres.listening import PostgresListener
from tests.log.roster.world import READER, introduction, new_log
from tests.postgres_relay import Relay
from tests.postgres_server import prepared, server

pytestmark = pytest.mark.touches("VX-18")

PATIENCE_S = 60.0
RENDER = Changes(frozenset(("acme.render",)))


@pytest.fixture
def address() -> str:
    return server().new_database(template=prepared())


@pytest.fixture
def pooled(address: str) -> Iterator[str]:
    """The way to the same database through a pooler with three sessions."""
    name = address.partition("@/")[2].partition("?")[0]
    with closing(Relay(sessions=3)) as relay:
        yield f"postgresql://postgres@127.0.0.1:{relay.port}/{name}"


@pytest.mark.req("VX-18")
def test_everything_works_although_each_transaction_has_another_session(pooled: str) -> None:
    with closing(PostgresStore(pooled)) as store:
        log = new_log(store)
        log.run(lambda tx: tx.author(introduction(READER).payload))
        sessions = set()
        for n in range(20):  # often enough for psycopg to prepare what it repeats
            log.append_plain("k", b"%d" % n)
            log.settle()
            with store.read() as session:
                sessions.add(session._one("SELECT pg_backend_pid()"))  # type: ignore[attr-defined]
        assert len(sessions) > 1, "or this test shows nothing"
        threads = [threading.Thread(target=lambda: [log.append_plain("k", b"{}") for _ in range(10)]) for _ in range(3)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(PATIENCE_S)
        with store.read() as session:
            assert session.head().seq == 51 and session.damage() == []
        log.seal()
        assert verify(store, user=log.user).findings == []


def test_notes_go_out_through_a_pooler_and_are_heard_past_it(address: str, pooled: str, tmp_path: Path) -> None:
    through, past = PostgresListener(pooled, None), PostgresListener(pooled, address)
    with closing(through):
        assert through.open() is WakeUp.POLLING
    with closing(stores.open(pooled)) as store, closing(SharedBus(Pipes(tmp_path), past, b"there---")) as bus:
        heard = bus.subscribe(ANYTHING)
        assert heard.wait(PATIENCE_S) == ANYTHING, "it listens"
        with store.write() as session:
            SharedBus(Pipes(tmp_path), past, b"here----").announce(session, RENDER)
        assert heard.wait(PATIENCE_S) == RENDER
        heard.close()


def test_a_process_that_cannot_listen_polls_and_does_not_try_again(pooled: str, tmp_path: Path) -> None:
    with closing(SharedBus(Pipes(tmp_path), PostgresListener(pooled, None), b"here----")) as bus:
        heard = bus.subscribe(ANYTHING)
        assert bus._thread is not None
        bus._thread.join(PATIENCE_S)
        assert not bus._thread.is_alive()
        bus.publish(RENDER)
        assert heard.wait(PATIENCE_S) == RENDER, "on this machine the pipes go on"
        heard.close()
