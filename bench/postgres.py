"""Hocket on PostgreSQL, as its users run it: the home of `bench.ours` with its store in a database, so the same jobs,
submits and workers. Signatures are on. A job counts as done when its completion is on the log.

One node is one home with worker processes. Several nodes have a home, a key and a worker process each, and share the
store; the jobs are submitted on the first.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psycopg
from rich.console import Console
from rich.table import Table

import hocket
from bench import crew, meter, ours
from bench.lock_waits import SAMPLE_S, LockWaits
from bench.subject import Result
from hocket.node.runtime import Runtime

LABEL = "Hocket"
NOTES = {
    "drain": "Hocket has the claim and the completion of each job on the disk; those of a turn are signed together.",
    "drain_nodes": "Hocket has a node with a key of its own for each worker. The peers know no nodes: theirs are worker"
    f" processes as before. What transactions wait for is sampled every {SAMPLE_S * 1000:.0f} ms while a queue drains.",
    "latency": "Nobody polls. Hocket's worker has the submitter's home, so a pipe wakes it; a NOTIFY wakes the others.",
    "fill": "Each finished job was submitted, claimed and completed by signed ops, in batches, without a handler.",
}
MIB = 1024 * 1024
# The counts of rows are the server's own: its processes report them within a second after they have changed something.
TABLES = """
    SELECT relname, n_live_tup, n_dead_tup, autovacuum_count, pg_table_size(relid), pg_indexes_size(relid)
      FROM pg_stat_user_tables WHERE n_live_tup + n_dead_tup > 0 OR pg_table_size(relid) > 65536
     ORDER BY pg_total_relation_size(relid) DESC
"""
INDEXES = """
    SELECT indexrelname, pg_relation_size(indexrelid) FROM pg_stat_user_indexes
     WHERE pg_relation_size(indexrelid) > 65536 ORDER BY 2 DESC LIMIT 12
"""


def describe() -> str:
    return f"Hocket {hocket.__version__} (psycopg {version('psycopg')})"


def _use_database(home: Path) -> None:
    """Makes a home for the node, unless there is one. It and the workers use this measurement's database."""
    os.environ["HOCKET_STORE"] = meter.database()
    node = home / "node"
    if not node.exists():
        Runtime.init(node, server=meter.database()).close()


def submit_single(home: Path, count: int) -> Result:
    _use_database(home)
    return ours.submit_single(home, count)


def submit_batch(home: Path, count: int, size: int) -> Result:
    _use_database(home)
    return ours.submit_batch(home, count, size)


def drain(home: Path, count: int, processes: int) -> Result:
    _use_database(home)
    return ours.drain(home, count, processes)


def latency(home: Path, samples: int, polled: bool) -> Result:
    _use_database(home)
    return ours.latency(home, samples, polled)


def drain_nodes(home: Path, count: int, nodes: int) -> Result:
    submit_batch(home, count, 1_000)
    for number in range(1, nodes):
        place = _place(home, number)
        place.mkdir()
        Runtime.init(place / "node", home / "node" / "user.key", name=f"n{number}", server=meter.database()).close()
    with LockWaits() as waits:
        drained = crew.drain(home, [sys.executable, "-m", "bench.postgres"], count, nodes, is_empty=lambda: False)
    return {**drained, **waits.shares(), "rate": count / drained["seconds"]}


def _place(home: Path, number: int) -> Path:
    """Where the home of one of several nodes is. The first is the one that submits."""
    return home / f"n{number}" if number else home


def fill(home: Path, finished: int) -> Result:
    """Fills the store with finished jobs, and says whether that became slower, and what it did to the tables."""
    _use_database(home)
    before = _tables()
    tenth = finished // 10
    first, middle, last = [ours.fill(home, count)["seconds"] for count in (tenth, finished - 2 * tenth, tenth)]
    after = _tables()
    totals = {name: sum(table[name] for table in after["tables"]) for name in ("dead", "table_bytes", "index_bytes")}
    return {
        "rate": finished / (first + middle + last),
        "first_rate": tenth / first,
        "last_rate": tenth / last,
        "ratio": first / last,
        "dead": totals["dead"],
        "table_mib": totals["table_bytes"] / MIB,
        "index_mib": totals["index_bytes"] / MIB,
        "tables_before": before,
        "tables_after": after,
    }


def _tables() -> dict[str, Any]:
    names = ("table", "rows", "dead", "autovacuums", "table_bytes", "index_bytes")
    with psycopg.connect(meter.database(), autocommit=True) as connection:
        found = [dict(zip(names, row, strict=True)) for row in connection.execute(TABLES)]
        return {"tables": found, "indexes": connection.execute(INDEXES).fetchall()}


def print_tables(console: Console, before: dict[str, Any], after: dict[str, Any]) -> None:
    """What `fill` saw of the tables and the largest indexes, in MiB."""
    shown = Table("table", "rows", "dead rows", "autovacuums", "MiB", "before", "indexes, MiB", "before")
    known = {table["table"]: table for table in before["tables"]}
    for table in after["tables"]:
        old = known.get(table["table"], {"table_bytes": 0, "index_bytes": 0})
        counts = [f"{table[name]:,}" for name in ("rows", "dead", "autovacuums")]
        sizes = [f"{each[name] / MIB:,.1f}" for name in ("table_bytes", "index_bytes") for each in (table, old)]
        shown.add_row(table["table"], *counts, *sizes)
    console.print(shown)
    largest = [f"{name} {size / MIB:,.1f}" for name, size in after["indexes"]]
    console.print(f"The largest indexes, MiB: {', '.join(largest)}", highlight=False)


if __name__ == "__main__":
    meter.report_at_exit()
    ours.work(_place(meter.home(), int(os.environ["BENCH_NUMBER"])), for_ever=False)
