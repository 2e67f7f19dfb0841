"""Who is measured beside whom."""

from __future__ import annotations

from dataclasses import dataclass

# Our column in every lineup, and the subject on SQLite.
OURS = "bench.ours"
POSTGRES = "bench.postgres"


@dataclass(frozen=True)
class Lineup:
    """The subjects that take turns at a row, a column each. The last column is ours over the better of `compared`."""

    ours: str
    peers: tuple[str, ...]
    compared: tuple[str, ...]
    heading: str


ON_SQLITE = Lineup(
    OURS,
    ("bench.peers.huey", "bench.peers.litequeue", "bench.peers.apsw"),
    ("bench.peers.huey",),
    "ours : Huey",
)
ON_POSTGRES = Lineup(
    POSTGRES,
    ("bench.peers.pgqueuer", "bench.peers.procrastinate", "bench.peers.skip_locked"),
    ("bench.peers.pgqueuer", "bench.peers.procrastinate"),
    "ours : better peer",
)
