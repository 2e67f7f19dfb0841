"""The pipes between the processes of a machine: processes that die, pipes that are full, and other versions."""

import fcntl
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import hocket
from hocket.bus import hints
from hocket.bus.hints import ANYTHING, LOG, NOTHING, Changes, Pipes, about
from hocket.kernel.vocabulary import JOB

pytestmark = pytest.mark.touches("LW-18")

PATIENCE_S = 60.0
RENDER = Changes(frozenset(("acme.render",)))
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(hocket.__file__).parents[1])}


def process(code: str, *words: object) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENVIRONMENT)


def test_a_pipe_is_not_taken_for_a_dead_ones_while_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bus, mkfifo = Pipes(tmp_path), os.mkfifo

    def watched(path: Path, mode: int) -> None:
        mkfifo(path, mode)
        bus.publish(ANYTHING)

    monkeypatch.setattr(os, "mkfifo", watched)
    listener = bus.subscribe(ANYTHING)
    bus.publish(RENDER)
    assert listener.wait(PATIENCE_S) == RENDER
    listener.close()
    bus.close()


def test_a_pipe_is_found_although_the_time_of_the_directory_has_not_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time stamps of directories are coarse; here as coarse as it takes."""
    monkeypatch.setattr(hints, "STAMP_GRAIN_NS", 3_600_000_000_000)
    bus = Pipes(tmp_path)
    bus.subscribe(ANYTHING).close()
    bus.publish(RENDER)
    stamp = tmp_path.stat().st_mtime_ns
    listener = bus.subscribe(ANYTHING)
    os.utime(tmp_path, ns=(stamp, stamp))
    assert bus.is_heard()
    bus.publish(RENDER)
    assert listener.wait(0) == RENDER
    listener.close()
    bus.close()


def test_a_pipe_that_nobody_reads_any_more_is_removed_when_it_is_found(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "worker-1-ab.any")
    bus = Pipes(tmp_path)
    bus.publish(RENDER)
    assert list(tmp_path.iterdir()) == []
    bus.close()


def test_the_pipe_of_a_killed_process_is_removed_and_a_full_one_is_no_trouble(tmp_path: Path) -> None:
    listening = process(
        "import sys, pathlib, hocket.bus.hints as p, hocket.bus.hints as c\n"
        "l = p.Pipes(pathlib.Path(sys.argv[1])).subscribe(c.ANYTHING); print(flush=True); sys.stdin.read()",
        tmp_path,
    )
    assert listening.stdout is not None
    listening.stdout.readline()
    bus = Pipes(tmp_path)
    for _ in range(50_000):
        bus.publish(RENDER)
    listening.kill()
    listening.wait()
    bus.publish(RENDER)
    assert list(tmp_path.iterdir()) == []
    bus.close()


@pytest.mark.parametrize("size", [1, 200, 400])
@pytest.mark.parametrize("pages", [1, 2, 16])
def test_a_pipe_that_was_full_means_anything(tmp_path: Path, size: int, pages: int) -> None:
    """Whatever the size of the messages and of the pipe, the reader notices that one was dropped."""
    bus = Pipes(tmp_path)
    listener = bus.subscribe(ANYTHING)
    fcntl.fcntl(listener._fd, fcntl.F_SETPIPE_SZ, pages * os.sysconf("SC_PAGE_SIZE"))
    message = about(JOB, b"k" * size)
    with pytest.MonkeyPatch.context() as patch:
        dropped, write = [], os.write

        def watched(fd: int, data: bytes) -> int:
            try:
                return write(fd, data)
            except BlockingIOError:
                dropped.append(data)
                raise

        patch.setattr(os, "write", watched)
        while not dropped:
            bus.publish(message)
    assert listener.wait(0) == ANYTHING
    bus.publish(RENDER)
    heard = NOTHING
    while came := listener.wait(0):
        heard |= came
    assert heard.matches(RENDER)
    listener.close()
    bus.close()


def test_messages_are_short_enough_to_be_written_at_once(tmp_path: Path) -> None:
    assert hints.MESSAGE_BYTES_MAX <= select.PIPE_BUF
    bus = Pipes(tmp_path)
    listener = bus.subscribe(ANYTHING)
    long = Changes(frozenset(f"{n}.{'k' * 250}" for n in range(3)), frozenset(((JOB, b"x"),)))
    bus.publish(long)
    assert listener.wait(0) == long.widened()
    bus.publish(Changes(subjects=frozenset((f"{n}{'f' * 300}", b"x") for n in range(3))))
    assert listener.wait(0) == ANYTHING
    listener.close()
    bus.close()


def test_long_topics_are_widened_for_the_publisher_and_exact_for_the_listener(tmp_path: Path) -> None:
    bus = Pipes(tmp_path)
    listener = bus.subscribe(Changes(frozenset(f"acme.kind-{n}" for n in range(50)), about(JOB, b"x").subjects))
    (pipe,) = tmp_path.iterdir()
    assert len(pipe.name.encode()) <= 255
    bus.publish(Changes(frozenset(("acme.other",))))
    bus.publish(about(JOB, b"y"))
    assert listener.wait(0) == NOTHING
    bus.publish(Changes(frozenset(("acme.kind-49",))))
    assert listener.wait(0) == Changes(frozenset(("acme.kind-49",)))
    listener.close()
    bus.close()


def test_nobody_is_woken_for_what_is_not_wanted(tmp_path: Path) -> None:
    """Not even to find that out: nothing is written into the pipe."""
    bus = Pipes(tmp_path)
    listener = bus.subscribe(RENDER)
    bus.publish(Changes(frozenset(("acme.report",)), frozenset(((LOG, b""), (JOB, b"x")))))
    assert select.select([listener._fd], [], [], 0) == ([], [], [])
    bus.publish(RENDER)
    assert select.select([listener._fd], [], [], 0) == ([listener._fd], [], [])
    listener.close()
    bus.close()


# Other versions in the same home.


@pytest.mark.parametrize("data", [b"\1", b"\1" * 100, b"\7 a later version"], ids=["first", "often", "later"])
def test_a_publisher_of_another_version_means_anything(tmp_path: Path, data: bytes) -> None:
    bus = Pipes(tmp_path)
    listener = bus.subscribe(RENDER)
    (pipe,) = tmp_path.glob("*.any")  # earlier versions write into every such pipe
    with pipe.open("wb", buffering=0) as end:
        end.write(data)
        bus.publish(RENDER)
        end.write(data)
    assert listener.wait(0) == ANYTHING
    listener.close()
    bus.close()


@pytest.mark.parametrize("name", ["worker-1-ab.ready", "node-1-ab.any", "1-ab.not-our-topics.any", "1-ab.BwAA.any"])
def test_a_listener_of_another_version_is_told_of_everything(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    fd = os.open(tmp_path / name, os.O_RDWR | os.O_NONBLOCK)
    bus = Pipes(tmp_path)
    bus.publish(about(JOB, b"x"))
    assert os.read(fd, 4096)
    os.close(fd)
    bus.close()


# Several processes.

PUBLISH = """
import sys, pathlib
from hocket.bus.hints import Pipes
from hocket.bus.hints import about
from hocket.kernel.vocabulary import JOB
bus = Pipes(pathlib.Path(sys.argv[1]))
for n in range(int(sys.argv[3])):
    bus.publish(about(JOB, sys.argv[2].encode() * (1 + n % 40)))
