"""The contract of every store, shown on each of them. A new store gets one line in KINDS: its address at a place, and
whether other processes share it.
"""

import subprocess
import sys
import threading
from base64 import urlsafe_b64decode
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import pytest
from msgspec.structs import replace

from hocket import store as contract
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.rendezvous import seed_in
from hocket.families.jobs.requests import Draft
from hocket.families.jobs.rules import Job, Outcome, State
from hocket.families.locks.facts import LOCK
from hocket.families.rows.facts import ROW
from hocket.kernel.clock import Hlc
from hocket.kernel.mesh_rules import HOCKET, encode_rules
from hocket.kernel.ops import decode
from hocket.kernel.policy import Policy
from hocket.kernel.vocabulary import JOB, Subject
from hocket.log import RULES, Log
from hocket.log.audit import verify
from hocket.store import (
    Artifact,
    JobEntry,
    JobFilter,
    LockMisuse,
    NewOp,
    ProgressRow,
    Schedule,
    SealedOp,
    Session,
    Stage,
    Store,
    SubjectRow,
    WorkerRow,
)
from hocket.store.sqlite import SqliteReader
from hocket.store.sqlite.session import SqliteSession
from tests.libsql_server import new_server
from tests.log.roster.world import READER, introduction, job_id, new_log
from tests.postgres_server import prepared, server

ROOT = Path(__file__).resolve().parent.parent.parent
CHILD = Path(__file__).parent / "child.py"


class Kind(NamedTuple):
    """`address` is that of a store at a place, and `new_address` that of a place without one."""

    address: Callable[[Path], str]
    new_address: Callable[[Path], str]
    # Whether another process finds the same store there.
    is_shared: bool

    def make(self, place: Path) -> Store:
        return contract.open(self.address(place), create=True)


@cache
def database_at(place: Path) -> str:
    """The address of the database that stands for this place: an empty store, which is cheaper than a new one."""
    return server().new_database(template=prepared())


@cache
def server_at(place: Path) -> str:
    return new_server(has_store=True).address


def file_at(place: Path) -> str:
    return f"sqlite://{place / 'log.db'}"


def memory(place: Path) -> str:
    return contract.MEMORY


KINDS = {
    "sqlite file": Kind(file_at, file_at, is_shared=True),
    "sqlite memory": Kind(memory, memory, is_shared=False),
    "postgres": Kind(database_at, lambda place: server().new_database(), is_shared=True),
    "libsql": Kind(server_at, lambda place: new_server().address, is_shared=True),
}
SHARED = [name for name, kind in KINDS.items() if kind.is_shared]


class Place:
    """Where a store is kept. `open` gives another way to it, as another process has."""

    def __init__(self, kind: Kind, path: Path) -> None:
        self.kind = kind
        self.path = path
        self.store = kind.make(path)
        self._others: list[Store] = []

    def open(self) -> Store:
        other = self.kind.make(self.path)
        self._others.append(other)
        return other

    def start(self, verb: str, *words: object) -> "subprocess.Popen[str]":
        command = [sys.executable, str(CHILD), verb, self.kind.address(self.path), *map(str, words)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)

    def close(self) -> None:
        for store in (self.store, *self._others):
            store.close()


