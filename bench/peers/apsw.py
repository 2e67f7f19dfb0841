"""Raw apsw: what SQLite itself allows, WAL and synchronous=FULL, with no queue around it and no signatures.

A single submit is one insert and one commit. Workers claim a hundred rows in one transaction and complete them in
another: the ceiling for anything that claims durably, runs, and completes durably.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from bench import crew, meter
from bench.subject import Result

LABEL = "raw apsw"
NOTES = {
    "drain": "Raw apsw claims and completes a hundred rows a transaction.",
    "latency": "The raw apsw loop looks at the data version every half millisecond.",
}
CLAIM = 100


def describe() -> str:
    return f"apsw {apsw.apsw_version()} (SQLite {apsw.sqlite_lib_version()})"


def _open(home: Path) -> apsw.Connection:
    connection = apsw.Connection(str(home / "raw.db"))
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = full")
    connection.execute("create table if not exists job (id integer primary key, state integer, payload text)")
    connection.execute("create index if not exists job_pending on job (id) where state = 0")
    return connection


@contextmanager
def _write(connection: apsw.Connection) -> Iterator[None]:
    """A write transaction, retried after a random moment: a busy timeout would sleep in ever longer steps."""
    while True:
        try:
            connection.execute("begin immediate")
            break
        except apsw.BusyError:
            time.sleep(random.uniform(0.0001, 0.002))
    try:
        yield
    except BaseException:
        connection.execute("rollback")
        raise
    connection.execute("commit")


def submit_single(home: Path, count: int) -> Result:
    connection = _open(home)
    start = time.perf_counter()
    for number in range(count):
        connection.execute("insert into job (state, payload) values (0, ?)", (json.dumps({"n": number}),))
    return {"seconds": time.perf_counter() - start}


def submit_batch(home: Path, count: int, size: int) -> Result:
    connection = _open(home)
    start = time.perf_counter()
    for first in range(0, count, size):
        rows = [(json.dumps({"n": number}),) for number in range(first, min(first + size, count))]
        with _write(connection):
            connection.executemany("insert into job (state, payload) values (0, ?)", rows)
    return {"seconds": time.perf_counter() - start}


def drain(home: Path, count: int, processes: int) -> Result:
    count *= 10  # or it is over before it can be timed
    submit_batch(home, count, 1000)
    command = [sys.executable, "-m", "bench.peers.apsw", "until-empty"]
    return {**crew.drain(home, command, count, processes, is_empty=lambda: False), "count": count}


def latency(home: Path, samples: int, polled: bool) -> Result:
    connection = _open(home)

    def submit(number: int) -> None:
        with _write(connection):
            connection.execute("insert into job (state, payload) values (0, ?)", (json.dumps({"n": number}),))

    return crew.latency(home, [sys.executable, "-m", "bench.peers.apsw", "for-ever"], samples, submit)


def work(home: Path, for_ever: bool) -> None:
    connection = _open(home)
    meter.wait_for_gate()
    seen = -1
    while True:
        with _write(connection):
            rows = connection.execute(
                "update job set state = 1 where id in (select id from job where state = 0 order by id limit ?)"
                " returning id, payload",
                (CLAIM,),
            ).fetchall()
        if rows:
            if for_ever:
                for _, payload in rows:
                    meter.started(json.loads(payload)["n"])
            with _write(connection):
                connection.executemany("update job set state = 2 where id = ?", [(row[0],) for row in rows])
            for _ in rows:
                meter.hit()
            continue
        if not for_ever:
            break
        seen = connection.pragma("data_version")
        while connection.pragma("data_version") == seen:
            time.sleep(0.0005)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    meter.report_at_exit()
    work(meter.home(), sys.argv[1] == "for-ever")
