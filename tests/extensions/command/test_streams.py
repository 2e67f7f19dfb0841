"""What commands print: heard while they run, kept up to a bound, and never a reason for them to wait."""

import os
import resource
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.extensions.command.outputs import END_BYTES_MAX, Keeping
from tests.extensions.command.bench import MIB, PATIENCE_S, Bench, never, now_ms, wait_for


def test_output_is_heard_while_the_command_runs(bench: Bench) -> None:
    gate = bench.work / "gate"
    os.mkfifo(gate)
    outcome = []
    thread = threading.Thread(target=lambda: outcome.append(bench.shell("echo one; read line < gate; echo $line >&2")))
    thread.start()
    wait_for(lambda: bench.heard["stdout"] == b"one\n", "the first line")
    assert thread.is_alive()
    gate.write_text("two\n")
    thread.join(PATIENCE_S)
    assert bench.heard["stderr"] == b"two\n"
    assert outcome[0].exit_code == 0


def test_bytes_arrive_as_they_are(bench: Bench) -> None:
    ended = bench.python("import os; [os.write(1, bytes(range(256)) * 7) for _ in range(100)]")
    assert ended.stdout.path.read_bytes() == bytes(bench.heard["stdout"]) == bytes(range(256)) * 700
    assert (ended.stdout.size, ended.stdout.total) == (256 * 700, 256 * 700)


def test_a_command_may_close_its_streams_early(bench: Bench) -> None:
    ended = bench.shell("echo first; exec >&- 2>&-; sleep 0.3; exit 4")
    assert (ended.exit_code, bytes(bench.heard["stdout"])) == (4, b"first\n")
    assert ended.resources.wall_s >= 0.3


def test_hundreds_of_megabytes_flow_through_while_memory_stays_flat(bench: Bench) -> None:
    total = {"stdout": 0, "stderr": 0}

    def hear(stream: str, chunk: bytes) -> None:
        total[stream] += len(chunk)

    count = 300 * MIB
    bench.run("true")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    script = f"head -c {count} /dev/zero; echo the end; head -c {MIB} /dev/zero >&2"
    ended = bench.runner.run(bench.order("sh", "-c", script), hear, never, now_ms)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert total == {"stdout": count + 8, "stderr": MIB}
    assert (ended.stdout.total, ended.stderr.total) == (count + 8, MIB)
    assert ended.stdout.size == ended.stdout.path.stat().st_size <= MIB
    assert ended.stdout.path.read_bytes().endswith(b"the end\n")
    assert (after - before) * 1024 < 30 * MIB


def test_a_slow_listener_loses_nothing(bench: Bench) -> None:
    gate = threading.Event()
    heard = []

    def hear(stream: str, chunk: bytes) -> None:
        gate.wait(0.2)
        gate.set()
        heard.append(chunk)

    ended = bench.runner.run(bench.order("head", "-c", "1000000", "/dev/zero"), hear, never, now_ms)
    assert sum(map(len, heard)) == ended.stdout.total == 1_000_000


def test_somebody_else_who_holds_the_pipe_does_not_hold_up_the_end(bench: Bench) -> None:
    """A process that is none of the command's opens its stdout and goes on writing to it."""
    outcome = []
    thread = threading.Thread(target=lambda: outcome.append(bench.shell("echo $$; read line < gate")))
    os.mkfifo(bench.work / "gate")
    thread.start()
    number = int(wait_for(lambda: bench.heard["stdout"].endswith(b"\n") and bench.heard["stdout"], "its number"))
    with Path(f"/proc/{number}/fd/1").open("wb") as theirs:
        other = subprocess.Popen(["yes"], stdout=theirs)
    try:
        (bench.work / "gate").write_text("go\n")
        thread.join(PATIENCE_S)
        assert outcome[0].exit_code == 0
    finally:
        other.send_signal(signal.SIGKILL)
        other.wait()


