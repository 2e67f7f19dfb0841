"""Six nodes with homes of their own on one PostgreSQL. Workers are killed and suspended, and the server crashes and
comes back. Still every submit that was acknowledged is there, and every job is completed once.
"""

import random
import time
from itertools import pairwise
from pathlib import Path

import pytest

import hocket
from hocket.errors import HocketError, StoreError
from hocket.kernel.ids import ulid_text
from hocket.kernel.vocabulary import CompleteJob, ExpireWork
from hocket.node.runtime import Runtime
from tests.postgres_server import Server
from tests.work.mesh import Mesh, Process, mesh_in, wait_for

NODES = 6
REST = hocket.kind("step.rest", lease="60s")


@pytest.mark.slow
@pytest.mark.req("VX-01", "VX-18", "LW-37")
@pytest.mark.touches("LW-02", "LW-18", "VX-07")
@pytest.mark.parametrize(
    ("count", "restarts"),
    [(240, 1), pytest.param(10_000, 5, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])],
    ids=["short", "long"],
)
def test_nodes_that_share_a_store_lose_nothing_when_workers_and_the_server_crash(
    tmp_path: Path, count: int, restarts: int
) -> None:
    server = Server()
    try:
        address = server.new_database()
        with mesh_in(tmp_path, address) as mesh:
            homes = [mesh.home, *(another(mesh, address, number) for number in range(1, NODES))]
            chance = random.Random(f"sharing {count}")
            ids = submitted(mesh, count // 2, chance)
            workers = {home: mesh.worker(home=home, concurrency=2).up() for home in homes}
            disturbed: set[int] = set()
            for number in range(restarts):
                wait_for(lambda: done(mesh) > count * number // (2 * restarts), "some jobs")  # noqa: B023
                disturbed |= disturb(mesh, workers, chance)
                server.stop(immediate=True)
                server.start()
                ids |= submitted(mesh, count // (2 * restarts), chance)
            wait_for(lambda: done(mesh) >= len(ids), "all jobs", 60 + count / 4)
            for worker in workers.values():
                assert worker.stop() == 0, worker.output.read_text()
            check(mesh, ids, disturbed)
            with Runtime.open(homes[-1]) as last:
                assert last.verify().findings == [] and last.rebuild().unchanged
    finally:
        server.remove()


def another(mesh: Mesh, address: str, number: int) -> Path:
    home = mesh.root / f"home{number}"
    Runtime.init(home, mesh.home / "user.key", server=address, name=f"node{number}").close()
    return home


def submitted(mesh: Mesh, count: int, chance: random.Random) -> set[str]:
    """The ids of the jobs whose submit was acknowledged. What failed is submitted again, like a user does."""
    ids: set[str] = set()
    while len(ids) < count:
        try:
            ids |= {each.job_id for each in mesh.node.submit_many([(REST, {"ms": chance.uniform(5, 60)})] * 20)}
        except HocketError:
            time.sleep(0.1)
    return ids


def done(mesh: Mesh) -> int:
    try:
        with mesh.runtime.read() as session:
            return mesh.done(session)
    except StoreError:
        return 0


def disturb(mesh: Mesh, workers: dict[Path, Process], chance: random.Random) -> set[int]:
    """Kills one worker and puts another in its place; suspends a second for a moment."""
    killed, suspended = chance.sample(list(workers), 2)
    pids = {workers[killed].pid, workers[suspended].pid}
    workers[killed].kill()
    workers[suspended].suspend()
    workers[killed] = mesh.worker(home=killed, concurrency=2).up()
    workers[suspended].signal(18)
    return pids


def check(mesh: Mesh, ids: set[str], disturbed: set[int]) -> None:
    completed, expired = [], set()
    with mesh.runtime.read() as session:
        rows = session.ops_after(0, 1_000_000)
        head = session.head()
        numbers = {row.seq for row in (*rows, *session.entries_after(0, 1_000_000))}
    assert numbers == set(range(1, head.seq + 1))
    for order in (lambda row: row.hlc[12:], lambda row: row.subject):
        of: dict[object, list[bytes]] = {}
        for row in rows:
            of.setdefault(order(row), []).append(row.hlc)
        assert all(times == sorted(times) for key, times in of.items() if key is not None)
    for _, op in mesh.payloads():
        if isinstance(op.payload, CompleteJob):
            completed.append(ulid_text(op.payload.job_id))
        elif isinstance(op.payload, ExpireWork):
            expired.add(ulid_text(op.payload.job_id))
    # A submit without an answer may have been kept all the same.
    assert ids <= set(completed) and len(completed) == len(set(completed))
    runs: dict[str, list[dict]] = {}
    for line in mesh.journal("start"):
        runs.setdefault(line["job"], []).append(line)
    ends = {(line["job"], line["fence"]): line["at"] for line in mesh.journal("end")}
    for job, starts in runs.items():
        fences = [line["fence"] for line in starts]
        assert fences == sorted(set(fences)), f"{job} ran under the fences {fences}"
        for earlier, later in pairwise(starts):
            has_ended = later["at"] >= ends.get((job, earlier["fence"]), later["at"] + 1)
            assert has_ended or earlier["pid"] in disturbed or job in expired, f"{job} ran twice at once: {starts}"
