"""The life of a worker process: how it ends, what handlers can do to it, what it costs, and how soon it wakes."""

import os
import signal
import time
from collections import Counter

import pytest

import hocket
from hocket.families.jobs.requests import Draft
from hocket.kernel.ids import ulid_text
from hocket.kernel.policy import Policy
from hocket.store import Stage
from tests.work.mesh import PATIENCE_S, Mesh, Process, wait_for

GATE = hocket.kind("step.gate", lease="60s")
REST = hocket.kind("step.rest", lease="60s")
COUNTS = ("attempts", "failures", "returns", "fence")
LEASE_S = 60


# Stopping.


@pytest.mark.req("LW-18")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["term", "int"])
def test_a_signal_lets_what_runs_finish_and_hands_back_what_waits(mesh: Mesh, number: int) -> None:
    gate = mesh.root / "gate"
    running, waiting = mesh.node.submit_many([(GATE, {"path": str(gate)}), (REST, {})])
    worker = mesh.worker(concurrency=1, grace=PATIENCE_S, constants={"QUEUED_MAX_S": PATIENCE_S}).up()
    mesh.wait_journal("start")
    wait_for(lambda: mesh.claim_of(waiting.job_id) == ("running", 1), "the second job to be claimed ahead")
    worker.signal(number)
    wait_for(lambda: mesh.ops(waiting.job_id)[-1] == "YieldWork", "the second job to be handed back")
    assert mesh.claim_of(running.job_id) == ("running", 1)
    assert worker.popen.poll() is None
    gate.touch()
    assert worker.ended() == (1, 0, 1)
    assert worker.popen.returncode == 0
    assert running.result(PATIENCE_S) == 1
    assert len(mesh.journal("start")) == 1


@pytest.mark.req("LW-18")
@pytest.mark.parametrize("kind", ["step.spin", "step.deaf", "step.arest"])
def test_a_second_signal_stops_at_once(mesh: Mesh, kind: str) -> None:
    payload = {"ms": 3_600_000} if kind == "step.arest" else {}
    running, waiting = mesh.node.submit_many([(kind, payload), (REST, {})])
    worker = mesh.worker(concurrency=1, grace=3600, constants={"QUEUED_MAX_S": PATIENCE_S}).up()
    mesh.wait_journal("start")
    wait_for(lambda: mesh.claim_of(waiting.job_id) == ("running", 1), "the second job to be claimed ahead")
    worker.signal(signal.SIGTERM)
    wait_for(lambda: mesh.ops(waiting.job_id)[-1] == "YieldWork", "the first signal to be heard")
    worker.signal(signal.SIGTERM)
    assert worker.ended() == (0, 0, 2)
    assert worker.popen.returncode == 0
    assert mesh.ops(running.job_id) == ["ScheduleJob", "ClaimWork", "YieldWork"]


@pytest.mark.req("LW-18")
def test_when_the_grace_is_over_everything_is_handed_back(mesh: Mesh) -> None:
    handles = mesh.node.submit_many([(kind, {}) for kind in ("step.spin", "step.deaf", "step.watch")])
    worker = mesh.worker(concurrency=3, grace=0.3).up()
    mesh.wait_journal("start", 3)
    assert worker.stop() == 0
    assert worker.ended() == (0, 0, 3)
    assert [mesh.ops(handle.job_id)[-1] for handle in handles] == ["YieldWork"] * 3
    with mesh.runtime.read() as session:
        assert session.workers() == []
    assert [path.name for path in (mesh.home / "processes").iterdir()] == []


@pytest.mark.req("LW-18", "LW-37")
def test_a_killed_workers_jobs_restart_soon_whatever_the_lease(mesh: Mesh) -> None:
    gate = mesh.root / "gate"
    handle = mesh.node.submit(hocket.kind("step.gate", lease="1d"), path=str(gate))
    first = mesh.worker().up()
    mesh.wait_journal("start")
    second = mesh.worker().up()
    first.kill()
    killed = time.time()
    again = mesh.wait_journal("start", 2)[1]
    assert (again["pid"], again["fence"]) == (second.pid, 2)
    assert again["at"] - killed < 86_400 / 2_000
    gate.touch()
    assert handle.result(PATIENCE_S) == 2


