"""The guard of a file: a stale writer never replaces the file, wherever it is interrupted, and a process that is killed
or frozen at any moment blocks nobody.
"""

import fcntl
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket.guard import files

# Every step of a write that other processes can see.
STEPS = ("listdir", "touch", "_sync", "unlink", "open", "fsync", "replace")


def write(path: Path, fence: int) -> None:
    """Adds a line to the file, as a holder that reads before it writes."""
    with hocket.fenced_file(path, fence) as file:
        file.write((path.read_text() if path.exists() else "") + f"{fence}\n")


def lines(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()] if path.exists() else []


@pytest.mark.req("VX-06")
def test_a_lower_fence_is_refused_and_an_equal_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    for fence in (3, 3, 5):
        write(path, fence)
    with pytest.raises(hocket.StaleFence):
        write(path, 4)
    assert lines(path) == [3, 3, 5]
    write(path, 6)
    assert [entry.name for entry in (tmp_path / files.FOLDER / "notes").iterdir()] == ["6"]


def test_a_holder_that_is_overtaken_in_its_block_is_refused_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    with pytest.raises(hocket.StaleFence):
        with hocket.fenced_file(path, 1) as file:
            write(path, 2)
            file.write("from the frozen holder")
    assert lines(path) == [2]


def test_an_error_in_the_block_leaves_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    write(path, 1)
    with pytest.raises(ZeroDivisionError):
        with hocket.fenced_file(path, 2) as file:
            file.write("half")
            raise ZeroDivisionError
    assert lines(path) == [1]
    assert not list((tmp_path / files.FOLDER / "notes").glob("*.*"))


