"""Handlers in processes of their own: what a handler can do there, what the worker does about one that does not stop or
dies, and that nothing is left behind, whichever process is killed.
"""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket.errors import Usage
from tests.work.mesh import PATIENCE_S, Mesh, Process, wait_for

MODULES: dict[str, Any] = {"modules": [str(Path(__file__).with_name("hung.py"))]}


def is_gone(pid: int) -> bool:
    """Whether the process has ended. One that nobody has waited for yet has ended too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def handler_processes(worker: Process) -> set[int]:
    tasks = Path(f"/proc/{worker.pid}/task")
    found = {int(pid) for each in tasks.glob("*/children") for pid in each.read_text().split()}
    return {pid for pid in found if not is_gone(pid)}


def wait_gone(*pids: int) -> None:
    wait_for(lambda: all(map(is_gone, pids)), f"the processes {pids} to end")


# What a handler can do there.


def test_a_handler_in_a_process_can_do_what_it_can_do_on_a_thread(mesh: Mesh) -> None:
    handles = [mesh.node.submit("hung.make", large=large) for large in (False, True)]
    worker = mesh.worker(**MODULES, processes=2, until_idle=True)
    assert worker.ended() == (2, 0, 0), worker.output.read_text()
    for handle, size in zip(handles, (10, 200_000), strict=True):
        shown = handle.status()
        (made,) = [each for each in shown["artifacts"] if each["type"] == "acme.made"]
        assert (made["artifact_id"], made["size"]) == (handle.result(), size)
        assert [each["type"] for each in shown["artifacts"]].count("likewise.inference.snapshot") == 1
    assert worker.pid not in {line["pid"] for line in mesh.journal("made")}
    assert mesh.journal("made")[0]["answer"] == "how many? two"
    mesh.check_log()


def test_progress_is_shown_while_a_handler_runs(mesh: Mesh) -> None:
    gate = mesh.root / "gate"
    handle = mesh.node.submit("step.tell", path=str(gate))
    mesh.worker(**MODULES, processes=1).up()
    wait_for(lambda: handle.status()["progress"] == {"done": 1}, "the progress")
    gate.touch()
    handle.result(PATIENCE_S)


def test_handlers_use_several_processes_at_once(mesh: Mesh) -> None:
    gate = mesh.root / "gate"
    handles = [mesh.node.submit("step.gate", path=str(gate)) for _ in range(4)]
    mesh.worker(**MODULES, processes=2, concurrency=4).up()
    pids = [line["pid"] for line in mesh.wait_journal("start", 4)]
    assert sorted(pids.count(pid) for pid in set(pids)) == [2, 2]
    gate.touch()
    assert [each.result(PATIENCE_S) for each in handles] == [1] * 4


def test_a_model_call_without_an_answer_is_recorded_though_its_process_was_killed(mesh: Mesh) -> None:
    handle = mesh.node.submit("hung.ask")
    mesh.run(**MODULES, processes=1)
    with pytest.raises(hocket.JobFailed, match="timed out"):
        handle.result(PATIENCE_S)
    assert [each["type"] for each in handle.status()["artifacts"]] == ["likewise.inference.snapshot"]
    wait_gone(mesh.journal("start")[0]["pid"])


def test_a_handler_that_no_process_can_import_is_an_error_at_the_start(mesh: Mesh) -> None:
    @hocket.job("hung.local")
    def local(ctx: hocket.Context) -> None:
        pass

    with pytest.raises(Usage, match=r"no handler of hung\.local .* define it at the top level"):
        mesh.node.work([local], processes=1, until_idle=True)
    with pytest.raises(Usage, match="0 processes"):
        mesh.node.work([local], processes=0, until_idle=True)


# A handler that does not stop, or takes its process along.


def test_a_stuck_handler_costs_its_process_and_nobody_elses(mesh: Mesh) -> None:
    gate = mesh.root / "gate"
    other = mesh.node.submit("step.gate", path=str(gate))
    worker = mesh.worker(**MODULES, processes=2).up()
    (calm,) = [line["pid"] for line in mesh.wait_journal("start")]
    stuck = mesh.node.submit("hung.c")
    hung = mesh.wait_journal("start", 2)[1]["pid"]
    with pytest.raises(hocket.JobFailed):
        stuck.result(PATIENCE_S)
    assert is_gone(hung), "it was killed before its job failed"
    gate.touch()
    assert other.result(PATIENCE_S) == 1
    wait_for(lambda: len(handler_processes(worker)) == 2, "a new process")
    assert calm in handler_processes(worker)


@pytest.mark.parametrize("is_patient", [True, False])
def test_the_others_in_a_stuck_process_finish_or_are_handed_back(mesh: Mesh, is_patient: bool) -> None:
    gate = mesh.root / "gate"
    stuck, other = mesh.node.submit("hung.c"), mesh.node.submit("step.gate", path=str(gate))
    grace = {"GRACE_S": PATIENCE_S if is_patient else 0.1}
    worker = mesh.worker(**MODULES, processes=1, concurrency=2, constants=grace).up()
    (hung,) = {line["pid"] for line in mesh.wait_journal("start", 2)}
    with pytest.raises(hocket.JobFailed):
        stuck.result(PATIENCE_S)
    if is_patient:
        wait_for(lambda: len(handler_processes(worker)) == 2, "a new process beside the stuck one")
        gate.touch()
    else:
        again = mesh.wait_journal("start", 3)[2]
        assert (again["job"], again["fence"]) == (other.job_id, 2) and again["pid"] != hung
        gate.touch()
    assert other.result(PATIENCE_S) == (1 if is_patient else 2)
    wait_gone(hung)


def test_a_handler_that_crashes_fails_and_its_neighbours_do_not(mesh: Mesh) -> None:
    gate, crash = mesh.root / "gate", mesh.root / "crash"
    bad = mesh.node.submit("hung.crash", path=str(crash))
    good = [mesh.node.submit("step.gate", path=str(gate)) for _ in range(3)]
    worker = mesh.worker(**MODULES, processes=1, concurrency=4).up()
    mesh.wait_journal("start", 4)
    crash.touch()
    with pytest.raises(hocket.JobFailed, match="its process was killed by SIGSEGV"):
        bad.result(PATIENCE_S)
    gate.touch()
    for each in good:
        assert each.result(PATIENCE_S) > 1
        assert each.status()["failures"] == 0
    assert worker.popen.poll() is None


def test_handlers_that_cannot_be_loaded_again_are_reported_and_tried_again(mesh: Mesh) -> None:
    worker = mesh.worker(**MODULES, processes=1).up()
    broken = mesh.root / "broken"
    broken.touch()
    for pid in handler_processes(worker):
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: "this module is broken now" in worker.output.read_text(), "the report")
    handle = mesh.node.submit("step.rest")
    broken.unlink()
    assert handle.result(PATIENCE_S) == 1


@pytest.mark.slow
def test_native_code_that_keeps_the_interpreter_does_not_lose_its_lease(mesh: Mesh) -> None:
    handle = mesh.node.submit(hocket.kind("hung.gil", lease="3s"), ms=8_000)
    mesh.run(**MODULES, processes=1)
    assert handle.result(PATIENCE_S) == 1
    assert len(mesh.journal("start")) == 1


# Nothing is left behind.


def test_a_killed_handler_process_loses_its_run_at_once(mesh: Mesh) -> None:
    handle = mesh.node.submit(hocket.kind("hung.c", timeout=0, lease="1d"))
    worker = mesh.worker(**MODULES, processes=2).up()
    pid = mesh.wait_journal("start")[0]["pid"]
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(hocket.JobFailed, match="its process was killed by SIGKILL"):
        handle.result(PATIENCE_S)
    assert mesh.node.submit("step.rest").result(PATIENCE_S) == 1
    wait_for(lambda: len(handler_processes(worker)) == 2, "a new process")


@pytest.mark.slow
def test_a_killed_worker_leaves_no_process_behind_not_even_one_that_keeps_the_interpreter(mesh: Mesh) -> None:
    handle = mesh.node.submit(hocket.kind("hung.gil_and_child", lease="1d"))
    idle = mesh.worker(**MODULES, processes=2).up()
    began = mesh.wait_journal("start")[0]
    processes = handler_processes(idle)
    assert began["pid"] in processes and len(processes) == 2
    idle.kill()
    wait_gone(*processes, began["child"])
    second = mesh.worker(**MODULES, processes=1).up()
    again = mesh.wait_journal("start", 2)[1]
    assert (again["job"], again["fence"]) == (handle.job_id, 2)
    for _ in range(2):
        second.signal(signal.SIGTERM)
    assert second.ended() == (0, 0, 1)
    wait_gone(again["pid"], again["child"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["term", "int"])
def test_a_signal_lets_handlers_finish_and_leaves_no_process_behind(mesh: Mesh, number: int) -> None:
    gate = mesh.root / "gate"
    handle, stuck = mesh.node.submit("step.gate", path=str(gate)), mesh.node.submit(hocket.kind("hung.c", timeout=0))
    worker = mesh.worker(**MODULES, processes=2, grace=PATIENCE_S).up()
    mesh.wait_journal("start", 2)
    processes = handler_processes(worker)
    worker.signal(number)
    gate.touch()
    assert handle.result(PATIENCE_S) == 1
    worker.signal(number)
    assert worker.ended() == (1, 0, 1)
    assert mesh.ops(stuck.job_id)[-1] == "YieldWork"
    wait_gone(*processes)
    assert [path.name for path in (mesh.home / "processes").iterdir()] == []


def test_a_handler_stops_at_the_end_of_its_lease_though_its_worker_is_frozen(mesh: Mesh) -> None:
    mesh.node.submit(hocket.kind("step.spin", lease="500ms"))
    worker = mesh.worker(**MODULES, processes=1).up()
    mesh.wait_journal("start")
    worker.suspend()
    assert mesh.wait_journal("cancelled")[0]["flag"]
