"""However a command forks, and whoever is killed, none of its processes is left."""

import ctypes
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from hocket.extensions.command.command_runs import ANSWER_S
from hocket.extensions.command.execute import CommandResult
from hocket.work.handler_errors import Cancelled
from tests.extensions.command.bench import (
    MARK,
    PATIENCE_S,
    Bench,
    children,
    descriptors,
    never,
    now_ms,
    processes_with,
    wait_for,
)

ROOT = Path(__file__).resolve().parents[3]

# Each leaves a process behind that would sleep for an hour, and says so when it is there.
AWAY = {
    "in the background": "sleep 3600 & echo there",
    "nohup": "nohup sleep 3600 >/dev/null 2>&1 & echo there",
    "setsid": "setsid -f sleep 3600; echo there",
    "forked twice": "(setsid setsid -f sh -c 'trap \"\" TERM HUP INT; sleep 3600' &) ; echo there",
    "stopped": "sh -c 'kill -STOP $$; sleep 3600' & echo there",
}
DEAF = """
import os, signal, time
for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(each, signal.SIG_IGN)
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        break
print("there", flush=True)
while True:
    time.sleep(3600)
"""
# Forks as fast as it can until there are as many as it may make, each in a session of its own if so told.
BOMB = """
import os, sys, time
limit, apart = int(sys.argv[1]), sys.argv[2] == "apart"
counter = os.open("count", os.O_CREAT | os.O_RDWR | os.O_APPEND)
while os.fstat(counter).st_size < limit:
    try:
        if os.fork() == 0:
            if apart:
                os.setsid()
            os.write(counter, b"x")
    except OSError:
        time.sleep(0.01)
time.sleep(3600)
"""


@pytest.mark.parametrize("how", AWAY)
def test_what_is_left_when_a_command_ends_is_killed(bench: Bench, how: str) -> None:
    ended = bench.shell(AWAY[how])
    assert (ended.exit_code, ended.why, bytes(bench.heard["stdout"])) == (0, "exited", b"there\n")
    assert bench.survivors() == []


@pytest.mark.req("GT-01")
def test_a_timeout_ends_all_processes_also_those_that_ignore_it(bench: Bench) -> None:
    ended = bench.python(DEAF, timeout_s=2, grace_s=0.3)
    assert (ended.why, ended.exit_code, ended.signal) == ("timeout", None, signal.SIGKILL)
    assert ended.detail == "it was stopped after its timeout of 2 s; it was killed by SIGKILL"
    assert bench.heard["stdout"].count(b"there\n") >= 1
    assert ended.resources.wall_s >= 2.3
    assert bench.survivors() == []


def test_a_command_that_is_stopped_may_put_its_things_in_order(bench: Bench) -> None:
    ended = bench.shell(
        "trap 'echo bye; exit 7' TERM; (trap 'sleep 0.2; echo too' TERM; sleep 60 & wait) & wait", timeout_s=0.5
    )
    assert (ended.why, ended.exit_code, ended.signal) == ("timeout", 7, None)
    assert sorted(bench.heard["stdout"].split()) == [b"bye", b"too"], "also the ones that outlive the first"
    assert ended.resources.wall_s < PATIENCE_S, "and no longer than they need"
    assert bench.survivors() == []


def test_a_command_that_has_stopped_itself_hears_that_it_is_to_end(bench: Bench) -> None:
    ended = bench.shell("trap 'echo bye; exit 7' TERM; kill -STOP $$; sleep 3600", timeout_s=0.3, grace_s=PATIENCE_S)
    assert (ended.why, ended.exit_code, bytes(bench.heard["stdout"])) == ("timeout", 7, b"bye\n")


def test_a_command_is_stopped_when_the_worker_says_so(bench: Bench) -> None:
    heard = threading.Event()

    def hear(stream: str, chunk: bytes) -> None:
        heard.set()

    ended = bench.runner.run(bench.order("sh", "-c", "echo there; sleep 3600"), hear, heard.is_set, now_ms)
    assert (ended.why, ended.signal) == ("stopped", signal.SIGTERM)
    assert bench.survivors() == []