@pytest.mark.touches("LW-39")
@pytest.mark.parametrize(("options", "bound"), [({}, 32), ({"ahead": 0}, 4), ({"concurrency": 2, "ahead": 5}, 7)])
def test_a_killed_worker_repeats_few_runs_that_had_ended(mesh: Mesh, options: dict[str, int], bound: int) -> None:
    """The worst moment: the store is busy, so that whatever ends cannot be put on the log."""
    mesh.node.submit_many((REST, {}) for _ in range(600))
    worker = mesh.worker(**options).up()
    mesh.wait_journal("end", 150)

    def unlogged() -> set[str]:
        with mesh.runtime.read() as session:
            done = {ulid_text(entry.job.id) for entry in session.each_job() if entry.stage is Stage.DONE}
        return {line["job"] for line in mesh.journal("end")} - done

    with mesh.runtime.store.write():
        wait_for(unlogged, "a run that ends")
        ended, since = len(mesh.journal("end")), time.monotonic()
        while time.monotonic() < since + 0.5:
            if (now := len(mesh.journal("end"))) > ended:
                ended, since = now, time.monotonic()
        worker.kill()
    lost = unlogged()
    assert 0 < len(lost) <= bound
    mesh.run()
    runs = Counter(line["job"] for line in mesh.journal("end"))
    assert len(runs) == 600 and {job for job, count in runs.items() if count > 1} == lost


@pytest.mark.touches("LW-18")
def test_a_forked_child_that_outlives_its_worker_does_not_keep_it_alive(mesh: Mesh) -> None:
    handle = mesh.node.submit(hocket.kind("step.brood", lease="1d"), ms=PATIENCE_S * 1000)
    first = mesh.worker().up()
    child = mesh.wait_journal("child")[0]["child"]
    second = mesh.worker().up()
    try:
        first.kill()
        assert handle.result(PATIENCE_S) == 2
        os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)
    assert second.stop() == 0


# What handlers do.

ENDS = {
    "exit": "the handler called sys.exit('enough')",
    "base": "Odd: odd",
    "interrupt": "KeyboardInterrupt: ",
    "cancelled": "Cancelled: ",
    "memory": "MemoryError: ",
    "object": "TypeError: Encoding objects of type object is unsupported",
    "large": "ValueError: the result has 1048579 bytes, at most 1048576; return a reference instead",
    "surrogate": "OSError: cannot read ?",
    "silent": "Unspeakable, whose message cannot be read",
    "mute": "Mute, whose message cannot be read",
    "mute exit": "SystemExit, whose message cannot be read",
    "nan": "ValueError: the result has nan at loss[1]; JSON has no such number, so use None or a string",
    "long": "ValueError: " + "x" * 488,
    "stop": "StopIteration: ",
    "null": "ValueError: PyObject is NULL",
}


@pytest.mark.req("LW-41")
@pytest.mark.touches("LW-18")
def test_whatever_a_handler_does_is_its_jobs_end_and_not_the_workers(mesh: Mesh) -> None:
    handles = {(kind, how): mesh.node.submit(kind, how=how) for kind in ("step.bad", "step.abad") for how in ENDS}
    wrong = mesh.node.submit("step.bad", wrong="argument")
    listed = mesh.runtime.submit([Draft("step.bad", b"[1]", Policy())])[0]
    good = mesh.node.submit(hocket.kind("step.rest", priority=-1))
    worker = mesh.worker(until_idle=True)
    assert worker.ended()[:2] == (1, len(handles) + 2), worker.output.read_text()
    assert good.result(PATIENCE_S) == 1
    assert {line["pid"] for line in mesh.journal("start")} == {worker.pid}
    for (kind, how), handle in handles.items():
        with pytest.raises(hocket.JobFailed) as caught:
            handle.result(PATIENCE_S)
        expected = ENDS[how]
        if how == "stop" and kind == "step.abad":
            expected = "RuntimeError: coroutine raised StopIteration"
        error = caught.value.error or ""
        assert error.startswith(expected) if expected.endswith(": ") else error == expected, (kind, how)
        assert caught.value.traceback
        assert len(caught.value.traceback) <= 16_384
    with pytest.raises(hocket.JobFailed, match=r"missing required field `how`|unknown field `wrong`") as caught:
        wrong.result(PATIENCE_S)
    assert "Expected `object`, got `array`" in str(mesh.runtime.show(ulid_text(listed.job_id))["error"])
    mesh.check_log()


