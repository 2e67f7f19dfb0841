"""Processes that wait to write to one SQLite file: each that has written wakes the next, and none waits for a process
that was killed or stopped.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from hocket.errors import StoreLocked
from hocket.store import sqlite
from hocket.store.sqlite import SqliteStore, WriteHints
from tests.log.processes import eventually

WAITERS = 5
# Longer than anybody has patience in these tests: whoever gets in was woken.
NEVER_S = 40.0
PATIENCE_S = 60.0
_CHILD = Path(__file__).with_name("child.py")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere processes try again by themselves")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    SqliteStore(tmp_path / "log.db", create=True).close()
    return tmp_path / "log.db"


def pipe(path: Path) -> Path:
    return path.with_name(f"{path.name}-waiting")


def add(store: SqliteStore) -> None:
    with store.write() as session:
        session.set_rate("k", session.rate("k") + 1)


def added(path: Path) -> int:
    with closing(SqliteStore(path)) as store, store.read() as session:
        return session.rate("k")


class Waiting:
    """Tells when so many have begun to wait."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
        self._waits = threading.Semaphore(0)
        self._count = count
        wait = WriteHints.wait

        def noted(hints: WriteHints, timeout_s: float) -> None:
            self._waits.release()
            wait(hints, timeout_s)

        monkeypatch.setattr(WriteHints, "wait", noted)

    def until_all_wait(self) -> None:
        for _ in range(self._count):
            assert self._waits.acquire(timeout=PATIENCE_S)


@contextmanager
def child(*words: str) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, str(_CHILD), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def said(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.req("VX-01")
def test_each_that_has_written_wakes_the_next(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "UNWOKEN_S", NEVER_S)
    waiting = Waiting(monkeypatch, WAITERS)
    stores = [SqliteStore(path) for _ in range(WAITERS)]
    with closing(SqliteStore(path)) as first, ThreadPoolExecutor(WAITERS) as threads:
        with first.write():
            writes: list[Future[None]] = [threads.submit(add, store) for store in stores]
            waiting.until_all_wait()
        for write in writes:
            write.result(PATIENCE_S)
    assert added(path) == WAITERS
    for store in stores:
        store.close()


@pytest.mark.req("VX-01")
def test_a_write_that_is_undone_wakes_the_next(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "UNWOKEN_S", NEVER_S)
    waiting = Waiting(monkeypatch, 1)
    with closing(SqliteStore(path)) as first, closing(SqliteStore(path)) as second, ThreadPoolExecutor(1) as threads:
        with pytest.raises(ZeroDivisionError), first.write():
            write = threads.submit(add, second)
            waiting.until_all_wait()
            raise ZeroDivisionError
        write.result(PATIENCE_S)
    assert added(path) == 1


@pytest.mark.req("VX-01")
def test_nobody_waits_for_a_process_that_was_killed_while_it_wrote(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Waiting(monkeypatch, 1)
    with (
        closing(SqliteStore(path)) as store,
        ThreadPoolExecutor(1) as threads,
        child("half", str(path), "1") as writer,
    ):
        assert said(writer) == "half"
        write = threads.submit(add, store)
        waiting.until_all_wait()
        writer.kill()
        write.result(PATIENCE_S)
        with store.read() as session:
            assert session.meta("n1") is None


@pytest.mark.req("VX-01")
def test_a_process_that_is_stopped_while_it_writes_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(SqliteStore(path)) as store, child("half", str(path), "1") as writer:
        assert said(writer) == "half"
        writer.send_signal(signal.SIGSTOP)
        with monkeypatch.context() as patch:
            patch.setattr(sqlite, "LOCK_WAIT_S", 0.2)
            with pytest.raises(StoreLocked, match=f"process {writer.pid}.*which is stopped.*kill -CONT"):
                add(store)
        writer.send_signal(signal.SIGCONT)
        writer.communicate("\n", timeout=PATIENCE_S)
        add(store)
        with store.read() as session:
            assert session.meta("n1") is not None


@pytest.mark.req("VX-01")
def test_nobody_waits_for_a_process_that_is_stopped_while_it_waits(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Waiting(monkeypatch, 1)
    with (
        closing(SqliteStore(path)) as first,
        closing(SqliteStore(path)) as second,
        ThreadPoolExecutor(1) as threads,
        child("create", str(path)) as stopped,
    ):
        assert said(stopped) == "ready"
        with first.write():
            assert stopped.stdin is not None
            stopped.stdin.write("\n")
            stopped.stdin.flush()
            eventually(lambda: pipe(path).exists())
            stopped.send_signal(signal.SIGSTOP)
            os.waitpid(stopped.pid, os.WUNTRACED)
            write = threads.submit(add, second)
            waiting.until_all_wait()
        write.result(PATIENCE_S)
        assert added(path) == 1, "the stopped process has not written"
        stopped.send_signal(signal.SIGCONT)
        stopped.communicate(timeout=PATIENCE_S)
    assert added(path) == 2


@pytest.mark.req("VX-01")
@pytest.mark.parametrize("thing", ["file", "directory"])
def test_writers_take_turns_without_a_pipe(path: Path, monkeypatch: pytest.MonkeyPatch, thing: str) -> None:
    pipe(path).touch() if thing == "file" else pipe(path).mkdir()
    waiting = Waiting(monkeypatch, 1)
    with closing(SqliteStore(path)) as first, closing(SqliteStore(path)) as second, ThreadPoolExecutor(1) as threads:
        with first.write():
            write = threads.submit(add, second)
            waiting.until_all_wait()
        write.result(PATIENCE_S)
    assert added(path) == 1


@pytest.mark.touches("VX-01")
def test_a_store_that_nobody_waits_for_has_no_pipe(path: Path) -> None:
    with closing(SqliteStore(path)) as store:
        add(store)
    assert not pipe(path).exists()
