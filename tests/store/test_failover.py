"""A store on a primary server of PostgreSQL and its synchronous standby, which takes its place: the store finds the
server that takes writes, and says nothing is kept that this server may lack.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing

import pytest
from psycopg.conninfo import conninfo_to_dict

from hocket import store as stores
from hocket.errors import CommitUnknown, StoreStarting
from hocket.log import Log
from hocket.log.audit import verify
from hocket.store import connections, postgres
from hocket.store.postgres import PostgresStore
from hocket.store.postgres.connecting import read_address
from tests.log.roster.world import READER, introduction, new_log
from tests.postgres_pair import PairedServer, ServerPair
from tests.waiting import PATIENCE_S, wait_for

WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


@pytest.fixture
def pair() -> Iterator[ServerPair]:
    made = ServerPair()
    yield made
    made.remove()


@pytest.fixture
def store(pair: ServerPair) -> Iterator[PostgresStore]:
    made = stores.open(f"{pair.address}&connect_timeout=2", create=True)
    assert isinstance(made, PostgresStore)
    with closing(made):
        yield made


@pytest.fixture
def log(store: PostgresStore) -> Log:
    made = new_log(store)
    made.run(lambda tx: tx.author(introduction(READER).payload))
    return made


@pytest.fixture
def beside() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


def last_seq(store: stores.Store) -> int:
    with store.read() as session:
        return session.head().seq


def last_seq_on(server: PairedServer, pair: ServerPair) -> int:
    with server.connect(read_database(pair)) as connection:
        row = connection.execute("SELECT seq FROM hocket.head").fetchone()
    assert row is not None and isinstance(row[0], int)
    return row[0]


def read_database(pair: ServerPair) -> str:
    return str(conninfo_to_dict(pair.address)["dbname"])


@pytest.mark.touches("VX-18")
def test_several_hosts_are_shown_with_their_ports_and_the_one_that_takes_writes_is_used() -> None:
    address = read_address("postgresql://me:s3cret@a:1,b:2/db")
    assert address.shown == "postgresql://me@a:1,b:2/db" and "target_session_attrs=read-write" in address.conninfo
    assert "target_session_attrs" not in read_address("postgresql://me@a,b/db", takes_writes=False).conninfo
    given = read_address("postgresql://me@a,b/db?target_session_attrs=any&keepalives_idle=3")
    assert given.shown == "postgresql://me@a,b/db"
    assert "target_session_attrs=any" in given.conninfo and "keepalives_idle=3" in given.conninfo


@pytest.mark.req("VX-18")
def test_a_standby_is_refused_with_a_sentence_until_it_is_promoted(pair: ServerPair, log: Log) -> None:
    log.append_plain("k", b"{}")
    pair.primary.kill()
    for _ in range(2):
        with pytest.raises(StoreStarting, match="none of these servers takes writes, and one is a standby"):
            log.run(lambda tx: None)
    with pytest.raises(StoreStarting, match="one is a standby"):
        stores.open(pair.address)
    before = last_seq_on(pair.standby, pair)
    pair.promote()
    assert last_seq(log.store) == before
    log.append_plain("k", b"{}")
    assert verify(log.store, user=log.user).findings == []


@pytest.mark.req("VX-18")
def test_a_server_that_no_longer_answers_is_left_for_the_next_one(
    pair: ServerPair, log: Log, beside: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is frozen, and nobody ends its connections."""
    for module in (postgres, postgres.statements):
        monkeypatch.setattr(module, "ANSWER_S", 1.0)
    log.append_plain("k", b"{}")
    pair.primary.freeze()
    writing = beside.submit(log.append_plain, "k", b"{}")
    pair.promote()
    before = last_seq_on(pair.primary, pair)
    assert writing.result(PATIENCE_S)
    assert last_seq_on(pair.primary, pair) == before + 1


@pytest.mark.req("VX-18")
@pytest.mark.parametrize("ending", ["pg_terminate_backend", "pg_cancel_backend"])
def test_a_commit_that_no_longer_waits_for_the_standby_is_acknowledged_when_the_standby_has_it(
    pair: ServerPair, log: Log, beside: ThreadPoolExecutor, ending: str
) -> None:
    """The primary has it by then, and would lose it with its machine."""
    log.append_plain("k", b"{}")
    pair.standby.freeze()
    writing = ended_wait(pair, beside.submit(log.append_plain, "k", b"{}"), ending)
    # The store looks for the op, finds it, and waits for the standby again.
    wait_for(lambda: pair.primary.value(WAITING) is not None, "the store to wait for the standby")
    assert not writing.done()
    pair.standby.thaw()
    assert writing.result(PATIENCE_S)
    here = last_seq(log.store)
    pair.fail_over()
    assert last_seq(log.store) == here


@pytest.mark.req("VX-18")
def test_without_the_standby_it_stays_unknown_whether_the_commit_counts(
    pair: ServerPair, log: Log, beside: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "ANSWER_S", 1.0)
    monkeypatch.setattr(connections, "COMMIT_CHECK_S", 0.0)
    log.append_plain("k", b"{}")
    pair.standby.freeze()
    writing = ended_wait(pair, beside.submit(log.append_plain, "k", b"{}"), "pg_terminate_backend")
    with pytest.raises(CommitUnknown, match="broke off during a commit"):
        writing.result(PATIENCE_S)


def ended_wait(pair: ServerPair, writing: "Future[bytes | None]", ending: str) -> "Future[bytes | None]":
    """Waits until the commit waits for the standby, and ends that wait."""
    pid = wait_for(lambda: pair.primary.value(WAITING), "a commit that waits for the standby")
    assert pair.primary.value(f"SELECT {ending}({pid})") is True
    return writing
