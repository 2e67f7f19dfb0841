"""Workers that share a store but not a directory of locks, as on two machines, in real processes. Nobody hands back the
jobs of a worker that runs; those of one that is killed or suspended come back by its silence. Beats are quick here, and
leases so long that none of them decides.
"""

import shutil
import signal
import subprocess
from pathlib import Path

import pytest

import hocket
from hocket.families.liveness import place_of
from tests.work.mesh import PATIENCE_S, Mesh, wait_for

QUICK = {"BEAT_S": 0.2, "SILENT_S": 2.0}
REST = hocket.kind("step.rest", lease="10m")


def second_home(mesh: Mesh) -> Path:
    """A home with the same keys and the same database, and a directory of locks of its own."""
    home = mesh.root / "second"
    (home / "processes").mkdir(parents=True, mode=0o700)
    for name in ("user.key", "node.key", "complete"):
        shutil.copy(mesh.home / name, home)
    (home / "log.db").symlink_to(mesh.home / "log.db")
    return home


def fences(mesh: Mesh) -> set[int]:
    with mesh.runtime.read() as session:
        return {entry.job.fence for entry in session.each_job()}


@pytest.mark.req("LW-18")
@pytest.mark.touches("LW-41", "VX-01")
def test_two_workers_on_one_store_leave_each_others_jobs_alone(mesh: Mesh) -> None:
    """They used to hand them back every round: fence 4 within a second, failed after 25 returns."""
    homes = {"step.rest": mesh.home, "step.arest": second_home(mesh)}
    workers = [mesh.worker(home=home, only=[kind], constants=QUICK).up() for kind, home in homes.items()]
    with mesh.runtime.read() as session:
        assert len({each.place.locks for each in session.workers()}) == 2
    # Longer than a silence may be, so that each of them would be found out.
    ms = QUICK["SILENT_S"] * 1_500
    mesh.node.submit_many([(hocket.kind(kind, lease="10m"), {"ms": ms}) for kind in homes for _ in range(4)])
    mesh.wait_done(8)
    assert {line["pid"] for line in mesh.journal("start")} == {worker.pid for worker in workers}
    assert [worker.stop() for worker in workers] == [0, 0]
    assert fences(mesh) == {1}
    assert len(mesh.journal("start")) == 8
    assert "YieldWork" not in {type(op.payload).__name__ for _, op in mesh.payloads()}
    mesh.check_log()


@pytest.mark.req("LW-37")
@pytest.mark.touches("LW-41")
def test_the_jobs_of_a_killed_worker_come_back_by_its_silence(mesh: Mesh) -> None:
    """The lock of the killed one is free, but in a directory that the other does not see."""
    gate = mesh.root / "gate"
    victim = mesh.worker(home=second_home(mesh), only=["step.gate"], constants=QUICK).up()
    lost = mesh.node.submit_many([(hocket.kind("step.gate", lease="10m"), {"path": str(gate)})] * 2)
    mesh.wait_journal("start", 2)
    other = mesh.worker(constants=QUICK).up()
    kept = mesh.node.submit(REST, ms=QUICK["SILENT_S"] * 1_500)
    mesh.wait_journal("start", job=kept.job_id)
    victim.kill()
    wait_for(lambda: victim.number() is None, "the other to find it dead")
    gate.touch()
    assert [each.result(PATIENCE_S) for each in (*lost, kept)] == [2, 2, 1]
    for each in lost:
        assert mesh.ops(each.job_id)[:4] == ["ScheduleJob", "ClaimWork", "YieldWork", "ClaimWork"]
    assert "returned 2 jobs of a dead worker process to the queue" in other.lines()
    assert other.stop() == 0
    mesh.check_log()


