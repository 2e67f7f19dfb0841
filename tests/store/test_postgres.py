"""The store in PostgreSQL beyond the contract: connections that are refused, break, or break in the middle of a commit;
schemas of others; and that no message contains a password.
"""

import os
import socket
import threading
import traceback
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from hocket import store as stores
from hocket.breakers import CircuitBreaker
from hocket.errors import HocketError, StoreCircuitOpen, StoreError, StoreLocked, Usage
from hocket.log import Transaction
from hocket.log.audit import verify
from hocket.store import connections, postgres
from hocket.store.guarded import GuardedStore
from hocket.store.postgres import PostgresStore, beginning, migration, statements
from hocket.store.postgres.exchange import Connection, Statement, StatementAnswer
from tests.log.roster.world import READER, introduction, new_log
from tests.postgres_server import server

PASSWORD = "p%zz s3cret"
QUOTED = "p%25zz%20s3cret"
WAIT_S = 30.0


def put(store: stores.Store, value: bytes) -> None:
    with store.write() as session:
        session.set_meta("a", value)


def note(store: stores.Store) -> bytes | None:
    with store.read() as session:
        return session.meta("a")


def name_of(address: str) -> str:
    return address.partition("/postgres@/" if "/postgres@/" in address else "@/")[2].partition("?")[0]


def over_tcp(address: str, role: str = "postgres", port: int | None = None, tail: str = "") -> str:
    return f"postgresql://{role}@127.0.0.1:{port or server().port}/{name_of(address)}{tail}"


def administer(*commands: str, address: str | None = None) -> None:
    connection = server().connect() if address is None else psycopg.connect(address, autocommit=True)
    with connection:
        for command in commands:
            connection.execute(command)


@pytest.fixture(scope="module")
def roles() -> None:
    administer(
        f"CREATE ROLE guarded LOGIN SUPERUSER PASSWORD '{PASSWORD}'",
        "CREATE ROLE tls_only LOGIN",
        "CREATE ROLE visitor LOGIN",
    )


def refusal(address: str, *, create: bool = False) -> HocketError:
    """The error of opening a store. Nothing that is printed about it contains the password."""
    with pytest.raises(HocketError) as caught:
        stores.open(address, create=create)
    told = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    assert not any(part in told for part in (PASSWORD, QUOTED, "s3cret", "wr0ng"))
    return caught.value


# Who is let in.


@pytest.mark.touches("VX-18")
def test_what_is_refused_says_why_and_what_to_do(roles: None, address: str) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = over_tcp(address, port=closed.getsockname()[1])
        cases = {
            over_tcp(address, "guarded:wr0ng"): "password authentication failed.*check PGPASSFILE",
            over_tcp(address, "guarded"): "no password supplied.*check PGPASSFILE",
            over_tcp(address, "unknown"): 'role "unknown" does not exist; check the role',
            over_tcp(address).replace("/hocket_", "/no_"): "does not exist.*createdb",
            over_tcp(address, tail="?sslmode=require"): "does not support SSL.*check sslmode",
            over_tcp(address, "tls_only"): "no encryption; check sslmode",
            nobody: "is the server running there",
        }
        for wrong, sentence in cases.items():
            error = refusal(wrong)
            assert isinstance(error, StoreError)
            with pytest.raises(StoreError, match=f"^cannot connect to postgresql://.*{sentence}"):
                raise error
            assert "\n" not in str(error)


@pytest.mark.touches("VX-18")
@pytest.mark.parametrize(
    "wrong",
    [
        "postgresql://me:p%zzs3cret@host/db",
        "postgresql://me:s3cret/x@host/db",
        "postgresql://me:1/s3cret@host/db",
        "postgresql://me@host/db?pasword=s3cret",
        "postgresql://me@host/db?schema=Ärger",
        "postgresql://me@host/db?schema=pg_catalog",
        "postgresql://me@host/db?nonsense",
        "postgresql://me@[host/db",
    ],
)
def test_an_address_that_cannot_be_read_is_not_repeated(wrong: str) -> None:
    assert isinstance(refusal(wrong), Usage)