@pytest.mark.touches("LW-18")
def test_a_handler_that_takes_its_process_along_is_tried_by_the_next(mesh: Mesh) -> None:
    handle = mesh.node.submit(hocket.kind("step.vanish", lease="1d"))
    others = mesh.node.submit_many([(hocket.kind("step.rest", lease="1d"), {"ms": 10})] * 10)
    first = mesh.worker(concurrency=1)
    assert first.popen.wait(PATIENCE_S) == 7
    mesh.run(concurrency=1)
    assert handle.result(PATIENCE_S) == 2
    assert [other.status()["outcome"] for other in others] == ["succeeded"] * 10
    mesh.check_log()


@pytest.mark.touches("LW-41")
def test_the_attempt_counts_tries_and_the_fence_counts_holds(mesh: Mesh) -> None:
    handle = mesh.node.submit(hocket.kind("step.stumble", lease="60s", retries=1, backoff="10ms"))
    assert [handle.status()[each] for each in COUNTS] == [0, 0, 0, 0]
    assert mesh.worker().popen.wait(PATIENCE_S) == 7
    mesh.run()
    assert handle.result(PATIENCE_S) == [2, 3]
    assert [line["attempt"] for line in mesh.journal("start")] == [1, 1, 2]
    assert [handle.status()[each] for each in COUNTS] == [2, 1, 1, 3]


@pytest.mark.req("LW-08")
@pytest.mark.touches("LW-18")
def test_an_async_handler_that_blocks_its_loop_costs_nobody_else_a_lease(mesh: Mesh) -> None:
    kinds = ["step.hold_loop", "step.rest", "step.arest"]
    handles = mesh.node.submit_many([(hocket.kind(kind, lease="1500ms"), {"ms": 2_500}) for kind in kinds])
    worker = mesh.worker(concurrency=3, constants={"BLOCKED_LOOP_S": 0.5}).up()
    assert [handle.result(PATIENCE_S) for handle in handles] == [1, 1, 1]
    assert worker.stop() == 0
    assert [line for line in worker.lines() if "has blocked the handlers' loop" in line]
    assert "ExpireWork" not in [op for handle in handles for op in mesh.ops(handle.job_id)]


# Cancelling.


@pytest.mark.req("LW-41")
@pytest.mark.parametrize(
    ("kind", "sign"), [("step.spin", "cancelled"), ("step.arest", "cancelled"), ("step.watch", "flag")]
)
def test_cancel_reaches_a_running_handler_soon(mesh: Mesh, kind: str, sign: str) -> None:
    """Also one that has only just begun, and that will not ask for anything before a third of its lease."""
    worker = mesh.worker(concurrency=1).up()
    payload = {"ms": 3_600_000} if kind == "step.arest" else {}
    for number in (1, 2):
        handle = mesh.node.submit(hocket.kind(kind, lease=f"{LEASE_S}s"), **payload)
        mesh.wait_journal("start", number)
        cancelled = time.time()
        handle.cancel("enough of it")
        line = mesh.wait_journal(sign, number)[-1]
        assert line["at"] - cancelled < LEASE_S / 10
        assert line.get("flag", True) is True
        with pytest.raises(hocket.JobCancelled, match="enough of it"):
            handle.result(PATIENCE_S)
        assert mesh.ops(handle.job_id) == ["ScheduleJob", "ClaimWork", "CancelJob"]
    assert mesh.node.submit(REST).result(PATIENCE_S) == 1
    assert mesh.journal("start")[-1]["pid"] == worker.pid
    assert worker.stop() == 0


