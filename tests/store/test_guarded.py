"""A store behind a breaker: which errors are failures of the database, and that an open breaker answers at once."""

from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from hocket import store as stores
from hocket.breakers import CircuitBreaker
from hocket.errors import Conflict, StoreCircuitOpen, StoreError, StoreLocked, StoreStarting
from hocket.events import Event
from hocket.events.workers import BreakerClosed, BreakerOpened, BreakerProbing
from hocket.store import Session, sqlite
from hocket.store.guarded import GuardedStore


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Place:
    def __init__(self, path: Path) -> None:
        self.path, self.clock, self.told = path, Clock(), list[Event]()
        breaker = CircuitBreaker("the store", self.clock, self.told.append, refusal=StoreCircuitOpen)
        self.store = GuardedStore(stores.open(path, create=True), breaker)

    def write(self, change: Callable[[Session], object] = lambda session: session.set_meta("a", b"1")) -> None:
        with self.store.write() as session:
            change(session)

    def is_open(self) -> bool:
        try:
            self.write()
        except StoreCircuitOpen:
            return True
        return False


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "log.db")


def full(session: Session) -> None:
    """As a full disk answers: SQLite's own error, from a real limit on the file."""
    connection = session._connection  # type: ignore[attr-defined]
    pages = connection.pragma("page_count")
    connection.execute(f"PRAGMA max_page_count={pages}")
    try:
        session.set_meta("large", b"x" * 1_000_000)
    finally:
        connection.execute("PRAGMA max_page_count=2147483646")


@pytest.mark.req("VX-16")
def test_a_full_disk_opens_it_and_the_first_write_that_fits_closes_it(place: Place):
    for _ in range(5):
        with pytest.raises(StoreError, match="no space left"):
            place.write(full)
    assert place.is_open()
    with place.store.read() as session:
        assert session.meta("a") is None, "reads go on"
    place.clock.now = 29.9
    assert place.is_open()
    place.clock.now = 30.0
    place.write()
    assert [type(each) for each in place.told] == [BreakerOpened, BreakerProbing, BreakerClosed]
    place.write()


@pytest.mark.req("VX-16")
def test_a_lock_that_is_held_too_long_opens_it_and_then_nobody_waits(place: Place, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sqlite, "LOCK_WAIT_S", 0.01)
    other = apsw.Connection(str(place.path))
    other.execute("BEGIN IMMEDIATE")
    for _ in range(5):
        with pytest.raises(StoreLocked):
            place.write()
    monkeypatch.setattr(sqlite, "LOCK_WAIT_S", 3600.0)
    assert place.is_open(), "it answers at once, and waits for no lock"
    other.execute("ROLLBACK")
    place.clock.now = 30.0
    place.write()


@pytest.mark.parametrize("error", [Conflict("no"), ValueError("no"), StoreError("a rebuild is under way")])
def test_an_error_of_the_caller_is_no_failure(place: Place, error: Exception):
    def refuse(session: Session) -> None:
        raise error

    for _ in range(20):
        with pytest.raises(type(error)):
            place.write(refuse)
    assert not place.is_open() and not place.told


@pytest.mark.req("VX-16")
def test_a_server_that_restarts_is_no_failure(place: Place, monkeypatch: pytest.MonkeyPatch):
    class Restarting:
        def __enter__(self) -> Session:
            raise StoreStarting("the database system is starting up")

    monkeypatch.setattr(place.store._store, "write", lambda author, at_end: Restarting())
    for _ in range(20):
        with pytest.raises(StoreStarting):
            place.write()
    monkeypatch.undo()
    assert not place.is_open() and not place.told


def test_a_probe_that_ends_in_a_conflict_leaves_its_place_to_the_next_write(place: Place):
    for _ in range(5):
        with pytest.raises(StoreError):
            place.write(full)
    place.clock.now = 30.0

    def refuse(session: Session) -> None:
        raise Conflict("no")

    with pytest.raises(Conflict):
        place.write(refuse)
    place.write()


def test_the_error_of_an_open_breaker_is_a_store_error_that_says_why(place: Place):
    for _ in range(5):
        with pytest.raises(StoreError):
            place.write(full)
    with pytest.raises(StoreError, match=r"the store has failed 5 times.*no space left.*the next try is in 30 seconds"):
        place.write()
