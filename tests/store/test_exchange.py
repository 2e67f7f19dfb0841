"""Statements that go to PostgreSQL together."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from hocket.store.postgres import PostgresStore
from hocket.store.postgres.connecting import PREPARE_AFTER, connect, read_address
from hocket.store.postgres.exchange import Connection
from tests.postgres_server import prepared, server
from tests.waiting import wait_for

pytestmark = pytest.mark.touches("VX-18")

PREPARED = "SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%%hocket test%%'"


@pytest.fixture
def address() -> str:
    return server().new_database(template=prepared())


@pytest.fixture
def connection(address: str) -> Iterator[Connection]:
    with closing(connect(read_address(address))) as made:
        yield made


def count(connection: Connection) -> object:
    return connection.execute(PREPARED, ()).fetchone()


def test_each_statement_has_its_answer(connection: Connection) -> None:
    first, second, third = connection.ask(
        (("SELECT ?::bytea, ?::bigint, ?", (b"\0", 2**40, "a")), ("SELECT 1 WHERE false", ()), ("BEGIN", ()))
    )
    assert first == ([(b"\0", 2**40, "a")], 1) and first.first == (b"\0", 2**40, "a")
    assert second == ([], 0) and second.first is None and third == ([], 0)
    made, filled, gone = connection.ask(
        (
            ("CREATE TEMPORARY TABLE t (n int)", ()),
            ("INSERT INTO t SELECT generate_series(1, ?)", (5,)),
            ("DELETE FROM t WHERE n < ? RETURNING n", (3,)),
        )
    )
    assert (made.rowcount, filled.rowcount, gone.rowcount, sorted(gone.rows)) == (0, 5, 2, [(1,), (2,)])
    assert connection.ask(()) == []


def test_the_first_error_is_raised_and_the_connection_goes_on(connection: Connection) -> None:
    for _ in range(PREPARE_AFTER + 3):
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.ask((("SELECT 1", ()), ("SELECT 1 / ?", (0,)), ("SELECT nothing", ()), ("SELECT ?", ("b",))))
    assert connection.ask((("SELECT 1 / ?", (1,)),))[0].rows == [(1,)]
    assert connection.ask((("SELECT ?", ("b",)),))[0].rows == [("b",)]


def test_a_statement_that_is_repeated_is_prepared_once(connection: Connection) -> None:
    sql = "SELECT ? + 1 -- hocket test"
    connection.ask([(sql, (1,))] * PREPARE_AFTER)
    assert count(connection) == (0,)
    assert [each.rows for each in connection.ask([(sql, (n,)) for n in (1, 2, 3)])] == [[(2,)], [(3,)], [(4,)]]
    connection.ask([(sql, (1,))] * 3)
    assert count(connection) == (1,)


def test_a_preparation_that_the_server_has_skipped_is_made_again(connection: Connection) -> None:
    sql = "SELECT ? -- hocket test"
    connection.ask([(sql, ("a",))] * PREPARE_AFTER)
    with pytest.raises(psycopg.errors.UndefinedColumn):
        connection.ask((("SELECT nothing", ()), (sql, ("a",))))
    assert count(connection) == (0,)
    assert connection.ask([(sql, ("b",))] * 2)[1].rows == [("b",)]
    assert count(connection) == (1,)


def test_a_preparation_that_fails_says_why(connection: Connection) -> None:
    connection.ask((("CREATE TEMPORARY TABLE t (n int)", ()),))
    sql = "SELECT n FROM t -- hocket test"
    connection.ask([(sql, ())] * PREPARE_AFTER)
    connection.ask((("DROP TABLE t", ()),))
    for _ in range(2):
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.ask(((sql, ()), (sql, ())))


def test_a_value_that_cannot_be_sent_spoils_no_preparation(connection: Connection) -> None:
    sql = "SELECT ? -- hocket test"
    connection.ask([(sql, ("a",))] * PREPARE_AFTER)
    with pytest.raises(psycopg.DataError, match="NUL"):
        connection.ask(((sql, ("a",)), ("SELECT ?", ("\0",))))
    assert connection.ask(((sql, ("b",)),))[0].rows == [("b",)]


def test_much_goes_both_ways_at_once(connection: Connection) -> None:
    """More than what fits on the way: each side must read while it writes."""
    body = os.urandom(300_000)
    answers = connection.ask([("SELECT ?", (body,))] * 40)
    assert all(each.rows == [(body,)] for each in answers)


def test_an_interrupted_transaction_leaves_nothing(address: str) -> None:
    with closing(PostgresStore(address)) as store, closing(psycopg.connect(address)) as holder:
        holder.execute("LOCK hocket.meta")

        def interrupt() -> None:
            with psycopg.connect(address, autocommit=True) as observer:
                waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                wait_for(lambda: observer.execute(waits).fetchone() != (0,), "the lock to be waited for")
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            with store.write() as session:
                session.set_meta("a", b"1")
        thread.join()
        holder.rollback()
        with store.write() as session:
            assert session.meta("a") is None
            session.set_meta("a", b"2")
        with store.read() as session:
            assert session.meta("a") == b"2"


def test_a_closed_connection_says_so(connection: Connection) -> None:
    connection.close()
    with pytest.raises(psycopg.OperationalError, match="closed"):
        connection.ask((("SELECT 1", ()),))