@pytest.mark.parametrize("apart", ["together", "apart"])
def test_a_fork_bomb_is_ended(bench: Bench, apart: str) -> None:
    ended = bench.python(BOMB, "200", apart, timeout_s=2, grace_s=0)
    assert ended.why == "timeout"
    assert (bench.work / "count").stat().st_size > 50
    assert bench.survivors() == []


def test_a_fork_bomb_is_ended_while_it_grows(bench: Bench) -> None:
    grown = bench.work / "count"
    ended = bench.python(
        BOMB, "500", "apart", should_stop=lambda: grown.exists() and grown.stat().st_size > 50, grace_s=0
    )
    assert ended.why == "stopped"
    assert bench.survivors() == []


def raised_in(bench: Bench, error: type[BaseException], script: str, grace_s: float = 0.2) -> list[object]:
    """Runs a command in a thread and raises something there as the worker does when a job is cancelled."""
    outcome: list[object] = []

    def work() -> None:
        try:
            outcome.append(bench.shell(script, grace_s=grace_s))
        except BaseException as caught:
            outcome.append(type(caught))

    thread = threading.Thread(target=work)
    thread.start()
    wait_for(lambda: b"there" in bench.heard["stdout"], "the command")
    assert thread.ident is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(error))
    thread.join(PATIENCE_S)
    return outcome


def test_a_cancelled_job_stops_its_command(bench: Bench) -> None:
    assert bench.run("true").exit_code == 0
    before = descriptors()
    assert raised_in(bench, Cancelled, "trap '' TERM; echo there; sleep 3600 & sleep 3600") == [Cancelled]
    assert bench.survivors() == []
    assert descriptors() <= before
    assert bench.run("true").exit_code == 0


def test_a_cancelled_job_lets_its_command_put_its_things_in_order(bench: Bench) -> None:
    script = "trap 'sleep 0.2; echo bye > farewell; exit' TERM; echo there; while true; do sleep 0.05; done"
    assert raised_in(bench, Cancelled, script, grace_s=PATIENCE_S) == [Cancelled]
    assert (bench.work / "farewell").read_text() == "bye\n"
    assert bench.survivors() == []


@pytest.mark.parametrize("after_us", [*range(0, 6_000, 250)])
def test_a_job_that_is_cancelled_at_any_moment_leaves_nothing(bench: Bench, after_us: int) -> None:
    assert bench.run("true").exit_code == 0
    before, outcome = descriptors(), []

    def work() -> None:
        try:
            try:
                outcome.append(bench.shell("sleep 3600 & wait", grace_s=0.1))
            except Cancelled:
                outcome.append(None)
        except Cancelled:
            outcome.append(None)

    thread = threading.Thread(target=work)
    thread.start()
    until = time.perf_counter() + after_us / 1e6
    while time.perf_counter() < until:
        pass
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Cancelled))
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    wait_for(lambda: not bench.survivors(), "the command to be gone")
    assert descriptors() <= before
    assert bench.run("true").exit_code == 0


def test_what_a_listener_raises_stops_the_command(bench: Bench) -> None:
    def hear(stream: str, chunk: bytes) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        bench.runner.run(bench.order("sh", "-c", "echo there; sleep 3600"), hear, never, now_ms)
    assert bench.survivors() == []


def test_closing_the_keeper_stops_the_commands(bench: Bench) -> None:
    outcome: list[CommandResult] = []
    thread = threading.Thread(target=lambda: outcome.append(bench.shell("echo there; sleep 3600")))
    thread.start()
    wait_for(lambda: bench.heard["stdout"], "the command")
    bench.runner.close()
    thread.join(PATIENCE_S)
    assert [ended.why for ended in outcome] == ["stopped"]
    assert bench.survivors() == []


def supervisors(runner: int) -> set[int]:
    found = set()
    for child in children(runner):
        try:
            if Path(f"/proc/{child}/comm").read_text().startswith("hocket-"):
                found.add(child)
        except OSError:
            continue
    return found


