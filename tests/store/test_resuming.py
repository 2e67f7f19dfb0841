"""A write transaction in PostgreSQL that begins without a message, where the last one of its process has ended. If
others have written since, it is undone.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from hocket.families.jobs import requests as jobs
from hocket.families.jobs.claiming import claim
from hocket.families.jobs.rules import Job
from hocket.families.kinds.facts import DefineKind
from hocket.kernel.ops import decode, link_to
from hocket.kernel.policy import DEFAULT
from hocket.log import Log, Transaction
from hocket.node.runtime import Runtime
from hocket.store import OpRow, Outdated
from hocket.store.local import Place, WorkerRow
from hocket.store.postgres import PostgresStore
from hocket.store.postgres.session import PostgresSession
from tests.stores import with_macs

pytestmark = pytest.mark.touches("VX-18")

ME = bytes(7) + b"\1"
KIND = "acme.render"
WORKER = WorkerRow(0, "name", 1, 1, ME, 1, Place("", "", "", ""), "")


@pytest.fixture(autouse=True)
def resumes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hocket.store.postgres.beginning.QUIET_MIN", 0)
    monkeypatch.setattr("hocket.store.postgres.beginning.RESUMED_S", float("inf"))


@pytest.fixture
def other(address: str) -> Iterator[PostgresStore]:
    with closing(PostgresStore(address)) as opened:
        yield opened


def move(store: PostgresStore, wall: int, author: bytes | None = ME) -> bool:
    """Changes the head; gives whether the transaction resumed."""
    with store.write(author) as session:
        session.lock_author(ME)
        resumed = session.resumes
        session.put_head(session.lock_end()._replace(wall=wall))
    return resumed


def wall_of(store: PostgresStore) -> int:
    with store.read() as session:
        return session.head().wall


def test_a_transaction_resumes_where_the_last_one_of_its_process_ended(store: PostgresStore) -> None:
    assert [move(store, wall) for wall in (1, 2, 3)] == [False, True, True]
    assert wall_of(store) == 3
    assert not move(store, 4, author=None), "a transaction that is alone does not"


def test_it_is_undone_when_it_commits_if_others_have_written(store: PostgresStore, other: PostgresStore) -> None:
    move(store, 1)
    move(other, 2)
    with pytest.raises(Outdated):
        move(store, 3)
    assert wall_of(store) == 2
    assert not move(store, 3) and wall_of(store) == 3


def test_it_reads_nothing_if_others_have_written(store: PostgresStore, other: PostgresStore) -> None:
    move(store, 1)
    move(other, 2)
    with pytest.raises(Outdated), store.write(ME) as session:
        session.ready_kinds()


def test_it_is_undone_if_others_write_between_its_first_read_and_its_end(
    store: PostgresStore, other: PostgresStore
) -> None:
    move(store, 1)
    with pytest.raises(Outdated), store.write(ME) as session:
        session.lock_author(ME)
        session.set_rate(KIND, 5)
        assert session.rate(KIND) == 5
        with other.write(bytes(8)) as beside:
            beside.lock_author(bytes(8))
            beside.put_head(beside.lock_end()._replace(wall=7))
        session.put_head(session.lock_end()._replace(wall=8))
    assert wall_of(store) == 7
    with store.read() as session:
        assert session.rate(KIND) == 0


def test_it_is_undone_if_its_worker_was_given_up(store: PostgresStore, other: PostgresStore) -> None:
    with_macs(store)
    with store.write(ME) as session:
        session.lock_author(ME)
        number = session.put_worker(WORKER)
        assert session.has_worker(number)
    with store.write(ME) as session:
        session.lock_author(ME)
        assert session.resumes and session.has_worker(number)
    with other.write() as session:
        session.drop_worker(number)
    with pytest.raises(Outdated), store.write(ME) as session:
        session.lock_author(ME)
        assert session.has_worker(number)
        session.set_rate(KIND, 5)


def test_a_transaction_after_an_undone_one_reads(store: PostgresStore) -> None:
    move(store, 1)
    with pytest.raises(KeyError), store.write(ME) as session:
        assert session.resumes
        raise KeyError
    assert not move(store, 2)


# Through the log: the request runs again.


@pytest.fixture
def log(address: str, tmp_path: Path) -> Iterator[Log]:
    with Runtime.init(tmp_path / "home", server=address) as runtime:
        yield runtime.log


@pytest.fixture
def second(log: Log, tmp_path: Path) -> Iterator[Log]:
    """Another process of the node."""
    with Runtime.open(tmp_path / "home") as runtime:
        yield runtime.log


def ids_of(log: Log) -> list[bytes]:
    return [row.id for row in stored(log)]


def stored(log: Log) -> list[OpRow]:
    with log.store.read() as session:
        return session.ops_after(0, 100)


def test_a_request_runs_again_after_another_process_has_written(log: Log, second: Log) -> None:
    before = len(ids_of(log))
    made = [each.append_plain(KIND, b"{}") for each in (log, log, second, log, second, second, log)]
    assert ids_of(log)[before:] == made
    links = [decode(row.body).link for row in stored(log)[before:]]
    assert links[1:] == [link_to(each) for each in made[:-1] if each]


def test_a_request_notices_that_its_kind_has_options(log: Log, second: Log) -> None:
    assert log.append_plain(KIND, b"{}") is not None and log.append_plain(KIND, b"{}") is not None
    second.run(lambda tx: tx.author(DefineKind(KIND, b'{"concurrency":1}')))
    assert log.append_plain(KIND, b"{}") is None


def test_a_connection_that_broke_between_two_transactions_is_made_again(log: Log, address: str) -> None:
    before = len(ids_of(log))
    made = [log.append_plain(KIND, b"{}") for _ in range(2)]
    with psycopg.connect(address) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
    made.append(log.append_plain(KIND, b"{}"))
    assert ids_of(log)[before:] == made


# Jobs that a process holds are not read again.


def taken(log: Log) -> jobs.Held:
    log.run(lambda tx: jobs.submit(tx, [jobs.Draft(KIND, b"{}", DEFAULT)]), beside=True)
    (claimed,) = log.run(lambda tx: claim(tx, 1, 1, lambda kind: 60_000), beside=True).taken
    assert claimed.job.claim_op is not None
    return jobs.Held(claimed.job.id, claimed.job.claim_op)


def finishing(held: jobs.Held) -> Callable[[Transaction], object]:
    def request(tx: Transaction) -> object:
        tx.projection.jobs.load([held.job_id])
        return jobs.complete(tx, held, None, 1)

    return request


def test_a_job_that_the_process_holds_is_not_read(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    held = taken(log)
    monkeypatch.setattr(PostgresSession, "_jobs", lambda *asked: pytest.fail("it read a job"))
    assert isinstance(log.run(finishing(held), beside=True), Job)


def test_a_held_job_that_was_cancelled_meanwhile_is_read(log: Log, second: Log) -> None:
    held = taken(log)
    second.run(lambda tx: jobs.cancel(tx, held.job_id, "not needed"))
    assert not isinstance(log.run(finishing(held), beside=True), Job)


@pytest.mark.parametrize("is_quiet", [True, False])
def test_a_held_job_with_another_time_in_its_row_is_read(
    log: Log, address: str, is_quiet: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its row does not go by its ops; so it is folded, and reported."""
    held = taken(log)
    if not is_quiet:
        monkeypatch.setattr("hocket.store.postgres.beginning.QUIET_MIN", float("inf"))
    with psycopg.connect(address) as connection:
        connection.execute("UPDATE hocket.jobs SET last = scheduled, deadline = 1 WHERE id = %s", (held.job_id,))
    log.run(finishing(held), beside=True)
    assert log.store_check is not None
    assert {finding.table for finding in log.store_check.findings.values()} == {"jobs"}


def test_a_held_job_with_a_later_op_is_read(
    log: Log, second: Log, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its row was put back to what this process knows, and the transaction begins with a message."""
    monkeypatch.setattr("hocket.store.postgres.beginning.QUIET_MIN", float("inf"))
    held = taken(log)
    with psycopg.connect(address, autocommit=True) as connection:
        columns = "stage, last, outcome, fence, claimer, claim_op, deadline, done"
        (before,) = connection.execute(f"SELECT {columns} FROM hocket.jobs WHERE id = %s", (held.job_id,))
        second.run(lambda tx: jobs.cancel(tx, held.job_id, "not needed"))
        values = ", ".join(f"{column} = %s" for column in columns.split(", "))
        connection.execute(f"UPDATE hocket.jobs SET {values} WHERE id = %s", (*before, held.job_id))
    assert not isinstance(log.run(finishing(held), beside=True), Job)
