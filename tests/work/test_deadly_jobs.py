"""A handler that kills its worker: its neighbours are returned with it twice. From then on each of them runs alone, so
only the one that kills goes on to the limit of returns.
"""

from pathlib import Path
from typing import Any

import pytest

import hocket
from tests.work.mesh import PATIENCE_S, Mesh, Process

MODULES: dict[str, Any] = {"modules": [str(Path(__file__).with_name("hung.py"))]}
NEIGHBOURS = 3


def killed(worker: Process) -> None:
    assert worker.popen.wait(PATIENCE_S) != 0


class Deadly:
    """A job that kills, between others. Two workers have died with all of them."""

    def __init__(self, mesh: Mesh, **options: Any) -> None:
        self.gate, self.kill = mesh.root / "gate", mesh.root / "kill"
        self.killer = mesh.node.submit("hung.kill", path=str(self.kill))
        self.others = [mesh.node.submit("step.gate", path=str(self.gate)) for _ in range(NEIGHBOURS)]
        first = mesh.worker(**MODULES, **options).up()
        mesh.wait_journal("start", NEIGHBOURS + 1)
        self.kill.touch()
        killed(first)
        killed(mesh.worker(**MODULES, **options))
        self.gate.touch()
        self.before = len(mesh.journal("start"))

    def returns(self) -> list[int]:
        return [each.status()["returns"] for each in self.others]


@pytest.mark.req("LW-41")
def test_after_two_deaths_each_job_of_a_dead_worker_runs_alone(mesh: Mesh) -> None:
    deadly = Deadly(mesh)
    workers = []
    while not all(each.status()["outcome"] for each in deadly.others):
        assert len(workers) < 4, "its neighbours were done after the second worker"
        workers.append(mesh.worker(**MODULES))
        killed(workers[-1])
    assert [each.result(PATIENCE_S) for each in deadly.others] == [3] * NEIGHBOURS
    assert set(deadly.returns()) == {2}
    assert deadly.killer.status()["fence"] == 2 + len(workers)
    for line in mesh.journal("start")[deadly.before :]:
        same = [each for each in mesh.journal() if each["pid"] == line["pid"]]
        after = same[same.index(line) + 1 :]
        is_next = bool(after) and (after[0]["job"], after[0]["event"]) != (line["job"], "end")
        assert not is_next, "another one began beside it"
    said = workers[0].output.read_text()
    assert f"job {deadly.killer.job_id}: 2 worker processes died while they held it; it runs alone, and this" in said


@pytest.mark.req("LW-41")
def test_a_job_that_was_retried_by_hand_runs_beside_others_again(mesh: Mesh) -> None:
    deadly = Deadly(mesh)
    deadly.kill.unlink()
    deadly.gate.unlink()
    for each in (deadly.killer, *deadly.others):
        each.cancel()
        each.retry()
    mesh.worker(**MODULES)
    mesh.wait_journal("start", deadly.before + NEIGHBOURS + 1)
    deadly.gate.touch()
    assert [each.result(PATIENCE_S) for each in deadly.others] == [3] * NEIGHBOURS


def test_with_processes_a_job_that_killed_workers_gets_one_of_its_own_and_fails(mesh: Mesh) -> None:
    deadly = Deadly(mesh)
    worker = mesh.worker(**MODULES, processes=1, concurrency=4).up()
    with pytest.raises(hocket.JobFailed, match="its process was killed by SIGKILL"):
        deadly.killer.result(PATIENCE_S)
    assert [each.result(PATIENCE_S) for each in deadly.others] == [3] * NEIGHBOURS
    assert worker.popen.poll() is None
    starts = mesh.journal("start")[deadly.before :]
    assert len({line["pid"] for line in starts}) == len(starts) == NEIGHBOURS + 1, "each has a process of its own"
    assert "it runs alone, in a process of its own" in worker.output.read_text()