def has_no_strays(runner: int) -> bool:
    return not children(runner).keys() - supervisors(runner)


def killed_meanwhile(bench: Bench, kill: Callable[[], None]) -> CommandResult:
    outcome: list[CommandResult] = []
    thread = threading.Thread(target=lambda: outcome.append(bench.python(DEAF)))
    thread.start()
    wait_for(lambda: bench.heard["stdout"].count(b"there") >= 4, "the command's processes")
    assert len(bench.survivors()) >= 4
    kill()
    thread.join(PATIENCE_S)
    assert outcome, "the run must end"
    return outcome[0]


def test_when_the_keeper_is_killed_its_commands_are_lost_and_the_next_one_has_a_new_keeper(bench: Bench) -> None:
    bench.run("true")
    before = descriptors()
    first = bench.runner.process
    assert first is not None
    ended = killed_meanwhile(bench, lambda: os.kill(first, signal.SIGKILL))
    assert (ended.why, ended.exit_code) == ("lost", None)
    assert "the command's supervisor was killed, and the command with it" in ended.detail
    assert bench.survivors() == []
    assert bench.run("true").exit_code == 0
    assert bench.runner.process != first
    assert descriptors() <= before
    assert first not in children(os.getpid())


def test_when_a_supervisor_is_killed_the_keeper_ends_its_command(bench: Bench) -> None:
    bench.run("true")
    runner = bench.runner.process
    assert runner is not None
    wait_for(lambda: children(runner) == {}, "the supervisor of that to be gone")
    other: list[CommandResult] = []
    (bench.streams / "other").mkdir()
    neighbour = threading.Thread(
        target=lambda: other.append(bench.shell("sleep 1.5; exit 5", streams=bench.streams / "other"))
    )
    neighbour.start()
    (first,) = wait_for(lambda: [*supervisors(runner)], "the neighbour's supervisor")

    def kill() -> None:
        (supervisor,) = supervisors(runner) - {first}
        os.kill(supervisor, signal.SIGKILL)

    ended = killed_meanwhile(bench, kill)
    assert ended.why == "lost"
    neighbour.join(PATIENCE_S)
    assert [each.exit_code for each in other] == [5], "another command is none of this"
    wait_for(lambda: not bench.survivors(), "the command to be gone")
    assert bench.run("true").exit_code == 0
    assert bench.runner.process == runner