def test_bytes_modes_links_and_permissions(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.write_text("old")
    real.chmod(0o640)
    link = tmp_path / "link"
    link.symlink_to(real)
    with hocket.fenced_file(str(link), 1, "wb") as file:
        file.write(b"\xff")
    assert link.is_symlink() and real.read_bytes() == b"\xff"
    assert real.stat().st_mode & 0o777 == 0o640
    hocket.fenced_file(real, 2)
    with pytest.raises(hocket.StaleFence):
        hocket.fenced_file(link, 1)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(hocket.Usage, match="not a regular file"):
        hocket.fenced_file(tmp_path, 1)
    with pytest.raises(hocket.Usage, match="not a directory"):
        hocket.fenced_file(tmp_path / "missing" / "notes", 1)
    with pytest.raises(hocket.Usage, match="mode"):
        hocket.fenced_file(tmp_path / "notes", 1, "a")  # type: ignore[call-overload]


def test_git_sees_nothing_of_the_guard(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    write(tmp_path / "notes", 1)
    done = subprocess.run(["git", "-C", str(tmp_path), "status", "--short"], capture_output=True, text=True, check=True)
    assert done.stdout == "?? notes\n"


def at_each_step(patch: pytest.MonkeyPatch, happens: Callable[[], None]) -> None:
    """Calls `happens` before each step of a write, and not before those of the writes that it makes itself."""
    busy = False

    def wrapped(plain: Any) -> Any:
        def step(*args: Any, **kwargs: Any) -> Any:
            nonlocal busy
            if not busy:
                busy = True
                try:
                    happens()
                finally:
                    busy = False
            return plain(*args, **kwargs)

        return step

    for name in STEPS:
        owner: Any = Path if name in ("touch", "unlink") else files if name == "_sync" else os
        patch.setattr(owner, name, wrapped(getattr(owner, name)))


@pytest.mark.req("VX-06")
@pytest.mark.parametrize("others", [(5,), (5, 6), (3, 5), (5, 2)])
def test_a_writer_that_is_frozen_before_any_step_is_overtaken(
    others: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file was written under fence 3. A writer with fence 4 is interrupted before its n-th step, others write, and
    it goes on: then it is refused, or its line was there for the others to read.
    """
    step, stop_at = 0, -1

    def others_write() -> None:
        nonlocal step
        step += 1
        if step == stop_at:
            for fence in others:
                try:
                    write(path, fence)
                    acknowledged.append(fence)
                except hocket.StaleFence:
                    pass

    at_each_step(monkeypatch, others_write)
    was_refused = number = 0
    while step >= stop_at:
        number += 1
        path = tmp_path / str(number)
        acknowledged = [3]
        stop_at = -1
        write(path, 3)
        step, stop_at = 0, number
        try:
            write(path, 4)
            acknowledged.append(4)
        except hocket.StaleFence:
            was_refused += 1
        found = lines(path)
        assert found == sorted(found), f"interrupted before step {stop_at}: a stale line came after a newer one"
        assert sorted(found) == sorted(acknowledged), f"interrupted before step {stop_at}: an acknowledged line is lost"
    assert number > 10 and was_refused > 5


@pytest.mark.req("VX-06")
def test_a_process_that_is_killed_before_any_step_leaves_a_whole_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "notes"
    write(path, 1)
    step, stop_at, fence = 0, 0, 1

    def die() -> None:
        nonlocal step
        step += 1
        if step == stop_at:
            os.kill(os.getpid(), signal.SIGKILL)

    while True:
        stop_at, fence, before = stop_at + 1, fence + 2, lines(path)
        child = os.fork()
        if child == 0:
            at_each_step(monkeypatch, die)
            write(path, fence)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert lines(path) in (before, [*before, fence])
        if os.WIFEXITED(status):
            break
        write(path, fence + 1)
        with pytest.raises(hocket.StaleFence):
            write(path, fence)
        assert lines(path)[-1] == fence + 1
    assert stop_at > 10
    write(path, fence + 1)
    assert [entry.name for entry in (tmp_path / files.FOLDER / "notes").iterdir()] == [str(fence + 1)]


WRITER = """
import fcntl, os, random, sys
from pathlib import Path
import hocket

path, counter = Path(sys.argv[1]), os.open(sys.argv[2], os.O_RDWR | os.O_CREAT)
while True:
    fcntl.flock(counter, fcntl.LOCK_EX)
    fence = int(os.pread(counter, 20, 0) or b"0") + 1
    os.pwrite(counter, str(fence).encode(), 0)
    fcntl.flock(counter, fcntl.LOCK_UN)
    try:
        for _ in range(random.randint(1, 3)):
            with hocket.fenced_file(path, fence) as file:
                file.write((path.read_text() if path.exists() else "") + f"{fence}\\n")
            os.write(1, f"{fence}\\n".encode())  # one call, so that a killed process leaves no half line
    except hocket.StaleFence:
        pass
"""
WRITERS = 3
ROUNDS = 12


@pytest.mark.req("VX-06")
def test_processes_that_are_killed_and_frozen_lose_no_acknowledged_line(tmp_path: Path) -> None:
    """A frozen process holds up no other: lines are added while it is frozen, wherever that was."""
    path, counter, chance = tmp_path / "notes", tmp_path / "counter", random.Random(7)

    def start(number: int) -> subprocess.Popen[bytes]:
        with (tmp_path / f"said-{number}").open("ab") as said:
            return subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(counter)], stdout=said)

    writers = [start(number) for number in range(WRITERS)]
    try:
        for _ in range(ROUNDS):
            number = chance.randrange(WRITERS)
            _until_it_grows(path)
            if chance.random() < 0.5:
                writers[number].kill()
                writers[number].wait()
                writers[number] = start(number)
            else:
                writers[number].send_signal(signal.SIGSTOP)
                # Frozen with the lock of the counter, which is the test's own, it may hold up the others.
                with counter.open("rb") as held:
                    _is_free(held.fileno()) and _until_it_grows(path)
                writers[number].send_signal(signal.SIGCONT)
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
    found = lines(path)
    assert found == sorted(found) and len(found) > ROUNDS
    said = [int(line) for each in tmp_path.glob("said-*") for line in each.read_text().split()]
    assert len(said) > ROUNDS and not set(said) - set(found)
    for fence in set(said):
        assert found.count(fence) >= said.count(fence)


def _is_free(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return True


def _until_it_grows(path: Path) -> None:
    deadline, before = time.monotonic() + 60, len(lines(path))
    while len(lines(path)) <= before:
        assert time.monotonic() < deadline, "no writer goes on"
        time.sleep(0.002)
