"""What is SQLite's alone: its file, its versions, its errors, and the settings that durability hangs on."""

import hashlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from importlib import resources
from pathlib import Path
from typing import Any

import apsw
import pytest

from hocket.errors import StoreError
from hocket.families.inbox import requests as inbox
from hocket.families.inbox.requests import MessageDraft
from hocket.families.jobs import claiming, rescue
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.requests import Content, Draft, Held, creation
from hocket.families.jobs.rules import Job, Outcome, State
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import content_hash
from hocket.kernel.keys import RowMac, SigningKey
from hocket.kernel.ops import NO_ID
from hocket.kernel.policy import Policy
from hocket.kernel.vocabulary import ScheduleJob
from hocket.log import Log, Transaction
from hocket.log.audit import verify
from hocket.store import (
    AnswerRow,
    BoundRequest,
    Invitation,
    JobEntry,
    JobFilter,
    Peer,
    Place,
    RowWithoutMac,
    Session,
    Stage,
    TokenRow,
    WorkerRow,
    connections,
    sqlite,
)
from hocket.store.sqlite import APPLICATION_ID, VERSION, SqliteReader, SqliteStore
from hocket.store.sqlite.session import SqliteSession
from tests.log.roster.world import INTRODUCTIONS, READER, Script, introduction, job_id, new_log, sent, signed
from tests.store.sqlite_steps import steps


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@pytest.fixture
def log(path: Path) -> Iterator[Log]:
    log = new_log(SqliteStore(path, create=True))
    log.run(lambda tx: tx.author(introduction(READER).payload))
    yield log
    log.store.close()


@pytest.mark.req("VX-07")
def test_a_commit_is_on_the_disk_when_it_returns(log: Log) -> None:
    store = log.store
    assert isinstance(store, SqliteStore)
    with store.read() as view:
        reader = view._connection
    assert isinstance(reader, apsw.Connection)
    for connection in (store._writer, reader):
        assert connection.pragma("synchronous") == 2
        assert connection.pragma("journal_mode") == "wal"


@pytest.mark.touches("VX-07")
def test_a_reader_whose_view_does_not_end_is_not_used_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(reader: SqliteReader) -> None:
        raise apsw.IOError("the disk is gone")

    with closing(SqliteStore(path, create=True)) as store:
        with monkeypatch.context() as patch, pytest.raises(apsw.IOError):
            patch.setattr(SqliteReader, "end", fail)
            with store.read() as session:
                session.head()
        with store.read() as session:
            assert session.head().seq == 0


def test_a_claim_is_remembered_only_while_nobody_else_writes(log: Log, path: Path) -> None:
    """The connection that wrote a job as claimed need not read it again, unless another one may have changed it."""
    (made,) = log.run(lambda tx: jobs.submit(tx, [Draft("k", b"{}", Policy())]))
    (claim,) = log.run(lambda tx: claiming.claim(tx, 1, 1, lambda kind: 1_000)).taken

    def fence(session: Session) -> int:
        entry = session.job(made.job_id)
        assert entry is not None and session.jobs_by_id([made.job_id]) == [entry]
        return entry.job.fence

    said: list[str] = []
    log.store._writer.exec_trace = lambda cursor, sql, values: said.append(sql) is None  # type: ignore[attr-defined]
    assert log.run(lambda tx: fence(tx.session)) == claim.job.fence == 1
    assert not [sql for sql in said if "FROM jobs" in sql]
    made_by(path, "UPDATE jobs SET fence = 8")
    with log.store.write() as session:
        assert fence(session) == 8
    assert log.run(lambda tx: fence(tx.session)) == 8


def test_a_claim_that_was_undone_is_forgotten(log: Log) -> None:
    (made,) = log.run(lambda tx: jobs.submit(tx, [Draft("k", b"{}", Policy())]))

    def claim_and_fail(tx: Transaction) -> None:
        claiming.claim(tx, 1, 1, lambda kind: 1_000)
        tx.projection.flush()
        raise RuntimeError

    with pytest.raises(RuntimeError):
        log.run(claim_and_fail)
    entry = log.run(lambda tx: tx.session.job(made.job_id))
    assert entry is not None and entry.stage is Stage.READY