def test_a_supervisor_that_does_not_answer_is_given_up(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hocket.extensions.command.command_runs.OVERDUE_S", 0.5)
    # The command stops the process that watches over it.
    ended = bench.shell("echo there; kill -STOP $PPID; sleep 3600", timeout_s=0.3, grace_s=0)
    assert ended.why == "lost"
    wait_for(lambda: not bench.survivors(), "the command to be gone")
    assert bench.run("true").exit_code == 0


def test_a_keeper_that_dies_before_it_takes_an_order_is_replaced(bench: Bench) -> None:
    bench.run("true")
    runner = bench.runner.process
    assert runner is not None
    os.kill(runner, signal.SIGKILL)
    ended = bench.shell("echo once >> journal")
    assert ended.exit_code == 0
    assert (bench.work / "journal").read_text() == "once\n"


# The command stops the process that watches over it, which then cannot do so any more.
STOPPING = DEAF.replace("print(", "os.kill(os.getppid(), signal.SIGSTOP)\nprint(", 1)


@pytest.mark.parametrize("script", [DEAF, STOPPING], ids=["deaf", "stopping its supervisor"])
def test_when_the_worker_is_killed_everything_is_gone(bench: Bench, tmp_path: Path, script: str) -> None:
    (tmp_path / "other").mkdir()
    worker = subprocess.Popen(
        [sys.executable, "-m", "tests.extensions.command.worker_process", str(tmp_path / "other"), bench.mark, script],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
    )
    assert worker.stdout is not None
    runner = int(worker.stdout.readline())
    wait_for(lambda: len(bench.survivors()) >= 4, "the command's processes")
    if script == STOPPING:
        (supervisor,) = wait_for(lambda: [*supervisors(runner)], "the supervisor")
        wait_for(lambda: children(runner).get(supervisor) == "T", "the supervisor to be stopped")
    worker.kill()
    worker.wait()
    worker.stdout.close()
    wait_for(lambda: not bench.survivors() and not Path(f"/proc/{runner}").exists(), "everything to be gone")


def test_a_copy_of_the_worker_does_not_keep_its_commands_alive(bench: Bench) -> None:
    """A copy made by fork has the sockets, too, and must not pass for the worker."""
    outcome: list[CommandResult] = []
    thread = threading.Thread(target=lambda: outcome.append(bench.run("sleep", "3600")))
    thread.start()
    wait_for(bench.survivors, "the command")
    copy = os.fork()
    if copy == 0:
        time.sleep(3600)
        os._exit(0)
    try:
        closing = time.monotonic()
        bench.runner.close()
        assert time.monotonic() - closing < ANSWER_S, "the runner did not have to be killed"
        thread.join(PATIENCE_S)
        assert [ended.why for ended in outcome] == ["stopped"]
        assert bench.survivors() == []
    finally:
        os.kill(copy, signal.SIGKILL)
        os.waitpid(copy, 0)


def test_nothing_is_left_of_commands_that_meet_every_misfortune(bench: Bench) -> None:
    """Some threads run commands of all kinds, while keepers, supervisors and jobs are killed at random."""
    bench.run("true")
    before, rounds, whys = descriptors(), 12, []
    others = {*children(os.getpid())} - {bench.runner.process}  # servers that other tests use
    scripts = ["exit 3", "sleep 0.05", "setsid -f sleep 3600", "sleep 3600", "head -c 300000 /dev/zero", DEAF]
    chance = random.Random(7)
    threads = []

    def work(number: int, dice: random.Random) -> None:
        streams = bench.streams / f"of-{number}"
        streams.mkdir()
        done = 0
        while done < rounds:
            try:
                script = dice.choice(scripts)
                line = (sys.executable, "-I", "-S", "-c", script) if script == DEAF else ("sh", "-c", script)
                bounds = {"timeout_s": dice.choice([0.1, 0.2]), "grace_s": dice.choice([0, 0.05])}
                order = bench.order(*line, streams=streams, **bounds)
                done += 1
                whys.append(bench.runner.run(order, lambda stream, chunk: None, never, now_ms).why)
            except Cancelled:
                whys.append("cancelled")

    def start(number: int) -> None:
        try:
            work(number, random.Random(number))
        except Cancelled:
            whys.append("cancelled")

    for number in range(4):
        threads.append(threading.Thread(target=start, args=(number,)))
        threads[-1].start()
    while any(thread.is_alive() for thread in threads):
        time.sleep(chance.uniform(0, 0.1))
        runner = bench.runner.process or 0
        victims = [*supervisors(runner), runner] if runner and chance.random() < 0.5 else []
        if victims:
            try:
                os.kill(victim := chance.choice(victims), signal.SIGKILL)
            except ProcessLookupError:
                continue
            # The runner inherits a supervisor's command. Killed in that moment, too, it could not end that any more.
            if victim != runner:
                wait_for(partial(has_no_strays, runner), "the runner to clear")
        elif (thread := chance.choice(threads)).is_alive():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Cancelled))
    wait_for(lambda: not bench.survivors(), "everything to be gone")
    assert {"lost", "cancelled"} <= {*whys}
    assert bench.run("true").exit_code == 0
    wait_for(lambda: descriptors() <= before, "every descriptor to be closed")
    runner = bench.runner.process or 0
    wait_for(lambda: children(runner) == {}, "the runner to be alone")
    assert {*children(os.getpid())} - others == {runner}


def test_marks_are_found() -> None:
    """The check itself: a process that is left is seen."""
    mark = os.urandom(8).hex()
    process = subprocess.Popen(["sleep", "60"], env={MARK: mark, "PATH": os.environ["PATH"]})
    wait_for(lambda: processes_with(f"{MARK}={mark}") == [process.pid], "the process")
    process.kill()
    process.wait()
