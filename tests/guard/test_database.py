"""The guard of rows: the fence is compared in the transaction that writes, on every connection that it takes."""

import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

import hocket
from hocket.errors import StaleFence
from tests.guard import psql

Connect = Callable[[], Any]


@pytest.fixture(scope="module")
def server() -> Iterator[psql.Server]:
    if not psql.is_installed():
        pytest.skip("no PostgreSQL is installed here")
    server = psql.Server()
    yield server
    server.stop()


@pytest.fixture(params=["sqlite3", "sqlite3 autocommit", "sqlite3 rows", "apsw", "postgres", "postgres autocommit"])
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Connect]:
    """Opens connections to one database, which has an empty table `page`."""
    opened = []
    if request.param.startswith("postgres"):
        server = request.getfixturevalue("server")
        for table in ("page", "hocket_fences"):
            _do(server.connect(autocommit=True), f"DROP TABLE IF EXISTS {table}")

    def connect() -> Any:
        if request.param.startswith("postgres"):
            connection = server.connect(autocommit=request.param.endswith("autocommit"))
        elif request.param == "apsw":
            connection = apsw.Connection(str(tmp_path / "rows.db"))
        else:
            level = None if request.param.endswith("autocommit") else "DEFERRED"
            connection = sqlite3.connect(tmp_path / "rows.db", isolation_level=level, timeout=0)
            if request.param.endswith("rows"):
                connection.row_factory = lambda cursor, row: {"value": row[0]}
        opened.append(connection)
        return connection

    first = connect()
    first.execute("CREATE TABLE page (text text)")
    if request.param == "postgres":
        first.commit()
    yield connect
    for connection in opened:
        connection.close()


def _do(connection: Any, statement: str) -> None:
    connection.execute(statement)
    connection.close()


def texts(connection: Any) -> list[str]:
    rows = connection.execute("SELECT text FROM page ORDER BY text").fetchall()
    if isinstance(connection, psql.Connection) and connection.info.transaction_status:
        connection.commit()
    return [row["value"] if isinstance(row, dict) else row[0] for row in rows]


def write(connection: Any, fence: int, text: str) -> None:
    with hocket.fenced(connection, "page:7", fence):
        connection.execute(f"INSERT INTO page VALUES ('{text}')")


@pytest.mark.req("VX-06")
def test_a_stale_fence_writes_nothing_and_an_equal_one_writes(connect: Connect) -> None:
    old, new = connect(), connect()
    write(old, 4, "a")
    write(old, 4, "b")
    write(new, 5, "c")
    with pytest.raises(StaleFence) as refused:
        write(old, 4, "d")
    assert (refused.value.fence, refused.value.newest, refused.value.resource) == (4, 5, "page:7")
    write(new, 5, "e")
    assert texts(connect()) == ["a", "b", "c", "e"]


def test_resources_are_apart(connect: Connect) -> None:
    connection = connect()
    odd = "page:ä'\"; DROP TABLE page; --\n🎵"
    write(connection, 9, "a")
    with hocket.fenced(connection, odd, 1):
        pass
    with pytest.raises(StaleFence):
        write(connection, 1, "b")
    assert texts(connection) == ["a"]


@pytest.mark.req("VX-06")
def test_an_error_takes_back_the_writes_and_the_fence(connect: Connect) -> None:
    connection = connect()
    with pytest.raises(ZeroDivisionError):
        with hocket.fenced(connection, "page:7", 8):
            connection.execute("INSERT INTO page VALUES ('a')")
            raise ZeroDivisionError
    write(connection, 3, "b")
    assert texts(connect()) == ["b"]


@pytest.mark.req("VX-06")
def test_in_an_open_transaction_the_caller_commits(connect: Connect) -> None:
    """The fence is raised only if the caller commits."""
    connection, other = connect(), connect()
    connection.execute("BEGIN")
    write(connection, 8, "a")
    connection.execute("ROLLBACK")
    write(other, 3, "b")
    connection.execute("BEGIN")
    write(connection, 4, "c")
    connection.execute("COMMIT")
    with pytest.raises(StaleFence):
        write(other, 3, "d")
    assert texts(connect()) == ["b", "c"]