def made_by(path: Path, *statements: str) -> bytes:
    """A file as another program left it; gives its bytes."""
    connection = apsw.Connection(str(path))
    for statement in statements:
        connection.execute(statement)
    connection.close()
    return path.read_bytes()


def files(path: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in path.parent.iterdir()}


@pytest.mark.req("VX-02")
@pytest.mark.parametrize("create", [True, False])
def test_a_newer_version_is_refused_and_untouched(path: Path, create: bool) -> None:
    log = new_log(SqliteStore(path, create=True))
    log.append_plain("k", b"{}")
    log.store.close()
    made_by(path, f"PRAGMA user_version={VERSION + 1}", "PRAGMA wal_checkpoint(TRUNCATE)")
    before = files(path)
    with pytest.raises(StoreError, match=f"version {VERSION + 1}.*upgrade"):
        SqliteStore(path, create=create)
    assert files(path) == before


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize(
    "statements",
    [
        ["CREATE TABLE bookmarks (url TEXT)", "INSERT INTO bookmarks VALUES ('x')"],
        ["CREATE TABLE bookmarks (url TEXT)", "PRAGMA application_id=1234"],
        ["CREATE TABLE bookmarks (url TEXT)", f"PRAGMA user_version={VERSION}"],
        ["PRAGMA application_id=1234"],
    ],
)
def test_another_programs_database_is_refused_and_untouched(path: Path, create: bool, statements: list[str]) -> None:
    made_by(path, *statements)
    content = apsw.Connection(str(path)).execute("SELECT * FROM sqlite_schema").fetchall()
    with pytest.raises(StoreError, match="not a Hocket database"):
        SqliteStore(path, create=create)
    assert apsw.Connection(str(path)).execute("SELECT * FROM sqlite_schema").fetchall() == content


def test_not_even_the_journal_mode_of_another_programs_database_changes(path: Path) -> None:
    before = made_by(path, "CREATE TABLE bookmarks (url TEXT)")
    with pytest.raises(StoreError):
        SqliteStore(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"not a database at all, but longer than a header" * 40, b"\x00" * 4096])
