"""Nothing runs for ever: a handler that goes on past its timeout is told to stop, interrupted and given up, on threads
and in processes alike, while the other jobs of its worker complete.
"""

from pathlib import Path
from typing import Any

import pytest

import hocket
from tests.work.mesh import PATIENCE_S, Mesh, wait_for

HUNG = str(Path(__file__).with_name("hung.py"))
MODULES: dict[str, Any] = {"modules": [HUNG]}
# The second says what happens to a handler that does not stop.
WAYS = {
    "hung.c": "timed out after 1 second, and its handler did not stop",
    "hung.loop": "timed out after 1 second",
    "hung.flag": "timed out after 1 second",
    "hung.wait": "timed out after 1 second",
    "hung.swallow": "timed out after 1 second, and its handler did not stop",
    "hung.block": "timed out after 1 second, and its handler did not stop",
}
PLACES = {"threads": {"concurrency": 3}, "processes": {"processes": 2, "concurrency": 3}}


@pytest.mark.touches("LW-18", "LW-41")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", WAYS)
def test_a_hung_handler_fails_by_its_timeout_while_other_jobs_complete(mesh: Mesh, kind: str, place: str) -> None:
    hung = mesh.node.submit(kind)
    before = [mesh.node.submit("step.rest", ms=5) for _ in range(5)]
    worker = mesh.worker(**MODULES, **PLACES[place]).up()
    with pytest.raises(hocket.JobFailed) as caught:
        hung.result(PATIENCE_S)
    assert caught.value.error == WAYS[kind]
    after = [mesh.node.submit(each, ms=5) for each in ("step.rest", "step.arest") for _ in range(5)]
    assert [each.result(PATIENCE_S) for each in (*before, *after)] == [1] * 15
    assert len(mesh.journal("start")) == 16
    assert mesh.ops(hung.job_id)[-1] == "FailWork"
    assert any("to stop, but it goes on" in line for line in worker.lines()) == ("did not stop" in WAYS[kind])
    worker.signal(15)
    assert worker.ended()[:2] == (15, 1)


@pytest.mark.parametrize("place", PLACES)
def test_retries_apply_to_a_timeout(mesh: Mesh, place: str) -> None:
    handle = mesh.node.submit("hung.once")
    mesh.run(**MODULES, **PLACES[place])
    assert handle.result(PATIENCE_S) == 2
    assert mesh.ops(handle.job_id) == ["ScheduleJob", "ClaimWork", "FailWork", "ClaimWork", "CompleteJob"]
    mesh.check_log()


def test_a_stuck_handler_is_shown_where_it_is_stuck(mesh: Mesh) -> None:
    handles = [mesh.node.submit("hung.c") for _ in PLACES]
    for place in PLACES.values():
        mesh.worker(**MODULES, **{**place, "concurrency": 2, "ahead": 0}, until_idle=True)
    for handle in handles:
        with pytest.raises(hocket.JobFailed) as caught:
            handle.result(PATIENCE_S)
        assert "time.sleep(LONG_S)" in (caught.value.traceback or "")


@pytest.mark.parametrize(("given", "hangs"), [("50ms", True), (0, False)])
def test_the_timeout_of_a_job_replaces_its_handlers(mesh: Mesh, given: str | int, hangs: bool) -> None:
    """0 means no timeout, whatever the handler says."""
    handle = mesh.node.submit(hocket.kind("hung.wait", timeout=given))
    other = mesh.node.submit("hung.wait")
    mesh.worker(**MODULES).up()
    with pytest.raises(hocket.JobFailed, match="timed out after 1 second"):
        other.result(PATIENCE_S)
    if hangs:
        with pytest.raises(hocket.JobFailed, match=r"timed out after 0\.05 seconds"):
            handle.result(PATIENCE_S)
    else:
        assert mesh.claim_of(handle.job_id) == ("running", 1)


def test_a_stuck_thread_gives_its_slot_to_a_new_one(mesh: Mesh) -> None:
    stuck = mesh.node.submit("hung.c")
    mesh.worker(**MODULES, concurrency=2).up()
    with pytest.raises(hocket.JobFailed):
        stuck.result(PATIENCE_S)
    gate = mesh.root / "gate"
    both = [mesh.node.submit("step.gate", path=str(gate)) for _ in range(2)]
    mesh.wait_journal("start", 3)
    gate.touch()
    assert [each.result(PATIENCE_S) for each in both] == [1, 1]


def test_async_handlers_behind_one_that_blocks_the_loop_get_another_loop(mesh: Mesh) -> None:
    blocker = mesh.node.submit(hocket.kind("hung.block", priority=1))
    others = [mesh.node.submit("step.arest") for _ in range(2)]
    mesh.worker(**MODULES, concurrency=3).up()
    assert [each.result(PATIENCE_S) for each in others] == [1, 1]
    with pytest.raises(hocket.JobFailed):
        blocker.result(PATIENCE_S)


def test_a_handler_that_ignores_its_cancellation_does_not_keep_its_slot(mesh: Mesh) -> None:
    stuck = mesh.node.submit(hocket.kind("hung.c", timeout=0))
    worker = mesh.worker(**MODULES, concurrency=2, constants={"STOPPED_S": 0.2}).up()
    mesh.wait_journal("start")
    stuck.cancel("enough")
    wait_for(lambda: any("goes on" in line for line in worker.lines()), "the worker to give the handler up")
    gate = mesh.root / "gate"
    both = [mesh.node.submit("step.gate", path=str(gate)) for _ in range(2)]
    mesh.wait_journal("start", 3)
    gate.touch()
    assert [each.result(PATIENCE_S) for each in both] == [1, 1]


def test_a_worker_whose_slots_are_all_stuck_ends_with_an_error(mesh: Mesh) -> None:
    """A program that embeds a worker cannot be replaced from within; its own supervisor does that."""
    stuck = [mesh.node.submit("hung.c") for _ in range(2)]
    worker = mesh.worker(**MODULES, concurrency=2).up()
    assert worker.popen.wait(PATIENCE_S) == 1
    assert "every slot has a handler that does not end" in worker.output.read_text()
    assert [each.status()["outcome"] for each in stuck] == ["failed"] * 2
    with mesh.runtime.read() as session:
        assert session.workers() == []