def test_a_block_that_commits_by_itself_is_told(connect: Connect) -> None:
    connection = connect()
    with pytest.raises(hocket.Usage, match="ended its transaction itself"):
        with hocket.fenced(connection, "page:7", 1):
            connection.execute("COMMIT")


def test_executescript_leaves_the_guard(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "rows.db")
    with pytest.raises(hocket.Usage, match="executescript"):
        with hocket.fenced(connection, "page:7", 1):
            connection.executescript("CREATE TABLE page (text text)")


def test_a_call_without_a_block_guards_too(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "rows.db")
    hocket.fenced(connection, "page:7", 2)
    connection.commit()
    with pytest.raises(StaleFence):
        hocket.fenced(connection, "page:7", 1)
    assert not connection.in_transaction


class Asynchronous:
    in_transaction = False

    async def execute(self, statement: str) -> None: ...


@pytest.mark.parametrize("connection", [None, "rows.db", sqlite3.connect(":memory:").cursor(), Asynchronous()])
def test_what_is_no_connection_is_refused(connection: Any) -> None:
    with pytest.raises(hocket.Usage, match="connection"):
        hocket.fenced(connection, "page:7", 1)


@pytest.mark.req("VX-06")
def test_a_higher_fence_on_postgresql_waits_for_the_lower_one_that_writes(server: psql.Server) -> None:
    """The row of the fence is locked from the comparison to the commit, so no write slips in between. Both also create
    the table at the same time.
    """
    _do(server.connect(autocommit=True), "DROP TABLE IF EXISTS hocket_fences")
    low, high = server.connect(), server.connect(autocommit=True)
    with hocket.fenced(low, "page:7", 1):
        high.begin_sending("SET statement_timeout = 300")
        high.answer()
        with pytest.raises(RuntimeError, match="statement timeout"):
            hocket.fenced(high, "page:7", 2)
    high.begin_sending("SET statement_timeout = 0")
    high.answer()
    with hocket.fenced(high, "page:7", 2):
        pass
    with pytest.raises(StaleFence):
        hocket.fenced(low, "page:7", 1)
    low.close()
    high.close()


WRITER = """
import random, sqlite3, sys
import hocket

connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
while True:
    (fence,) = connection.execute("UPDATE counter SET fence = fence + 1 RETURNING fence").fetchone()
    try:
        for _ in range(random.randint(1, 3)):
            with hocket.fenced(connection, "page:7", fence):
                (seen,) = connection.execute("SELECT coalesce(max(fence), 0) FROM writes").fetchone()
                connection.execute("INSERT INTO writes (seen, fence) VALUES (?, ?)", (seen, fence))
    except hocket.StaleFence:
        pass
"""


@pytest.mark.req("VX-06")
def test_no_stale_write_gets_through_while_processes_are_killed(tmp_path: Path) -> None:
    path, chance = tmp_path / "rows.db", random.Random(7)
    connection = sqlite3.connect(path, isolation_level=None, timeout=60)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE counter (fence INTEGER)")
    connection.execute("INSERT INTO counter VALUES (0)")
    connection.execute("CREATE TABLE writes (id INTEGER PRIMARY KEY, seen INTEGER, fence INTEGER)")

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", WRITER, str(path)])

    writers = [start() for _ in range(3)]
    try:
        for _ in range(10):
            _until_more_writes(connection)
            writer = writers.pop(chance.randrange(3))
            writer.kill()
            writer.wait()
            writers.append(start())
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
    found = connection.execute("SELECT seen, fence FROM writes ORDER BY id").fetchall()
    assert len(found) > 10 and all(seen <= fence for seen, fence in found)


def _until_more_writes(connection: sqlite3.Connection) -> None:
    def count() -> int:
        (number,) = connection.execute("SELECT count(*) FROM writes").fetchone()
        return int(number)

    deadline, before = time.monotonic() + 60, count()
    while count() <= before:
        assert time.monotonic() < deadline, "no writer goes on"
        time.sleep(0.002)