"""


def test_messages_of_several_processes_do_not_mix(tmp_path: Path) -> None:
    """Everything that a quick reader gets is a message that somebody sent."""
    bus = Pipes(tmp_path)
    listener = bus.subscribe(about(JOB))
    heard: list[Changes] = []

    def read() -> None:
        while came := listener.wait(None):
            heard.append(came)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    publishers = [process(PUBLISH, tmp_path, letter, 2_000) for letter in "abc"]
    for each in publishers:
        assert each.wait(PATIENCE_S) == 0
    bus.publish(about(JOB, b"last"))
    wait_until(lambda: any(each.matches(about(JOB, b"last")) for each in heard[-1:]))
    listener.close()
    reader.join(PATIENCE_S)
    sent = {(JOB, letter * n) for letter in (b"a", b"b", b"c") for n in range(1, 41)} | {(JOB, b"last"), (JOB, b"")}
    for changes in heard:
        assert changes == ANYTHING or changes.subjects <= sent
    bus.close()


def wait_until(look: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not look():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.002)


def test_a_bus_that_is_closed_twice_closes_no_file_of_others(tmp_path: Path) -> None:
    bus = Pipes(tmp_path)
    bus.close()
    with (tmp_path / "file").open("w") as file:
        bus.close()
        bus.publish(ANYTHING)
        assert not bus.is_heard()
        file.write("kept")
    assert (tmp_path / "file").read_text() == "kept"