def test_a_file_that_is_no_database_is_refused_and_untouched(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(StoreError):
        SqliteStore(path)
    assert path.read_bytes() == content


def test_a_place_that_is_not_there_is_refused(path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be opened"):
        SqliteStore(path)
    with pytest.raises(StoreError, match="cannot be opened"):
        SqliteStore(path.parent / "nowhere" / "log.db", create=True)
    assert not path.exists()


def test_an_emptied_file_is_not_filled_again_unless_asked(path: Path) -> None:
    path.touch()
    with pytest.raises(StoreError):
        SqliteStore(path)
    SqliteStore(path, create=True).close()
    connection = apsw.Connection(str(path))
    assert (connection.pragma("application_id"), connection.pragma("user_version")) == (APPLICATION_ID, VERSION)


def opened(path: Path) -> SqliteStore:
    """As the log of these tests opens it."""
    store = SqliteStore(path)
    store.mac_rows(RowMac(READER))
    return store


def as_version_10(path: Path) -> None:
    """Makes a database of version 10 with what the tables have in common."""
    ten = path.with_name("ten.db")
    steps = [resources.files("hocket.store.sqlite").joinpath(step).read_text() for step in sqlite._SCHEMA[:10]]
    made_by(ten, *steps, f"PRAGMA application_id={APPLICATION_ID}", "PRAGMA user_version=10")
    connection = apsw.Connection(str(ten))
    connection.execute("ATTACH ? AS new", (str(path),))
    tables = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'")
    for (table,) in tables.fetchall():
        names = [
            {name for _, name, *_ in connection.execute(f"PRAGMA {schema}.table_info({table})")}
            for schema in ("main", "new")
        ]
        columns = ", ".join(sorted(names[0] & names[1]))
        order = " ORDER BY rowid" if table == "jobs" else ""
        connection.execute(f"DELETE FROM {table}")
        connection.execute(f"INSERT INTO {table} ({columns}) SELECT {columns} FROM new.{table}{order}")
    connection.close()
    for each in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
        each.unlink(missing_ok=True)
    ten.rename(path)


def as_version_4(path: Path) -> None:
    """Takes from a database what later versions have added."""
    as_version_10(path)
    made_by(
        path,
        *(
            f"DROP TABLE {table}"
            for table in ("tokens", "answers", "lock_requests", "messages", "deliveries", "group_cursors")
        ),
        "DROP INDEX jobs_unbegun",
        "ALTER TABLE jobs DROP COLUMN begin_by",
        "DROP TABLE agents",
        "DROP TABLE presence",
        "ALTER TABLE workers DROP COLUMN serves",
        "ALTER TABLE head DROP COLUMN sealed",
        "DROP TABLE finished",
        "DROP INDEX jobs_failed",
        "DROP INDEX ops_by_subject",
        "DROP TABLE subjects",
        "ALTER TABLE ops DROP COLUMN family",
        "ALTER TABLE ops RENAME COLUMN key TO job",
        "CREATE INDEX ops_by_job ON ops (job, hlc) WHERE settled = 1 AND job IS NOT NULL",
        "PRAGMA user_version=4",
    )


@pytest.mark.touches("VX-02")
def test_a_database_of_version_4_knows_how_many_jobs_have_ended(path: Path) -> None:
    log = new_log(SqliteStore(path, create=True))
    made = log.run(lambda tx: jobs.submit(tx, [Draft("k", b"{}", Policy())] * 5))
    log.run(lambda tx: [jobs.cancel(tx, each.job_id, "") for each in made[:2]])
    (claim,) = log.run(lambda tx: claiming.claim(tx, 1, 1, lambda kind: 60_000)).taken
    assert claim.job.claim_op is not None
    held = Held(claim.job.id, claim.job.claim_op)
    log.run(lambda tx: jobs.complete(tx, held, None, 1))
    before = bodies(log)
    log.store.close()
    as_version_4(path)
    log.store = opened(path)
    counts = {(Stage.READY, None): 2, (Stage.DONE, Outcome.SUCCEEDED): 1, (Stage.DONE, Outcome.CANCELLED): 2}
    with log.store.read() as session:
        assert session.counts() == counts and session.head().rebuilding is None
        cancelled = session.jobs(JobFilter(outcome=Outcome.CANCELLED), 9)
    assert {entry.job.id for entry in cancelled} == {each.job_id for each in made[:2]}
    assert bodies(log) == before
    log.store.close()


@pytest.mark.parametrize(
    "ask",
    [
        lambda session: session.counts(),
        lambda session: session.counts_by_kind(),
        lambda session: session.jobs(JobFilter(), 20),
        lambda session: session.jobs(JobFilter(stages=(Stage.READY,)), 20),
        lambda session: session.jobs(JobFilter(stages=(Stage.READY, Stage.BLOCKED)), 20),
        lambda session: session.jobs(JobFilter(outcome=Outcome.FAILED), 20),
        lambda session: session.jobs(JobFilter(outcome=Outcome.SUCCEEDED), 20),
    ],
)
def test_counts_and_lists_cost_the_same_however_many_jobs_have_ended(path: Path, ask: Callable[[Session], object]):
    def put(store: SqliteStore, numbers: range, stage: Stage, outcome: Outcome | None) -> None:
        at = Hlc(1, 0, 1)
        state = State.PENDING if outcome is None else State.COMPLETED
        made = [Job(each.to_bytes(16, "big"), "k", bytes(16), at, Policy(), at, state, outcome) for each in numbers]
        with store.write() as session:
            session.put_jobs([JobEntry(job, stage, None) for job in made])

    with closing(SqliteStore(path, create=True)) as store:
        put(store, range(100), Stage.DONE, Outcome.SUCCEEDED)
        put(store, range(100, 130), Stage.DONE, Outcome.FAILED)
        put(store, range(20_000, 20_050), Stage.READY, None)
        few = steps(store, ask)
        put(store, range(1_000, 11_000), Stage.DONE, Outcome.SUCCEEDED)
        assert steps(store, ask) <= few * 1.5


def as_version_3(path: Path) -> None:
    """Takes from a database what later versions have added."""
    as_version_4(path)
    columns = {
        "workers": ("node", "host", "boot", "namespace", "locks", "beat"),
        "artifacts": ("made",),
        "held": ("author",),
    }
    made_by(
        path,
        "DROP INDEX held_by_author",
        *(f"DROP TABLE {table}" for table in ("programs", "written", "over_quota")),
        *(f"ALTER TABLE {table} DROP COLUMN {each}" for table, added in columns.items() for each in added),
        "PRAGMA user_version=3",
    )


@pytest.mark.touches("VX-02")
def test_a_database_of_version_3_keeps_its_workers_and_what_they_hold(path: Path) -> None:
    log = new_log(SqliteStore(path, create=True))
    log.run(lambda tx: jobs.submit(tx, [Draft("k", b"{}", Policy())] * 2))
    old = WorkerRow(0, "old", 7, 1_000, b"", 1_000, Place())
    number = log.run(lambda tx: tx.session.put_worker(old))
    log.run(lambda tx: claiming.claim(tx, number, 1, lambda kind: 60_000))
    content = Content(content_hash(b"x"), 1, b"x", None)
    log.run(lambda tx: tx.author(creation(NO_ID, "t", None, (), content, None)))
    log.admit(sent(INTRODUCTIONS))

    def derived() -> list[object]:
        with log.store.read() as session:
            return [session.artifacts(bytes(16), 9), session.written(list(session.nodes()))]

    before, known = bodies(log), derived()
    log.store.close()
    as_version_3(path)
    log.store = opened(path)
    assert bodies(log) == before and derived() == known and all(known)
    node = log.node.to_bytes(8, "big")
    with log.store.read() as session:
        assert session.head().rebuilding is None
        assert session.workers() == session.workers(node) == [old._replace(number=number, node=node)]
        assert [entry.worker for entry in session.claimed()] == [number]
    assert (
        log.run(lambda tx: tx.session.put_worker(WorkerRow(0, "new", 8, 2_000, node, 2_000, Place("h")))) == number + 1
    )
    assert log.run(lambda tx: rescue.reclaim(tx, set())) == 0
    assert log.run(lambda tx: rescue.reclaim(tx, {number})) == 1
    with log.store.read() as session:
        assert [each.name for each in session.workers()] == ["new"]
    log.store.close()


def in_file_order(path: Path) -> list[bytes]:
    return [row[0] for row in apsw.Connection(str(path)).execute("SELECT id FROM jobs ORDER BY rowid")]


def test_jobs_are_stored_in_the_order_in_which_they_came(log: Log, path: Path) -> None:
    """So that jobs which are claimed together are on few pages."""
    made = [each.job_id for each in log.run(lambda tx: jobs.submit(tx, [Draft("k", b"{}", Policy())] * 50))]
    assert in_file_order(path) == made
    for claim in log.run(lambda tx: claiming.claim(tx, 1, 20, lambda kind: 60_000)).taken:
        assert claim.job.claim_op is not None
        held = Held(claim.job.id, claim.job.claim_op)
        log.run(lambda tx, held=held: jobs.complete(tx, held, None, 1))
    assert in_file_order(path) == made


@pytest.mark.touches("VX-02")
def test_a_database_of_version_9_keeps_its_jobs(path: Path) -> None:
    log = new_log(SqliteStore(path, create=True))
    drafts = [Draft("k", b"{}", Policy(priority=number % 3, unique=f"u{number}")) for number in range(30)]
    made = [each.job_id for each in log.run(lambda tx: jobs.submit(tx, drafts))]
    log.run(lambda tx: jobs.cancel(tx, made[3], ""))
    log.run(lambda tx: claiming.claim(tx, 1, 5, lambda kind: 60_000))

    def entries() -> list[JobEntry]:
        with log.store.read() as session:
            return session.jobs(JobFilter(), 100)

    before = entries()
    log.store.close()
    nine = path.with_name("nine.db")
    steps = [resources.files("hocket.store.sqlite").joinpath(step).read_text() for step in sqlite._SCHEMA[:9]]
    made_by(nine, *steps)
    tables = [
        row for row in apsw.Connection(str(nine)).execute("SELECT sql FROM sqlite_schema WHERE tbl_name = 'jobs'")
    ]
    as_version_10(path)
    made_by(
        path,
        "CREATE TABLE kept AS SELECT * FROM jobs",
        "DROP TABLE jobs",
        *[sql for (sql,) in tables if sql is not None],
        "INSERT INTO jobs SELECT * FROM kept",
        "DROP TABLE kept",
        "PRAGMA user_version=9",
    )
    log.store = opened(path)
    assert entries() == before and in_file_order(path) == made
    log.store.close()


@pytest.mark.touches("VX-02")
def test_a_node_adds_macs_to_the_rows_of_version_10_in_its_own_file(path: Path) -> None:
    log = new_log(SqliteStore(path, create=True))
    node = log.node.to_bytes(8, "big")
    log.run(lambda tx: jobs.submit(tx, [Draft("k", b"{}", Policy())]))
    token = TokenRow("ci", "id", b"hash", b"[]", 1, None, None, 7)
    answer = AnswerRow("ci", "key", b"request", 200, b"body", 2)
    peer = Peer("http://a:1", b"n" * 8, b"\0", "ok", "", 5, 1)
    invitation = Invitation(b"s" * 32, "box", b"{}", 9, None, 1)
    request = BoundRequest(b"o" * 16, node, "", "name", 9, Place("h", "b", "n", "l"))
    worker = WorkerRow(1, "name", 7, 1_000, node, 1_000, Place("h"))

    def rows(session: Session) -> list[object]:
        found = [session.token("id"), session.answer("ci", "key"), session.due(9, 9), *session.peers()]
        return [*found, *session.invitations(), *session.lock_requests(node), *session.workers(node)]

    with log.store.write() as session:
        session.put_token(token)
        session.put_answer(answer)
        session.put_peer(peer)
        session.put_invitation(invitation)
        session.put_lock_request(request)
        session.put_worker(worker)
        session.hold(b"i" * 16, 7, b"body", node)
    expected = [token, answer, [b"body"], peer, invitation, request, worker]
    with log.store.read() as session:
        assert rows(session) == expected
    log.store.close()
    as_version_10(path)
    made_by(path, f"UPDATE invitations SET secret_hash = x'{invitation.secret_hash.hex()}'")
    for _ in range(2):
        log.store = opened(path)
        with log.store.read() as session:
            assert rows(session) == expected and session.without_mac() == []
        log.store.close()


def test_rows_without_a_mac_get_one_only_once(path: Path) -> None:
    """A row that appears later was written by something else."""
    log = new_log(SqliteStore(path, create=True))
    log.run(lambda tx: jobs.submit(tx, [Draft("k", b"{}", Policy())]))
    log.store.close()
    made_by(path, "INSERT INTO tokens VALUES (x'', 'ci', 'id', x'00', x'', 1, NULL, NULL, NULL, x'')")
    with closing(opened(path)) as store, store.read() as session:
        assert session.tokens() == [] and session.without_mac() == [RowWithoutMac("tokens", "ci", True)]


PUBLISHED = {
    "schema.sql": "1e2e7c8e294872c1",
    "schema_2.sql": "c97a99b10c08f8b4",
    "schema_3.sql": "21669d75518c365b",
    "schema_4.sql": "fc5e9f5682b98a3a",
    "schema_5.sql": "24a4be50fab2d527",
    "schema_6.sql": "dc699d0bba29ce44",
    "schema_7.sql": "93ab2caaede7f49b",
    "schema_8.sql": "399fd3678a8e436a",
    "schema_9.sql": "bceaa90396413201",
    "schema_10.sql": "1545ea36dad8ede4",
    "schema_11.sql": "3265a50dbbef9f2e",
    "schema_12.sql": "fdcf373fa44c657d",
    "schema_13.sql": "fb3a4ceae53a875b",
    "schema_14.sql": "6de49e9f353ddcb6",
    "schema_15.sql": "0a51fab6bc9aca96",
    "schema_16.sql": "c040ec5ed8dd903e",
    "schema_17.sql": "1361098dc7edd8c2",
    "schema_18.sql": "022ea6640e1759e2",
}


def test_a_published_step_never_changes() -> None:
    """A database that has taken a step does not take it again: what is new goes into a new file."""
    folder = resources.files("hocket.store.sqlite")
    found = {step: hashlib.sha256(folder.joinpath(step).read_bytes()).hexdigest()[:16] for step in sqlite._SCHEMA}
    assert found == PUBLISHED


@pytest.mark.parametrize("version", range(1, VERSION))
def test_an_upgraded_database_has_the_tables_of_a_new_one(path: Path, tmp_path: Path, version: int) -> None:
    def schema(of: Path) -> list[tuple[object, ...]]:
        return sorted(apsw.Connection(str(of)).execute("SELECT type, name, tbl_name, sql FROM sqlite_schema"), key=str)

    steps = [resources.files("hocket.store.sqlite").joinpath(step).read_text() for step in sqlite._SCHEMA[:version]]
    made_by(path, *steps, f"PRAGMA application_id={APPLICATION_ID}", f"PRAGMA user_version={version}")
    SqliteStore(path).close()
    SqliteStore(tmp_path / "new.db", create=True).close()
    assert schema(path) == schema(tmp_path / "new.db")


def limit_pages(log: Log, spare: int) -> None:
    """Lets the file grow by no more than so many pages: SQLite's own 'disk full', with no disk to fill."""
    writer = log.store._writer  # type: ignore[attr-defined]
    writer.pragma("max_page_count", writer.pragma("page_count") + spare)


def unlimit_pages(log: Log) -> None:
    log.store._writer.pragma("max_page_count", 2**30)  # type: ignore[attr-defined]


def bodies(log: Log) -> list[bytes]:
    with log.store.read() as session:
        return [row.body for row in session.ops_after(0, 100_000)]


@pytest.mark.req("VX-07")
@pytest.mark.parametrize("spare", [0, 1, 2, 5, 20])
@pytest.mark.parametrize("way", ["plain", "group", "admit"])
def test_a_full_disk_loses_nothing_and_the_next_append_works(log: Log, spare: int, way: str) -> None:
    payload = b'"' + b"x" * 3_000 + b'"'
    appended: list[bytes] = []
    script = Script()
    log.admit(sent(INTRODUCTIONS))

    def append() -> None:
        if way == "plain":
            appended.append(log.append_plain("k", payload))
        elif way == "admit":
            foreign = job_id(len(appended))
            op = script.say(0, len(script.ops), ScheduleJob(foreign, "k", payload, b""))
            assert log.admit(sent([op])).appended == 1
            appended.append(foreign)
        else:
            draft = [Draft("k", payload, Policy(priority=1))]
            appended.extend(made.job_id for made in log.run(lambda tx: jobs.submit(tx, draft * 3)))

    append()
    limit_pages(log, spare)
    with pytest.raises(StoreError, match="no space left"):
        for _ in range(1_000):
            append()
    kept = bodies(log)
    for _ in range(3):
        with pytest.raises(StoreError, match="no space left"):
            append()
        assert bodies(log) == kept
    assert verify(log.store, user=log.user).findings == []
    unlimit_pages(log)
    append()
    log.settle()
    assert bodies(log)[: len(kept)] == kept
    with log.store.read() as session:
        assert [entry.job.id for entry in session.each_job()] == sorted(appended)
    assert verify(log.store, user=log.user).findings == []


@pytest.mark.req("VX-07")
def test_a_group_that_does_not_fit_is_undone_whole(log: Log) -> None:
    limit_pages(log, 5)
    before = bodies(log)
    big = [Draft("k", b'"' + b"x" * 100_000 + b'"', Policy(priority=1))]
    small = [Draft("k", b"{}", Policy(priority=1))]
    with pytest.raises(StoreError, match="no space left"):
        log.commit([lambda tx: jobs.submit(tx, small), lambda tx: jobs.submit(tx, big)])
    assert bodies(log) == before
    unlimit_pages(log)
    assert len(log.commit([lambda tx: jobs.submit(tx, small), lambda tx: jobs.submit(tx, big)])) == 2


@pytest.mark.req("VX-01")
def test_a_lock_that_is_held_too_long_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "LOCK_WAIT_S", 0.05)
    one, two = SqliteStore(path, create=True), SqliteStore(path)
    with one.write() as session:
        session.set_meta("a", b"1")
        with pytest.raises(StoreError, match="locked"):
            two.write().__enter__()
        with two.read() as other:
            assert other.meta("a") is None
    with two.write() as session:
        assert session.meta("a") == b"1"
    one.close()
    two.close()


def test_a_read_only_file_is_told(path: Path) -> None:
    log = new_log(SqliteStore(path, create=True))
    log.append_plain("k", b"{}")
    log.store._writer.pragma("query_only", True)  # type: ignore[attr-defined]
    with pytest.raises(StoreError, match="read-only"):
        log.append_plain("k", b"{}")
    log.store._writer.pragma("query_only", False)  # type: ignore[attr-defined]
    log.append_plain("k", b"{}")
    assert len(bodies(log)) == 2
    log.store.close()


def test_a_change_that_does_not_look_at_the_head_does_not_make_an_old_one_new(tmp_path: Path):
    """Two stores on one file, as two processes have them."""
    with (
        closing(SqliteStore(tmp_path / "log.db", create=True)) as one,
        closing(SqliteStore(tmp_path / "log.db")) as two,
    ):
        with one.write() as session:
            before = session.head()
        with two.write() as session:
            session.put_head(before._replace(seq=before.seq + 1))
        with one.write() as session:
            session.set_meta("something", b"else")
        with one.write() as session:
            assert session.head().seq == before.seq + 1


def test_readers_that_do_not_end_are_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "READERS_MAX", 2)
    monkeypatch.setattr(connections, "LOCK_WAIT_S", 0.05)
    with closing(SqliteStore(path, create=True)) as store, ThreadPoolExecutor(2) as threads:
        views = [store.read(), store.read()]
        together = threading.Barrier(2)

        def hold(view: connections.ReadView[SqliteSession]) -> None:
            view.__enter__()
            together.wait(60)

        list(threads.map(hold, views))
        with pytest.raises(StoreError, match="2 readers"):
            store.read().__enter__()
        views[0].__exit__(None, None, None)
        with store.read() as session:
            assert session.head().seq == 0
        views[1].__exit__(None, None, None)