# How many at once.


@pytest.mark.touches("LW-18")
def test_handlers_of_both_sorts_share_the_workers_slots(mesh: Mesh) -> None:
    mesh.node.submit_many([(kind, {"ms": 15}) for _ in range(30) for kind in ("step.rest", "step.arest")])
    mesh.run(concurrency=3)
    running, most = 0, 0
    for line in sorted(mesh.journal(), key=lambda line: line["at"]):
        running += {"start": 1, "end": -1}[line["event"]]
        most = max(most, running)
    assert most == 3


@pytest.mark.req("LW-18")
def test_what_waits_behind_a_slow_job_goes_to_a_free_worker(mesh: Mesh) -> None:
    gate = mesh.root / "gate"
    slow, quick = mesh.node.submit_many([(GATE.using(priority=1), {"path": str(gate)}), (REST, {})])
    first = mesh.worker(concurrency=1).up()
    mesh.wait_journal("start")
    wait_for(lambda: mesh.claim_of(quick.job_id)[0] == "running", "the quick job to be claimed ahead")
    second = mesh.worker(concurrency=1).up()
    assert quick.result(PATIENCE_S) == 2
    assert mesh.claim_of(slow.job_id) == ("running", 1)
    assert [line["pid"] for line in mesh.journal("start")] == [first.pid, second.pid]
    gate.touch()
    assert slow.result(PATIENCE_S) == 1


@pytest.mark.req("LW-41")
@pytest.mark.parametrize("slots", [1, 4])
def test_a_slow_job_keeps_none_from_the_log_that_has_ended_before_it(mesh: Mesh, slots: int) -> None:
    """The worker has learnt that its jobs are quick: it hands many of them over together. One of them can still be
    cancelled alone.
    """
    mesh.node.submit_many([(REST, {})] * 200)
    worker = mesh.worker(concurrency=slots, constants={"QUEUED_MAX_S": PATIENCE_S}).up()
    mesh.wait_done(200)
    spin = hocket.kind("step.spin", lease="60s")
    handles = mesh.node.submit_many([*[(REST, {})] * 5, *[(spin, {})] * slots, *[(REST, {})] * 5])
    assert [handle.result(PATIENCE_S) for handle in handles[:5]] == [1] * 5
    slow = handles[5 : 5 + slots]
    for handle in slow:
        mesh.wait_journal("start", 1, handle.job_id)
    assert {mesh.claim_of(handle.job_id) for handle in slow} == {("running", 1)}
    slow[0].cancel("enough")
    assert [handle.result(PATIENCE_S) for handle in handles[-5:]] == [1] * 5
    for handle in slow[1:]:
        handle.cancel("enough")
    assert worker.stop() == 0


@pytest.mark.req("LW-18")
def test_an_idle_worker_gets_what_another_has_claimed_ahead(mesh: Mesh) -> None:
    """The first worker would keep what waits behind its slow job; only the second one's request makes it go back."""
    gate = mesh.root / "gate"
    mesh.node.submit_many([(REST, {})] * 200)
    first = mesh.worker(concurrency=1, constants={"QUEUED_MAX_S": 2 * PATIENCE_S}).up()
    mesh.wait_done(200)
    slow, *quick = mesh.node.submit_many([(GATE.using(priority=1), {"path": str(gate)}), *[(REST, {})] * 5])
    wait_for(lambda: mesh.claim_of(quick[0].job_id)[0] == "running", "the quick jobs to be claimed ahead")
    second = mesh.worker(concurrency=1).up()
    assert [handle.result(PATIENCE_S) for handle in quick] == [2] * 5
    ids = {handle.job_id for handle in quick}
    assert {line["pid"] for line in mesh.journal("start") if line["job"] in ids} == {second.pid}
    gate.touch()
    assert slow.result(PATIENCE_S) == 1
    assert (first.stop(), second.stop()) == (0, 0)


