"""Raw SKIP LOCKED: what PostgreSQL itself allows, with one table, psycopg, and no queue around it. There are no
signatures, leases, fences, retries or results: this is the limit, not a peer.

A single submit is one insert in a transaction of its own, a batch one insert of arrays. Workers claim a hundred rows
with one statement and complete them with another, each a commit that waits for the disk.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psycopg

from bench import crew, meter
from bench.lock_waits import LockWaits
from bench.subject import Result

LABEL = "raw SKIP LOCKED"
NOTES = {
    "drain": "Raw SKIP LOCKED claims and completes a hundred rows a transaction, and drains ten times as many jobs."
}
CLAIM = 100
CREATE = """
    CREATE TABLE job (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, state smallint NOT NULL, payload text NOT NULL
    );
    CREATE INDEX job_pending ON job (id) WHERE state = 0
"""
CLAIM_ROWS = """
    UPDATE job SET state = 1
     WHERE id IN (SELECT id FROM job WHERE state = 0 ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED)
    RETURNING id, payload
"""


def describe() -> str:
    return f"raw SKIP LOCKED (psycopg {version('psycopg')})"


def _open() -> psycopg.Connection[Any]:
    return psycopg.connect(meter.database(), autocommit=True)


def _payload(number: int) -> str:
    return json.dumps({"n": number})


def submit_single(home: Path, count: int) -> Result:
    with _open() as connection:
        connection.execute(CREATE)
        start = time.perf_counter()
        for number in range(count):
            connection.execute("INSERT INTO job (state, payload) VALUES (0, %s)", (_payload(number),))
        return {"seconds": time.perf_counter() - start}


def submit_batch(home: Path, count: int, size: int) -> Result:
    with _open() as connection:
        connection.execute(CREATE)
        start = time.perf_counter()
        for first in range(0, count, size):
            payloads = [_payload(number) for number in range(first, min(first + size, count))]
            connection.execute("INSERT INTO job (state, payload) SELECT 0, unnest(%s::text[])", (payloads,))
        return {"seconds": time.perf_counter() - start}


def drain(home: Path, count: int, processes: int) -> Result:
    count *= 10  # or it is over before it can be timed
    submit_batch(home, count, 1_000)
    return {**crew.drain(home, _worker("until-empty"), count, processes, is_empty=lambda: False), "count": count}


def drain_nodes(home: Path, count: int, nodes: int) -> Result:
    count *= 10
    submit_batch(home, count, 1_000)
    with LockWaits() as waits:
        drained = crew.drain(home, _worker("until-empty"), count, nodes, is_empty=lambda: False)
    return {**drained, **waits.shares(), "rate": count / drained["seconds"]}


def latency(home: Path, samples: int, polled: bool) -> Result:
    insert = "WITH made AS (INSERT INTO job (state, payload) VALUES (0, %s)) SELECT pg_notify('job', '')"
    with _open() as connection:
        connection.execute(CREATE)
        return crew.latency(
            home, _worker("for-ever"), samples, lambda number: connection.execute(insert, (_payload(number),))
        )


def _worker(mode: str) -> list[str]:
    return [sys.executable, "-m", "bench.peers.skip_locked", mode]


def work(for_ever: bool) -> None:
    with _open() as connection:
        connection.execute("LISTEN job")
        meter.wait_for_gate()
        while True:
            rows = connection.execute(CLAIM_ROWS, (CLAIM,)).fetchall()
            if rows:
                for number in [json.loads(payload)["n"] for _, payload in rows]:
                    if for_ever:
                        meter.started(number)
                connection.execute("UPDATE job SET state = 2 WHERE id = ANY(%s)", ([row[0] for row in rows],))
                for _ in rows:
                    meter.hit()
            elif for_ever:
                for _ in connection.notifies(timeout=1.0, stop_after=1):
                    pass
            else:
                break


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    meter.report_at_exit()
    work(sys.argv[1] == "for-ever")
