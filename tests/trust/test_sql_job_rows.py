"""A member that shares the store and has SQL changes the rows of jobs: puts back old ones, lowers fences, moves
deadlines. The owner's node goes by the ops: it runs, ends and cancels no job because of it.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hocket.families.jobs import requests as jobs
from hocket.families.jobs import rescue
from hocket.families.jobs.claiming import Claim
from hocket.families.jobs.requests import Held
from hocket.families.jobs.rules import Job, Outcome, State
from hocket.kernel.ids import ulid_text
from hocket.kernel.policy import Policy
from hocket.node.runtime import Runtime
from hocket.store import JobEntry, Stage
from tests.trust.sharer import SharedMesh

pytestmark = [pytest.mark.slow]
COLUMNS = (
    "stage, last, outcome, fence, failures, returns, claimer, claim_op, deadline, ready_at, done, error_op, worker,"
    " begin_by"
)


@pytest.fixture(params=["postgres", "libsql"])
def mesh(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[SharedMesh]:
    made = SharedMesh(tmp_path, request.param)
    yield made
    made.close()


def row_of(mesh: SharedMesh, job_id: bytes) -> tuple[object, ...]:
    (row,) = mesh.sql(f"SELECT {COLUMNS} FROM jobs WHERE id = ?", job_id)
    return row


def put_back(mesh: SharedMesh, job_id: bytes, row: tuple[object, ...]) -> None:
    values = ", ".join(f"{column} = ?" for column in COLUMNS.split(", "))
    mesh.sql(f"UPDATE jobs SET {values} WHERE id = ?", *row, job_id)


def entry_of(mesh: SharedMesh, job_id: bytes) -> JobEntry:
    with mesh.owner.read() as session:
        entry = session.job(job_id)
    assert entry is not None
    return entry


def taken_one(mesh: SharedMesh) -> Claim:
    (taken,) = mesh.taken()
    return taken


def given_back(mesh: SharedMesh, taken: Claim) -> None:
    assert taken.job.claim_op is not None
    held = Held(taken.job.id, taken.job.claim_op)
    mesh.owner.log.run(lambda tx: jobs.hand_back(tx, held, "for a test"))


def other_process(mesh: SharedMesh) -> Runtime:
    return Runtime.open(mesh.directory / "owner")


@pytest.mark.req("LW-48")
@pytest.mark.parametrize("is_new_process", [False, True])
def test_a_finished_job_that_is_put_back_does_not_run_again(mesh: SharedMesh, is_new_process: bool) -> None:
    job_id = mesh.submit()
    before = row_of(mesh, job_id)
    mesh.finish(taken_one(mesh))
    put_back(mesh, job_id, before)
    if is_new_process:
        mesh.reopened()
    assert mesh.taken() == []
    assert mesh.tables_found() == {"jobs"}
    assert entry_of(mesh, job_id).stage is Stage.DONE, "the row is put right"


@pytest.mark.req("LW-48")
def test_a_finished_job_that_is_put_back_holds_up_no_worker(mesh: SharedMesh) -> None:
    """The workers' transactions run beside those of other nodes."""
    job_id = mesh.submit()
    before = row_of(mesh, job_id)
    mesh.finish(taken_one(mesh))
    put_back(mesh, job_id, before)
    other = mesh.submit(payload=b'{"n":2}')
    taken = mesh.taken(beside=True)
    assert [each.job.id for each in taken] == [other]
    assert entry_of(mesh, job_id).stage is Stage.DONE


@pytest.mark.req("LW-48")
@pytest.mark.parametrize(("column", "value"), [("fence", 0), ("failures", 5), ("returns", 0), ("ready_at", 1)])
def test_a_job_that_ran_before_goes_by_its_ops(mesh: SharedMesh, column: str, value: int) -> None:
    job_id = mesh.submit()
    given_back(mesh, taken_one(mesh))
    mesh.sql(f"UPDATE jobs SET {column} = ? WHERE id = ?", value, job_id)
    mesh.reopened()
    assert mesh.taken() == []
    assert mesh.tables_found() == {"jobs"}
    again = taken_one(mesh)
    assert (again.job.id, again.job.fence, again.job.failures, again.job.returns) == (job_id, 2, 0, 1)


