"""The store in libSQL, against a real sqld: its addresses, its tables, its faults as sentences, and what a server that
crashes, stalls or ends transactions does to a change.
"""

import http.server
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from hocket import store as stores
from hocket.errors import StoreError, Usage
from hocket.store import NO_LINK, NewOp, Session, Store
from hocket.store.connections import DB_TOKEN, has_password, without_password
from hocket.store.libsql import LibsqlStore
from hocket.store.libsql.connecting import Broken, read_address
from hocket.store.libsql.connection import LibsqlConnection
from tests.libsql_relay import LibsqlRelay
from tests.libsql_server import LibsqlServer, new_server
from tests.libsql_tokens import public_key, token
from tests.log.roster.world import new_log
from tests.stores import raw

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def server() -> LibsqlServer:
    return new_server(has_store=True)


@pytest.fixture
def store(server: LibsqlServer) -> Iterator[LibsqlStore]:
    with closing(opened(server)) as made:
        yield made


def opened(server: LibsqlServer) -> LibsqlStore:
    made = stores.open(server.address)
    assert isinstance(made, LibsqlStore)
    return made


def op(number: int) -> NewOp:
    return NewOp(bytes([number]) * 16, bytes(19) + bytes([number]), 1, "job", None, 0, 1, bytes([number]) * 40)


def append(session: Session, number: int) -> None:
    seq = session.add_ops([op(number)], [NO_LINK])
    session.put_head(session.head()._replace(seq=seq))


def count(store: Store) -> int:
    with store.read() as session:
        return session.head().seq


@pytest.mark.req("VX-14")
@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("libsql://db.example", ("db.example", 443, True, "", "libsql://db.example")),
        ("libsql://db.example:8080?tls=0", ("db.example", 8080, False, "", "libsql://db.example:8080?tls=0")),
        ("https://db.example/a/", ("db.example", 443, True, "/a", "https://db.example/a")),
        ("http://[::1]:81", ("::1", 81, False, "", "http://[::1]:81")),
    ],
)
def test_addresses_are_those_of_libsqls_own_programs(url: str, expected: tuple[object, ...]) -> None:
    assert read_address(url)[:5] == expected


@pytest.mark.req("VX-14")
@pytest.mark.parametrize(
    "url",
    [
        *("libsql://", "libsql://me:hush@db.example", "libsql://db.example?tls=2", "libsql://db.example?tls=0"),
        *("https://db.example?tls=0", "https://db.example?hush=1", "http://db.example:hush", "http://db.example#hush"),
    ],
)
def test_a_bad_address_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(Usage) as refused:
        stores.open(url)
    assert "hush" not in str(refused.value)


@pytest.mark.req("VX-17")
def test_a_token_in_an_address_is_used_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DB_TOKEN, "of-the-variable")
    assert read_address("libsql://db.example").token == "of-the-variable"
    url = "libsql://db.example:1?tls=0&authToken=hush"
    address = read_address(url)
    assert address.token == "hush" and "hush" not in f"{address.shown} {address!r} {address}"
    assert has_password(url) and without_password(url) == "libsql://db.example:1?tls=0"


@pytest.mark.soak
@pytest.mark.req("VX-02")
def test_20_processes_create_the_tables_at_once() -> None:
    server = new_server()
    make = f"from hocket import store; store.open({server.address!r}, create=True).close()"
    running = [subprocess.Popen([sys.executable, "-c", make], stderr=subprocess.PIPE) for _ in range(20)]
    assert [(each.communicate()[1], each.returncode) for each in running] == [(b"", 0)] * 20
    with closing(stores.open(server.address)) as made, made.read() as session:
        assert session.head().seq == 0 and session.damage() == []


