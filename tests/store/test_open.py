"""`store.open`, the one place that knows which stores exist."""

from pathlib import Path

import pytest

from hocket import store
from hocket.errors import StoreError, Usage


def noted(place: Path | str) -> bytes | None:
    opened = store.open(place)
    with opened.read() as session:
        note = session.meta("a")
    opened.close()
    return note


def test_a_path_and_an_address_lead_to_the_same_store(tmp_path: Path) -> None:
    path = tmp_path / "a log.db"
    made = store.open(path, create=True)
    with made.write() as session:
        session.set_meta("a", b"1")
    made.close()
    for place in (path, str(path), f"sqlite://{path}", f"sqlite://{tmp_path}/a%20log.db"):
        assert noted(place) == b"1"


def test_a_store_is_made_only_when_asked(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        store.open(tmp_path / "log.db")
    assert list(tmp_path.iterdir()) == []
    store.open(f"sqlite://{tmp_path}/log.db", create=True).close()
    assert (tmp_path / "log.db").exists()


def test_each_store_in_memory_is_another_one() -> None:
    one, two = store.open(store.MEMORY), store.open(store.MEMORY)
    with one.write() as session:
        session.set_meta("a", b"1")
    with two.read() as session:
        assert session.meta("a") is None


@pytest.mark.parametrize("url", ["mysql://host/log", "sqlite://log.db", "sqlite://", "ftp://host/log.db"])
def test_an_address_of_no_known_store_is_refused(url: str) -> None:
    with pytest.raises(Usage, match="sqlite:///path"):
        store.open(url, create=True)
