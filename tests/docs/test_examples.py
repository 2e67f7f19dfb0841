"""The examples run as they stand, each in a home of its own."""

import importlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import hocket.testing
from tests.docs import reader
from tests.docs.reader import ROOT

EXAMPLES = ROOT / "examples"


def run(tmp_path: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    env = reader.forking(reader.environment(tmp_path), tmp_path)
    subprocess.run(["hocket", "init"], env=env, check=True, stdout=subprocess.DEVNULL, timeout=reader.PATIENCE_S)
    done = subprocess.run(
        [sys.executable, *words], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=reader.PATIENCE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.touches("VX-01")
def test_hello(tmp_path: Path):
    assert "Hello, World! This is hold number 1" in run(tmp_path, EXAMPLES / "hello.py", "World").stdout


@pytest.mark.touches("LW-41")
def test_pipeline(tmp_path: Path):
    lines = run(tmp_path, EXAMPLES / "pipeline.py").stdout.splitlines()
    assert lines[0] == "chapter one: ScheduleJob" and lines[-2] == "chapter one: CompleteJob"
    assert lines[-1] == "{'chapters': ['one', 'two', 'three', 'four'], 'words': 25}"


@pytest.mark.touches("LW-41")
def test_fan_in(tmp_path: Path):
    assert run(tmp_path, EXAMPLES / "fan_in.py").stdout == "Dear Ada: The book has 19 words on 3 pages.\n"


@pytest.mark.touches("LW-41")
def test_a_chain_can_be_tested_in_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    fan_in = importlib.import_module("fan_in")
    with hocket.testing.node() as node:
        last = fan_in.submit(node)
        ran = node.drain([fan_in.words, fan_in.total, fan_in.letter])
        assert last.result() == "Dear Ada: The book has 19 words on 3 pages."
        assert sorted(run.kind for run in ran) == ["example.letter", "example.total"] + ["example.words"] * 4


@pytest.mark.touches("LW-06", "LW-37")
def test_fenced_write(tmp_path: Path):
    out = run(tmp_path, EXAMPLES / "fenced_write.py").stdout
    assert "the page says: 'written under fence 2'" in out
    assert "a late write: fence 1 is stale" in out
    assert "the log says: ScheduleJob, ClaimWork, ExpireWork, ClaimWork" in out


@pytest.mark.touches("LW-37", "VX-01", "VX-03")
def test_two_agents(tmp_path: Path):
    pytest.importorskip("mcp", reason="the example needs hocket[mcp]")
    out = run(tmp_path, EXAMPLES / "two_agents" / "run.py").stdout
    refused, killed = out.index("story.txt is locked by ben"), out.index("ben is killed")
    assert refused < killed < out.index("ann takes the job to change story.txt (fence 2)")
    assert "ann reads: ben has changed intro.txt" in out
    assert out.endswith(
        "intro.txt:\nOnce there were two agents. (ben, fence 1)\n"
        "story.txt:\nThe other one went on. (ann, fence 3)\nOne of them fell silent. (ann, fence 4)\nno edit is lost\n"
    )


@pytest.mark.touches("LW-37", "LW-41")
def test_render_farm(tmp_path: Path):
    out = run(tmp_path, EXAMPLES / "render_farm" / "run.py").stdout
    assert out.startswith("12 frames, 37020 bytes of film, 1 worker killed\n")
    assert re.search(r"^frame 5 was begun by the killed worker, and finished under fence [2-9]$", out, re.MULTILINE), (
        out
    )


@pytest.mark.touches("LW-41")
def test_inference(tmp_path: Path):
    out = run(tmp_path, EXAMPLES / "inference" / "run.py").stdout
    assert re.match(r"20 answers in \d+ batches\nthe device cost something", out), out


@pytest.mark.touches("LW-41")
def test_nightly(tmp_path: Path):
    out = run(tmp_path, EXAMPLES / "nightly" / "run.py").stdout
    assert "2 targets are built from one commit and published, 10240 bytes each" in out


@pytest.mark.slow
@pytest.mark.touches("LW-02", "LW-05", "LW-37", "LW-39", "LW-40", "LW-41", "VX-01", "VX-07")
def test_the_tour(tmp_path: Path):
    done = run(tmp_path, EXAMPLES / "tour.py", "--base", tmp_path / "run")
    assert re.search(r"^log verified: \d+ ops, chain head [0-9a-f]{64}$", done.stdout, re.MULTILINE), done.stdout
    assert "is killed with SIGKILL while it runs the slow job" in done.stdout
    for said in ("owner", "gpu", "post", "desk"):
        assert re.search(rf"^log of {said} verified: \d+ ops, chain head [0-9a-f]{{64}}$", done.stdout, re.MULTILINE)
    assert "is killed with SIGKILL in the middle of a job" in done.stdout
    assert "a late write of ada's, under fence 1, is refused" in done.stdout
    assert "ends with its fallback" in done.stdout
    assert "reverb reports the bar of" in done.stdout
    assert "its proof is good" in done.stdout
    assert "check failed" not in done.stdout
    assert not [*(tmp_path / "run").glob("mesh-*"), *(tmp_path / "run").glob("agents-*")]


@pytest.mark.parametrize(
    ("name", "handler", "right", "wrong", "said"),
    [
        ("tour", "tour_jobs", '"sum": sum(numbers)', '"sum": sum(numbers) + (len(numbers) == 100)', "a sum is wrong"),
        ("tour_mesh", "tour_mesh_jobs", '"node": NODE, "index"', '"node": "gpu", "index"', "the wrong nodes did the"),
    ],
)
def test_the_tour_says_what_is_wrong(tmp_path: Path, name: str, handler: str, right: str, wrong: str, said: str):
    """A tour that cannot fail proves nothing: here a handler gives wrong answers."""
    for file in EXAMPLES.glob("tour*.py"):
        (tmp_path / file.name).write_text(file.read_text())
    handlers = (EXAMPLES / f"{handler}.py").read_text()
    assert right in handlers
    (tmp_path / f"{handler}.py").write_text(handlers.replace(right, wrong))
    env = reader.forking(reader.environment(tmp_path), tmp_path)
    words = [sys.executable, tmp_path / f"{name}.py", "--base", tmp_path / "run"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=reader.PATIENCE_S)
    assert done.returncode == 1
    assert f"check failed: {said}" in done.stdout


PLACES = [
    ("tour", "workers start"),
    ("tour_mesh", "serves at"),
    ("tour_mesh", "both workers run"),
    ("tour_agents", "is refused"),
]
# Each place and each signal, and in the soak each signal at each place.
INTERRUPTED = [
    pytest.param(*place, how, marks=() if number % 2 == (how is signal.SIGTERM) else pytest.mark.soak)
    for number, place in enumerate(PLACES)
    for how in (signal.SIGINT, signal.SIGTERM)
]


@pytest.mark.parametrize(("name", "where", "how"), INTERRUPTED)
def test_an_interrupted_tour_leaves_nothing_behind(tmp_path: Path, name: str, where: str, how: signal.Signals):
    base = tmp_path / "run"
    words = [sys.executable, "-u", EXAMPLES / f"{name}.py", "--base", base]
    with subprocess.Popen(
        words, env=reader.environment(tmp_path), stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as tour:
        assert tour.stdout is not None
        for line in tour.stdout:
            if where in line:
                break
        tour.send_signal(how)
        assert tour.wait(timeout=reader.PATIENCE_S) == 130
    assert not [*base.glob("mesh-*"), *base.glob("agents-*")]
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


@pytest.mark.touches("VX-01")
def test_chat(tmp_path: Path):
    out = run(tmp_path, EXAMPLES / "chat.py", "one two three").stdout
    assert out == "one two three one two three one two three one two three\n"