@pytest.mark.req("VX-02")
def test_newer_tables_and_those_of_other_programs_are_refused_and_left(store: LibsqlStore) -> None:
    raw(store, "UPDATE hocket_version SET version = 99")
    with pytest.raises(StoreError, match=r"has version 99, this program knows up to .*; upgrade Hocket"):
        stores.open(store.address.shown)
    other = new_server()
    connection = LibsqlConnection(read_address(other.address))
    connection.begin_write()
    connection.execute("CREATE TABLE theirs (x)")
    connection.commit()
    for create in (True, False):
        with pytest.raises(StoreError, match="has tables of another program"):
            stores.open(other.address, create=create)
    connection.begin_read()
    assert connection.execute("SELECT name FROM sqlite_schema").fetchall() == [("theirs",)]
    connection.close()


@pytest.mark.req("VX-02")
def test_a_store_is_created_only_when_that_is_asked_for() -> None:
    server = new_server()
    assert stores.backend(server.address).migration(server.address).version == 0
    with pytest.raises(StoreError, match="has no Hocket store; create one"):
        stores.open(server.address)
    assert stores.backend(server.address).migration(server.address).script.startswith("BEGIN;")
    stores.open(server.address, create=True).close()
    assert stores.backend(server.address).migration(server.address).script == ""


@pytest.mark.req("VX-17")
def test_tokens_are_asked_for_refused_and_never_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    server = new_server(environment=public_key())
    for given, said in (("", "there is no token"), ("hush-hush", "the token is refused")):
        monkeypatch.setenv(DB_TOKEN, given)
        with pytest.raises(StoreError, match=f"{said}.* into HOCKET_DB_TOKEN") as refused:
            stores.open(server.address, create=True)
        assert "hush" not in "".join(traceback.format_exception(refused.value))
    monkeypatch.setenv(DB_TOKEN, token())
    stores.open(server.address, create=True).close()
    monkeypatch.setenv(DB_TOKEN, token("ro"))
    with closing(stores.open(server.address)) as made:
        assert count(made) == 0
        with pytest.raises(StoreError, match="does not let this token write"):
            with made.write() as session:
                session.set_meta("a", b"1")


class Page(http.server.BaseHTTPRequestHandler):
    status = 404

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(self.status)
        self.send_header("Content-Length", "13")
        self.end_headers()
        self.wfile.write(b"<html></html>")

    def log_message(self, format: str, *values: object) -> None:
        pass


