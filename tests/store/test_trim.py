"""The write-ahead log of a database that is never closed is emptied now and then, also while others read."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hocket.events import ignore
from hocket.node.node import Node
from hocket.node.runtime import Runtime
from hocket.store import Store, sqlite
from hocket.store.sqlite import SqliteStore
from hocket.work import maintenance

BYTES = 1_000_000
# Reads again and again, as the processes of a node do.
READ = """
import sys
from hocket.store.sqlite import SqliteStore
store = SqliteStore(sys.argv[1])
print("ready", flush=True)
while True:
    with store.read() as session:
        session.head()
"""


def size(path: Path) -> int:
    return Path(f"{path}-wal").stat().st_size


def fill(store: Store) -> None:
    for number in range(4):
        with store.write() as session:
            session.set_meta(f"filler-{number}", bytes(BYTES))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "WAL_BYTES", BYTES)


def test_a_long_log_is_emptied_while_others_read(tmp_path: Path, small: None) -> None:
    path = tmp_path / "log.db"
    store = SqliteStore(path, create=True)
    reader = subprocess.Popen([sys.executable, "-c", READ, str(path)], stdout=subprocess.PIPE)
    try:
        assert reader.stdout is not None and reader.stdout.readline() == b"ready\n"
        fill(store)
        assert size(path) > BYTES
        for _ in range(50):
            store.trim()
            if size(path) == 0:
                break
        assert size(path) == 0
        with store.read() as session:
            assert session.meta("filler-3") == bytes(BYTES)
    finally:
        reader.kill()
        reader.communicate()
        store.close()


def test_a_short_log_is_left_alone_and_one_in_use_for_later(tmp_path: Path, small: None) -> None:
    path = tmp_path / "log.db"
    store, other = SqliteStore(path, create=True), SqliteStore(path)
    before = size(path)
    store.trim()
    assert size(path) == before
    with other.read() as session:
        session.head()
        fill(store)
        store.trim()
        assert size(path) > BYTES
        with store.write() as writing:
            writing.set_meta("more", b"1")
    store.trim()
    assert size(path) == 0
    other.close()
    store.close()
    memory = SqliteStore(":memory:")
    memory.trim()
    memory.close()


@pytest.mark.req("LW-17")
def test_every_process_that_stays_does_it(tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "TRIM_S", 0.1)

    async def keep() -> None:
        runtime = Runtime.init(tmp_path / "home")
        node = Node(runtime)
        try:
            fill(runtime.store)
            async with node.kept_up(ignore), asyncio.timeout(30):
                await _until(lambda: size(runtime.home.database) < BYTES)
        finally:
            await node.close()

    asyncio.run(keep())


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)
