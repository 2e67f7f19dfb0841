"""What other workers have said about claims on jobs that the log still shows as ready. A claim holds the others back
for one claim timeout, however many claims follow; a pass takes its worker out of the ranking for this job. What was
said holds for one fence: a job that was claimed and comes back begins anew.
"""

from collections.abc import Callable
from typing import NamedTuple

from hocket.families.jobs.candidates import node_of
from hocket.families.jobs.rendezvous import AnnouncedClaim, winning_claim

JOBS_MAX = 4_096
# The claims on a job that are remembered, one for each node, and the passes.
SAID_MAX = 64

_NOBODY: frozenset[str] = frozenset()


class _HeardSaid(NamedTuple):
    """`heard_ms` is when the first claim came."""

    claims: dict[int, AnnouncedClaim]
    passes: frozenset[str]
    heard_ms: int


_NOTHING = _HeardSaid({}, _NOBODY, 0)


class HeardClaims:
    """`now_ms` is this machine's clock. Messages come on the event loop and are looked up in another thread: each call
    reads or replaces one entry.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._said: dict[tuple[bytes, int], _HeardSaid] = {}
        self.dropped = 0
        """How many messages were forgotten or ignored because there were too many."""

    def hear_claim(self, job_id: bytes, fence: int, claim: AnnouncedClaim) -> None:
        before = self._room_for(job_id, fence)
        node = node_of(claim.worker)
        if node in before.claims:
            claim = winning_claim((claim, before.claims[node]))
        elif len(before.claims) >= SAID_MAX:
            self.dropped += 1
            return
        heard_ms = before.heard_ms if before.claims else self._now_ms()
        self._said[job_id, fence] = _HeardSaid(before.claims | {node: claim}, before.passes, heard_ms)

    def hear_pass(self, job_id: bytes, fence: int, worker: str) -> None:
        before = self._room_for(job_id, fence)
        if len(before.passes) >= SAID_MAX:
            self.dropped += 1
            return
        self._said[job_id, fence] = before._replace(passes=before.passes | {worker})

    def claimed_until(self, job_id: bytes, fence: int, worker: str, timeout_ms: int) -> int:
        """Until when this worker leaves the job to the claim that stands; 0 if there is none or it is its own."""
        said = self._said.get((job_id, fence), _NOTHING)
        if not said.claims or winning_claim(said.claims.values()).worker == worker:
            return 0
        return said.heard_ms + timeout_ms

    def first(self, job_id: bytes, fence: int) -> AnnouncedClaim | None:
        """The claim that stands, of those that were heard."""
        said = self._said.get((job_id, fence), _NOTHING)
        return winning_claim(said.claims.values()) if said.claims else None

    def passed(self, job_id: bytes, fence: int) -> frozenset[str]:
        return self._said.get((job_id, fence), _NOTHING).passes

    def _room_for(self, job_id: bytes, fence: int) -> _HeardSaid:
        if (job_id, fence) not in self._said and len(self._said) >= JOBS_MAX:
            del self._said[next(iter(self._said))]
            self.dropped += 1
        return self._said.get((job_id, fence), _NOTHING)
