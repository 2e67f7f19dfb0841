"""How much of their time the transactions of a database wait for locks: rows, transactions and advisory locks, which
are what PostgreSQL calls `Lock` in `pg_stat_activity`. A thread looks there every few milliseconds.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType

import psycopg

from bench import meter
from bench.subject import Result

SAMPLE_S = 0.005
LOOK = """
    SELECT count(*) FILTER (WHERE state = 'active' AND wait_event_type = 'Lock'),
           count(*) FILTER (WHERE state = 'active'),
           count(*) FILTER (WHERE xact_start IS NOT NULL)
      FROM pg_stat_activity
     WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""


class LockWaits:
    """Watches this measurement's database for as long as the block lasts."""

    def __init__(self) -> None:
        self._waiting = self._active = self._open = self._samples = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._connection: psycopg.Connection[tuple[int, int, int]] | None = None

    def __enter__(self) -> LockWaits:
        self._connection = psycopg.connect(meter.database(), autocommit=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def shares(self) -> Result:
        """Percent of the time in which the server works on a statement or should, and of that in which a transaction is
        open, its process's own work included.
        """
        samples = self._samples  # first: the sums may have more of them by now, and never fewer
        return {
            "lock_pct": 100 * self._waiting / max(1, self._active),
            "lock_pct_open": 100 * self._waiting / max(1, self._open),
            "samples": samples,
        }

    def _watch(self) -> None:
        assert self._connection is not None
        with self._connection as connection:
            due = time.monotonic()
            while not self._ended.wait(max(0.0, due - time.monotonic())):
                due = max(due + SAMPLE_S, time.monotonic())
                found = connection.execute(LOOK).fetchone()
                assert found is not None
                self._waiting, self._active, self._open = [
                    total + new for total, new in zip((self._waiting, self._active, self._open), found, strict=True)
                ]
                self._samples += 1
