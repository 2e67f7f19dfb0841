"""A database file gives back what deleted rows have left: a new one while it is used, an older one after it was made
anew; and nothing is lost when that is killed or interrupted.
"""

import asyncio
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from hocket.errors import StoreLocked
from hocket.events import ignore
from hocket.node.node import Node
from hocket.node.runtime import Runtime
from hocket.store import Store
from hocket.store.sqlite import SqliteStore, space
from hocket.store.sqlite.space import INCREMENTAL, compact
from hocket.work import maintenance
from tests.waiting import wait_for

ROWS, BYTES = 40, 200_000
COMPACT = """
import sys
from pathlib import Path
from hocket.store.sqlite.space import compact
compact(Path(sys.argv[1]), lambda done, total: print(done, flush=True))
"""

# Gives back in small steps, and kills itself after so many calls of functions.
GIVE_BACK = """
import os, signal, sys
from pathlib import Path
from hocket.store.sqlite import SqliteStore, space
space.FREE_PAGES_MIN = space.STEP_PAGES = 2
left = int(sys.argv[2])
store = SqliteStore(Path(sys.argv[1]))
def count(frame, event, argument):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
sys.setprofile(count)
while store.trim():
    pass
sys.setprofile(None)
store.close()
"""


def fill(store: Store) -> None:
    for number in range(ROWS):
        with store.write() as session:
            session.set_meta(f"filler-{number}", bytes(BYTES))


def empty(store: Store, but: int = 0) -> None:
    for number in range(but, ROWS):
        with store.write() as session:
            session.set_meta(f"filler-{number}", b"")


def old(path: Path) -> SqliteStore:
    """A file as earlier versions have made it."""
    SqliteStore(path, create=True).close()
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("PRAGMA auto_vacuum=0; VACUUM")
    store = SqliteStore(path)
    assert mode(path) == 0
    return store


def mode(path: Path) -> int:
    with closing(apsw.Connection(str(path))) as connection:
        return int(connection.pragma("auto_vacuum"))


def is_sound(path: Path) -> bool:
    with closing(apsw.Connection(str(path))) as connection:
        return bool(connection.pragma("integrity_check") == "ok")


def test_a_new_file_gives_back_in_steps_while_others_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(space, "STEPS_S", 0.0)  # a turn is one step
    path = tmp_path / "log.db"
    store, other = SqliteStore(path, create=True), SqliteStore(path)
    fill(store)
    assert store.trim() is False
    full = path.stat().st_size
    empty(store, 1)
    turns = 0
    while store.trim():
        turns += 1
        with other.write() as session:
            session.set_meta("beside", str(turns).encode())
    assert turns > 10 and path.stat().st_size < full / 2
    with store.read() as session:
        assert session.meta("filler-0") == bytes(BYTES) and session.meta("beside") == str(turns).encode()
    other.close()
    store.close()
    assert is_sound(path)


def test_the_maintenance_gives_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "TRIM_S", 0.1)

    async def keep() -> None:
        runtime = Runtime.init(tmp_path / "home")
        node = Node(runtime)
        try:
            fill(runtime.store)
            empty(runtime.store)
            full = runtime.home.database.stat().st_size
            async with node.kept_up(ignore), asyncio.timeout(60):
                while runtime.home.database.stat().st_size > full / 2:
                    await asyncio.sleep(0.01)
        finally:
            await node.close()

    asyncio.run(keep())


def test_an_older_file_is_made_anew_once(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    store = old(path)
    fill(store)
    empty(store, 2)
    assert store.trim() is False
    store.close()
    done: list[tuple[int, int]] = []
    before, after = compact(path, lambda *at: done.append(at))
    assert after < before / 2 and path.stat().st_size == after and done[-1][0] == done[-1][1]
    assert mode(path) == INCREMENTAL and is_sound(path)
    store = SqliteStore(path)
    with store.read() as session:
        assert session.meta("filler-1") == bytes(BYTES)
    store.close()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_compaction_that_ends_early_loses_nothing(tmp_path: Path, how: signal.Signals) -> None:
    path = tmp_path / "log.db"
    store = old(path)
    fill(store)
    empty(store, ROWS // 2)
    store.close()
    process = subprocess.Popen(
        [sys.executable, "-c", COMPACT, str(path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        wait_for(lambda: Path(f"{path}-wal").exists() or process.poll() is not None)
        process.send_signal(how)
        process.wait(60)
    finally:
        process.kill()
        process.communicate()
    assert is_sound(path)
    store = SqliteStore(path)
    with store.read() as session:
        assert [session.meta(f"filler-{number}") for number in range(ROWS // 2)] == [bytes(BYTES)] * (ROWS // 2)
    store.close()
    compact(path, lambda done, total: None)
    assert mode(path) == INCREMENTAL and is_sound(path)


@pytest.mark.slow
def test_a_process_that_gives_back_may_be_killed(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    store = SqliteStore(path, create=True)
    fill(store)
    empty(store, ROWS // 2)
    store.close()
    before, calls, killed = path.stat().st_size, 20, 0
    while subprocess.run([sys.executable, "-c", GIVE_BACK, str(path), str(calls)], timeout=120).returncode:
        calls, killed = calls * 3, killed + 1
        assert is_sound(path)
    assert killed > 2 and path.stat().st_size < before * 2 / 3
    with closing(SqliteStore(path)) as kept, kept.read() as session:
        assert [session.meta(f"filler-{number}") for number in range(ROWS // 2)] == [bytes(BYTES)] * (ROWS // 2)


def test_a_file_in_use_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    store = SqliteStore(path, create=True)
    with store.write() as session:
        session.set_meta("a", b"1")
        with pytest.raises(StoreLocked, match="stop the programs of this home"):
            compact(path, lambda done, total: None)
    store.close()