@pytest.mark.touches("VX-18")
def test_the_password_may_come_from_where_libpq_looks(
    roles: None, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = over_tcp(address, "guarded")
    stores.open(over_tcp(address, f"guarded:{QUOTED}")).close()
    with monkeypatch.context() as patched:
        patched.setenv("PGPASSWORD", PASSWORD)
        stores.open(wanted).close()
    passwords = tmp_path / "pgpass"
    passwords.write_text(f"*:*:*:guarded:{PASSWORD}\n")
    passwords.chmod(0o600)
    with monkeypatch.context() as patched:
        patched.setenv("PGPASSFILE", str(passwords))
        stores.open(wanted).close()
    services = tmp_path / "services"
    services.write_text(
        f"[render]\nhost=127.0.0.1\nport={server().port}\ndbname={name_of(address)}\nuser=guarded\npassword={PASSWORD}\n"
    )
    with monkeypatch.context() as patched:
        patched.setenv("PGSERVICEFILE", str(services))
        stores.open("postgresql://?service=render").close()
        patched.setenv("PGSERVICE", "render")
        stores.open("postgresql://").close()


# What is there.


@pytest.mark.touches("VX-18")
def test_tables_of_others_and_of_newer_programs_are_refused_and_left_as_they_are(roles: None) -> None:
    address = server().new_database()
    assert "has no Hocket store" in str(refusal(address))
    administer("CREATE SCHEMA hocket", "CREATE TABLE hocket.invoices (id INTEGER)", address=address)
    assert "has tables of another program in its schema hocket" in str(refusal(address, create=True))
    # Beside them, in a schema that is free, there is room.
    beside = f"{address}&schema=mesh"
    stores.open(beside, create=True).close()
    administer(f"UPDATE mesh.hocket_version SET version = {migration.VERSION + 1}", address=address)
    assert f"has version {migration.VERSION + 1}" in str(refusal(beside, create=True))
    with psycopg.connect(address) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'hocket'").fetchall()
    assert tables == [("invoices",)]


@pytest.mark.parametrize("has_index", [True, False])
def test_a_store_of_version_6_gets_what_it_lacks(has_index: bool) -> None:
    """New stores had the index of version 7 while they were still marked as of version 6; upgraded ones had not."""
    address = server().new_database()
    stores.open(address, create=True).close()
    lost = [] if has_index else ["DROP INDEX hocket.jobs_done"]
    administer(
        *lost,
        "DROP TABLE hocket.arguments, hocket.checkpoints, hocket.heads, hocket.bases, hocket.gaps, hocket.pruning,"
        " hocket.witnessed, hocket.successions",
        "UPDATE hocket.hocket_version SET version = 6",
        address=address,
    )
    stores.open(address).close()
    with psycopg.connect(address) as connection:
        names = connection.execute("SELECT relname FROM pg_class WHERE relname IN ('jobs_done', 'arguments')")
        assert sorted(names) == [("arguments",), ("jobs_done",)]
        assert next(connection.execute("SELECT version FROM hocket.hocket_version")) == (migration.VERSION,)


@pytest.mark.touches("VX-18")
def test_a_role_without_rights_is_told_and_one_with_a_schema_needs_no_more(roles: None) -> None:
    address = server().new_database()
    visiting = over_tcp(address, "visitor")
    assert "permission denied for database" in str(refusal(visiting, create=True))
    administer("CREATE SCHEMA hocket AUTHORIZATION visitor", address=address)
    with closing(stores.open(visiting, create=True)) as store:
        put(store, b"1")
        administer("REVOKE UPDATE ON hocket.head FROM visitor", address=address)
        with pytest.raises(StoreError, match=r"does not let this role do that .*docs/postgres.md"):
            put(store, b"2")
        assert note(store) == b"1"


@pytest.mark.touches("VX-18")
def test_another_encoding_and_a_read_only_server_are_refused(address: str) -> None:
    administer("CREATE DATABASE ascii ENCODING 'SQL_ASCII' TEMPLATE template0")
    assert "has the encoding SQL_ASCII" in str(refusal(server().address("ascii"), create=True))
    administer(f"ALTER DATABASE {name_of(address)} SET default_transaction_read_only = on")
    with closing(stores.open(address)) as store:
        with pytest.raises(StoreError, match=r"is read-only.*the primary server"):
            put(store, b"1")
        assert note(store) is None
        # Behind its address there is a server that takes writes now, and the old connection is of no use.
        administer(f"ALTER DATABASE {name_of(address)} RESET default_transaction_read_only")
        put(store, b"1")


@pytest.mark.req("VX-02")
def test_twenty_may_create_it_at_once() -> None:
    address, ready, errors = server().new_database(), threading.Barrier(20), list[BaseException]()

    def create() -> None:
        try:
            ready.wait(WAIT_S)
            with closing(stores.open(address, create=True)) as store:
                assert note(store) is None
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=create) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert errors == []


