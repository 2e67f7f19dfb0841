"""Nodes whose shared store goes back to an earlier state: PostgreSQL fails over to an asynchronous standby, or a libSQL
server is restarted from a backup. Each node finds that out before it writes anything, offers its own ops again, and
says what it has offered and what is lost.
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import pytest

import hocket
from hocket.families.jobs import claiming
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.rules import Job, Outcome
from hocket.kernel.ids import parse_ulid, ulid_text
from hocket.log import Transaction
from hocket.log.written import journal
from hocket.log.written.journal import LostTail, WrittenEntry
from hocket.node.node import SyncNode
from hocket.node.runtime import Runtime
from tests.libsql_server import new_server
from tests.postgres_pair import ServerPair
from tests.scenarios.machines import Machine, machines
from tests.waiting import wait_for
from tests.work.mesh import Mesh, mesh_in

KIND = hocket.kind("acme.step")


class Forgetful(Protocol):
    """A database that goes back to what it was when `remember` was called."""

    address: str

    def remember(self) -> None: ...
    def go_back(self) -> None: ...
    def end(self) -> None: ...


class AsynchronousPair:
    def __init__(self) -> None:
        self.pair = ServerPair(synchronous=False)
        self.address = self.pair.address
        self._is_alone = False

    def remember(self) -> None:
        if self._is_alone:
            self.pair.attach()
        self.pair.wait_replayed()
        self.pair.detach()

    def go_back(self) -> None:
        self.pair.fail_over()
        self._is_alone = True

    def end(self) -> None:
        self.pair.remove()


class RestoredServer:
    def __init__(self) -> None:
        self.server = new_server()
        self.address = self.server.address
        self._backup = self.server.directory / "backup"

    def remember(self) -> None:
        self.server.kill()
        shutil.rmtree(self._backup, ignore_errors=True)
        shutil.copytree(self.server.data, self._backup)
        self.server.start()

    def go_back(self) -> None:
        self.server.kill()
        shutil.rmtree(self.server.data)
        shutil.copytree(self._backup, self.server.data)
        self.server.start()

    def end(self) -> None:
        pass


@pytest.fixture(params=[AsynchronousPair, RestoredServer], ids=["postgres", "libsql"])
def database(request: pytest.FixtureRequest) -> Iterator[Forgetful]:
    made: Forgetful = request.param()
    yield made
    made.end()


class Place:
    """A node in this process."""

    def __init__(self, runtime: Runtime, stack: ExitStack) -> None:
        stack.callback(runtime.close)
        self.runtime, self.log = runtime, runtime.log
        self.reports: list[LostTail] = []
        assert runtime.log.written is not None
        runtime.log.written.report = self.reports.append

    def submit(self, count: int = 1) -> list[bytes]:
        made = [self.log.append_plain(KIND.kind, b"{}") for _ in range(count)]
        return [each for each in made if each is not None]

    def submit_together(self, count: int) -> list[bytes]:
        """In one bundle."""
        handles = SyncNode(self.runtime).submit_many([(KIND, {})] * count)
        return [parse_ulid(each.job_id) for each in handles]

    def has(self, ids: list[bytes]) -> bool:
        with self.runtime.read() as session:
            return all(session.job(each) is not None for each in ids)

    def last(self) -> bytes:
        with self.runtime.read() as session:
            return session.latest_of(self.log.author)[1]


class Nodes:
    def __init__(self, directory: Path, database: Forgetful, stack: ExitStack) -> None:
        self.directory, self._stack = directory, stack
        first, second = directory / "first", directory / "second"
        self.first = Place(Runtime.init(first, server=database.address, name="first"), stack)
        self.second = Place(Runtime.init(second, first / "user.key", server=database.address, name="second"), stack)

    def again(self, name: str) -> Place:
        """Another process of a node."""
        return Place(Runtime.open(self.directory / name), self._stack)


@pytest.fixture
def nodes(tmp_path: Path, database: Forgetful) -> Iterator[Nodes]:
    with ExitStack() as stack:
        yield Nodes(tmp_path, database, stack)


@pytest.mark.req("VX-18")
def test_each_node_offers_again_what_it_wrote_and_the_store_has_lost(nodes: Nodes, database: Forgetful) -> None:
    first, second = nodes.first, nodes.second
    kept = first.submit(3)
    database.remember()
    lost, lost_together = first.submit(4), first.submit_together(20)
    of_second = second.submit(2)
    database.go_back()
    new = first.submit()
    [report] = first.reports
    assert (report.offered, report.waiting, report.refused, report.missing) == (24, 0, {}, 0)
    assert "24 ops of this node since" in str(report) and str(report).endswith("were offered again")
    assert first.has([*kept, *lost, *lost_together, *new]) and not first.has(of_second[:1])
    second.log.run(lambda tx: None)
    [report] = second.reports
    assert report.offered == 2 and first.has(of_second)
    first.submit()
    assert len(first.reports) == len(second.reports) == 1
    assert first.runtime.verify().findings == [] and first.runtime.rebuild().unchanged


@pytest.mark.req("VX-18")
def test_a_process_that_wrote_nothing_of_it_offers_what_another_one_of_its_node_wrote(
    nodes: Nodes, database: Forgetful
) -> None:
    first, other = nodes.first, nodes.again("first")
    first.submit()
    other.submit()
    database.remember()
    lost = first.submit(3)
    database.go_back()
    new = other.submit()
    assert [each.offered for each in other.reports] == [3]
    more = first.submit()
    assert first.reports == [] and first.has([*lost, *new, *more])
    later = nodes.again("first")
    later.submit()
    assert later.reports == [] and later.runtime.verify().findings == []


@pytest.mark.req("VX-18")
def test_ops_of_another_node_are_waited_for_until_it_offers_them(nodes: Nodes, database: Forgetful) -> None:
    first, second = nodes.first, nodes.second
    second.submit()
    database.remember()
    [job_id] = first.submit()
    end(second, job_id, "the result")
    database.go_back()
    second.submit()
    [report] = second.reports
    assert report.waiting >= 2 and not report.refused, "the claim and the end of a job that is not there"
    first.submit()
    assert ended(first, job_id) is Outcome.SUCCEEDED
    assert first.runtime.verify().findings == []


@pytest.mark.req("VX-18")
@pytest.mark.touches("LW-37")
def test_of_two_ends_of_a_job_the_earlier_counts_once_it_is_offered_again(nodes: Nodes, database: Forgetful) -> None:
    """The later one was acknowledged at the server that has lost the earlier one."""
    first, second = nodes.first, nodes.second
    second.submit()
    [job_id] = first.submit()
    database.remember()
    end(first, job_id, "earlier")
    database.go_back()
    end(second, job_id, "later")
    assert result(second, job_id) == "later"
    first.submit()
    [report] = first.reports
    assert not report.refused and result(second, job_id) == "earlier"
    assert first.runtime.verify().findings == []


def end(place: Place, job_id: bytes, content: str) -> None:
    """Claims a job and completes it."""
    sign = place.runtime.liveness().announce(f"tests-{os.urandom(4).hex()}")

    def claim(tx: Transaction) -> claiming.Claims:
        sign.beat(tx)
        return claiming.claim(tx, sign.row(tx), 1, lambda kind: 60_000, True, lambda job, _: job.id == job_id)

    [taken] = place.log.run(claim).taken
    assert taken.job.claim_op is not None
    held = jobs.Held(job_id, taken.job.claim_op)
    done = place.log.run(lambda tx: jobs.complete(tx, held, json.dumps(content).encode(), 1))
    assert isinstance(done, Job) and done.outcome is Outcome.SUCCEEDED


def ended(place: Place, job_id: bytes) -> Outcome | None:
    with place.runtime.read() as session:
        entry = session.job(job_id)
    return None if entry is None else entry.job.outcome


def result(place: Place, job_id: bytes) -> object:
    return place.runtime.show(ulid_text(job_id))["result"]


@pytest.mark.req("VX-18")
def test_what_the_home_has_forgotten_is_lost_and_reported(
    nodes: Nodes, database: Forgetful, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The home keeps a bounded number of bytes, and the backup is older."""
    first = nodes.first
    first.submit()
    monkeypatch.setattr(journal, "FILE_BYTES_MAX", 1_000)
    database.remember()
    lost = first.submit(40)
    database.go_back()
    [new] = first.submit()
    [report] = first.reports
    assert report.offered == 0 and 0 < report.missing < 40
    assert f"{report.missing} ops more, and older ones, are lost" in str(report)
    assert first.has([new]) and not first.has(lost[-1:])
    again = nodes.again("first")
    again.submit()
    assert again.reports == [], "it is not looked for twice"


