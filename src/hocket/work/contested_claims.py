"""Which node tries first for a job that the first claim gets, while several nodes want the same jobs. Each node sees
the same queue, so their workers offer claims on the same jobs, and the arbiter refuses all but one of each. A worker
that has lost a claim leaves each job for a moment to the node that a hash of the job chooses among those that serve its
kind. This decides only who tries: after that moment every worker may.
"""

from hashlib import blake2b

from hocket.families.jobs.candidates import Candidates, node_of
from hocket.families.jobs.rules import Job
from hocket.work.claim_order import QueueView
from hocket.work.members import Members

# For this long after a lost claim a worker leaves jobs to others, each of them for so long.
CONTESTED_MS = 5_000
LEFT_MS = 1_000
# The jobs that are left to others; beyond that, the worker forgets since when.
LEFT_MAX = 10_000


class ContestedClaims:
    """Of one worker. Use it from one thread at a time; any thread may call `lost`."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._has_lost = False
        self._until_ms = 0
        self._left: dict[bytes, int] = {}
        self._nodes: tuple[Candidates, tuple[int, ...]] | None = None

    def lost(self) -> None:
        """The arbiter has refused a claim of this worker."""
        self._has_lost = True

    def is_over(self, now_ms: int) -> bool:
        """Whether this worker may claim every job at once, by the clock of the log."""
        return not self._has_lost and now_ms >= self._until_ms

    def may_claim_at(self, tx: QueueView, job: Job) -> int:
        """When this worker may claim a ready job, by the clock of the log."""
        if self._has_lost:
            self._has_lost, self._until_ms = False, tx.now + CONTESTED_MS
        if tx.now >= self._until_ms:
            self._left.clear()
            return tx.now
        nodes = self._serving(tx, job)
        if tx.node not in nodes or len(nodes) == 1 or first_node(job.id, nodes) == tx.node:
            return tx.now
        if len(self._left) >= LEFT_MAX:
            self._left.clear()
        return self._left.setdefault(job.id, tx.now + LEFT_MS)

    def _serving(self, tx: QueueView, job: Job) -> tuple[int, ...]:
        self._members.refresh(tx.session, tx.physical)
        candidates = self._members.candidates(job.kind, tx.physical, job.policy.needs)
        if self._nodes is None or self._nodes[0] is not candidates:
            self._nodes = candidates, tuple({node_of(worker) for worker in candidates.weights})
        return self._nodes[1]


def first_node(job_id: bytes, nodes: tuple[int, ...]) -> int:
    """The node that tries first: one of them, and for other jobs others."""
    return max(nodes, key=lambda node: blake2b(job_id + node.to_bytes(8, "big"), digest_size=8).digest())
