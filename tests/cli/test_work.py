"""Real workers in real processes, and real signals to them."""

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from .conftest import Program, until


def state(hocket: Program, job_id: str) -> tuple[Any, ...]:
    shown = hocket.show(job_id)
    return shown["state"], shown["outcome"]


@pytest.mark.req("LW-19")
@pytest.mark.touches("LW-02", "LW-41")
def test_until_idle_does_what_can_be_done(hocket: Program):
    good = hocket.submit("test.echo", '{"n": 1}')
    bad = hocket.submit("test.fail", "--retries", "1", "--backoff", "10ms")
    dependent = hocket.submit("test.echo", "--after", bad)
    foreign = hocket.submit("other.kind")
    result = hocket("work", "tasks.py", "--until-idle", code=0)
    assert result.out == "done: 1 succeeded, 2 failed, 0 handed back\n"
    assert hocket.show(good)["result"] == {"n": 1}
    shown = hocket.show(bad)
    assert (shown["outcome"], shown["attempts"], shown["error"]) == ("failed", 2, "ValueError: it broke")
    assert 'raise ValueError("it broke")' in shown["traceback"]
    assert state(hocket, dependent) == ("cancelled", "cancelled")
    assert state(hocket, foreign) == ("pending", None)


@pytest.mark.req("LW-19")
def test_only_some_kinds(hocket: Program):
    echo, fail = hocket.submit("test.echo"), hocket.submit("test.fail")
    answer = hocket("work", "tasks.py", "--until-idle", "--kinds", "test.echo", "--json", code=0).json
    assert answer == {"succeeded": 1, "failed": 0, "handed_back": 0}
    assert state(hocket, echo) == ("succeeded", "succeeded") and state(hocket, fail) == ("pending", None)


def test_until_idle_ends_when_what_is_left_is_routed_to_another_node(hocket: Program):
    hocket("init", "--home", hocket.home.parent / "second", "--user-key", hocket.home / "user.key", code=0)
    second = Program(hocket.home.parent / "second")
    second("log", "export", hocket.home.parent / "second.ops", code=0)
    hocket("log", "import", hocket.home.parent / "second.ops", code=0)
    routed, own = hocket.submit("test.echo"), hocket.submit("test.fail")
    hocket("route", "test.echo", second("whoami", "--json").json["node"], code=0)
    hocket("work", "tasks.py", "--until-idle", code=0)
    assert state(hocket, own) == ("failed", "failed") and state(hocket, routed) == ("pending", None)


def test_a_worker_without_a_module_says_what_it_serves(hocket: Program):
    started = hocket("work", "--until-idle", code=0).err
    assert "serves hocket.run only, the commands of `hocket run`; name a module for handlers" in started


LATE = """
import time

import hocket

RUNS = []


@hocket.job("late.scored", score={"phases": {"plan": 2, "work": 4}, "retry": {"max_phrases": 2}})
def scored(ctx):
    if ctx.fence == 1:
        raise ValueError("again")
    return ctx.phase


@hocket.job("late.resting", retries=1, backoff="3s", concurrency=1)
def resting(ctx):
    RUNS.append(time.monotonic())
    if ctx.fence == 1:
        raise ValueError("again")
    return RUNS[-1] - RUNS[0]
"""


def test_all_options_of_a_run_hold_for_jobs_that_were_submitted_before(hocket: Program, tmp_path: Path):
    (tmp_path / "late.py").write_text(LATE)
    scored, resting = hocket.submit("late.scored"), hocket.submit("late.resting")
    own = hocket.submit("late.scored", "--retries", "0")
    hocket("work", "late.py", "--until-idle", code=0)
    assert hocket.show(scored)["result"] == "plan", "the score, with its tries"
    assert hocket.show(resting)["result"] >= 2.9, "the backoff that its handler asks for"
    assert hocket.show(own)["attempts"] == 1, "it said so itself"


def test_with_json_a_worker_prints_its_events_as_objects(hocket: Program):
    hocket.submit("test.fail")
    result = hocket("work", "tasks.py", "--until-idle", "--json", code=0)
    assert result.json == {"succeeded": 0, "failed": 1, "handed_back": 0}
    started, failed = [json.loads(line) for line in result.err.splitlines()]
    assert (failed["type"], failed["level"], failed["error"]) == ("RunFailed", "error", "ValueError: it broke")
    assert started["type"] == "WorkerStarted" and "test.fail" in started["kinds"]
    assert started["text"] == f"worker {started['process']} serves {', '.join(started['kinds'])}"


