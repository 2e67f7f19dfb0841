"""Several processes of one node at once: limits, keys and ticks are decided once for all of them."""

import json
import os
import random
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

import hocket
from hocket.families.jobs import claiming, cron, rescue
from hocket.log import Transaction
from hocket.node.runtime import Runtime
from hocket.store import Place, WorkerRow
from tests.work.mesh import PATIENCE_S, SOURCE, Mesh

OTHER = Path(__file__).with_name("submitter_process.py")


def race(mesh: Mesh, what: str, count: int = 4) -> list[list]:
    """Lets as many processes do the same thing at the same moment."""
    go = mesh.root / f"go-{what}"
    processes = [
        subprocess.Popen(
            [sys.executable, str(OTHER), str(mesh.home), str(go), what],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": SOURCE},
        )
        for _ in range(count)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
    go.touch()
    answers = [process.communicate(timeout=PATIENCE_S)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * count
    return [json.loads(answer) for answer in answers]


@pytest.mark.req("LW-41")
def test_several_processes_that_submit_one_unique_key_make_one_job(mesh: Mesh) -> None:
    answers = [made for answer in race(mesh, "unique") for made in answer]
    assert len(answers) == 20
    assert len({job_id for job_id, _ in answers}) == 1
    assert sum(created for _, created in answers) == 1
    with mesh.runtime.read() as session:
        assert sum(session.counts().values()) == 1
    mesh.check_log()


@pytest.mark.req("LW-41")
def test_a_missed_tick_is_made_up_once_by_all_processes_together(mesh: Mesh) -> None:
    plan = cron.check(cron.NewSchedule("daily", "30 4 * * *", "Europe/Vienna", hocket.kind("step.rest").draft({})))
    mesh.runtime.log.run(lambda tx: cron.add(tx, plan))
    assert mesh.runtime.log.run(cron.make_due) == 0, "a new schedule's first tick is yet to come"
    made = race(mesh, "tick")
    assert sum(sum(answer) for answer in made) == 1, "three days were missed, the last tick is made up"
    with mesh.runtime.read() as session:
        assert sum(session.counts().values()) == 1
        (schedule,) = session.schedules()
    assert cron.next_tick(schedule, schedule.last_tick) > schedule.last_tick
    mesh.check_log()


@pytest.mark.req("LW-41")
def test_never_more_of_a_kind_at_once_than_its_limit_over_all_workers(mesh: Mesh) -> None:
    # Each worker has room for fewer than may run, so that several must share what the limits leave.
    workers = [mesh.worker(concurrency=2).up() for _ in range(3)]
    limited, limited_async = hocket.kind("step.rest", concurrency=3), hocket.kind("step.arest", concurrency=2)
    mesh.node.submit_many([(limited, {"ms": 20})] * 60 + [(limited_async, {"ms": 20})] * 40)
    mesh.wait_done(100)
    for worker in workers:
        assert worker.stop() == 0
    lines = mesh.journal()
    kinds = {
        handle: mesh.runtime.brief(mesh.runtime.find(handle))["kind"] for handle in {line["job"] for line in lines}
    }
    for kind, limit in (("step.rest", 3), ("step.arest", 2)):
        running, most = 0, 0
        for line in sorted((each for each in lines if kinds[each["job"]] == kind), key=lambda each: each["at"]):
            running += {"start": 1, "end": -1}[line["event"]]
            most = max(most, running)
        assert 1 < most <= limit, f"{kind}: the limit is kept, and used"
    assert len({line["pid"] for line in lines}) > 1


@pytest.mark.req("LW-41")
def test_the_rate_of_a_kind_holds_over_all_workers(mesh: Mesh) -> None:
    mesh.node.submit_many([(hocket.kind("step.rest", rate="10/s"), {})] * 25)
    workers = [mesh.worker() for _ in range(2)]
    mesh.wait_done(25)
    for worker in workers:
        assert worker.stop() == 0
    claims = sorted(wall for wall, op in mesh.payloads() if type(op.payload).__name__ == "ClaimWork")
    assert len(claims) == 25
    # A burst of ten, and the other fifteen 100 ms after each other, by the log's own clock.
    for number, wall in enumerate(claims[10:], 1):
        assert wall - claims[0] >= number * 100 - 1


@pytest.mark.req("LW-41")
@pytest.mark.touches("LW-02")
def test_retries_and_results_through_real_workers(mesh: Mesh) -> None:
    flaky = hocket.kind("step.flaky", retries=5, backoff="10ms")
    handles = mesh.node.submit_many([(flaky, {"failures": n % 4}) for n in range(20)])
    lost = mesh.node.submit(hocket.kind("step.flaky", retries=1, backoff="10ms"), failures=9)
    succeeded, failed, _ = mesh.run(concurrency=4)
    assert [handle.result(PATIENCE_S) for handle in handles] == [n % 4 + 1 for n in range(20)]
    assert (succeeded, failed) == (20, 30 + 2)
    with pytest.raises(hocket.JobFailed, match="attempt 2") as caught:
        lost.result(PATIENCE_S)
    assert 'raise ValueError(f"attempt {ctx.attempt}")' in (caught.value.traceback or "")
    lost.retry()
    mesh.run()
    assert lost.status()["fence"] == 4
    mesh.check_log()


@pytest.mark.req("LW-41")
@pytest.mark.touches("LW-18")
def test_dependencies_hold_over_several_workers(mesh: Mesh) -> None:
    rest = hocket.kind("step.rest")
    chain = [mesh.node.submit(rest, ms=5)]
    for _ in range(9):
        chain.append(mesh.node.submit(rest.using(after=chain[-1]), ms=5))
    fan = mesh.node.submit_many([(rest, {"ms": random.uniform(0, 30)})] * 10)
    last = mesh.node.submit(rest.using(after=[*fan, chain[-1]]), ms=0)
    workers = [mesh.worker() for _ in range(2)]
    last.result(PATIENCE_S)
    for worker in workers:
        assert worker.stop() == 0
    starts = {line["job"]: line["at"] for line in mesh.journal("start")}
    ends = {line["job"]: line["at"] for line in mesh.journal("end")}
    for earlier, later in pairwise(chain):
        assert starts[later.job_id] > ends[earlier.job_id]
    assert all(starts[last.job_id] > ends[handle.job_id] for handle in [*fan, chain[-1]])


@pytest.mark.req("LW-41")
def test_a_failure_in_a_worker_calls_off_what_comes_after(mesh: Mesh) -> None:
    bad = mesh.node.submit("step.bad", how="base")
    after = mesh.node.submit(hocket.kind("step.rest", after=bad))
    mesh.run()
    with pytest.raises(hocket.JobCancelled, match=bad.job_id):
        after.result(PATIENCE_S)


@pytest.mark.req("LW-19")
def test_kinds_are_found_by_the_longest_prefix_and_unknown_ones_left_alone(mesh: Mesh) -> None:
    kinds = ["family.a", "family.near.b", "family.near.one", "familyother", "family"]
    handles = {kind: mesh.node.submit(kind) for kind in kinds}
    mesh.run()
    assert handles["family.a"].result(PATIENCE_S) == "family for family.a"
    assert handles["family.near.b"].result(PATIENCE_S) == "near for family.near.b"
    assert handles["family.near.one"].result(PATIENCE_S) == "one for family.near.one"
    for kind in ("familyother", "family"):
        assert mesh.ops(handles[kind].job_id) == ["ScheduleJob"]


@pytest.mark.req("LW-19")
def test_a_worker_may_serve_some_kinds_only(mesh: Mesh) -> None:
    near, far = mesh.node.submit("family.near.b"), mesh.node.submit("family.a")
    mesh.run(only=["family.near."])
    assert near.result(PATIENCE_S) == "near for family.near.b"
    assert mesh.ops(far.job_id) == ["ScheduleJob"]


@pytest.mark.req("LW-06", "LW-07", "LW-08", "LW-18", "LW-37")
@pytest.mark.parametrize("kind", ["step.spin", "step.watch", "step.arest"])
def test_a_lost_lease_stops_the_handler_and_its_end_does_not_count(mesh: Mesh, kind: str) -> None:
    """Another process, whose clock runs ahead, expires the claim while the handler runs."""
    payload = {"ms": 3_600_000} if kind == "step.arest" else {}
    handle = mesh.node.submit(hocket.kind(kind, lease="30s"), **payload)
    worker = mesh.worker(concurrency=2).up()
    mesh.wait_journal("start")
    assert race(mesh, "expire", 1) == [[1]]
    mesh.wait_journal("flag" if kind == "step.watch" else "cancelled")
    # The same worker may take it up again, under the next fence.
    assert [line["fence"] for line in mesh.wait_journal("start", 2)[:2]] == [1, 2]
    handle.cancel()
    assert worker.stop() == 0
    assert "CompleteJob" not in mesh.ops(handle.job_id)
    assert mesh.ops(handle.job_id)[:4] == ["ScheduleJob", "ClaimWork", "ExpireWork", "ClaimWork"]
    mesh.check_log()


@pytest.mark.req("LW-06", "LW-18")
def test_an_expired_lease_of_a_silent_holder_is_swept_by_a_worker(mesh: Mesh) -> None:
    """The holder is alive, as far as the machine can tell, but stopped."""
    handle = mesh.node.submit(hocket.kind("step.rest", lease="1200ms"), ms=1_500)
    holder = mesh.worker().up()
    mesh.wait_journal("start")
    holder.suspend()
    try:
        other = mesh.worker().up()
        starts = mesh.wait_journal("start", 2)
        assert [(line["fence"], line["pid"]) for line in starts] == [(1, holder.pid), (2, other.pid)]
        assert handle.result(PATIENCE_S) == 2
    finally:
        holder.signal(18)
    assert (holder.stop(), other.stop()) == (0, 0)
    assert mesh.ops(handle.job_id).count("CompleteJob") == 1
    assert "ExpireWork" in mesh.ops(handle.job_id)
    mesh.check_log()


@pytest.mark.req("LW-08")
@pytest.mark.parametrize("kind", ["step.rest", "step.arest"])
def test_a_lease_is_renewed_for_as_long_as_the_handler_runs(mesh: Mesh, kind: str) -> None:
    handle = mesh.node.submit(hocket.kind(kind, lease="2s"), ms=6_000)
    workers = [mesh.worker() for _ in range(2)]
    assert handle.result(PATIENCE_S) == 1, "the fence of the first claim"
    for worker in workers:
        assert worker.stop() == 0
    ops = mesh.ops(handle.job_id)
    assert ops.count("ClaimWork") >= 6_000 / 2_000
    assert "ExpireWork" not in ops
    assert len(mesh.journal("start")) == 1


@pytest.mark.req("LW-11", "LW-18")
def test_a_worker_that_finds_everything_held_does_not_hammer(mesh: Mesh) -> None:
    gate = mesh.root / "gate"
    mesh.node.submit(hocket.kind("step.gate", lease="1h"), path=str(gate))  # no renewal comes meanwhile
    mesh.worker().up()
    mesh.wait_journal("start")
    idle = mesh.worker().up()
    before, at = mesh.runtime.verify().ops, time.monotonic()
    cpu = idle.cpu_s()
    while time.monotonic() < at + 2:
        time.sleep(0.1)
    assert mesh.runtime.verify().ops == before, "nothing was tried, nothing was written"
    assert idle.cpu_s() - cpu < 0.2 * (time.monotonic() - at)
    gate.touch()
    mesh.wait_done(1)


@pytest.mark.touches("LW-41")
def test_other_processes_see_the_progress_while_the_handler_runs(mesh: Mesh) -> None:
    gate = mesh.root / "gate"
    handle = mesh.node.submit("step.tell", path=str(gate))
    worker = mesh.worker().up()
    mesh.wait_journal("start")
    job_id = mesh.runtime.find(handle.job_id)
    rows = mesh.node.until(lambda session: (bool(rows := session.progress([job_id])), rows), PATIENCE_S)
    assert [(row.fence, row.note) for row in rows] == [(1, b'{"done":1}')]
    assert handle.status()["progress"] == {"done": 1}
    assert "ReportProgress" not in mesh.ops(handle.job_id)
    gate.touch()
    handle.result(PATIENCE_S)
    assert worker.stop() == 0


def registered(tx: Transaction, name: str) -> WorkerRow:
    return WorkerRow(0, name, 1, tx.now, tx.node.to_bytes(8, "big"), tx.now, Place())


@pytest.mark.touches("LW-18")
def test_a_newcomer_is_not_taken_for_a_dead_process(mesh: Mesh) -> None:
    """It registers and claims between a neighbour's look for the dead and what the neighbour does about them."""
    mesh.node.submit_many([("a", {}), ("b", {})])
    log = mesh.runtime.log
    dead = log.run(lambda tx: tx.session.put_worker(registered(tx, "worker-of-the-dead")))
    log.run(lambda tx: claiming.claim(tx, dead, 1, {"a": 60_000}.get))
    found_dead = {dead}
    newcomer = log.run(lambda tx: tx.session.put_worker(registered(tx, "newcomer")))
    (taken,) = log.run(lambda tx: claiming.claim(tx, newcomer, 1, {"b": 60_000}.get)).taken
    assert log.run(lambda tx: rescue.reclaim(tx, found_dead)) == 1
    with Runtime.open(mesh.home) as runtime, runtime.read() as session:
        assert [each.number for each in session.workers()] == [newcomer]
        (held,) = session.claimed()
        assert (held.job.id, held.worker) == (taken.job.id, newcomer)
