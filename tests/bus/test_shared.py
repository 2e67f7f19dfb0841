"""Hints between machines that share a store in PostgreSQL. Two directories of processes stand for two machines."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hocket import store as stores
from hocket.bus import shared
from hocket.bus.hints import ANYTHING, LOG, NOTHING, Changes, Pipes, Subscription, about
from hocket.bus.shared import SharedBus
from hocket.errors import StoreError
from hocket.kernel.vocabulary import JOB
from hocket.store import NOTE_BYTES_MAX, Store, WakeUp
from hocket.store.postgres.listening import PostgresListener
from tests.postgres_server import prepared, server

pytestmark = pytest.mark.touches("VX-01")

PATIENCE_S = 60.0
RENDER = Changes(frozenset(("acme.render",)))
REPORT = Changes(frozenset(("acme.report",)))


class Machine:
    """A directory of processes with one process on it, and its store."""

    def __init__(self, address: str, processes: Path, origin: bytes) -> None:
        processes.mkdir(exist_ok=True)
        self.store: Store = stores.open(address)
        self.bus = SharedBus(Pipes(processes), PostgresListener(address, None), origin)

    def listen(self, topics: Changes = ANYTHING) -> Subscription:
        """Waits until it listens, which tells it ANYTHING. A later subscription is not told."""
        is_first = self.bus._thread is None
        heard = self.bus.subscribe(topics)
        if is_first:
            assert heard.wait(PATIENCE_S) == ANYTHING
        return heard

    def commit(self, changes: Changes) -> None:
        with self.store.write() as session:
            session.set_meta("a", b"1")
            self.bus.announce(session, changes)
        self.bus.publish(changes)

    def close(self) -> None:
        self.bus.close()
        self.store.close()


@pytest.fixture
def address() -> str:
    return server().new_database(template=prepared())


@pytest.fixture
def machines(address: str, tmp_path: Path) -> Iterator[tuple[Machine, Machine]]:
    with (
        closing(Machine(address, tmp_path / "here", b"here----")) as here,
        closing(Machine(address, tmp_path / "there", b"there---")) as there,
    ):
        yield here, there


@pytest.mark.req("VX-01")
def test_a_commit_is_heard_on_another_machine_by_those_whom_it_concerns(machines: tuple[Machine, Machine]) -> None:
    here, there = machines
    all_of_it, job = there.listen(), there.listen(about(JOB, b"x"))
    here.commit(RENDER)
    assert all_of_it.wait(PATIENCE_S) == RENDER
    here.commit(about(JOB, b"x"))
    assert all_of_it.wait(PATIENCE_S) == about(JOB, b"x") and job.wait(PATIENCE_S) == about(JOB, b"x")
    assert job.wait(0) == NOTHING
    there.commit(REPORT)
    assert all_of_it.wait(PATIENCE_S) == REPORT


def test_what_is_not_committed_is_not_told(machines: tuple[Machine, Machine]) -> None:
    here, there = machines
    heard = there.listen()
    with pytest.raises(ZeroDivisionError), here.store.write() as session:
        here.bus.announce(session, RENDER)
        raise ZeroDivisionError
    with here.store.write() as session:
        session.set_meta("a", b"2")
    here.commit(REPORT)
    assert heard.wait(PATIENCE_S) == REPORT


def test_a_process_is_told_once_of_what_its_own_machine_commits(machines: tuple[Machine, Machine]) -> None:
    here, there = machines
    own = here.listen()
    here.bus.publish(RENDER)
    assert own.wait(PATIENCE_S) == RENDER, "by its pipe"
    with here.store.write() as session:
        here.bus.announce(session, RENDER)
    there.commit(REPORT)
    assert own.wait(PATIENCE_S) == REPORT, "and not again by the store, whose notes come in order"


def test_a_note_is_bounded_and_a_foreign_one_means_anything(machines: tuple[Machine, Machine], address: str) -> None:
    here, there = machines
    heard = there.listen()
    long = Changes(frozenset(f"{n}.{'k' * 250}" for n in range(16)), frozenset(((JOB, b"x"),)))
    here.commit(long)
    assert heard.wait(PATIENCE_S) == long.widened()
    here.commit(Changes(subjects=frozenset((f"{n}{'f' * 300}", b"x") for n in range(16))))
    assert heard.wait(PATIENCE_S) == ANYTHING
    for payload in ("", "not ours", "bm90IG91cnMgZWl0aGVy", "é"):
        with server().connect(address.partition("@/")[2].partition("?")[0]) as connection:
            connection.execute("SELECT pg_notify('hocket', %s)", (payload,))
        assert heard.wait(PATIENCE_S) == ANYTHING
    assert NOTE_BYTES_MAX * 4 / 3 < 8_000, "what a notification of PostgreSQL may have"


def wait_until(look: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not look():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


@pytest.mark.req("VX-15")
def test_after_a_restart_of_the_server_it_listens_again_and_anything_may_have_changed(
    machines: tuple[Machine, Machine],
) -> None:
    here, there = machines
    heard = there.listen()
    server().stop(immediate=True)
    try:
        wait_until(lambda: there.bus._breaker.breaker.failures)
    finally:
        server().start()
    assert heard.wait(PATIENCE_S) == ANYTHING
    here.commit(RENDER)
    assert heard.wait(PATIENCE_S) == RENDER


@pytest.mark.req("VX-16")
def test_a_server_that_stays_away_is_not_asked_all_the_time(
    machines: tuple[Machine, Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, there = machines
    tries: list[float] = []
    waits: list[float] = []

    class Away:
        def open(self) -> WakeUp:
            tries.append(0.0)
            raise StoreError("away")

        def wait(self) -> list[bytes]:
            raise AssertionError("it is not open")

        def close(self) -> None: ...

    class Waiting(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            waits.append(timeout)
            if len(waits) == 6:
                self.set()
            return self.is_set()

    monkeypatch.setattr(there.bus, "_listener", Away())
    monkeypatch.setattr(there.bus, "_closing", Waiting())
    there.bus._listen()
    assert len(tries) == 5 and waits[5] > 25, "then the breaker is open"
    assert all(0 < wait <= 5 for wait in waits[:5])


def test_nobody_connects_before_somebody_listens_and_closing_ends_it(address: str, tmp_path: Path) -> None:
    with closing(Machine(address, tmp_path / "here", b"here----")) as here:
        here.commit(RENDER)
        assert here.bus._thread is None and here.bus.is_heard()
        here.listen().close()
        thread = here.bus._thread
        assert thread is not None
    assert not thread.is_alive()
    assert list((tmp_path / "here").iterdir()) == []


def test_closing_does_not_wait_for_a_connection_that_is_being_made(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "CLOSE_S", 0.01)
    here = Machine(address, tmp_path / "here", b"here----")
    began, go_on = threading.Event(), threading.Event()
    opened = here.bus._listener.open

    def slow() -> WakeUp:
        began.set()
        assert go_on.wait(PATIENCE_S)
        return opened()

    monkeypatch.setattr(here.bus._listener, "open", slow)
    here.bus.subscribe(about(LOG))
    assert began.wait(PATIENCE_S)
    here.close()
    thread = here.bus._thread
    go_on.set()
    assert thread is not None
    thread.join(PATIENCE_S)
    assert not thread.is_alive() and here.bus._listener._connection is None  # type: ignore[attr-defined]