@given(st.lists(st.binary(max_size=3000), max_size=40), st.sampled_from([0, 10, 1023, 1024, 3000, 20_000, 10**6]))
def test_what_is_kept_is_the_beginning_and_the_end(tmp_path_factory: pytest.TempPathFactory, chunks, limit) -> None:
    path = tmp_path_factory.getbasetemp() / "kept"
    keeping = Keeping(path, limit)
    for chunk in chunks:
        keeping.write(chunk)
    kept, whole = keeping.finish(), b"".join(chunks)
    data = path.read_bytes()
    assert (kept.total, kept.size) == (len(whole), len(data))
    assert len(data) <= limit
    if len(whole) <= limit:
        assert data == whole
    elif limit < 1024:
        assert data == whole[:limit]
    else:
        beginning, marker, end = data.partition(b"\n[")
        number, _, end = end.partition(b" bytes left out]\n")
        assert marker
        # What was printed may look like the line itself; then there is nothing more to tell.
        if whole.count(b"\n[") == 0:
            assert whole.startswith(beginning) and whole.endswith(end)
            assert len(beginning) + int(number) + len(end) == len(whole)
            assert len(beginning) == limit - limit // 2


def test_the_end_of_a_stream_takes_little_memory(tmp_path: Path) -> None:
    keeping = Keeping(tmp_path / "kept", 1024 * MIB)
    for _ in range(8):
        keeping.write(bytes(MIB))
    assert keeping.finish() == (tmp_path / "kept", 8 * MIB, 8 * MIB)
    assert END_BYTES_MAX <= MIB


needs_mounts = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("mount") is None, reason="only root can make a small disk to fill"
)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 8 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"this machine does not let root mount a tmpfs: {mounted.stderr.decode().strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@needs_mounts
def test_a_command_that_fills_the_disk_is_stopped(bench: Bench, small_disk: Path) -> None:
    slowly = "i=0; while true; do i=$((i+1)); head -c 65536 /dev/zero > file$i; sleep 0.01; done"
    ended = bench.shell(slowly, directory=small_disk, free_bytes_min=4 * MIB)
    assert (ended.why, ended.signal) == ("disk full", signal.SIGTERM)
    assert f"fewer than {4 * MIB} bytes are free on the disk of {small_disk}" in ended.detail
    free = os.statvfs(small_disk)
    assert free.f_bavail * free.f_frsize > 0, "in time"
    assert bench.survivors() == []


@needs_mounts
def test_a_command_that_makes_too_many_files_is_stopped(bench: Bench, small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,nr_inodes=20000", str(small_disk)], check=True)
    ended = bench.shell("i=0; while true; do i=$((i+1)); : > file$i; done", directory=small_disk, free_bytes_min=1)
    assert ended.why == "disk full", ended
    assert os.statvfs(small_disk).f_bavail > 0, "there is room, but not for files"


@needs_mounts
def test_many_processes_do_not_delay_the_look_at_the_disk(bench: Bench, small_disk: Path) -> None:
    """They take long to sample, so they are sampled seldom."""
    many = "i=0; while [ $i -lt 1000 ]; do i=$((i+1)); sleep 1000 & done; sleep 1"
    slowly = "while true; do i=$((i+1)); head -c 65536 /dev/zero > file$i; sleep 0.01; done"
    ended = bench.shell(f"{many}; {slowly}", directory=small_disk, free_bytes_min=4 * MIB)
    assert ended.why == "disk full"
    free = os.statvfs(small_disk)
    assert free.f_bavail * free.f_frsize > 0, "in time"
    assert bench.survivors() == []


@needs_mounts
def test_a_command_that_fails_on_a_full_disk_is_known_by_it(bench: Bench, small_disk: Path) -> None:
    ended = bench.shell("exec head -c 100000000 /dev/zero > big", directory=small_disk, free_bytes_min=MIB)
    assert ended.why == "disk full"
    assert ended.exit_code == 1 or ended.signal is not None


@needs_mounts
def test_a_command_that_succeeds_on_a_full_disk_has_succeeded(bench: Bench, small_disk: Path) -> None:
    # It has to be done before the disk is looked at, which it may fail to be on a busy machine.
    attempts = [bench.run("true", directory=small_disk, free_bytes_min=16 * MIB) for _ in range(10)]
    assert ("exited", 0) in {(ended.why, ended.exit_code) for ended in attempts}


@needs_mounts
def test_what_is_printed_onto_a_full_disk_is_heard_all_the_same(bench: Bench, small_disk: Path) -> None:
    ended = bench.shell("head -c 20000000 /dev/zero; exit 3", streams=small_disk, output_bytes_max=100 * MIB)
    assert (ended.why, ended.exit_code) == ("exited", 3)
    assert ended.stdout.total == len(bench.heard["stdout"]) == 20_000_000
    assert ended.stdout.size == ended.stdout.path.stat().st_size <= 8 * MIB
    assert f"only {ended.stdout.size} bytes of stdout are kept: No space left on device" in ended.detail