@pytest.mark.req("LW-18", "LW-11")
def test_a_worker_with_slow_jobs_does_not_take_and_hand_back_the_rest_for_ever(mesh: Mesh) -> None:
    gate = mesh.root / "gate"
    mesh.node.submit_many([(REST, {})] * 100)
    worker = mesh.worker(concurrency=2, constants={"QUEUED_MAX_S": 0.2}).up()
    mesh.wait_done(100)
    mesh.node.submit_many([(GATE, {"path": str(gate)})] * 2)
    mesh.wait_journal("start", 102)
    waiting = mesh.node.submit_many([(REST, {})] * 20)
    # Handing back and taking again, were it done, would happen every 0.2 seconds.
    until = time.monotonic() + 2.5
    while time.monotonic() < until:
        time.sleep(0.1)
    assert max(mesh.claim_of(handle.job_id)[1] for handle in waiting) <= 2
    gate.touch()
    mesh.wait_done(122)
    assert worker.stop() == 0


@pytest.mark.req("LW-08")
def test_a_lease_shorter_than_the_workers_rounds_is_renewed_in_time(mesh: Mesh) -> None:
    handle = mesh.node.submit(hocket.kind("step.rest", lease="2s"), ms=5_000)
    worker = mesh.worker(constants={"ROUND_S": 30}).up()
    assert handle.result(PATIENCE_S) == 1
    assert worker.stop() == 0
    assert worker.ended() == (1, 0, 0)


# What it costs.


def share_of_a_core(worker: Process, seconds: float) -> float:
    cpu, at = worker.cpu_s(), time.monotonic()
    while time.monotonic() < at + seconds:
        time.sleep(0.05)
    return (worker.cpu_s() - cpu) / (time.monotonic() - at)


@pytest.mark.touches("LW-18")
def test_a_worker_that_waits_is_quiet(mesh: Mesh) -> None:
    """With nothing to do, with every slot busy, and while it waits for its handlers to finish."""
    gate = mesh.root / "gate"
    worker = mesh.worker(concurrency=1, grace=PATIENCE_S).up()
    idle = share_of_a_core(worker, 1.5)
    mesh.node.submit_many([("step.deaf", {}), (GATE, {"path": str(gate)})])
    mesh.wait_journal("start")
    full = share_of_a_core(worker, 3.5)
    worker.signal(signal.SIGTERM)
    stopping = share_of_a_core(worker, 1.0)
    print(f"share of a core: idle {idle:.3f}, full {full:.3f}, stopping {stopping:.3f}")
    assert max(idle, full, stopping) < 0.2
    worker.signal(signal.SIGTERM)
    assert worker.popen.wait(PATIENCE_S) == 0


@pytest.mark.touches("LW-18")
def test_another_processes_submit_wakes_a_worker_that_would_not_look_by_itself(mesh: Mesh) -> None:
    mesh.worker(concurrency=1, constants={"LOOK_S": 3600, "AHEAD_S": 3600}).up()
    for _ in range(20):
        mesh.node.submit(REST).result(PATIENCE_S)


# When the store cannot.


@pytest.mark.touches("LW-18")
def test_a_store_that_refuses_for_a_while_loses_nothing(mesh: Mesh) -> None:
    gate = mesh.root / "gate"
    handle = mesh.node.submit(GATE, path=str(gate))
    worker = mesh.worker().up()
    mesh.wait_journal("start")
    with mesh.runtime.store.write() as session:
        session.put_head(session.head()._replace(rebuilding=bytes(20)))
    gate.touch()
    wait_for(lambda: any("retrying" in line for line in worker.lines()), "the worker to say so")
    with mesh.runtime.store.write() as session:
        session.put_head(session.head()._replace(rebuilding=None))
    assert handle.result(PATIENCE_S) == 1
    assert worker.stop() == 0
