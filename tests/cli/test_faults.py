"""Faults of the place where a home is: parts that are missing, a process that is stopped in the middle of a write, a
full disk. Commands say what is wrong and in which process, and go on when it has passed.
"""

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import apsw
import pytest

from tests.cli.conftest import Program, until

# Takes the write lock of a database and keeps it.
HOLD = """
import sys
from pathlib import Path
import apsw
connection = apsw.Connection(sys.argv[1])
connection.execute("BEGIN IMMEDIATE").fetchall()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.req("LW-17")
def test_a_missing_directory_of_processes_comes_back(hocket: Program):
    shutil.rmtree(hocket.home / "processes")
    assert "locks and pipes\t" in hocket("doctor", code=0).out.replace("warn\t", "")
    job_id = hocket.submit("test.echo")
    assert (hocket.home / "processes").stat().st_mode & 0o777 == 0o700
    shutil.rmtree(hocket.home / "processes")
    hocket("work", "tasks.py", "--until-idle", code=0)
    for command in ("status", "jobs", "doctor", "log"):
        shutil.rmtree(hocket.home / "processes", ignore_errors=True)
        hocket(command, code=0)
    assert hocket.show(job_id)["outcome"] == "succeeded"


def test_a_worker_goes_on_when_the_directory_of_processes_is_removed(hocket: Program):
    worker = hocket.start("work", "tasks.py")
    first = hocket.submit("test.echo")
    until(lambda: hocket.show(first)["outcome"], "the first job")
    shutil.rmtree(hocket.home / "processes")
    second = hocket.submit("test.echo")
    until(lambda: hocket.show(second)["outcome"], "the second job")
    assert hocket.show(second)["outcome"] == "succeeded"
    worker.send_signal(signal.SIGTERM)
    hocket.finished(worker)


@pytest.fixture
def holder(hocket: Program):
    """A process that was stopped inside a write transaction."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(hocket.home / "log.db")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    process.send_signal(signal.SIGSTOP)
    until(lambda: "T" in Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0])
    yield process
    process.kill()
    process.communicate()


def waits_briefly(tmp_path: Path) -> dict[str, str]:
    """Lets the program wait for the lock for a moment only."""
    (tmp_path / "sitecustomize.py").write_text("import hocket.store.sqlite as s\ns.LOCK_WAIT_S = 0.5\n")
    return {"PYTHONPATH": f"{tmp_path}:{':'.join(filter(None, sys.path))}"}


@pytest.mark.req("LW-17")
def test_the_process_that_holds_up_every_writer_is_named(
    hocket: Program, holder: "subprocess.Popen[str]", tmp_path: Path
):
    said = hocket("submit", "test.echo", environment=waits_briefly(tmp_path), code=5).sentence
    assert f"by process {holder.pid} (" in said and "which is stopped" in said
    assert f"kill -CONT {holder.pid}" in said
    findings = {each["check"]: each for each in hocket("doctor", "--json", code=1).json}
    assert findings["write lock"]["verdict"] == "bad" and f"process {holder.pid} " in findings["write lock"]["says"]
    holder.send_signal(signal.SIGCONT)
    holder.communicate("")
    assert "write lock\tno process" in hocket("doctor", code=0).out


