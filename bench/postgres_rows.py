"""The rows on PostgreSQL. Those on a store with many finished jobs take long, so they must be asked for by name. The
others are measured once in a run of all rows, and as often as every other row when they are asked for.
"""

from __future__ import annotations

from typing import Any

from bench.lineups import ON_POSTGRES, POSTGRES
from bench.rows import Figure, Goal, Row, Size

GROUP, FULL_GROUP = "postgres", "postgres-million"
WORKERS = (1, 2, 4)
NODES = 4
GOALS = {"single": 0.8, "drain-1": 0.5, f"nodes-{NODES}": 0.5}  # ours : the better peer, on an empty store


def postgres_rows(size: Size) -> list[Row]:
    return [*_rows(size, GROUP, "on PostgreSQL", 1, False), _fill_row(size), *_full_rows(size)]


def _full_rows(size: Size) -> list[Row]:
    return _rows(size, FULL_GROUP, f"on PostgreSQL, {size.finished:,} finished", 0, True)


def _rows(size: Size, group: str, where: str, unasked: int, full: bool) -> list[Row]:
    """Smaller than on SQLite: each commit of a single submit waits for a server, and three peers for a disk."""
    single, batch, drained = size.single // 10, size.batch // 5, size.drain // 2

    def row(key: str, title: str, function: str, arguments: dict[str, Any], count: int, *figures: Figure) -> Row:
        return Row(
            f"{group}-{key}",
            title,
            function,
            arguments,
            count,
            full,
            module=POSTGRES,
            figures=figures,
            lineup=ON_POSTGRES,
            group=group,
            unasked=unasked,
            goals=(Goal(at_least=GOALS[key]),) if key in GOALS and not full else (),
        )

    nodes = f"no-op jobs/s, {NODES} nodes {where}"
    return [
        row("single", f"single submits/s {where}", "submit_single", {"count": single}, single),
        row(
            "batch",
            f"batch submits/s ({size.batch_size:,} a batch) {where}",
            "submit_batch",
            {"count": batch, "size": size.batch_size},
            batch,
        ),
        *(
            row(
                f"drain-{workers}",
                f"no-op jobs/s, {workers} worker process{'es' if workers > 1 else ''} {where}",
                "drain",
                {"count": drained, "processes": workers},
                drained,
            )
            for workers in WORKERS
        ),
        row(
            f"nodes-{NODES}",
            nodes,
            "drain_nodes",
            {"count": drained, "nodes": NODES},
            drained,
            Figure("rate", nodes, "/s"),
            Figure("lock_pct", "  share of statements' time that waits for locks", "%", True, is_compared=False),
            Figure("lock_pct_open", "  share of transactions' time that does", "%", True, is_compared=False),
        ),
        row("latency", f"submit to start {where}", "latency", {"samples": size.samples, "polled": False}, 0),
    ]


def _fill_row(size: Size) -> Row:
    title = f"finished jobs/s while {size.finished:,} are made on PostgreSQL"
    return Row(
        f"{FULL_GROUP}-fill",
        title,
        "fill",
        {},
        ours_only=True,
        module=POSTGRES,
        figures=(
            Figure("rate", title, "/s"),
            Figure("first_rate", "  the first tenth of them", "/s"),
            Figure("last_rate", "  the last tenth of them", "/s"),
            Figure("ratio", "  last : first", "×"),
            Figure("table_mib", "  tables after it", "MiB", True),
            Figure("index_mib", "  indexes after it", "MiB", True),
            Figure("dead", "  dead after it", "rows", True),
        ),
        lineup=ON_POSTGRES,
        group=FULL_GROUP,
        unasked=0,
    )