@pytest.fixture(autouse=True)
def a_view_ends_although_something_knows_its_cursors(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a tool does that lists all objects. In SQLite, a statement that was not read to its end keeps its view."""
    known: list[object] = []
    make, end = SqliteSession.__init__, SqliteReader.end

    def make_and_know(session: SqliteSession, *values: Any, **named: Any) -> None:
        make(session, *values, **named)
        execute = session._sql

        def known_execute(*statement: Any) -> Any:
            known.append(cursor := execute(*statement))
            return cursor

        session._sql = known_execute

    def end_and_look(reader: SqliteReader) -> None:
        end(reader)
        assert reader.connection.txn_state("main") == apsw.SQLITE_TXN_NONE

    monkeypatch.setattr(SqliteSession, "__init__", make_and_know)
    monkeypatch.setattr(SqliteReader, "end", end_and_look)


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    place = Place(KINDS[request.param], tmp_path)
    yield place
    place.close()


@pytest.fixture(params=SHARED)
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    place = Place(KINDS[request.param], tmp_path)
    yield place
    place.close()


def note(store: Store, key: str) -> bytes | None:
    with store.read() as session:
        return session.meta(key)


class Trouble(Exception):
    pass


@pytest.mark.req("VX-01")
def test_what_is_written_is_there(place: Place) -> None:
    with place.store.write() as session:
        session.set_meta("a", b"1")
        assert session.meta("a") == b"1"
    assert note(place.store, "a") == b"1"
    assert note(place.store, "b") is None


@pytest.mark.req("VX-07")
def test_a_transaction_that_raises_is_undone_whole(place: Place) -> None:
    log = new_log(place.store)
    log.append_plain("k", b"{}")
    with place.store.read() as session:
        before = session.head()
    with pytest.raises(Trouble):
        with place.store.write() as session:
            session.set_meta("a", b"1")
            session.set_rate("k", 5)
            number = session.put_worker(WorkerRow(0, "w", 1, 1, bytes(8), 1, contract.Place()))
            session.put_head(before._replace(wall=2**40, seq=99))
            assert number > 0
            raise Trouble
    with place.store.read() as session:
        assert (session.meta("a"), session.rate("k"), session.workers(), session.head()) == (None, 0, [], before)
    # And the next one is none the worse for it.
    log.append_plain("k", b"{}")
    with place.store.read() as session:
        assert session.head().seq == before.seq + 1


@pytest.mark.req("VX-07")
@pytest.mark.parametrize("trouble", [KeyboardInterrupt, SystemExit])
def test_also_by_what_is_no_ordinary_error(place: Place, trouble: type[BaseException]) -> None:
    with pytest.raises(trouble):
        with place.store.write() as session:
            session.set_meta("a", b"1")
            raise trouble
    assert note(place.store, "a") is None
    with place.store.write() as session:
        session.set_meta("a", b"2")
    assert note(place.store, "a") == b"2"


@pytest.mark.req("VX-01")
def test_threads_of_one_store_exclude_each_other(place: Place) -> None:
    def add() -> None:
        for _ in range(50):
            with place.store.write() as session:
                session.set_rate("k", session.rate("k") + 1)

    run_together(add, add, add, add)
    with place.store.read() as session:
        assert session.rate("k") == 200


def run_together(*targets: Callable[[], None]) -> None:
    errors: list[BaseException] = []

    def guarded(target: Callable[[], None]) -> None:
        try:
            target()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(target,)) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors and not any(thread.is_alive() for thread in threads)


@pytest.mark.req("VX-01")
def test_stores_at_one_place_exclude_each_other(shared: Place) -> None:
    def adder(store: Store) -> Callable[[], None]:
        def add() -> None:
            for _ in range(25):
                with store.write() as session:
                    session.set_rate("k", session.rate("k") + 1)

        return add

    run_together(*(adder(shared.open()) for _ in range(4)))
    with shared.store.read() as session:
        assert session.rate("k") == 100


@pytest.mark.req("VX-01")
def test_processes_at_one_place_exclude_each_other(shared: Place) -> None:
    children = [shared.start("add", 50) for _ in range(4)]
    for child in children:
        child.communicate(timeout=60)
        assert child.returncode == 0
    with shared.store.read() as session:
        assert session.rate("k") == 200


@pytest.mark.req("VX-07")
def test_what_was_committed_survives_a_kill(shared: Place) -> None:
    for number in range(5):
        child = shared.start("commit", number)
        assert child.stdout is not None
        assert child.stdout.readline() == "committed\n"
        child.kill()
        child.wait()
        assert note(shared.store, f"n{number}") == b"x" * 1_000


@pytest.mark.req("VX-07")
def test_a_transaction_cut_short_by_a_kill_leaves_nothing(shared: Place) -> None:
    # libSQL keeps a transaction for five seconds after its process is gone.
    turns = 1 if shared.kind is KINDS["libsql"] else 5
    for number in range(turns):
        child = shared.start("half", number)
        assert child.stdout is not None
        assert child.stdout.readline() == "half\n"
        # Readers are not held up by it.
        assert note(shared.store, f"n{number}") is None
        child.kill()
        child.wait()
        assert note(shared.store, f"n{number}") is None
        with shared.store.write() as session:
            assert session.meta(f"n{number}") is None
            session.set_meta("after", b"%d" % number)
    assert note(shared.open(), "after") == b"%d" % (turns - 1)


@pytest.mark.req("VX-02")
@pytest.mark.parametrize(("name", "turns"), [("sqlite file", 3), ("postgres", 1), ("libsql", 1)])
def test_many_processes_can_create_it_at_once(name: str, turns: int, tmp_path: Path) -> None:
    for turn in range(turns):
        path = tmp_path / str(turn)
        path.mkdir()
        address = KINDS[name].new_address(path)
        command = [sys.executable, str(CHILD), "create", address]
        children = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
            for _ in range(6)
        ]
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        for child in children:
            child.communicate(timeout=60)
            assert child.returncode == 0
        store = contract.open(address)
        with store.read() as session:
            assert session.rate("k") == 6
            assert session.head().seq == 0
        store.close()


@pytest.mark.req("VX-01")
def test_a_view_stays_as_it_was_while_writers_commit(shared: Place) -> None:
    other = shared.open()
    with shared.store.write() as session:
        session.set_meta("a", b"1")
    with other.read() as view:
        assert view.meta("a") == b"1"
        for number in range(5):
            with shared.store.write() as session:
                session.set_meta("a", b"2")
                session.set_rate("k", number + 1)
        assert (view.meta("a"), view.rate("k")) == (b"1", 0)
    assert note(other, "a") == b"2"


@pytest.mark.req("VX-01")
def test_readers_are_not_held_up_by_a_writer(shared: Place) -> None:
    with shared.store.write() as session:
        session.set_meta("a", b"1")
        # In the same process, in the same thread even, and through another door.
        assert note(shared.store, "a") is None
        assert note(shared.open(), "a") is None
    assert note(shared.store, "a") == b"1"


@pytest.mark.req("VX-01")
def test_a_view_within_a_view(place: Place) -> None:
    with place.store.read() as outer, place.store.read() as inner:
        assert outer.head() == inner.head()
    with place.store.write() as session:
        session.set_meta("a", b"1")
    assert note(place.store, "a") == b"1"


@pytest.mark.req("VX-01", "LW-17")
def test_the_queue_gives_the_most_urgent_first_and_the_oldest_of_those(place: Place) -> None:
    log = new_log(place.store)
    priorities = [0, 5, -1, 5, 0, 7]
    made = log.run(lambda tx: jobs.submit(tx, [Draft("k", b"{}", Policy(priority=p)) for p in priorities]))
    order = [5, 1, 3, 0, 4, 2]
    with place.store.read() as session:
        assert [entry.job.id for entry, _ in session.ready("k", 10)] == [made[i].job_id for i in order]
        assert [entry.job.id for entry, _ in session.ready("k", 2)] == [made[i].job_id for i in order[:2]]
        assert session.ready("kk", 10) == []
        assert session.ready_kinds() == ["k"]
        assert session.counts() == {(Stage.READY, None): 6}


def numbered(number: int) -> bytes:
    return number.to_bytes(16, "big")


def entry(number: int, kind: str, stage: Stage, outcome: Outcome | None = None) -> JobEntry:
    at = Hlc(number, 0, 1)
    state = {Stage.CLAIMED: State.CLAIMED, Stage.DONE: State.COMPLETED}.get(stage, State.PENDING)
    return JobEntry(Job(numbered(number), kind, numbered(number), at, Policy(), at, state, outcome), stage, None)


LISTED = [
    entry(1, "acme.render", Stage.DONE, Outcome.SUCCEEDED),
    entry(2, "acme", Stage.DONE, Outcome.FAILED),
    entry(3, "acme-mail", Stage.READY),
    entry(4, "acme.render", Stage.DELAYED),
    entry(5, "acme.mail", Stage.CLAIMED),
    entry(6, "other", Stage.DONE, Outcome.SUCCEEDED),
    entry(7, "acme.mail", Stage.DONE, Outcome.CANCELLED),
    entry(8, "acme.render.fast", Stage.DONE, Outcome.SUCCEEDED),
]


@pytest.mark.req("LW-17")
@pytest.mark.parametrize(
    ("wanted", "numbers"),
    [
        (JobFilter(), [8, 7, 6, 5, 4, 3, 2, 1]),
        (JobFilter(newest_first=False), [1, 2, 3, 4, 5, 6, 7, 8]),
        (JobFilter(stages=(Stage.READY, Stage.DELAYED)), [4, 3]),
        (JobFilter(stages=(Stage.DONE,), kind="acme."), [8, 7, 1]),
        (JobFilter(outcome=Outcome.SUCCEEDED), [8, 6, 1]),
        (JobFilter(outcome=Outcome.FAILED), [2]),
        (JobFilter(outcome=Outcome.CANCELLED, kind="acme.mail"), [7]),
        (JobFilter(stages=(Stage.CLAIMED,), outcome=Outcome.FAILED), []),
        (JobFilter(kind="acme.render"), [4, 1]),
        (JobFilter(kind="acme.render."), [8]),
        (JobFilter(kind="acme"), [2]),
        (JobFilter(kind="acm."), []),
        (JobFilter(beyond=numbered(3)), [2, 1]),
        (JobFilter(beyond=numbered(6), newest_first=False), [7, 8]),
    ],
)
def test_lists_are_filtered_and_come_in_pages(place: Place, wanted: JobFilter, numbers: list[int]) -> None:
    with place.store.write() as session:
        session.put_jobs(LISTED)
    with place.store.read() as session:
        assert [each.job.id for each in session.jobs(wanted, 100)] == [numbered(number) for number in numbers]
        assert wanted.beyond is not None or session.job_count(wanted) == len(numbers)
        found: list[bytes] = []
        while page := session.jobs(wanted, 2):
            found += [each.job.id for each in page]
            wanted = wanted._replace(beyond=found[-1])
        assert found == [numbered(number) for number in numbers]


def test_jobs_are_found_by_the_end_of_their_ids(place: Place) -> None:
    with place.store.write() as session:
        session.put_jobs(LISTED)
    with place.store.read() as session:
        for size in (1, 2, 15, 16):
            assert session.job_ids_ending(numbered(3)[-size:]) == [numbered(3)]
        assert session.job_ids_ending(b"no such end") == []


@pytest.mark.req("LW-17")
def test_a_claim_and_a_completion_change_only_some_columns(place: Place) -> None:
    """The claims and completions of plain jobs move their rows; all other columns stay as they are."""
    at, op, artifacts = Hlc(99, 3, 2), numbered(77), (numbered(78), numbered(79))
    before = replace(LISTED[2].job, policy=Policy(priority=3, unique="key"), failures=2, returns=1, error_op=op)
    claimed = replace(before, state=State.CLAIMED, fence=5, claimer=9, claim_op=op, deadline=1234, last=at)
    done = replace(claimed, state=State.COMPLETED, outcome=Outcome.SUCCEEDED, done=at, artifacts=artifacts)
    done = replace(done, deadline=None)

    def found() -> JobEntry | None:
        with place.store.read() as session:
            return session.job(before.id)

    with place.store.write() as session:
        session.put_jobs(LISTED)
        session.put_jobs([JobEntry(replace(before, begin_by=50), Stage.READY, None)])
    with place.store.write() as session:
        session.move_jobs([JobEntry(claimed, Stage.CLAIMED, 4)])
        assert session.job(before.id) == JobEntry(claimed, Stage.CLAIMED, 4)
        assert session.claimed_count(before.kind) == 1 and session.ready_kinds() == []
    assert found() == JobEntry(claimed, Stage.CLAIMED, 4)
    with place.store.write() as session:
        session.move_jobs([JobEntry(done, Stage.DONE, None)])
    assert found() == JobEntry(done, Stage.DONE, None)
    with place.store.read() as session:
        others = [each for each in LISTED if each.job.id != before.id]
        assert [each for each in session.each_job() if each.job.id != before.id] == others
        kinds = Counter((each.stage, each.job.outcome, each.job.kind) for each in session.each_job())
        assert session.counts_by_kind() == kinds


@pytest.mark.req("GR-07")
def test_ready_jobs_that_are_left_to_others_are_left_out(place: Place) -> None:
    waiting = [entry(number, "k", Stage.READY) for number in range(1, 10)]
    with place.store.write() as session:
        session.put_jobs(waiting)
    asked: list[tuple[bytes, int]] = []

    def is_odd(job_id: bytes, fence: int) -> bool:
        asked.append((job_id, fence))
        return job_id in [numbered(number) for number in (1, 3, 5, 7, 9)]

    with place.store.write() as session:
        session.lock_permissions(exclusive=False)
        first = session.take_ready("k", 3, None, is_odd)
        assert [each.job.id for each, _ in first] == [numbered(2), numbered(4), numbered(6)]
        assert set(asked) <= {(each.job.id, each.job.fence) for each in waiting}
        assert [each.job.id for each, _ in session.take_ready("k", 3, first[-1][0], is_odd)] == [numbered(8)]
        assert session.take_ready("k", 3, None, lambda job_id, fence: True) == []
        assert [each.job.id for each, _ in session.take_ready("k", 1)] == [numbered(1)]


@pytest.mark.req("VX-01")
def test_sessions_at_the_same_time_take_different_jobs(shared: Place) -> None:
    """Beside each other, without waiting, where the store can do that; one after the other where it cannot."""
    with shared.store.write() as session:
        session.put_jobs([entry(number, "k", Stage.READY) for number in range(1, 5)])
    other, taken = shared.open(), list[bytes]()

    def take(session: Session, author: bytes) -> None:
        session.lock_author(author)
        session.lock_permissions(exclusive=False)
        ready = [each for each, _ in session.take_ready("k", 2)]
        taken.extend(each.job.id for each in ready)
        session.move_jobs([each._replace(stage=Stage.CLAIMED) for each in ready])

    def take_elsewhere() -> None:
        with other.write(OTHER) as session:
            take(session, OTHER)

    elsewhere = threading.Thread(target=take_elsewhere)
    with shared.store.write(AUTHOR) as session:
        take(session, AUTHOR)
        elsewhere.start()
        if session.is_beside:
            elsewhere.join(20)
            assert not elsewhere.is_alive(), "it waits for jobs that another session has locked"
    elsewhere.join(60)
    assert sorted(taken) == [numbered(number) for number in range(1, 5)]


@pytest.mark.req("GR-01", "LW-51")
def test_ready_jobs_that_go_by_rank_have_the_signature_of_their_bundle(place: Place) -> None:
    with place.store.write() as session:
        session.set_meta(RULES, encode_rules(HOCKET))
    log = new_log(place.store)
    log.run(lambda tx: tx.author(introduction(READER).payload))
    policies = [Policy(claim="rendezvous")] * 3 + [Policy(claim="sticky", sticky="a")] * 2 + [Policy(priority=-1)] * 2
    made = log.run(lambda tx: jobs.submit(tx, [Draft("k", b"{}", each) for each in policies]))
    ids = [each.job_id for each in made]
    with place.store.write() as session:
        session.lock_permissions(exclusive=False)
        assert (session.row_check is not None) == log.is_shared
        rows = {row.id: row for row in session.ops_by_id(ids)}
        for ready in (session.ready("k", 10), session.take_ready("k", 10)):
            assert [entry.job.id for entry, _ in ready] == ids
            for (entry, schedule), policy in zip(ready, policies, strict=True):
                row = rows[entry.job.schedule_op]
                assert row.bundle is not None and schedule is not None
                if policy.claim == "first":
                    assert schedule == row.body
                    continue
                text = (decode(row.bundle).signature or b"").rpartition(b"..")[2]
                half = urlsafe_b64decode(text + b"==")[:32]
                assert seed_in(schedule) == seed_in(row.signed_body) == sha256(half + row.id).digest()
                assert decode(schedule).payload == decode(row.body).payload


@pytest.mark.req("LW-17")
def test_counts_follow_every_change_of_a_job(place: Place) -> None:
    def counts() -> dict[tuple[Stage, Outcome | None], int]:
        with place.store.read() as session:
            by_kind = Counter((each.stage, each.job.outcome, each.job.kind) for each in session.each_job())
            assert session.counts_by_kind() == by_kind
            return session.counts()

    assert counts() == {}
    with place.store.write() as session:
        session.put_jobs(LISTED)
    known = Counter((each.stage, each.job.outcome) for each in LISTED)
    assert counts() == known
    changed = [
        entry(2, "acme", Stage.READY),  # failed, and is tried again
        entry(5, "acme.mail", Stage.DONE, Outcome.SUCCEEDED),
        entry(7, "acme.mail", Stage.DONE, Outcome.SUCCEEDED),
        entry(9, "acme", Stage.DONE, Outcome.FAILED),
    ]
    with place.store.write() as session:
        session.put_jobs(changed)
        session.drop_job(numbered(1))
        session.drop_job(numbered(404))
    # Also within one transaction.
    changed += [entry(3, "acme-mail", Stage.DONE, Outcome.FAILED), entry(10, "k", Stage.READY)]
    with place.store.write() as session:
        session.lock_permissions(exclusive=False)
        assert [each.job.id for each, _ in session.take_ready("acme-mail", 9)] == [numbered(3)]
        session.put_jobs([entry(3, "acme-mail", Stage.CLAIMED), entry(10, "k", Stage.DONE, Outcome.FAILED)])
        session.put_jobs([entry(3, "acme-mail", Stage.DONE, Outcome.SUCCEEDED), entry(10, "k", Stage.READY)])
        session.put_jobs([entry(3, "acme-mail", Stage.DONE, Outcome.FAILED)])
    after = {each.job.id: each for each in LISTED[1:]} | {each.job.id: each for each in changed}
    assert counts() == Counter((each.stage, each.job.outcome) for each in after.values())
    with pytest.raises(Trouble):
        with place.store.write() as session:
            session.put_jobs([entry(3, "acme", Stage.DONE, Outcome.FAILED)])
            raise Trouble
    assert counts() == Counter((each.stage, each.job.outcome) for each in after.values())
    with place.store.write() as session:
        session.drop_projections()
    assert counts() == {}


def test_progress_counts_while_the_job_runs_under_that_fence(place: Place) -> None:
    here, there = b"here".rjust(8), b"there".rjust(8)
    running = [entry(number, "acme.mail", Stage.CLAIMED) for number in (1, 2, 3)]
    ids = [each.job.id for each in running]
    notes = [
        ProgressRow(ids[0], here, 0, b"100"),
        ProgressRow(ids[1], here, 0, b"20"),
        ProgressRow(ids[2], there, 0, b"3"),
    ]
    with place.store.write() as session:
        session.put_jobs(running)
        session.put_progress(notes)
        session.put_progress([notes[0]._replace(note=b"101")])
    with place.store.read() as session:
        assert session.progress([]) == []
        assert session.progress(ids[:1]) == [ProgressRow(ids[0], here, 0, b"101")]
        assert {row.note for row in session.progress(ids)} == {b"101", b"20", b"3"}
        assert [(kind, row.note) for kind, row in session.progress_of(here)] == [
            ("acme.mail", b"20"),
            ("acme.mail", b"101"),
        ]
    with place.store.write() as session:
        again = replace(running[0].job, fence=1)
        session.put_jobs([running[0]._replace(job=again), entry(2, "acme.mail", Stage.READY)])
    with place.store.read() as session:
        assert session.progress(ids) == notes[2:] and session.progress_of(here) == []
    with place.store.write() as session:
        session.put_progress([ProgressRow(ids[0], here, 1, b"1")])
    with place.store.write() as session:
        session.put_jobs(running)  # the rows of the earlier claims are gone
    with place.store.read() as session:
        assert session.progress(ids) == notes[2:]


@pytest.mark.req("VX-01")
def test_ops_by_id_place_time_job_and_author(place: Place) -> None:
    log = new_log(place.store)
    log.run(lambda tx: tx.author(introduction(READER).payload))
    made = log.run(lambda tx: jobs.submit(tx, [Draft("k", b"{}", Policy(priority=1)) for _ in range(3)]))
    log.run(lambda tx: jobs.cancel(tx, made[1].job_id, ""))
    with place.store.write() as session:
        session.order_ops()
        rows = session.ops_after(0, 100)
        assert [row.seq for row in rows] == [1, 2, 3, 4, 5]
        assert session.ops_after(2, 2) == rows[2:4]
        assert session.last_ops(2) == rows[3:]
        assert [session.op(row.id) for row in rows] == [session.entry(row.seq) for row in rows] == rows
        assert session.op(job_id(404)) is None and session.entry(404) is None
        assert session.ops_at(rows[2].hlc) == [rows[2]]
        assert session.ops_about(Subject(JOB, made[1].job_id)) == [rows[2], rows[4]]
        some = session.ops_about_jobs([made[1].job_id, made[2].job_id, job_id(404)], rows[2].variant)
        assert sorted(some) == rows[2:4]
        assert session.ops_about_jobs([made[1].job_id], rows[4].variant) == [rows[4]]
        assert session.ops_about_jobs([], rows[2].variant) == []
        keys = [made[1].job_id, made[2].job_id, job_id(404)]
        assert session.keys_of_many_ops(keys, 1) == set(keys[:2])
        assert session.keys_of_many_ops(keys, 2) == {made[1].job_id}
        assert session.keys_of_many_ops(keys, 3) == session.keys_of_many_ops([], 1) == set()
        assert session.offers() == {}
        session.put_offer(b"o" * 16, made[2].job_id, 7)
        assert session.offers() == {b"o" * 16: 7} and session.offered_jobs() == {made[2].job_id}
        session.drop_offer(b"o" * 16)
        assert session.ops_in_order(bytes(20), 100) == rows
        assert session.ops_in_order(rows[1].hlc, 2) == rows[2:4]
        assert session.frontier() == {log.node.to_bytes(8, "big"): rows[4].hlc}
        assert session.ops_of_variants([rows[0].variant]) == rows[:1]
        session.set_reasons([(11, rows[3].id)])
        assert session.refused_ops(5) == [rows[3]._replace(reason=11)]


@pytest.mark.req("VX-01")
def test_artifacts_of_a_type_come_from_the_newest_id_on(place: Place) -> None:
    def artifact(number: int, type: str) -> Artifact:
        return Artifact(bytes(15) + bytes([number]), bytes(16), type, None, bytes(32), 1, None, 1, bytes(20))

    with place.store.write() as session:
        session.add_artifacts([artifact(number, "a" if number % 2 else "b") for number in range(1, 10)])

    def found(since: int, before: int, limit: int) -> list[int]:
        with place.store.read() as session:
            ends = bytes(15) + bytes([since]), bytes(15) + bytes([before])
            return [each.id[-1] for each in session.artifacts_of_type("a", *ends, limit)]

    assert found(0, 255, 9) == [9, 7, 5, 3, 1]
    assert found(3, 7, 9) == [5, 3]
    assert found(0, 9, 2) == [7, 5]


def test_routes_are_what_held_at_a_time(place: Place) -> None:
    with place.store.write() as session:
        for wall, node in ((1, b"A" * 8), (3, None), (5, b"B" * 8)):
            session.set_route("k", wall.to_bytes(20, "big"), node)
        seen = [session.route("k", wall.to_bytes(20, "big")) for wall in range(7)]
        assert seen == [None, b"A" * 8, b"A" * 8, None, None, b"B" * 8, b"B" * 8]
        assert session.route("other", b"\xff" * 20) is None
        session.drop_route("k", (5).to_bytes(20, "big"))
        assert session.route("k", b"\xff" * 20) is None


@pytest.mark.req("VX-01")
def test_the_latest_schedule_that_counts_is_in_force(place: Place) -> None:
    def schedule(cron: str | None, hlc: int) -> Schedule:
        op_id = hlc.to_bytes(16, "big")
        return Schedule("nightly", hlc.to_bytes(20, "big"), cron, "UTC", "k", b"{}", b"", hlc, op_id)

    def in_force(session: Session) -> list[str | None]:
        return [each.cron for each in session.schedules()]

    with place.store.write() as session:
        session.set_schedule(schedule("1", 5), counts=True)
        session.set_schedule(schedule("2", 3), counts=True)
        session.set_schedule(schedule("3", 7), counts=False)
        assert in_force(session) == ["1"]
        session.ticked((5).to_bytes(16, "big"), 900)
        assert [each.last_tick for each in session.schedules()] == [900]
        session.set_schedule(schedule("3", 7), counts=True)
        assert [(each.cron, each.last_tick) for each in session.schedules()] == [("3", 7)]
        session.set_schedule(schedule(None, 9), counts=True)
        session.set_schedule(schedule("4", 8), counts=True)
        assert in_force(session) == []
        session.strike_schedule((9).to_bytes(16, "big"))
        assert in_force(session) == ["4"]


@pytest.mark.req("VX-01")
def test_the_history_of_a_schedules_name_can_be_asked(place: Place) -> None:
    def hlc(wall: int) -> bytes:
        return wall.to_bytes(12, "big") + b"N" * 8

    with place.store.write() as session:
        for wall, name, counts in ((1, "a", True), (2, "a", False), (3, "a", True), (2, "b", True)):
            op_id = name.encode() * 8 + wall.to_bytes(8, "big")
            session.set_schedule(Schedule(name, hlc(wall), "x", "UTC", "k", b"", b"", 0, op_id), counts)
        before = session.schedule_before("a", hlc(3))
        assert before is not None and before.hlc == hlc(1) and before.author == int.from_bytes(b"N" * 8, "big")
        assert session.schedule_before("a", hlc(1)) is None
        assert (session.schedule_after("a", hlc(1)), session.schedule_after("a", hlc(3))) == (hlc(3), None)
        later = session.schedule_ops_after("a", hlc(1))
        assert later == [b"a" * 8 + wall.to_bytes(8, "big") for wall in (2, 3)]
        assert len(session.schedule_ops_by(b"N" * 8)) == 4 and session.schedule_ops_by(b"M" * 8) == []


@pytest.mark.req("LW-33")
def test_dropping_the_projections_keeps_the_truth(place: Place) -> None:
    log: Log = new_log(place.store)
    log.run(lambda tx: tx.author(introduction(READER).payload))
    log.run(lambda tx: jobs.submit(tx, [Draft("k", b"{}", Policy(priority=1))]))
    with place.store.write() as session:
        before = session.head(), session.ops_after(0, 10)
        session.set_rate("k", 5)
        session.drop_projections()
    with place.store.read() as session:
        assert (session.head(), session.ops_after(0, 10)) == before
        assert list(session.each_job()) == [] and session.nodes() == {}
        assert session.rate("k") == 5
    assert verify(place.store, user=log.user).findings == []


@pytest.mark.req("VX-01")
def test_an_undamaged_store_says_so(place: Place) -> None:
    with place.store.read() as session:
        assert session.damage() == []


def held_open(store: Store, opened: threading.Event, close: threading.Event) -> Callable[[], None]:
    def hold() -> None:
        with store.read() as session:
            assert session.meta("a") is None
            opened.set()
            assert close.wait(60)
            assert session.meta("a") is None

    return hold


@pytest.mark.req("VX-01")
def test_threads_read_while_others_read_and_one_writes(shared: Place) -> None:
    """The readers end only after all the rest is done: nobody can have waited for them."""
    close = threading.Event()
    opened = [threading.Event() for _ in range(3)]

    def rest() -> None:
        assert all(each.wait(60) for each in opened)
        with shared.store.write() as session:
            session.set_meta("a", b"1")
            seen: list[bytes | None] = []
            run_together(lambda: seen.append(note(shared.store, "a")))
            assert seen == [None]
        assert note(shared.store, "a") == b"1"
        close.set()

    run_together(*(held_open(shared.store, each, close) for each in opened), rest)


@pytest.mark.req("VX-01")
def test_any_number_of_threads_may_read(place: Place) -> None:
    def look() -> None:
        for _ in range(20):
            with place.store.read() as session, place.store.read() as again:
                assert session.head() == again.head()

    run_together(*[look] * 24)


# Numbers at once, signatures and links later.


# An op keeps its first 16 bytes when it is signed.
SIGNED = b"the body of op 1, signed"


LINKS = [bytes([number]) * 32 for number in range(4)]


def new_op(number: int) -> NewOp:
    return NewOp(
        numbered(number), bytes(12) + numbered(number)[8:], 1, "job", None, 0, 1, b"the body of op %d" % number
    )


@pytest.mark.req("VX-07")
def test_ops_are_numbered_in_the_order_of_adding(place: Place) -> None:
    with place.store.write() as session:
        assert session.add_ops([new_op(3), new_op(1)], LINKS[:2]) == 2
        assert session.add_ops([new_op(2)], LINKS[2:3]) == 3
        session.put_head(session.head()._replace(seq=3))
    with place.store.write() as session:
        assert session.add_ops([new_op(4)], LINKS[3:]) == 4
        session.put_head(session.head()._replace(seq=4))
    with place.store.read() as session:
        rows = session.ops_after(0, 9)
    assert [(row.seq, row.body[-1:]) for row in rows] == [(1, b"3"), (2, b"1"), (3, b"2"), (4, b"4")]
    assert [row.chain for row in rows] == LINKS
    assert NewOp(*rows[0][1:9]) == new_op(3)


def test_the_states_of_a_family_and_whether_a_subject_has_later_ops(place: Place) -> None:
    with place.store.write() as session:
        for number, family in enumerate((LOCK, LOCK, ROW)):
            session.put_subject(SubjectRow(Subject(family, bytes([number])), bytes(20), bytes([number, 9])))
        session.add_ops(
            [
                NewOp(bytes([number]) * 16, bytes([number]) * 20, 1048, LOCK, key, reason, 1, b"")
                for number, (key, reason) in enumerate([(b"a", 0), (b"a", 0), (b"a", 7), (b"b", 0)])
            ],
            LINKS,
        )
    with place.store.read() as session:
        assert session.subject_states(LOCK, b"none") == [b"\x00\x09", b"\x01\x09"]
        assert session.subject_states(LOCK, b"\x00") == [b"\x01\x09"] and session.subject_states("kind", b"") == []
        after = [session.has_op_after(Subject(LOCK, b"a"), bytes([number]) * 20) for number in (0, 1)]
        assert after == [True, False], "what does not count is left out"
        assert not session.has_op_after(Subject(ROW, b"a"), b"") and not session.has_op_after(Subject(LOCK, b"c"), b"")


@pytest.mark.touches("VX-12")
def test_rows_are_found_by_name_by_conflict_and_by_change(place: Place) -> None:
    def row(name: str, has_conflict: bool = False) -> SubjectRow:
        return SubjectRow(Subject(ROW, name.encode()), bytes(20), bytes((has_conflict,)) + name.encode())

    def keys(found: list[SubjectRow]) -> list[bytes]:
        return [each.subject.key for each in found]

    names = ["a/1", "a/2", "a/20", "a/é", "a0/1", "b/1"]
    with place.store.write() as session:
        for name in names:
            session.put_subject(row(name, has_conflict=name in ("a/2", "b/1")))
        session.put_subject(SubjectRow(Subject("other", b"a/3"), bytes(20), b"\x01"))
        session.add_ops(
            [
                NewOp(bytes([number]) * 16, bytes([number]) * 20, 1048, family, key, 0, 1, b"")
                for number, (family, key) in enumerate([(ROW, b"a/1"), (ROW, b"b/1"), ("other", b"a/2"), (ROW, b"a/1")])
            ],
            LINKS,
        )
    with place.store.read() as session:
        assert keys(session.rows(b"a/", b"", 9)) == [name.encode() for name in names[:4]]
        assert session.rows(b"a/", b"a/1", 2) == [row("a/2", has_conflict=True), row("a/20")]
        assert keys(session.rows(b"a/2", b"", 9)) == [b"a/2", b"a/20"] and session.rows(b"c/", b"", 9) == []
        assert keys(session.rows_in_conflict(b"", 9)) == [b"a/2", b"b/1"]
        assert keys(session.rows_in_conflict(b"", 1)) == [b"a/2"] and keys(session.rows_in_conflict(b"a/2", 9)) == [
            b"b/1"
        ]
        assert sorted(session.rows_written(b"", 0)) == [b"a/1", b"b/1"]
        assert session.rows_written(b"a/", 1) == [b"a/1"] and session.rows_written(b"a/", 4) == []
    with place.store.write() as session:
        session.put_subject(row("a/2"))
        assert keys(session.rows_in_conflict(b"", 9)) == [b"b/1"]


@pytest.mark.req("VX-07")
def test_sealing_changes_the_bytes_and_the_link_and_nothing_else(place: Place) -> None:
    with place.store.write() as session:
        session.put_head(session.head()._replace(seq=session.add_ops([new_op(1), new_op(2)], LINKS[:2])))
    with place.store.write() as session:
        session.seal_ops([SealedOp(1, SIGNED, b"L" * 32)])
        session.put_head(session.head()._replace(chain=b"L" * 32))
    with place.store.read() as session:
        first, second = session.ops_after(0, 9)
        assert (session.head().seq, session.head().chain) == (2, b"L" * 32)
    assert NewOp(*first[1:9]) == new_op(1)._replace(body=SIGNED) and first.chain == b"L" * 32
    assert NewOp(*second[1:9]) == new_op(2) and second.chain == LINKS[1]


def test_the_end_of_the_log_can_be_taken_off(place: Place) -> None:
    with place.store.write() as session:
        session.put_head(session.head()._replace(seq=session.add_ops([new_op(1), new_op(2), new_op(3)], LINKS[:3])))
    with place.store.write() as session:
        session.drop_ops(2)
        session.put_head(session.head()._replace(seq=1))
        session.put_head(session.head()._replace(seq=session.add_ops([new_op(4)], LINKS[3:])))
    with place.store.read() as session:
        assert [row.id for row in session.ops_after(0, 9)] == [new_op(1).id, new_op(4).id]
        assert [row.seq for row in session.ops_after(0, 9)] == [1, 2]


# Locks: what a transaction says before it decides.

AUTHOR, OTHER = bytes(7) + b"A", bytes(7) + b"B"
SUBJECTS = [("job", b"2"), ("job", b"1"), ("limit", b"k")]


def test_locks_are_taken_in_one_order_and_again_as_often_as_one_likes(place: Place) -> None:
    for _ in range(2):
        with place.store.write() as session:
            session.lock_author(AUTHOR)
            session.lock_author(AUTHOR)
            session.lock_permissions(exclusive=False)
            session.lock_subjects(SUBJECTS)
            session.lock_subjects(iter(SUBJECTS))
            session.lock_author(AUTHOR)
            session.lock_permissions(exclusive=True)
            session.lock_subjects([])
            assert session.take_ready("k", 1) == session.take_overdue(1, 1) == session.take_claimed(AUTHOR) == []


def author_then_subjects(session: Session) -> None:
    session.lock_author(AUTHOR)
    session.lock_subjects(SUBJECTS)


def author_after_permissions(session: Session) -> None:
    session.lock_permissions(exclusive=False)
    session.lock_author(AUTHOR)


def two_authors(session: Session) -> None:
    session.lock_author(AUTHOR)
    session.lock_author(OTHER)


MISUSES: list[Callable[[Session], object]] = [
    lambda session: session.lock_subjects(SUBJECTS),
    lambda session: session.take_ready("k", 1),
    lambda session: session.take_overdue(1, 1),
    lambda session: session.take_claimed(AUTHOR),
    author_then_subjects,
    author_after_permissions,
    two_authors,
]


@pytest.mark.parametrize("misuse", MISUSES)
def test_locks_in_another_order_are_an_error_and_undo_the_transaction(
    place: Place, misuse: Callable[[Session], object]
) -> None:
    for _ in range(2):
        with pytest.raises(LockMisuse):
            with place.store.write() as session:
                session.set_meta("a", b"1")
                misuse(session)
        assert note(place.store, "a") is None
        # What a transaction has locked does not outlive it.
        with place.store.write() as session:
            session.lock_author(OTHER)
            session.lock_permissions(exclusive=False)
            session.lock_subjects(SUBJECTS)


@pytest.mark.parametrize(
    "lock",
    [
        lambda session: session.lock_author(AUTHOR),
        lambda session: session.lock_permissions(exclusive=False),
        lambda session: session.lock_subjects(SUBJECTS),
        lambda session: session.take_ready("k", 1),
    ],
)
def test_only_a_write_transaction_locks(place: Place, lock: Callable[[Session], object]) -> None:
    with place.store.read() as session:
        with pytest.raises(LockMisuse):
            lock(session)
    with place.store.write() as over:
        pass
    with pytest.raises(LockMisuse):
        lock(over)