def test_a_closed_store_says_so_and_closing_waits_for_readers(path: Path) -> None:
    store = SqliteStore(path, create=True)
    began, end = threading.Event(), threading.Event()

    def hold() -> int:
        with store.read() as session:
            began.set()
            assert end.wait(60)
            return session.head().seq

    with ThreadPoolExecutor(2) as threads:
        held = threads.submit(hold)
        assert began.wait(60)
        closed = threads.submit(store.close)
        end.set()
        assert held.result(60) == 0
        closed.result(60)
    with pytest.raises(StoreError, match="is closed"):
        store.read().__enter__()


def test_what_a_peer_lacks_takes_the_same_statements_however_many_authors_there_are(path: Path) -> None:
    log = new_log(SqliteStore(path, create=True))
    counts = []
    for number in range(1, 20):
        key = SigningKey(bytes([number]) * 32)
        log.admit([signed(introduction(key), key)])
        statements: list[str] = []
        writer = log.store._writer  # type: ignore[attr-defined]
        with log.store.write() as session:
            session.order_ops()
            writer.exec_trace = lambda cursor, sql, bindings, found=statements: found.append(sql) or True
            frontier = session.frontier()
            assert len(frontier) == number and session.entries_since(frontier, 10) == []
            writer.exec_trace = None
            (last, *_) = frontier
            assert len(session.entries_since(frontier | {last: bytes(20)}, 10)) == 1
        counts.append(len(statements))
    assert set(counts) == {2}