def test_a_module_by_its_dotted_name(hocket: Program, tmp_path: Path):
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme" / "tasks.py").write_text('import hocket\n\n@hocket.job("acme.one")\ndef one(ctx): return 1\n')
    job_id = hocket.submit("acme.one")
    hocket("work", "acme.tasks", "tasks.py", "--until-idle", code=0)
    assert hocket.show(job_id)["result"] == 1


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (None, "no handler module at broken.py"),
        ("import no_such_module_at_all", "ModuleNotFoundError: No module named 'no_such_module_at_all'"),
        ("def f(:", "SyntaxError"),
        ("raise RuntimeError('at import')", "RuntimeError: at import"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("x = 1", "no handlers in broken.py"),
        ("import hocket\n@hocket.job('bad kind')\ndef f(ctx): pass", "illegal kind 'bad kind'"),
        ("import hocket\n@hocket.job('a.b', lease='-1s')\ndef f(ctx): pass", "bad lease '-1s'"),
    ],
    ids=["missing", "dependency", "syntax", "raises", "exits", "empty", "kind", "lease"],
)
def test_a_handler_module_that_does_not_import(hocket: Program, tmp_path: Path, source: str | None, says: str):
    if source is not None:
        (tmp_path / "broken.py").write_text(source)
    assert says in hocket("work", "broken.py", "--until-idle", code=2).sentence
    assert hocket("status", "--json").json["workers"] == []


def test_a_dotted_module_that_is_not_there(hocket: Program):
    assert "cannot import the handler module no.such" in hocket("work", "no.such", code=2).sentence


@pytest.mark.parametrize("options", [["--concurrency", "0"], ["--grace", "-1s"], ["--grace", "soon"]], ids=" ".join)
def test_bad_worker_options(hocket: Program, options: list[str]):
    assert options[0] in hocket("work", "tasks.py", *options, code=2).sentence


def begun(hocket: Program, tmp_path: Path, kind: str, *options: object) -> tuple["subprocess.Popen[str]", str]:
    """A worker that has begun a job that takes long."""
    job_id = hocket.submit(kind, f'{{"began": "{tmp_path / "began"}"}}')
    worker = hocket.start("work", "tasks.py", *options)
    until((tmp_path / "began").exists, "the handler's start")
    return worker, job_id


@pytest.mark.req("LW-18")
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT], ids=lambda sent: sent.name)
def test_a_signal_lets_a_handler_finish_within_the_grace(hocket: Program, tmp_path: Path, sent: signal.Signals):
    job_id = hocket.submit("test.slow", f'{{"began": "{tmp_path / "began"}", "seconds": 1.5}}')
    later = hocket.submit("test.echo", "--not-before", "+1h")
    worker = hocket.start("work", "tasks.py", "--concurrency", "1")
    until((tmp_path / "began").exists, "the handler's start")
    worker.send_signal(sent)
    result = hocket.finished(worker, 130 if sent is signal.SIGINT else 0)
    assert result.out == "done: 1 succeeded, 0 failed, 0 handed back\n"
    assert "stopping" in result.err
    assert hocket.show(job_id)["result"] == "slept"
    assert state(hocket, later) == ("pending", None)
    assert list((hocket.home / "processes").iterdir()) == []


@pytest.mark.req("LW-18")
@pytest.mark.touches("LW-02")
def test_past_the_grace_the_job_is_handed_back(hocket: Program, tmp_path: Path):
    worker, job_id = begun(hocket, tmp_path, "test.slow", "--grace", "200ms")
    worker.send_signal(signal.SIGTERM)
    result = hocket.finished(worker)
    assert result.out == "done: 0 succeeded, 0 failed, 1 handed back\n"
    assert state(hocket, job_id) == ("pending", None)
    assert hocket.show(job_id)["ops"][-1]["type"] == "YieldWork"