@contextmanager
def web_server(status: int) -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Other", (Page,), {"status": status})) as served:
        thread = threading.Thread(target=served.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{served.server_port}"
        served.shutdown()
        thread.join()


@pytest.mark.req("VX-14")
@pytest.mark.parametrize(
    ("status", "said"),
    [(200, "is not a libSQL server"), (404, "is not a libSQL server"), (308, "leads elsewhere"), (502, "broke off")],
)
def test_another_server_at_the_address_is_recognised(status: int, said: str) -> None:
    with web_server(status) as address, pytest.raises(StoreError, match=said):
        stores.open(address)


@pytest.mark.req("VX-14")
def test_no_server_and_no_tls_are_sentences(server: LibsqlServer) -> None:
    with pytest.raises(StoreError, match=r"no TLS there .* \?tls=0"):
        stores.open(f"libsql://127.0.0.1:{server.port}")
    server.kill()
    with pytest.raises(StoreError, match=r"cannot connect to .*; is the server running there"):
        stores.open(server.address)


@pytest.mark.req("VX-07")
def test_a_server_that_crashes_between_statements_keeps_nothing_of_the_change(
    server: LibsqlServer, store: LibsqlStore
) -> None:
    with store.write() as session:
        append(session, 1)
    with pytest.raises(StoreError, match="not kept"):
        with store.write() as session:
            append(session, 2)
            assert session.entry(2) is not None
            server.restart()
            assert session.entry(2) is None
    assert count(store) == 1
    with store.write() as session:
        append(session, 3)
    assert count(store) == 2


@contextmanager
def crash_around_commit(store: LibsqlStore, crash: Callable[[], None], *, is_late: bool) -> Iterator[None]:
    """The server gets the commit, and crashes before this process has its answer; or crashes right before."""
    stream = store._writer.stream
    receive, send = stream._received, stream._send

    def crashing_receive() -> bytes:
        stream._received = receive  # type: ignore[method-assign]
        receive()
        crash()
        return receive()

    def crashing_send(path: str, body: bytes) -> None:
        stream._send = send  # type: ignore[method-assign]
        crash()
        send(path, body)

    if is_late:
        stream._received = crashing_receive  # type: ignore[method-assign]
    else:
        stream._send = crashing_send  # type: ignore[method-assign]
    yield


@pytest.mark.req("VX-07")
@pytest.mark.parametrize("is_late", [True, False])
def test_a_commit_without_an_answer_is_looked_up(server: LibsqlServer, store: LibsqlStore, is_late: bool) -> None:
    change = store.write()
    session = change.__enter__()
    append(session, 1)
    with crash_around_commit(store, server.restart, is_late=is_late):
        if is_late:
            change.__exit__(None, None, None)
        else:
            with pytest.raises(StoreError, match="the change was not kept"):
                change.__exit__(None, None, None)
    assert count(store) == int(is_late)


@pytest.mark.req("VX-07")
@pytest.mark.parametrize("is_ignored", [False, True])
def test_a_transaction_that_the_server_ended_for_another_is_undone_whole(
    server: LibsqlServer, store: LibsqlStore, is_ignored: bool
) -> None:
    with closing(opened(server)) as other:
        with pytest.raises(StoreError, match="took longer than 5 seconds while another one waited"):
            with store.write() as session:
                session.set_meta("a", b"1")
                assert session.meta("a") == b"1"
                with other.write() as theirs:
                    theirs.set_meta("b", b"2")
                if is_ignored:  # from now on the server would commit each statement by itself
                    with pytest.raises(Broken):
                        session.meta("a")
                session.set_meta("c", b"3")
                session.set_meta("d", b"4")
    with store.read() as session:
        assert [session.meta(key) for key in "abcd"] == [None, b"2", None, None]


@pytest.mark.soak
@pytest.mark.req("VX-01")
def test_a_stream_that_was_idle_for_too_long_is_replaced(store: LibsqlStore) -> None:
    with store.write() as session:
        append(session, 1)
    assert count(store) == 1
    time.sleep(11)
    with store.write() as session:
        append(session, 2)
    assert count(store) == 2


@pytest.mark.req("VX-01")
def test_an_answer_of_any_size_is_read(store: LibsqlStore) -> None:
    """The server refuses to send more than 10 MB at once."""
    large = [op(n)._replace(body=bytes([n]) * 64_000) for n in range(1, 201)]
    with store.write() as session:
        seq = session.add_ops(large, [NO_LINK] * len(large))
        session.put_head(session.head()._replace(seq=seq))
        assert [row.body for row in session.ops_after(0, 1_000)] == [each.body for each in large]
    with store.read() as session:
        assert len(session.last_ops(200)) == 200 and session.entry(7) is not None


@pytest.mark.req("LW-39")
def test_the_servers_clock_is_read(store: LibsqlStore) -> None:
    with store.write():
        pass
    assert abs(store.server_clock() - time.time()) < 2
    log = new_log(store)
    assert log.is_shared
    log.append_plain("k", b"{}")
    with store.read() as session:
        assert session.head().seq > 0


@pytest.mark.req("VX-01")
def test_a_server_that_takes_two_seconds_for_each_request_is_waited_for(server: LibsqlServer) -> None:
    with closing(LibsqlRelay(server.port)) as relay, closing(stores.open(relay.address)) as slow:
        relay.delay_s = 2.0
        with slow.write() as session:
            append(session, 1)
        relay.delay_s = 0.0
        assert count(slow) == 1


@pytest.mark.req("VX-01")
def test_changes_wait_for_the_commit(store: LibsqlStore) -> None:
    before = store.round_trips
    with store.write() as session:
        for number in range(20):
            session.set_meta(str(number), b"1")
    assert store.round_trips - before == 2
