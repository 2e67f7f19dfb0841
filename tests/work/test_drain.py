"""Real worker processes on a node that drains, is quarantined and resumes, while jobs run."""

from pathlib import Path

import pytest

from hocket.families.availability.facts import Availability
from hocket.families.availability.requests import set_availability
from hocket.work.handlers import kind
from tests.work.mesh import Mesh, Process, wait_for

ACTIVE, DRAINING, QUARANTINED = Availability
OFTEN = {"BEAT_S": 0.05}


def say(mesh: Mesh, availability: Availability) -> None:
    node = mesh.runtime.log.node
    assert mesh.runtime.log.run(lambda tx: set_availability(tx, node, availability, ""))


def looks_again(mesh: Mesh, worker: Process) -> None:
    """Waits until the worker has had time to look for jobs: it has committed several heartbeats since."""

    def beat() -> int:
        with mesh.runtime.read() as session:
            return next(each.beat for each in session.workers() if each.pid == worker.pid)

    for _ in range(5):
        before = beat()
        wait_for(lambda before=before: beat() > before, "a heartbeat")  # type: ignore[misc]


@pytest.mark.touches("VX-11")
def test_running_jobs_finish_nothing_new_starts_and_resume_takes_up_again(mesh: Mesh, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    worker = mesh.worker(concurrency=2, ahead=0, constants=OFTEN).up()
    running = {mesh.node.submit("step.gate", path=str(gate)).job_id for _ in range(2)}
    mesh.wait_journal("start", 2)
    say(mesh, DRAINING)
    wait_for(lambda: any("draining" in line for line in worker.lines()), "the worker to say so")
    later = [mesh.node.submit("step.rest") for _ in range(3)]
    gate.touch()
    mesh.wait_done(2)
    looks_again(mesh, worker)
    assert {line["job"] for line in mesh.journal("start")} == running
    assert {handle.status()["state"] for handle in later} == {"pending"}
    say(mesh, ACTIVE)
    mesh.wait_done(5)
    assert worker.stop() == 0
    assert worker.ended() == (5, 0, 0)
    mesh.check_log()


def test_a_quarantined_node_returns_what_it_runs(mesh: Mesh) -> None:
    worker = mesh.worker(concurrency=1, ahead=0, constants=OFTEN).up()
    job = mesh.node.submit(kind("step.watch", lease="1h"))  # no renewal is due that could be refused
    mesh.wait_journal("start")
    say(mesh, QUARANTINED)
    mesh.wait_journal("flag")
    wait_for(lambda: mesh.claim_of(job.job_id)[0] == "pending", "the job to go back")
    looks_again(mesh, worker)
    assert len(mesh.journal("start")) == 1
    assert mesh.ops(job.job_id) == ["ScheduleJob", "ClaimWork", "YieldWork"]
    assert any("this node is quarantined" in line for line in worker.lines())
    say(mesh, ACTIVE)
    mesh.wait_journal("start", 2)
    job.cancel()
    worker.stop()
    mesh.check_log()


def test_a_worker_that_works_until_idle_ends_on_a_draining_node(mesh: Mesh) -> None:
    say(mesh, DRAINING)
    mesh.node.submit("step.rest")
    assert mesh.run() == (0, 0, 0)
    assert mesh.journal("start") == []