@pytest.mark.req("LW-37")
@pytest.mark.touches("LW-41")
def test_the_jobs_of_a_worker_killed_next_door_come_back_by_its_lock(mesh: Mesh) -> None:
    """Of two that share a directory the lock tells at once. A third, which does not see it, waits."""
    patient = {"SILENT_S": 3_600.0}
    victim = mesh.worker(constants=patient, concurrency=1).up()
    watcher = mesh.worker(constants=patient, only=["family."]).up()
    third = mesh.worker(home=second_home(mesh), constants=patient, only=["family."]).up()
    handle = mesh.node.submit(hocket.kind("step.gate", lease="10m"), path=str(mesh.root / "gate"))
    mesh.wait_journal("start")
    victim.kill()
    wait_for(lambda: mesh.claim_of(handle.job_id)[0] == "pending", "the job to come back")
    assert victim.number() is None

    def locks() -> list[Path]:
        return list((mesh.home / "processes").glob("worker-*.lock"))

    wait_for(lambda: len(locks()) == 1, "the lock of the dead to be removed")
    assert str(watcher.pid) in locks()[0].name
    assert "returned 1 job of a dead worker process to the queue" in watcher.lines()
    assert [watcher.stop(), third.stop()] == [0, 0]


@pytest.mark.req("LW-06", "LW-07")
@pytest.mark.touches("LW-37", "LW-41")
def test_a_worker_that_was_suspended_too_long_has_lost_its_jobs_and_goes_on(mesh: Mesh) -> None:
    suspended = mesh.worker(home=second_home(mesh), constants=QUICK).up()
    handle = mesh.node.submit(hocket.kind("step.watch", lease="10m"))
    mesh.wait_journal("start")
    before = suspended.number()
    suspended.suspend()
    rescuer = mesh.worker(only=["step.watch"], constants=QUICK).up()
    assert [line["fence"] for line in mesh.wait_journal("start", 2)] == [1, 2]
    assert suspended.number() is None
    suspended.signal(signal.SIGCONT)
    # It joins again under another number, and finds that it has lost the job.
    assert wait_for(suspended.number, "it to join again") != before
    assert [(line["fence"], line["pid"]) for line in mesh.wait_journal("flag")] == [(1, suspended.pid)]
    # What either of them holds from now on stays with it.
    others = mesh.node.submit_many([(REST, {"ms": QUICK["SILENT_S"] * 1_500})] * 2)
    assert [each.result(PATIENCE_S) for each in others] == [1, 1]
    assert mesh.claim_of(handle.job_id) == ("running", 2)
    assert {line["pid"] for line in mesh.journal("end")} == {suspended.pid}
    handle.cancel()
    assert [suspended.stop(), rescuer.stop()] == [0, 0]
    assert "CompleteJob" not in mesh.ops(handle.job_id)
    mesh.check_log()


NAMESPACE = ["unshare", "--map-root-user", "--pid", "--fork", "--kill-child"]


def can_have_namespaces() -> bool:
    try:
        return subprocess.run([*NAMESPACE, "true"], capture_output=True, timeout=30).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(not can_have_namespaces(), reason="this system gives out no namespaces")
@pytest.mark.req("LW-37")
@pytest.mark.touches("LW-41")
def test_a_container_with_the_same_directory_is_told_by_the_lock(mesh: Mesh) -> None:
    """Process numbers mean nothing between them, locks do."""
    patient = {"SILENT_S": 3_600.0}
    inside = mesh.worker(before=NAMESPACE, constants=patient, concurrency=1)

    def rows() -> list[str]:
        with mesh.runtime.read() as session:
            return [each.place.namespace for each in session.workers()]

    (namespace,) = wait_for(rows, "the worker in the container to register")
    assert namespace != place_of(mesh.home / "processes").namespace
    handle = mesh.node.submit(hocket.kind("step.gate", lease="10m"), path=str(mesh.root / "gate"))
    mesh.wait_journal("start")
    outside = mesh.worker(constants=patient, concurrency=1).up()
    assert mesh.node.submit(REST, ms=1_500).result(PATIENCE_S) == 1
    assert mesh.claim_of(handle.job_id) == ("running", 1), "six rounds, and nobody took it for dead"
    inside.kill()
    assert [line["fence"] for line in mesh.wait_journal("start", 2, handle.job_id)] == [1, 2]
    assert rows() == [place_of(mesh.home / "processes").namespace]
    (mesh.root / "gate").touch()
    assert handle.result(PATIENCE_S) == 2
    assert outside.stop() == 0