@pytest.mark.req("VX-18")
def test_an_unfinished_record_and_files_that_are_gone_are_passed_over(nodes: Nodes, database: Forgetful) -> None:
    first = nodes.first
    written = nodes.directory / "first" / "written"
    first.submit(2)
    with written.open("ab") as file:
        file.write(journal._record(WrittenEntry(bytes(20), bytes(100)))[:-30])
    database.remember()
    lost = nodes.again("first").submit(2)
    database.go_back()
    again = nodes.again("first")
    again.submit()
    assert [each.offered for each in again.reports] == [2] and again.has(lost)
    written.unlink()
    third = nodes.again("first")
    third.submit()
    assert third.reports == []


@pytest.mark.req("VX-18")
@pytest.mark.touches("VX-16")
def test_commands_and_the_doctor_say_what_was_offered_again(tmp_path: Path, database: Forgetful) -> None:
    with machines(tmp_path, "first") as [machine]:
        machine("init", "--store", database.address)
        machine.submit("acme.step", "{}")
        database.remember()
        lost = machine.submit("acme.step", "{}")
        database.go_back()
        sentence = "hocket: the store went back to an earlier state: 1 op of this node since "
        assert sentence in machine("submit", "acme.step", "{}").err
        assert machine.show(lost)["state"] == "pending"
        assert sentence not in machine("submit", "acme.step", "{}").err
        assert ("warn", sentence[8:]) in [(each, text[: len(sentence) - 8]) for each, text in doctor(machine, 0)]

        forgotten = tmp_path / "first" / "home" / "written"
        database.remember()
        machine.submit("acme.step", "{}")
        cut = forgotten.stat().st_size
        machine.submit("acme.step", "{}")
        forgotten.write_bytes(forgotten.read_bytes()[cut:])
        database.go_back()
        assert "1 op more, and older ones, are lost" in machine("submit", "acme.step", "{}").err
        [told] = [text for each, text in doctor(machine, 1) if each == "bad" and "went back" in text]
        assert told.endswith(f"; remove {forgotten}.report when you have dealt with it")


