"""Commands that wait say what they wait for; workers say what they serve; no command waits for a worker that will not
run it.
"""

import json
import os
import pty
import signal
import subprocess
from collections.abc import Callable

import pytest

from hocket.kernel.vocabulary import RouteKind
from hocket.node.runtime import Runtime

from .conftest import PATIENCE_S, PROGRAM, Program, until


def starts(hocket: Program, *arguments: object) -> "subprocess.Popen[str]":
    """A worker that is up."""
    worker = hocket.start("work", "tasks.py", *arguments)
    until(lambda: hocket("status", "--json").json["workers"], "the worker")
    return worker


# What a worker serves.


@pytest.mark.parametrize("kinds", [("test.ech",), ("test.echo", "acme.")])
def test_kinds_that_match_nothing_are_an_error(hocket: Program, kinds: tuple[str, ...]):
    asked = [word for kind in kinds for word in ("--kinds", kind)]
    said = hocket("work", "tasks.py", "--until-idle", *asked, code=2).sentence
    assert said == (
        f"--kinds {kinds[-1]} matches no handler; there are hocket.run, test.echo, test.fail, test.slow, test.stuck"
    )


def test_a_worker_says_what_it_really_serves(hocket: Program):
    said = hocket("work", "tasks.py", "--until-idle", "--kinds", "test.echo", "--kinds", "test.fail", code=0).err
    assert said.endswith(" serves test.echo, test.fail\n")


def test_a_worker_of_a_kind_that_is_routed_elsewhere_says_so(hocket: Program):
    with Runtime.open(hocket.home) as runtime:
        runtime.log.run(lambda tx: tx.author(RouteKind("test.echo", 7)))
    said = hocket("work", "tasks.py", "--until-idle", "--kinds", "test.echo", "--kinds", "test.fail", code=0).err
    assert "this node may not claim test.echo jobs" in said and " serves test.fail\n" in said


def test_status_shows_each_worker_with_its_node_kinds_and_jobs_and_the_server(hocket: Program, tmp_path_factory):
    assert "server\tnone\nworkers\tnone\n" in hocket("status", code=0).out
    server = hocket.start("serve", "--port", "0", "--json")
    assert server.stdout is not None
    server.stdout.readline()
    starts(hocket, "--kinds", "test.slow")
    began = tmp_path_factory.mktemp("began") / "began"
    job = hocket.submit("test.slow", f'{{"began": "{began}"}}')
    until(began.exists, "the run")
    status = hocket("status", "--json", code=0).json
    (worker,) = status["workers"]
    assert (worker["kinds"], worker["running"]) == (["test.slow"], [job])
    assert worker["node"] == status["node"] and worker["name"] == status["name"]
    (running,) = status["servers"]
    assert running["pid"] == server.pid and running["address"].startswith("http://127.0.0.1:")
    text = hocket("status", code=0).out
    name = status["name"] or status["node"]
    assert f"worker\t{name}: process {worker['pid']}, started " in text
    assert f" serves test.slow, runs 1 ({job})\n" in text
    assert f"server\t{running['address']}, process {server.pid}, started " in text
    server.kill()
    server.wait()
    assert hocket("status", "--json").json["servers"] == []


# Commands that wait.


def test_a_wait_says_once_that_nobody_serves_the_kind(hocket: Program):
    late = hocket("submit", "acme.render", "--wait-for", "3s", code=5)
    first, last = late.err.splitlines()
    assert first == "hocket: waiting: no worker that this node knows of serves acme.render"
    assert f"job {late.job_id} has not ended within 3 seconds: no worker that this node knows of serves" in last
    assert hocket.show(late.job_id)["waits_for"] == "no worker that this node knows of serves acme.render"
    assert "waits for\tno worker that this node knows of serves acme.render\n" in hocket("show", late.job_id).out
    assert "  waits: no worker that this node knows of serves acme.render\n" in hocket("why", late.job_id).out


def test_with_json_a_wait_is_an_object_on_stderr(hocket: Program):
    late = hocket("submit", "acme.render", "--wait-for", "2s", "--json", code=5)
    told = json.loads(late.err.splitlines()[0])
    assert (told["type"], told["reason"]) == ("JobWaiting", "no worker")
    assert told["detail"] == "no worker that this node knows of serves acme.render"


def test_on_a_terminal_the_line_changes_in_place(hocket: Program):
    worker = starts(hocket, "--kinds", "test.fail")
    screen, terminal = pty.openpty()
    waiting = subprocess.Popen(
        [*PROGRAM, "submit", "test.echo", '{"n": 1}', "--wait"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=terminal,
        text=True,
        env=hocket.environment(),
        cwd=hocket.home.parent,
    )
    hocket.started.append(waiting)
    os.close(terminal)
    shown = read_until(screen, lambda text: "serves test.echo" in text)
    worker.send_signal(signal.SIGTERM)
    starts(hocket)
    shown += read_until(screen, None)
    os.close(screen)
    assert waiting.wait(PATIENCE_S) == 0
    assert "\n" not in shown and shown.count("\r\x1b[2K") >= 2
    assert shown.endswith("\r\x1b[2K")


def read_until(screen: int, is_enough: "Callable[[str], bool] | None") -> str:
    """What a terminal shows, until that is enough, or its last user is gone."""
    shown = ""
    while is_enough is None or not is_enough(shown):
        try:
            shown += os.read(screen, 4096).decode()
        except OSError:
            break
    return shown


def test_a_watch_says_what_pending_jobs_wait_for(hocket: Program):
    for _ in range(2):
        hocket.submit("acme.render")
    watch = hocket.start("jobs", "--watch")
    assert watch.stderr is not None
    assert watch.stderr.readline() == "hocket: 2 waiting: no worker that this node knows of serves acme.render\n"


# `hocket run`.


def test_run_does_not_wait_for_a_worker_of_other_kinds(hocket: Program):
    starts(hocket, "--kinds", "test.echo")
    done = hocket("run", "--", "echo", "hello", code=0)
    assert done.out == "hello\n"


def test_run_does_not_wait_for_a_worker_that_is_stopping(hocket: Program, tmp_path_factory):
    worker = starts(hocket, "--grace", "60s")
    began = tmp_path_factory.mktemp("began") / "began"
    hocket.submit("test.slow", f'{{"began": "{began}"}}')
    until(began.exists, "the run")
    worker.send_signal(signal.SIGTERM)
    assert worker.stderr is not None
    while "stopping" not in worker.stderr.readline():
        pass
    assert hocket("run", "--", "echo", "hello", code=0).out == "hello\n"
    assert worker.poll() is None


def test_run_says_what_it_waits_for(hocket: Program, tmp_path_factory):
    """The only slot of the worker is taken."""
    worker = starts(hocket, "--concurrency", "1")
    began = tmp_path_factory.mktemp("began") / "began"
    slow = hocket.submit("test.slow", f'{{"began": "{began}"}}')
    until(began.exists, "the run")
    waiting = hocket.start("run", "--", "echo", "hello")
    assert waiting.stderr is not None
    assert waiting.stderr.readline().startswith("hocket: waiting: ")
    hocket("cancel", slow, code=0)
    assert hocket.finished(waiting).out == "hello\n"
    assert worker.poll() is None
