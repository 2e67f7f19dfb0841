"""What a module must offer to be measured, and what the harness leaves to it.

A subject is a module: `bench.ours`, or one under `bench.peers`. The harness calls each function in a fresh process with
an empty directory that is the subject's alone, so no subject inherits another's imports, threads or page cache tricks.
A function that a subject lacks shows as a dash in the table.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

Result = dict[str, Any]


class Subject(Protocol):
    LABEL: str
    NOTES: dict[str, str]  # measurement -> a sentence for the foot of the table

    def describe(self) -> str:
        """Name and versions, for the heading."""

    def submit_single(self, home: Path, count: int) -> Result:
        """Submit `count` jobs one by one, each durable before the next. Returns `seconds`."""

    def submit_batch(self, home: Path, count: int, size: int) -> Result:
        """Submit `count` jobs in batches of `size`. Returns `seconds`."""

    def drain(self, home: Path, count: int, processes: int) -> Result:
        """Queue `count` no-op jobs, then let that many worker processes finish them.

        Returns `seconds`, from the moment all workers may begin to the last job done, and `peak_kib`, one a worker.
        """

    def latency(self, home: Path, samples: int, polled: bool) -> Result:
        """Submit to an idle worker, `samples` times. Returns `latencies_ms` and `peak_kib`.

        `polled`: poll as often as the subject can be told to; otherwise as it is shipped.
        """

    # Only ours: the measurements above are repeated on a home that `fill` made.
    def fill(self, home: Path, finished: int) -> Result:
        """Put `finished` completed jobs into the log. Returns `seconds`."""

    def refold(self, home: Path, ops: int) -> Result:
        """Make a log of `ops` ops, drop the projections, fold again. Returns `seconds` of the fold alone."""