@pytest.mark.req("LW-48")
def test_no_two_runs_share_a_fence(mesh: SharedMesh) -> None:
    job_id = mesh.submit()
    before = row_of(mesh, job_id)
    first = taken_one(mesh)
    given_back(mesh, first)
    put_back(mesh, job_id, before)
    assert mesh.taken() == []
    assert taken_one(mesh).job.fence == first.job.fence + 1


@pytest.mark.req("LW-48")
def test_a_claim_that_has_ended_and_is_put_back_completes_nothing(mesh: SharedMesh) -> None:
    """Another process of the owner cancels the job while this one runs it."""
    job_id = mesh.submit()
    taken = taken_one(mesh)
    claimed = row_of(mesh, job_id)
    other = other_process(mesh)
    other.log.run(lambda tx: jobs.cancel(tx, job_id, "not needed"))
    other.close()
    put_back(mesh, job_id, claimed)
    assert not isinstance(mesh.finish(taken), Job)
    assert entry_of(mesh, job_id).job.outcome is Outcome.CANCELLED


@pytest.mark.req("LW-48")
def test_a_blocked_job_does_not_run_because_its_row_says_ready(mesh: SharedMesh) -> None:
    first = mesh.submit()
    second = mesh.submit(policy=Policy(after=(ulid_text(first),)))
    mesh.sql("UPDATE jobs SET stage = 0 WHERE id = ?", second)
    assert [each.job.id for each in mesh.taken()] == [first]


@pytest.mark.req("LW-48")
def test_a_job_does_not_run_because_the_row_of_its_dependency_says_done(mesh: SharedMesh) -> None:
    first = mesh.submit()
    second = mesh.submit(policy=Policy(after=(ulid_text(first),)))
    mesh.sql("UPDATE jobs SET stage = 4, outcome = 0, done = last WHERE id = ?", first)
    mesh.sql("UPDATE jobs SET stage = 0 WHERE id = ?", second)
    assert second not in [each.job.id for each in mesh.taken()]
    mesh.reopened()
    assert second not in [each.job.id for each in mesh.taken()]


@pytest.mark.req("LW-48")
def test_a_failed_job_frees_none_because_its_row_says_succeeded(mesh: SharedMesh) -> None:
    first = mesh.submit(policy=Policy(retries=0))
    second = mesh.submit(policy=Policy(after=(ulid_text(first),)))
    mesh.owner.log.run(lambda tx: jobs.cancel(tx, first, "not needed"))
    mesh.sql("UPDATE jobs SET stage = 0, outcome = NULL, done = NULL, error_op = NULL WHERE id = ?", second)
    mesh.sql("UPDATE jobs SET outcome = 0 WHERE id = ?", first)
    assert mesh.taken() == []
    mesh.reopened()
    assert mesh.taken() == []


@pytest.mark.req("LW-48")
def test_a_lease_does_not_end_because_its_row_says_so(mesh: SharedMesh) -> None:
    job_id = mesh.submit()
    taken = taken_one(mesh)
    mesh.sql("UPDATE jobs SET deadline = 1 WHERE id = ?", job_id)
    assert mesh.owner.log.run(lambda tx: rescue.expire(tx, 10)) == 0
    assert entry_of(mesh, job_id).job == taken.job
    done = mesh.finish(taken)
    assert isinstance(done, Job) and done.state is State.COMPLETED


@pytest.mark.req("LW-48")
def test_a_job_is_not_given_up_because_its_row_says_so(mesh: SharedMesh) -> None:
    job_id = mesh.submit(policy=Policy(ttl_ms=3_600_000))
    mesh.sql("UPDATE jobs SET begin_by = 1 WHERE id = ?", job_id)
    assert mesh.owner.log.run(lambda tx: rescue.end_unbegun(tx, 10)) == 0
    assert taken_one(mesh).job.id == job_id


@pytest.mark.req("LW-48")
def test_only_jobs_that_come_after_a_lost_one_are_cancelled_with_it(mesh: SharedMesh) -> None:
    lost, other = mesh.submit(), mesh.submit(payload=b'{"n":2}')
    mesh.sql("INSERT INTO after (dependency, job) VALUES (?, ?)", lost, other)
    mesh.owner.log.run(lambda tx: jobs.cancel(tx, lost, "not needed"))
    assert [each.job.id for each in mesh.taken()] == [other]