def test_no_statement_of_the_inbox_reads_a_whole_table(log: Log) -> None:
    """A claim costs the same however many messages are stored."""
    said: set[str] = set()
    writer = log.store._writer  # type: ignore[attr-defined]
    blobs: Any = None
    first = log.run(lambda tx: inbox.send(tx, blobs, MessageDraft("editor", b"", "writer")))
    log.run(lambda tx: inbox.send(tx, blobs, MessageDraft("all", b"", "writer", thread=first)))
    writer.exec_trace = lambda cursor, sql, values: said.add(sql) is None
    log.run(lambda tx: inbox.send(tx, blobs, MessageDraft("editor", b"", "writer", reply_to=first)))
    taken = log.run(lambda tx: inbox.claim(tx, "editor", 5, 1_000)).taken
    assert len(taken) == 3
    log.run(lambda tx: inbox.acknowledge(tx, taken[0].message_id, "editor"))
    log.run(lambda tx: inbox.hand_back(tx, taken[1].message_id, "editor", 10, ""))
    log.run(lambda tx: inbox.has_mail(tx.session, "editor", tx.node, tx.physical))
    writer.exec_trace = None
    tables = [sql for sql in said if "deliveries" in sql or "messages" in sql]
    plans = {
        sql: [row[3] for row in writer.execute(f"EXPLAIN QUERY PLAN {sql}", [0] * sql.count("?"))] for sql in tables
    }
    assert len(plans) > 8
    assert {sql: plan for sql, plan in plans.items() if any(step.startswith("SCAN") for step in plan)} == {}
