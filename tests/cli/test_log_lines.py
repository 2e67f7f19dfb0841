"""What long-running commands say while they run, and `hocket logs` for what handlers print and log."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from .conftest import Program, Result, until

TASKS = """
import asyncio
import logging
import sys
import time
from pathlib import Path

import hocket

log = logging.getLogger("acme")
{configured}

@hocket.job("talk.sync", retries=1, backoff="10ms")
def talk(ctx, fail=False):
    print("printed")
    print("complained", file=sys.stderr)
    log.debug("details")
    log.info("noted")
    log.warning("warned")
    if fail and ctx.attempt == 1:
        raise ValueError("it broke")


@hocket.job("talk.async")
async def whisper(ctx, name):
    print(name, "begins")
    await asyncio.sleep(0.05)
    log.info("%s ends", name)


@hocket.job("talk.slowly")
def slowly(ctx, go):
    print("first", flush=True)
    while not Path(go).exists():
        time.sleep(0.01)
    print("last")
"""


@pytest.fixture
def talk(hocket: Program, tmp_path: Path) -> Program:
    (tmp_path / "talk.py").write_text(TASKS.format(configured=""))
    return hocket


def work(talk: Program, *options: str) -> Result:
    return talk("work", "talk.py", "--until-idle", *options, code=0)


def said(result: Result, job_id: str) -> list[str]:
    """What was said about a job, in order, without times and without its id."""
    text = result.err.replace(f"job {job_id}: ", "")
    lines = [line.removeprefix("hocket: ") for line in text.splitlines()]
    return [re.sub(r"in \d\.\d seconds", "soon", line) for line in lines if " serves " not in line]


def test_by_default_a_worker_says_what_went_wrong(talk: Program) -> None:
    job_id = talk.submit("talk.sync", '{"fail": true}')
    assert said(work(talk), job_id) == [
        "complained",
        "WARNING acme: warned",
        "talk.sync failed: ValueError: it broke; it is tried again soon",
        "complained",
        "WARNING acme: warned",
    ]


@pytest.mark.touches("LW-41")
def test_with_v_it_tells_the_course_of_each_job(talk: Program) -> None:
    job_id = talk.submit("talk.sync", '{"fail": true}')
    lines = said(work(talk, "-v"), job_id)
    assert [line for line in lines if "acme" not in line and line != "complained"] == [
        "talk.sync started",
        "talk.sync failed: ValueError: it broke; it is tried again soon",
        "try 2 soon",
        "talk.sync started",
        "talk.sync succeeded",
    ]
    assert lines.count("INFO acme: noted") == 2 and "claimed" not in lines
    again = talk.submit("talk.sync")
    everything = said(work(talk, "-vv"), again)
    assert {"claimed", "DEBUG acme: details"} <= {*everything}


def test_with_q_it_says_only_warnings_and_with_qq_only_errors(talk: Program) -> None:
    job_id = talk.submit("talk.sync", '{"fail": true}')
    quiet = work(talk, "-q")
    assert "serves" not in quiet.err
    assert "talk.sync failed: ValueError: it broke; it is tried again soon" in said(quiet, job_id)
    job_id = talk.submit("talk.sync", '{"fail": true}')
    assert work(talk, "-qq").err == "complained\ncomplained\n", "a failure that is retried is no error yet"
    failing = talk.submit("talk.sync", '{"wrong": 1}')
    assert f"job {failing}: talk.sync failed: the payload of talk.sync is wrong" in work(talk, "--quiet", "--quiet").err


def test_log_lines_as_json(talk: Program) -> None:
    job_id = talk.submit("talk.sync", '{"fail": true}')
    result = work(talk, "-v", "--log-format", "json")
    assert result.out == "done: 1 succeeded, 1 failed, 0 handed back\n", "the answer is for people all the same"
    lines: list[dict[str, Any]] = [json.loads(line) for line in result.err.splitlines()]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", each["time"]) for each in lines)
    events = {each["type"]: each for each in lines if "type" in each}
    assert [*events] == ["WorkerStarted", "RunStarted", "RunFailed", "RetryPlanned", "RunFinished"]
    failed = events["RunFailed"]
    assert (failed["level"], failed["logger"], failed["job_id"]) == ("warning", "hocket.jobs", job_id)
    assert failed["text"].startswith(f"job {job_id}: talk.sync failed: ValueError: it broke; it is tried again in ")
    records = [each for each in lines if not each["logger"].startswith("hocket.")]
    assert [(each["logger"], each["level"], each["text"], each["job_id"]) for each in records] == [
        ("stdout", "info", "printed", job_id),
        ("stderr", "info", "complained", job_id),
        ("acme", "info", "noted", job_id),
        ("acme", "warning", "warned", job_id),
    ] * 2


def test_a_module_that_configures_logging_keeps_its_own_way(talk: Program, tmp_path: Path) -> None:
    configured = 'logging.basicConfig(level=logging.INFO, format="mine: %(message)s")'
    (tmp_path / "talk.py").write_text(TASKS.format(configured=configured))
    job_id = talk.submit("talk.sync")
    assert said(work(talk), job_id) == ["complained", "mine: noted", "mine: warned"]
    kept = talk("logs", job_id, code=0).out.splitlines()
    assert [line.split(",")[-1].split(" ", 1)[-1] for line in kept] == [
        *("printed", "complained", "INFO acme: noted", "WARNING acme: warned"),
    ], "each line once"


def test_a_git_worker_has_the_same_options(hocket: Program, tmp_path: Path) -> None:
    repository = tmp_path / "jobs.git"
    subprocess.run(["git", "init", "--quiet", "--bare", repository], check=True)
    ends = []
    for program in ("true", "false"):
        hocket("git", "submit", repository, "-", input=json.dumps({"command": [program], "timeout": 60}), code=0)
        options = ("--allow-any", "--until-idle", "-v", "--log-format", "json")
        result = hocket("git", "work", repository, *options, code=0)
        events = [json.loads(line) for line in result.err.splitlines()]
        ends.append([each["type"] for each in events if each["logger"] == "hocket.jobs"])
    assert ends == [["RunStarted", "RunFinished"], ["RunStarted", "RunFailed"]]


def test_a_server_has_the_same_options(hocket: Program) -> None:
    server = hocket.start("serve", "--host", "0.0.0.0", "--port", "0", "--log-format", "json")
    assert server.stdout is not None and server.stdout.readline().startswith("address\t")
    server.terminate()
    (warned,) = [json.loads(line) for line in hocket.finished(server).err.splitlines()]
    assert (warned["type"], warned["level"], warned["logger"]) == ("TrafficNotEncrypted", "warning", "hocket.node")


# What handlers print and log.


def test_logs_of_a_handler(talk: Program) -> None:
    job_id = talk.submit("talk.sync")
    names = ("anna", "bert", "carl")
    others = {name: talk.submit("talk.async", json.dumps({"name": name})) for name in names}
    silent = talk.submit("test.echo")
    work(talk, "tasks.py")
    kept = talk("logs", job_id, code=0).out.splitlines()
    assert kept[:2] == ["printed", "complained"]
    assert [line.split(" ", 2)[2] for line in kept[2:]] == ["INFO acme: noted", "WARNING acme: warned"]
    for name, other in others.items():
        first, second = talk("logs", other, code=0).out.splitlines()
        assert first == f"{name} begins" and second.endswith(f"INFO acme: {name} ends")
    assert talk("logs", silent, code=0).out == ""
    assert "one stream" in talk("logs", job_id, "--stderr", code=2).sentence


def test_logs_of_a_job_that_was_retried_are_those_of_its_last_run(talk: Program, tmp_path: Path) -> None:
    job_id = talk.submit("talk.sync", '{"fail": true}')
    work(talk)
    assert talk("logs", job_id, code=0).out.count("printed") == 1
    files = sorted(path.name for path in (talk.home / "output").glob("*/*"))
    assert files == [f"{job_id}.1.handler", f"{job_id}.2.handler"]


def test_a_handler_is_followed_while_it_runs(talk: Program, tmp_path: Path) -> None:
    go = tmp_path / "go"
    job_id = talk.submit("talk.slowly", json.dumps({"go": str(go)}))
    following = talk.start("logs", job_id, "--follow")
    worker = talk.start("work", "talk.py")
    assert following.stdout is not None and following.stdout.readline() == "first\n"
    until(lambda: talk("logs", job_id, code=0).out == "first\n", "the first line")
    go.touch()
    assert talk.finished(following).out == "last\n"
    worker.terminate()
    assert "last\n" in talk.finished(worker).out, "what is printed is still shown"