@pytest.mark.req("LW-18")
@pytest.mark.parametrize("kind", ["test.slow", "test.stuck"])
def test_a_second_signal_stops_now_even_when_a_handler_is_stuck(hocket: Program, tmp_path: Path, kind: str):
    worker, job_id = begun(hocket, tmp_path, kind, "--grace", "10m")
    worker.send_signal(signal.SIGINT)
    assert worker.stderr is not None
    until(lambda: "stopping" in worker.stderr.readline())
    worker.send_signal(signal.SIGINT)
    assert "1 handed back" in hocket.finished(worker, 130).out
    assert state(hocket, job_id) == ("pending", None)


@pytest.mark.req("LW-37")
@pytest.mark.touches("VX-01")
def test_a_killed_workers_job_is_taken_over_by_the_next(hocket: Program, tmp_path: Path):
    worker, job_id = begun(hocket, tmp_path, "test.slow")
    worker.kill()
    worker.communicate()
    assert "died" in hocket("doctor", code=0).out
    assert f"died\tprocess {worker.pid}; the next worker returns its jobs" in hocket("status", code=0).out
    assert hocket("status", "--json").json["workers"] == []
    (tmp_path / "began").unlink()
    successor = hocket.start("work", "tasks.py", "--grace", "0s")
    until((tmp_path / "began").exists, "the second start")
    shown = hocket.show(job_id)
    assert (shown["state"], shown["fence"], shown["progress"] in (None, {"stage": "began"})) == ("running", 2, True)
    assert f"/{successor.pid}\t" in hocket("jobs", code=0).out
    status = hocket("status", "--json").json
    assert [each["pid"] for each in status["workers"]] == [successor.pid] and status["jobs"]["running"] == 1
    successor.send_signal(signal.SIGTERM)
    notices = hocket.finished(successor).err
    assert "returned 1 job of a dead worker process to the queue" in notices


@pytest.mark.req("LW-41")
def test_a_running_job_is_cancelled(hocket: Program, tmp_path: Path):
    worker, job_id = begun(hocket, tmp_path, "test.slow")
    hocket("cancel", job_id, "--reason", "enough", code=0)
    assert worker.stderr is not None
    until(lambda: "handler stopped" in worker.stderr.readline())
    assert state(hocket, job_id) == ("cancelled", "cancelled")
    worker.send_signal(signal.SIGTERM)
    hocket.finished(worker)
    assert hocket.show(job_id)["error"] == "enough"


@pytest.mark.req("VX-01")
@pytest.mark.touches("LW-09")
def test_two_workers_share_the_jobs(hocket: Program):
    lines = "\n".join(f'{{"kind": "test.echo", "payload": {{"n": {n}}}}}' for n in range(200))
    hocket("submit", "--batch", "-", input=lines, code=0)
    workers = [hocket.start("work", "tasks.py", "--until-idle", "--json") for _ in range(2)]
    results = [hocket.finished(worker).json for worker in workers]
    assert sum(result["succeeded"] for result in results) == 200
    assert hocket("status", "--json").json["jobs"]["succeeded"] == 200
    hocket("log", "verify", code=0)


DEADLY = """
import os
import signal
import time
from pathlib import Path

import hocket


@hocket.job("deadly.kill")
def kill(ctx, path):
    Path(f"{path}-{ctx.fence}").touch()
    while not Path(path).exists():
        time.sleep(0.005)
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)
"""


@pytest.mark.req("LW-41")
def test_a_handler_that_kills_its_worker_twice_gets_a_process_of_its_own(hocket: Program, tmp_path: Path):
    (tmp_path / "deadly.py").write_text(DEADLY)
    deadly = tmp_path / "deadly"
    job_id = hocket.submit("deadly.kill", f'{{"path": "{deadly}"}}')
    deadly.touch()
    for _ in range(2):
        killed = hocket.start("work", tmp_path / "deadly.py", "tasks.py")
        assert killed.wait(60) == -9
    deadly.unlink()
    worker = hocket.start("work", tmp_path / "deadly.py", "tasks.py")
    until((tmp_path / "deadly-3").exists, "the third run")
    assert "returned 2 times" in hocket("jobs", code=0).out
    beside = hocket.submit("test.echo", "--wait")
    deadly.touch()
    until(lambda: hocket.show(job_id)["outcome"] == "failed", "the job to fail")
    assert "was killed by SIGKILL" in hocket.show(job_id)["error"] and hocket.show(job_id)["returns"] == 2
    assert hocket.show(beside)["outcome"] == "succeeded"
    worker.terminate()
    assert "runs alone, in a process of its own" in hocket.finished(worker).err