def test_a_lost_table_is_damage(address: str, store: PostgresStore) -> None:
    administer("DROP TABLE hocket.cites", address=address)
    with store.read() as session:
        assert session.damage() == ['relation "cites" does not exist'] and session.head().seq == 0
        with pytest.raises(psycopg.errors.UndefinedTable):
            session.citing(b"")
    with pytest.raises(StoreError, match="is damaged"):
        with store.write() as session:
            session.cite(b"", b"")


def test_text_that_postgres_cannot_store_is_the_callers_error(store: PostgresStore) -> None:
    with pytest.raises(Usage, match="NUL"):
        with store.write() as session:
            session.set_meta("a\0b", b"1")
    put(store, b"1")
    assert note(store) == b"1"


def test_a_write_within_a_write_is_a_mistake_and_spoils_nothing(store: PostgresStore) -> None:
    with store.write() as session:
        session.set_meta("a", b"1")
        with pytest.raises(RuntimeError):
            with store.write():
                pass
    assert note(store) == b"1"


# Locks that are held for too long.


def test_an_interrupted_rollback_leaves_the_store_to_other_threads(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = Connection.ask

    def interrupted(
        connection: Connection, statements: Iterable[Statement], limit_s: float | None = None
    ) -> list[StatementAnswer]:
        asked = list(statements)
        if asked[-1][0] == "ROLLBACK":
            connection.close()
            raise KeyboardInterrupt
        return ask(connection, asked, limit_s)

    with monkeypatch.context() as patch:
        patch.setattr(Connection, "ask", interrupted)
        with pytest.raises(KeyboardInterrupt), store.write():
            raise ValueError("a mistake of the caller's")
    walls: list[int] = []

    def write() -> None:
        with store.write() as session:
            walls.append(session.head().wall)

    other = threading.Thread(target=write, daemon=True)
    other.start()
    other.join(30)
    assert walls, "the lock is held for ever"


def test_a_lock_that_is_held_for_too_long_is_said(
    address: str, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beginning, "_ALONE", beginning._ALONE.replace("'30s'", "'50ms'"))
    with closing(PostgresStore(address)) as other, store.write():
        with pytest.raises(StoreLocked, match="was locked by another transaction"):
            put(other, b"1")
    put(store, b"2")
    assert note(store) == b"2"


def test_a_process_that_stops_in_a_transaction_does_not_hold_up_others(
    address: str, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beginning, "_ALONE", beginning._ALONE.replace("'20s'", "'50ms'"))
    with closing(PostgresStore(address)) as other:
        with pytest.raises(StoreError, match=r"did nothing for 20 seconds|broke off"):
            with store.write() as session:
                session.set_meta("a", b"1")
                monkeypatch.undo()  # a busy machine may take longer than that for the second
                put(other, b"2")  # waits until PostgreSQL ends the first transaction
                session.set_meta("b", b"1")
        assert note(other) == b"2"
    put(store, b"3")


# Changes wait for the next statement that reads, or for the commit.


@pytest.mark.touches("VX-18")
@pytest.mark.parametrize(("reads", "more"), [(True, 1), (False, 1), (False, 900)])
def test_a_change_that_fails_later_is_explained_and_nothing_is_kept(
    store: PostgresStore, reads: bool, more: int
) -> None:
    """Also if the error comes while the rest is still being sent."""
    put(store, b"1")
    with pytest.raises(StoreError, match=r"is damaged \(relation .nowhere. does not exist"):
        with store.write() as session:
            session.set_meta("a", b"2")
            session._put("DELETE FROM nowhere")
            for _ in range(more):
                session.set_meta("a", bytes(20_000))
            if reads:
                session.meta("a")
    assert note(store) == b"1"
    put(store, b"4")
    assert note(store) == b"4"


@pytest.mark.touches("VX-18")
def test_a_transaction_reads_what_it_has_changed(store: PostgresStore) -> None:
    with store.write() as session:
        for n in range(statements.WAITING_MAX + 10):
            session.set_meta("a", b"%d" % n)
        assert session.meta("a") == b"1009"
    assert note(store) == b"1009"


@pytest.mark.touches("VX-18")
def test_a_commit_whose_note_cannot_be_sent_is_a_commit(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    full = "DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '54000', MESSAGE = 'too many notifications'; END $$"
    monkeypatch.setattr(postgres, "notification", lambda address, note: (full, ()))

    def introduce(tx: Transaction) -> None:
        tx.author(introduction(READER).payload)
        tx.session.carry_note(b"note")

    log = new_log(store)
    log.run(introduce)
    with store.read() as session:
        assert session.head().seq == 1
    log.append_plain("k", b"{}")
    assert verify(store, user=log.user).findings == []


# Connections that break.


def backends(address: str, command: str) -> None:
    administer(f"SELECT {command}(pid) FROM pg_stat_activity WHERE datname = '{name_of(address)}'")


@pytest.mark.touches("VX-18")
def test_a_connection_that_broke_is_made_again(address: str, store: PostgresStore) -> None:
    put(store, b"1")
    assert note(store) == b"1"
    backends(address, "pg_terminate_backend")
    put(store, b"2")
    assert note(store) == b"2"
    with pytest.raises(StoreError, match="the change was not kept"):
        with store.write() as session:
            session.set_meta("a", b"3")
            backends(address, "pg_terminate_backend")
            session.set_meta("a", b"4")
    assert note(store) == b"2"


class Cutter:
    """A way to the server that breaks at the first COMMIT: before the server gets it, or after the server has answered
    and before the client hears it.
    """

    def __init__(self, *, after: bool) -> None:
        self._after, self.is_armed = after, False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            behind = socket.create_connection(("127.0.0.1", server().port))
            deaf = threading.Event()
            threading.Thread(target=self._forth, args=(client, behind, deaf), daemon=True).start()
            threading.Thread(target=self._back, args=(behind, client, deaf), daemon=True).start()

    def _forth(self, client: socket.socket, behind: socket.socket, deaf: threading.Event) -> None:
        while data := _received(client):
            if self.is_armed and b"COMMIT" in data:
                self.is_armed = False
                if not self._after:
                    break
                deaf.set()
            behind.sendall(data)
        for each in (client, behind):
            _shut(each)

    def _back(self, behind: socket.socket, client: socket.socket, deaf: threading.Event) -> None:
        while data := _received(behind):
            if deaf.is_set():
                break
            client.sendall(data)
        for each in (client, behind):
            _shut(each)

    def close(self) -> None:
        _shut(self._listener)  # ends `accept`
        self._listener.close()


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65_536)
    except OSError:
        return b""


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass


@pytest.mark.touches("VX-18")
@pytest.mark.parametrize("after", [True, False])
def test_a_commit_without_an_answer_is_looked_up_by_its_op(address: str, after: bool) -> None:
    with closing(Cutter(after=after)) as cutter, closing(PostgresStore(over_tcp(address, port=cutter.port))) as store:
        log = new_log(store)
        log.run(lambda tx: tx.author(introduction(READER).payload))
        with store.read() as session:
            before = session.head().seq
        cutter.is_armed = True
        if after:
            log.append_plain("k", b"{}")
        else:
            with pytest.raises(StoreError, match="the change was not kept"):
                log.append_plain("k", b"{}")
        assert not cutter.is_armed
        with store.read() as session:
            assert session.head().seq == before + after
        log.append_plain("k", b"{}")
        with store.read() as session:
            assert session.head().seq == before + after + 1 and session.damage() == []
        assert verify(store, user=log.user).findings == []


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.touches("VX-18")
def test_a_crash_of_the_server_loses_nothing_and_the_breaker_bridges_it(store: PostgresStore) -> None:
    clock = Clock()
    guarded = GuardedStore(store, CircuitBreaker("the store", clock, refusal=StoreCircuitOpen))
    put(guarded, b"1")
    server().stop(immediate=True)
    try:
        for _ in range(5):
            with pytest.raises(StoreError):
                put(guarded, b"2")
        with pytest.raises(StoreCircuitOpen):
            put(guarded, b"2")
    finally:
        server().start()
    clock.now += 600
    assert note(guarded) == b"1"
    put(guarded, b"3")
    assert note(guarded) == b"3"


def test_a_server_that_does_not_come_back_leaves_the_question_open(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "COMMIT_CHECK_S", 0.0)
    with closing(Cutter(after=True)) as cutter, closing(PostgresStore(over_tcp(address, port=cutter.port))) as store:
        log = new_log(store)
        cutter.is_armed = True
        cutter.close()
        with pytest.raises(StoreError, match=r"could not be asked since whether op [0-9a-f]{32} is on the log"):
            log.append_plain("k", b"{}")


def test_an_address_from_the_environment_of_libpq_is_shown_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    shown = postgres.read_address(f"postgresql://me:{QUOTED}@host:5433/db?schema=mesh&sslmode=require").shown
    assert shown == "postgresql://me@host:5433/db?schema=mesh"
    assert os.environ["PGPASSWORD"] == PASSWORD