@pytest.mark.req("LW-17")
def test_a_worker_that_starts_while_nothing_can_be_written_waits(
    hocket: Program, holder: "subprocess.Popen[str]", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name, value in waits_briefly(tmp_path).items():
        monkeypatch.setenv(name, value)
    worker = hocket.start("work", "tasks.py", "--until-idle")
    assert worker.stderr is not None
    lines = iter(worker.stderr.readline, "")
    until(lambda: f"by process {holder.pid}" in next(lines), "a word about the lock")
    assert worker.poll() is None
    holder.send_signal(signal.SIGCONT)
    holder.communicate("")
    hocket.finished(worker)


@pytest.fixture
def small_disk(tmp_path: Path):
    """A real file system of four megabytes."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip("this user may not mount a file system")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.req("VX-07")
def test_a_full_disk_is_called_full(hocket: Program, small_disk: Path):
    home = small_disk / "home"
    hocket("init", home=home, code=0)
    filler = small_disk / "filler"
    with pytest.raises(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1024))
    for words in (("submit", "test.echo"), ("status",), ("jobs",)):
        assert "has no space left on its disk" in hocket(*words, home=home, code=5).sentence
    assert "has no space left on its disk" in hocket("doctor", home=home, code=1).out
    filler.unlink()
    hocket("submit", "test.echo", home=home, code=0)


def an_hour_ahead(tmp_path: Path) -> dict[str, str]:
    """The clock of one process alone, as a tool that fakes the time sets it."""
    directory = tmp_path / "ahead"
    directory.mkdir()
    (directory / "sitecustomize.py").write_text(
        "import time\n"
        "now, now_ns = time.time, time.time_ns\n"
        "time.time = lambda: now() + 3600\n"
        "time.time_ns = lambda: now_ns() + 3_600_000_000_000\n"
    )
    return {"PYTHONPATH": f"{directory}:{':'.join(filter(None, sys.path))}"}


@pytest.mark.req("LW-22")
def test_a_process_whose_clock_is_an_hour_ahead_ends_no_lease(hocket: Program, tmp_path: Path):
    began = tmp_path / "began"
    slow = hocket.submit("test.slow", f'{{"began": "{began}", "seconds": 60}}')
    worker = hocket.start("work", "tasks.py")
    until(began.exists, "the job to begin")
    until(lambda: '"offset_ms"' in vouched(hocket), "the worker to vouch for its clock")
    ahead = an_hour_ahead(tmp_path)
    done = hocket("submit", "test.echo", environment=ahead, code=0)
    assert "ahead of that of this node's other processes" in done.err
    hocket("work", "tasks.py", "--until-idle", "--kinds", "test.echo", environment=ahead, code=0)
    shown = hocket.show(slow)
    assert (shown["fence"], shown["outcome"]) == (1, None)
    head_ms = hocket.show(done.job_id)["scheduled_ms"]
    assert abs(head_ms - time.time() * 1000) < 600_000
    worker.kill()


def vouched(hocket: Program) -> str:
    connection = apsw.Connection(str(hocket.home / "log.db"), flags=apsw.SQLITE_OPEN_READONLY)
    rows = connection.execute("SELECT value FROM meta WHERE key = 'clock'").fetchall()
    connection.close()
    return rows[0][0].decode() if rows else ""


@pytest.mark.req("LW-22", "LW-40")
def test_a_delay_counts_from_the_real_time_when_the_nodes_clock_is_ahead(hocket: Program):
    connection = apsw.Connection(str(hocket.home / "log.db"))
    connection.execute("UPDATE head SET wall = ?", (int(time.time() * 1000) + 3_600_000,))
    connection.close()
    hocket.submit("test.echo", "--not-before", "+40m")
    hocket.submit("test.echo", "--not-before", "+0s")
    jobs = hocket("status", "--json", code=0).json["jobs"]
    assert (jobs["ready"], jobs["delayed"]) == (1, 1)


@pytest.mark.req("LW-43")
def test_a_newer_export_gives_back_what_a_restored_home_has_lost(hocket: Program, tmp_path: Path):
    shutil.copytree(hocket.home, tmp_path / "copy")
    hocket.submit("test.lost")
    hocket("log", "export", tmp_path / "newer.ops", code=0)
    shutil.rmtree(hocket.home)
    shutil.move(tmp_path / "copy", hocket.home)
    hocket.submit("test.meanwhile")
    hocket("log", "import", tmp_path / "newer.ops", code=0)
    assert sorted(job["kind"] for job in hocket("jobs", "--json").json) == ["test.lost", "test.meanwhile"]
    hocket("log", "verify", code=0)
    assert {each["check"]: each["verdict"] for each in hocket("doctor", "--json").json}["history"] == "warn"
