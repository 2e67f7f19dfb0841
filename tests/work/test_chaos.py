"""Workers die at random for the whole run, and still every job is completed once, is held by one process at a time,
and is taken up again at once by somebody who lives.
"""

import random
import time
from itertools import pairwise
from typing import NamedTuple

import pytest

import hocket
from hocket.families.jobs.rules import RETURN_REST_MS_MAX, RETURNS_FREE, Outcome
from hocket.kernel.ids import ulid_text
from hocket.kernel.vocabulary import ClaimWork, CompleteJob, YieldWork
from hocket.store import JobFilter
from tests.work.mesh import Mesh, Process

WORKERS = 4
LEASE_MS = 60_000
REST = hocket.kind("step.rest", lease=f"{LEASE_MS}ms")


class Kill(NamedTuple):
    pid: int
    before: float
    after: float
    held: list[str]


@pytest.mark.slow
@pytest.mark.req("LW-02", "LW-18", "LW-37", "VX-07")
@pytest.mark.touches("LW-05", "LW-09")
@pytest.mark.parametrize(
    "count", [800, pytest.param(5_000, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])], ids=str
)
def test_workers_that_are_killed_at_random_lose_nothing(mesh: Mesh, count: int, record_property) -> None:
    chance = random.Random(f"chaos {count}")
    handles = mesh.node.submit_many((REST, {"ms": chance.uniform(30, 200)}) for _ in range(count))
    workers = [mesh.worker(concurrency=4) for _ in range(WORKERS)]
    kills = disturb(mesh, workers, count, chance)
    for worker in workers:
        assert worker.stop() == 0, worker.output.read_text()

    assert len(kills) >= 8
    ids = {handle.job_id for handle in handles}
    check_completions(mesh, ids)
    check_executions(mesh, ids, kills)
    worst = longest_rest(mesh, kills)
    record_property("worst_restart_ms", worst)
    held = sum(len(each.held) for each in kills)
    print(f"{count} jobs, {len(kills)} kills, {held} jobs lost and taken up again after {worst} ms at worst")
    assert worst < LEASE_MS / 10
    mesh.check_log()


def disturb(mesh: Mesh, workers: list[Process], count: int, chance: random.Random) -> list[Kill]:
    """Kills one of the workers that are up, again and again, and puts a new one in its place, until all is done."""
    kills: list[Kill] = []
    deadline = time.monotonic() + 10 * count / 20 + 60
    while True:
        assert time.monotonic() < deadline, [worker.output.read_text() for worker in workers]
        try:
            mesh.wait_done(count, chance.uniform(0.1, 0.7))
            return kills
        except TimeoutError:
            pass
        for worker in workers:
            assert worker.popen.poll() is None, worker.output.read_text()
        up = [worker for worker in workers if worker.number() is not None]
        if len(up) >= 2:
            victim = chance.choice(up)
            kills.append(kill(mesh, victim))
            workers.remove(victim)
            workers.append(mesh.worker(concurrency=4))


def kill(mesh: Mesh, victim: Process) -> Kill:
    """Stopped first, so that nothing changes between the look at what it holds and its death."""
    number = victim.number()
    before = time.time()
    victim.suspend()
    with mesh.runtime.read() as session:
        held = [ulid_text(entry.job.id) for entry in session.claimed() if entry.worker == number]
    victim.kill()
    return Kill(victim.pid, before, time.time(), held)


def check_completions(mesh: Mesh, ids: set[str]) -> None:
    completed = [ulid_text(op.payload.job_id) for _, op in mesh.payloads() if isinstance(op.payload, CompleteJob)]
    assert sorted(completed) == sorted(ids)
    with mesh.runtime.read() as session:
        done = session.jobs(JobFilter(outcome=Outcome.SUCCEEDED), len(ids) + 1)
    assert {ulid_text(entry.job.id) for entry in done} == ids


def check_executions(mesh: Mesh, ids: set[str], kills: list[Kill]) -> None:
    """No two processes under one fence; a job runs again only after its earlier holder's death."""
    died = {each.pid: each for each in kills}
    ends = {(line["job"], line["fence"]): line["at"] for line in mesh.journal("end")}
    runs: dict[str, list[dict]] = {job: [] for job in ids}
    for line in mesh.journal("start"):
        runs[line["job"]].append(line)
    for job, starts in runs.items():
        fences = [line["fence"] for line in starts]
        assert fences == sorted(set(fences)), f"{job} ran under the fences {fences}"
        assert (job, fences[-1]) in ends
        for earlier, later in pairwise(starts):
            assert earlier["pid"] in died, f"{job} ran again although its holder lived: {starts}"
            assert later["at"] >= died[earlier["pid"]].before, f"{job} ran twice at once: {starts}"
            assert later["at"] >= ends.get((job, earlier["fence"]), 0.0)


def longest_rest(mesh: Mesh, kills: list[Kill]) -> int:
    """How many milliseconds a dead worker's job waited for its next holder, at worst, beyond the rest that a job must
    take which has lost many holders.
    """
    claims: dict[str, list[int]] = {}
    returns: dict[str, list[int]] = {}
    for wall, op in mesh.payloads():
        if isinstance(op.payload, ClaimWork):
            claims.setdefault(ulid_text(op.payload.job_id), []).append(wall)
        elif isinstance(op.payload, YieldWork):
            returns.setdefault(ulid_text(op.payload.job_id), []).append(wall)
    worst = 0
    for each in kills:
        killed = int(each.after * 1000)
        for job in each.held:
            again = min(wall for wall in claims[job] if wall >= int(each.before * 1000) and wall > killed - 1000)
            back = [wall for wall in returns[job] if wall <= again]
            rest = 1_000 << (len(back) - RETURNS_FREE - 1) if len(back) > RETURNS_FREE else 0
            worst = max(worst, again - max(killed, back[-1] + min(rest, RETURN_REST_MS_MAX) if rest else killed))
    return worst
