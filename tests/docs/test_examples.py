"""The examples run as they stand, each in a home of its own."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.docs import reader
from tests.docs.reader import ROOT

EXAMPLES = ROOT / "examples"
pytestmark = pytest.mark.xdist_group("processes")


def run(tmp_path: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    env = reader.environment(tmp_path)
    subprocess.run(["hocket", "init"], env=env, check=True, stdout=subprocess.DEVNULL, timeout=reader.PATIENCE_S)
    done = subprocess.run(
        [sys.executable, *words], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=reader.PATIENCE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.req("VX-01")
def test_hello(tmp_path: Path):
    assert "Hello, World! This is hold number 1" in run(tmp_path, EXAMPLES / "hello.py", "World").stdout


@pytest.mark.req("LW-41")
def test_pipeline(tmp_path: Path):
    lines = run(tmp_path, EXAMPLES / "pipeline.py").stdout.splitlines()
    assert lines[0] == "chapter one: ScheduleJob" and lines[-2] == "chapter one: CompleteJob"
    assert lines[-1] == "{'chapters': ['one', 'two', 'three', 'four'], 'words': 25}"


@pytest.mark.req("LW-06", "LW-37")
def test_fenced_write(tmp_path: Path):
    out = run(tmp_path, EXAMPLES / "fenced_write.py").stdout
    assert "the page says: 'written under fence 2', fence 2" in out
    assert "the log says: ScheduleJob, ClaimWork, ExpireWork, ClaimWork" in out


@pytest.mark.req("LW-02", "LW-05", "LW-37", "LW-41", "VX-01", "VX-07")
def test_the_tour(tmp_path: Path):
    done = run(tmp_path, EXAMPLES / "tour.py", "--base", tmp_path / "run")
    assert re.search(r"^log verified: \d+ ops, chain head [0-9a-f]{64}$", done.stdout, re.MULTILINE), done.stdout
    assert "is killed with SIGKILL while it runs the slow job" in done.stdout
    assert "not as it should be" not in done.stdout


def test_the_tour_says_what_is_wrong(tmp_path: Path):
    """A tour that cannot fail proves nothing: here a handler gives wrong answers."""
    (tmp_path / "tour.py").write_text((EXAMPLES / "tour.py").read_text())
    jobs = (EXAMPLES / "tour_jobs.py").read_text()
    (tmp_path / "tour_jobs.py").write_text(
        jobs.replace('"sum": sum(numbers)', '"sum": sum(numbers) + (len(numbers) == 100)')
    )
    env = reader.environment(tmp_path)
    words = [sys.executable, tmp_path / "tour.py", "--base", tmp_path / "run"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=reader.PATIENCE_S)
    assert done.returncode == 1
    assert "not as it should be: a sum is wrong" in done.stdout


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_tour_leaves_no_process_behind(tmp_path: Path, how: signal.Signals):
    base = tmp_path / "run"
    words = [sys.executable, EXAMPLES / "tour.py", "--base", base]
    with subprocess.Popen(
        words, env=reader.environment(tmp_path), stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as tour:
        assert tour.stdout is not None
        for line in tour.stdout:
            if "workers start" in line:
                break
        tour.send_signal(how)
        assert tour.wait(timeout=reader.PATIENCE_S) == 130
    deadline = time.monotonic() + reader.PATIENCE_S
    while _group_lives(tour.pid):
        assert time.monotonic() < deadline, "a worker outlived the tour"
        time.sleep(0.01)


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
