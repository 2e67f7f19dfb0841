"""The benchmark's sampler of lock waits counts what waits, and nothing else."""

import threading
from contextlib import closing

import psycopg
import pytest

from bench.lock_waits import LockWaits
from tests.postgres_server import server
from tests.waiting import wait_for

pytestmark = pytest.mark.touches("VX-18")
SAMPLES = 3
WAITS = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> str:
    made = server().new_database()
    monkeypatch.setenv("BENCH_DATABASE", made)
    with psycopg.connect(made) as connection:
        connection.execute("CREATE TABLE rows (id int PRIMARY KEY)")
        connection.execute("INSERT INTO rows VALUES (1)")
    return made


def watched() -> tuple[float, float]:
    """What it found, once it has ended: until then its thread changes one sum after the other."""
    with LockWaits() as waits:
        wait_for(lambda: waits.shares()["samples"] >= SAMPLES, "the samples")
    found = waits.shares()
    return found["lock_pct"], found["lock_pct_open"]


@pytest.mark.parametrize("lock", ["SELECT id FROM rows FOR UPDATE", "SELECT pg_advisory_xact_lock(7)"])
def test_a_transaction_that_waits_for_another_is_counted(address: str, lock: str) -> None:
    with closing(psycopg.connect(address)) as holder, closing(psycopg.connect(address)) as waiter:
        holder.execute(lock)
        thread = threading.Thread(target=waiter.execute, args=(lock,))
        thread.start()
        try:
            with psycopg.connect(address, autocommit=True) as observer:
                wait_for(lambda: observer.execute(WAITS).fetchone() == (1,), "the lock to be waited for")
            # One statement, which waits; two open transactions, of which one is idle.
            assert watched() == (100.0, 50.0)
        finally:
            holder.rollback()
            thread.join()


def test_transactions_that_wait_for_nobody_are_not_counted(address: str) -> None:
    with closing(psycopg.connect(address)) as holder:
        holder.execute("SELECT id FROM rows FOR UPDATE")
        assert watched() == (0.0, 0.0)