def doctor(machine: Machine, code: int) -> list[tuple[str, str]]:
    checks = machine("node", "doctor", "--json", code=code).json
    return [(each["verdict"], each["says"]) for each in checks]


REST = hocket.kind("step.rest", lease="60s")


def look(mesh: Mesh) -> int:
    with mesh.runtime.read() as session:
        return mesh.done(session)


@pytest.mark.slow
@pytest.mark.req("VX-18")
@pytest.mark.touches("LW-02", "LW-37")
@pytest.mark.parametrize("rounds", [1, pytest.param(20, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])])
def test_workers_go_on_and_every_job_that_was_acknowledged_ends_once(
    tmp_path: Path, database: Forgetful, rounds: int
) -> None:
    with mesh_in(tmp_path, database.address) as mesh:
        submitted: list[str] = []

        def submit(count: int) -> None:
            submitted.extend(each.job_id for each in mesh.node.submit_many([(REST, {"ms": 10})] * count))

        submit(10)
        worker = mesh.worker(concurrency=2).up()
        report = journal.report_file(mesh.home / "written")
        for number in range(rounds):
            database.remember()
            submit(10)
            wait_for(lambda: look(mesh) > 10 * number + 5, "some jobs")  # noqa: B023
            database.go_back()
            submit(1)
            wait_for(report.exists, "the report of the process that found the loss first")
            report.unlink()
        mesh.wait_done(len(submitted))
        assert worker.stop() == 0, worker.output.read_text()
        with mesh.runtime.read() as session:
            outcomes = [session.job(parse_ulid(each)) for each in submitted]
        assert all(each is not None and each.job.outcome is Outcome.SUCCEEDED for each in outcomes)
        mesh.check_log()
