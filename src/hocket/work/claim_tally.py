"""How many jobs a worker has claimed by rank, by kind and minute: it tells others with its presence. The log knows only
nodes. Sticky jobs are left out: their keys, not the weights, decide about them.
"""

from collections.abc import Callable

from hocket.families.jobs.rules import Job

MINUTE_MS = 60_000
# The minutes with claims that a report has, of all kinds together.
TOLD_MAX = 32

# Kind, minute since the epoch, claims.
Tally = tuple[tuple[str, int, int], ...]


class ClaimTally:
    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._counts: dict[tuple[int, str], int] = {}

    def add(self, job: Job) -> None:
        if job.policy.claim != "rendezvous":
            return
        key = self._now_ms() // MINUTE_MS, job.kind
        if key not in self._counts and len(self._counts) >= TOLD_MAX:
            del self._counts[min(self._counts)]
        self._counts[key] = self._counts.get(key, 0) + 1

    def told(self) -> Tally:
        return tuple((kind, minute, count) for (minute, kind), count in sorted(self._counts.items()))
