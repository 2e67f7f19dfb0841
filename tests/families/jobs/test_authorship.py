"""On whose behalf a command runs: a worker runs its own node's commands without asking the allow-list, and another
member must find no way to have that node's name put on its own.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from hocket.extensions.command.request import KIND
from hocket.families.jobs import cron
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.authorship import is_own
from hocket.families.jobs.requests import Draft
from hocket.families.jobs.rules import Job, State, tick_id, tick_policy
from hocket.kernel.arbitration import Reason
from hocket.kernel.policy import DEFAULT, encode_policy
from hocket.kernel.vocabulary import (
    AcceptWork,
    CancelJob,
    ClaimWork,
    DesignateCoordinator,
    FailWork,
    RetryJob,
    ScheduleJob,
    SetSchedule,
)
from hocket.log import Log
from hocket.node.node import SyncNode
from hocket.node.runtime import Runtime
from tests.log.roster import world
from tests.log.roster.world import NODES, START, job_id
from tests.log.test_permissions import WORKER, WORKER_NODE, Mesh, admitted
from tests.mesh.enrolment.people import Mesh as People
from tests.mesh.enrolment.people import exchange

J = job_id(1)
OWNER = NODES[0]


@pytest.fixture(autouse=True)
def worker_can_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(world.KEY_OF, WORKER_NODE, WORKER)


def whose(log: Log, job: bytes = J) -> dict[int, bool]:
    """For the owner's node and for the member's, whether the job is its own."""
    with log.store.read() as session:
        entry = session.job(job)
        assert entry is not None
        row = session.op(entry.job.schedule_op)
        assert row is not None
        return {node: is_own(session, node, row.body) for node in (OWNER, WORKER_NODE)}


@pytest.mark.req("LW-44")
def test_an_ordinary_job_is_its_authors() -> None:
    mesh = Mesh()
    mesh.owner(10, ScheduleJob(J, "acme.render.x", b"", b""))
    mesh.worker(11, ScheduleJob(job_id(2), "acme.render.x", b"", b""))
    log = admitted(mesh.ops)
    assert whose(log) == {OWNER: True, WORKER_NODE: False}
    assert whose(log, job_id(2)) == {OWNER: False, WORKER_NODE: True}


def ticked(by_owner: bool, timezone: str = "UTC", at: int = 1_000) -> tuple[Log, bytes]:
    """A schedule of the one, and its tick, which the other writes down."""
    mesh = Mesh()
    set_by, written_by = (mesh.owner, mesh.worker) if by_owner else (mesh.worker, mesh.owner)
    asked = set_by(10, SetSchedule("n", "* * * * * *", timezone, "acme.render.x", b"", b""))
    tick = ScheduleJob(
        tick_id(asked.id, START + at), "acme.render.x", b"", encode_policy(tick_policy(DEFAULT, "n", asked.id))
    )
    written_by(at, tick, (asked.id,))
    return admitted(mesh.ops), tick.job_id


@pytest.mark.req("LW-44")
@pytest.mark.parametrize("by_owner", [True, False])
def test_a_tick_is_the_schedules_authors_whoever_wrote_it_down(by_owner: bool) -> None:
    log, job = ticked(by_owner)
    assert whose(log, job) == {OWNER: by_owner, WORKER_NODE: not by_owner}


@pytest.mark.req("LW-44")
def test_a_tick_in_a_timezone_that_this_machine_does_not_know_is_nobodys() -> None:
    log, job = ticked(True, timezone="Mars/Olympus")
    assert whose(log, job) == {OWNER: False, WORKER_NODE: False}


@pytest.mark.req("LW-44")
@pytest.mark.parametrize("end", ["cancelled", "failed"])
def test_a_job_that_another_retries_is_not_its_authors_alone(end: str) -> None:
    mesh = Mesh()
    scheduled = mesh.owner(10, ScheduleJob(J, "acme.render.x", b"", b""))
    if end == "cancelled":
        mesh.worker(20, CancelJob(J, ""))
    else:
        claim = mesh.other(19, ClaimWork(J, NODES[1], 1_000))
        mesh.other(20, FailWork(J, NODES[1], "", "", False), (claim.id,))
    log = admitted(mesh.ops)
    assert whose(log) == {OWNER: True, WORKER_NODE: False}
    mesh.worker(30, RetryJob(J, ""))
    log = admitted(mesh.ops)
    assert whose(log) == {OWNER: False, WORKER_NODE: False}
    mesh.owner(40, CancelJob(J, ""))
    mesh.owner(50, RetryJob(J, ""))
    log = admitted(mesh.ops)
    assert whose(log) == {OWNER: True, WORKER_NODE: False}
    assert scheduled.id == job_of(log).schedule_op and job_of(log).state is State.PENDING


def job_of(log: Log) -> Job:
    with log.store.read() as session:
        entry = session.job(J)
        assert entry is not None
        return entry.job


@pytest.mark.req("LW-44", "LW-39")
def test_a_retry_that_the_arbiter_accepts_is_still_the_retriers() -> None:
    mesh = Mesh()
    mesh.owner(1, DesignateCoordinator(OWNER))
    mesh.owner(10, ScheduleJob(J, "acme.render.x", b"", b""))
    mesh.owner(20, CancelJob(J, ""))
    offer = mesh.worker(30, RetryJob(J, ""))
    assert whose(admitted(mesh.ops)) == {OWNER: True, WORKER_NODE: False}, "an offer changes nothing yet"
    mesh.owner(40, AcceptWork(J, offer.id))
    log = admitted(mesh.ops)
    assert job_of(log).state is State.PENDING
    assert whose(log) == {OWNER: False, WORKER_NODE: False}


# The same with a worker that would run the command.


@pytest.fixture
def people(tmp_path: Path) -> Iterator[People]:
    made = People(tmp_path)
    yield made
    made.close()


def touching(path: Path) -> Draft:
    payload = {"command": ["touch", str(path)], "args": [], "timeout": 10}
    return Draft(KIND, msgspec.json.encode(payload), DEFAULT)


def plan(name: str, path: Path) -> cron.NewSchedule:
    return cron.check(cron.NewSchedule(name, "* * * * *", "UTC", touching(path)))


def works(runtime: Runtime) -> None:
    SyncNode(runtime).work([], allow=[], until_idle=True)


@pytest.mark.req("LW-44")
def test_a_members_schedule_runs_no_command_on_the_owners_machine(people: People, tmp_path: Path) -> None:
    """`job:schedule` on a phone and `cron add … hocket.run` ran a command there: the machine that ticked wrote the job,
    and took it for its own.
    """
    phone = people.join(people.invite("phone", ["job:schedule"]), "phone")
    mine, foreign = tmp_path / "mine", tmp_path / "foreign"
    phone.log.run(lambda tx: cron.add(tx, plan("theirs", foreign)))
    people.owner.log.run(lambda tx: cron.add(tx, plan("ours", mine)))
    exchange(phone, people.owner)
    people.clock.advance(120)
    assert people.owner.log.run(cron.make_due) == 2
    works(people.owner)
    assert mine.exists() and not foreign.exists()


@pytest.mark.req("LW-44")
def test_the_owners_schedule_runs_though_a_member_wrote_its_tick_down(people: People, tmp_path: Path) -> None:
    phone = people.join(people.invite("phone", ["job:schedule:acme.", "ops:read"]), "phone")
    people.owner.log.run(lambda tx: cron.add(tx, plan("ours", tmp_path / "mine")))
    exchange(phone, people.owner)
    people.clock.advance(120)
    assert phone.log.run(cron.make_due) == 1
    exchange(phone, people.owner)
    assert people.owner.log.run(cron.make_due) == 0
    works(people.owner)
    assert (tmp_path / "mine").exists()


@pytest.mark.req("LW-44")
def test_a_members_retry_runs_no_command_on_the_owners_machine(people: People, tmp_path: Path) -> None:
    phone = people.join(people.invite("phone", ["job:schedule"]), "phone")
    owner = people.owner
    ((job, _),) = owner.log.run(lambda tx: jobs.submit(tx, [touching(tmp_path / "mine")]))
    owner.log.run(lambda tx: jobs.cancel(tx, job, "not after all"))
    exchange(phone, owner)
    people.clock.advance(1)
    phone.log.run(lambda tx: jobs.retry(tx, job, "but yes"))
    exchange(phone, owner)
    with owner.read() as session:
        offers = session.ops_refused_for((Reason.OFFERED,))
    for offer in offers:
        owner.log.run(lambda tx, offer=offer: tx.author(AcceptWork(job, offer.id)))
    with owner.read() as session:
        entry = session.job(job)
        assert entry is not None and entry.job.state is State.PENDING
    works(owner)
    assert not (tmp_path / "mine").exists()
