"""Hocket where /proc, descriptors for processes and bubblewrap are missing: workers for Python handlers, submits,
locks, messages and sync work, and what runs commands says that it cannot. Nobody has tried a Mac; these tests take away
from Linux what a Mac lacks.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.waiting import wait_for

WITHOUT = Path(__file__).parent
PATIENCE_S = 120

TASKS = """
import os

import hocket


@hocket.job("acme.where")
def where(ctx, **payload):
    return {"has_pidfd": hasattr(os, "pidfd_open"), "has_proc": os.path.exists("/proc/self"), **payload}


"""


class Machine:
    """A home below a path that is too long for the address of a socket, and the program on such a system."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / ("long" * 30)
        self.folder.mkdir()
        (self.folder / "tasks.py").write_text(TASKS)
        self.started: list[subprocess.Popen[str]] = []
        path = os.pathsep.join([str(WITHOUT), str(WITHOUT.parents[1] / "src")])
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HOCKET")}
        self.environment = kept | {"PYTHONPATH": path, "HOCKET_HOME": str(self.folder / "home")}

    def start(self, *words: object) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "hocket", *map(str, words)]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(command, text=True, env=self.environment, cwd=self.folder, **pipes)
        self.started.append(process)
        return process

    def __call__(self, *words: object, code: int = 0) -> str:
        process = self.start(*words)
        out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == code and "Traceback" not in err, err
        return out if code == 0 else err

    def end(self) -> None:
        for process in self.started:
            process.kill()
            process.wait()
            for pipe in (process.stdout, process.stderr):
                assert pipe is not None
                pipe.close()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    made("init", "--name", "mac")
    yield made
    made.end()


def result_of(machine: Machine, job_id: str) -> dict[str, object]:
    shown = json.loads(machine("show", job_id, "--json"))
    assert shown["outcome"] == "succeeded", shown
    found: dict[str, object] = shown["result"]
    return found


def test_the_system_lacks_what_it_should(machine: Machine) -> None:
    asked = "from hocket import system; print(system.has_fd_paths(), system.has_process_control())"
    words = [sys.executable, "-c", asked]
    done = subprocess.run(words, capture_output=True, text=True, env=machine.environment, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_a_worker_runs_python_handlers(machine: Machine) -> None:
    for options in ((), ("--processes", "1")):
        job_id = machine("submit", "acme.where").split()[-1]
        machine("work", "tasks.py", "--until-idle", *options)
        assert result_of(machine, job_id) == {"has_pidfd": False, "has_proc": False}
    machine("log", "verify")


def test_a_job_of_a_killed_worker_runs_again(machine: Machine) -> None:
    """OS locks tell it, and they are POSIX."""
    worker = machine.start("work", "tasks.py")
    first = machine("submit", "acme.where", '{"n": 1}', "--wait", "--json")
    assert json.loads(first)["result"]["n"] == 1
    worker.kill()
    worker.wait()
    second = machine("submit", "acme.where", '{"n": 2}').split()[-1]
    machine("work", "tasks.py", "--until-idle")
    assert result_of(machine, second)["n"] == 2


def test_a_command_is_refused_here_and_can_be_left_to_others(machine: Machine) -> None:
    said = machine("run", "--", "true", code=2)
    assert said == (
        "hocket: this system cannot run commands: it has no /proc, or no descriptors for processes; send it to a node"
        " with --on, or submit it with --detach\n"
    )
    job_id = machine("run", "--detach", "--", "true").split()[-1]
    machine("work", "tasks.py", "--until-idle")
    assert json.loads(machine("show", job_id, "--json"))["state"] == "pending"
    assert "ok\tcommands\tthis system cannot run commands" in machine("node", "doctor")


def test_locks_and_a_command_under_a_lock(machine: Machine) -> None:
    assert machine("lock", "acquire", "file:a", "--agent", "ada").strip() == "1"
    assert machine("lock", "acquire", "file:a", "--agent", "bob", code=3)
    assert machine("lock", "run", "file:b", "--", "sh", "-c", "echo $HOCKET_FENCE").strip().isdecimal()
    machine("lock", "run", "file:b", "--", "sh", "-c", "exit 7", code=7)
    assert "cannot run no-such-program" in machine("lock", "run", "file:b", "--", "no-such-program", code=2)


def test_a_command_whose_lock_is_lost_is_stopped(machine: Machine) -> None:
    running = machine.start("lock", "run", "file:b", "--", "sh", "-c", "touch began; sleep 600")
    wait_for((machine.folder / "began").exists, "the command to begin")
    machine("lock", "break", "file:b", "--reason", "test")
    _, said = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 3 and "the lock was lost, so the command was stopped" in said


def test_a_reply_reaches_the_process_that_waits_for_it(machine: Machine) -> None:
    asking = machine.start("mail", "ask", "editor", "ready?", "--json")
    listed: list[dict[str, str]] = []

    def is_there() -> bool:
        listed[:] = json.loads(machine("mail", "inbox", "--agent", "editor", "--claim", "1", "--json"))
        return bool(listed)

    wait_for(is_there, "the question")
    machine("mail", "reply", listed[0]["id"], "yes", "--agent", "editor")
    out, err = asking.communicate(timeout=PATIENCE_S)
    assert asking.returncode == 0 and json.loads(out)["body"] == "yes", err


def test_two_nodes_sync_and_one_works_for_the_other(machine: Machine, tmp_path: Path) -> None:
    server = machine.start("mesh", "serve", "--port", free_port(), "--json")
    assert server.stdout is not None
    address = json.loads(server.stdout.readline())["address"]
    token = machine("mesh", "invite", "leaf", "--worker", "acme.", "--address", address, "--json")
    (tmp_path / "leaf").mkdir()
    leaf = Machine(tmp_path / "leaf")
    try:
        leaf("mesh", "join", json.loads(token)["token"])
        job_id = machine("submit", "acme.where").split()[-1]
        worker = leaf.start("work", "tasks.py")
        wait_for(lambda: json.loads(machine("show", job_id, "--json"))["outcome"], "the other node")
        assert result_of(machine, job_id)["has_proc"] is False
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(PATIENCE_S) == 0
    finally:
        leaf.end()
