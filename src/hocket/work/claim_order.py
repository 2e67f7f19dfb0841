"""When a worker may claim a job of a kind that goes by rank. The first in rank may at once, each further one after
another claim timeout. This decides only who tries: the arbiter, or for `open` jobs the order of the log, decides who
holds the job.

Workers tell each other of claims and passes (`claim_messages`). Such a message moves a turn by one claim timeout at
most, since it may be a lie or lost.
"""

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from hocket.kernel.candidates import Candidates, node_of
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import ulid_text
from hocket.kernel.ops import Op, decode
from hocket.kernel.rendezvous import NotSigned, may_try_at, rank_of, rank_sticky, rank_weighted, seed_in, seed_of
from hocket.kernel.roster import Job
from hocket.kernel.signing import is_marked
from hocket.kernel.vocabulary import ScheduleJob
from hocket.log import Transaction
from hocket.store import Session
from hocket.work.heard_claims import HeardClaims
from hocket.work.members import Members

# An op that another process has yet to sign is looked at again after this long.
UNSIGNED_MS = 20
# The jobs whose ranks are remembered.
REMEMBERED_MAX = 10_000


def is_ranked(job: Job) -> bool:
    return job.policy.claim != "first"


def ready_since(job: Job, succeeded: Callable[[bytes], Hlc | None]) -> int:
    """When the job became ready, or came back, by the clock of the log. `succeeded` tells when a job did."""
    at = job.scheduled.wall if job.fence == 0 and job.failures == 0 and job.returns == 0 else job.last.wall
    done = [found.wall for each in job.policy.dependencies() if (found := succeeded(each)) is not None]
    return max(at, job.ready_at, *done)


def sticky_key(job: Job, op: Op) -> str | None:
    """The key of a sticky job; None if its payload has none."""
    if job.policy.claim != "sticky" or job.policy.sticky is None or not isinstance(op.payload, ScheduleJob):
        return None
    try:
        value = msgspec.json.decode(op.payload.payload)[job.policy.sticky]
    except (msgspec.MsgspecError, KeyError, TypeError, RecursionError):
        return None
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def loads(session: Session, kind: str, candidates: Candidates) -> dict[str, int]:
    """The jobs of a kind that each candidate has: those of its node, spread over the node's candidates."""
    counts: dict[int, int] = {}
    for entry in session.claimed():
        if entry.job.kind == kind and entry.job.claimer is not None:
            counts[entry.job.claimer] = counts.get(entry.job.claimer, 0) + 1
    found: dict[str, int] = {}
    workers: dict[int, list[str]] = {}
    for worker in sorted(candidates.weights):
        workers.setdefault(node_of(worker), []).append(worker)
    for node, names in workers.items():
        each, more = divmod(counts.get(node, 0), len(names))
        found |= {name: each + (place < more) for place, name in enumerate(names)}
    return found


class Ranking(NamedTuple):
    """The workers in the order in which they may try, and since when the job is ready."""

    candidates: Candidates
    workers: list[str]
    ready_ms: int
    key: str | None


def ranking(session: Session, members: Members, job: Job, op: Op, ready_ms: int, announced_ms: int) -> Ranking:
    """The whole ranking, for people. Raises NotSigned."""
    candidates = members.candidates(job.kind, announced_ms, job.policy.needs)
    key = sticky_key(job, op)
    if key is not None:
        workers = rank_sticky(key, candidates.weights, loads(session, job.kind, candidates))
    else:
        workers = rank_weighted(ulid_text(job.id), seed_of(op), candidates.weights)
    return Ranking(candidates, workers, ready_ms, key)


class _ReadyJob(NamedTuple):
    """What is remembered of a job that is ready: it stays the same while its fence does."""

    fence: int
    ready_ms: int
    seed: bytes
    key: str | None


class ClaimOrder:
    """The turns of one worker. Use it inside transactions of the log."""

    def __init__(self, worker: str, members: Members, heard: HeardClaims) -> None:
        self.worker, self.members, self.heard = worker, members, heard
        self._known: dict[bytes, _ReadyJob] = {}
        self._ranks: dict[bytes, tuple[Candidates, frozenset[str], int]] = {}

    def may_claim_at(self, tx: Transaction, job: Job, schedule: bytes) -> int:
        """When this worker may claim a ready job, by the clock of the log; any time that has passed means now."""
        if not is_ranked(job):
            return tx.now
        known = self._known.get(job.id)
        if known is None or known.fence != job.fence:
            try:
                known = self._know(tx, job, schedule)
            except NotSigned:
                return tx.now + UNSIGNED_MS
        rank = self._rank(tx, job, known)
        timeout_ms = job.policy.claim_timeout_ms
        at = may_try_at(rank, known.ready_ms, timeout_ms)
        if rank == 0 and not job.policy.open:
            return at  # the arbiter decides between two claims: a lie costs this worker nothing
        return max(at, self.heard.claimed_until(job.id, job.fence, self.worker, timeout_ms))

    def rank(self, tx: Transaction, job: Job, schedule: bytes) -> int | None:
        """This worker's rank for a ready job; None if it has no seed yet."""
        try:
            return self._rank(tx, job, self._know(tx, job, schedule))
        except NotSigned:
            return None

    def _know(self, tx: Transaction, job: Job, schedule: bytes) -> _ReadyJob:
        if job.scheduled.node == tx.node and is_marked(schedule):
            schedule = tx.signed(schedule)
        key = None if job.policy.claim != "sticky" else sticky_key(job, decode(schedule))
        known = _ReadyJob(job.fence, ready_since(job, tx.projection.jobs.succeeded), seed_in(schedule), key)
        if len(self._known) >= REMEMBERED_MAX:
            self._known.clear()
            self._ranks.clear()
        self._known[job.id] = known
        return known

    def _rank(self, tx: Transaction, job: Job, known: _ReadyJob) -> int:
        self.members.refresh(tx.session, tx.physical)
        candidates = self.members.candidates(job.kind, tx.physical - (tx.now - known.ready_ms), job.policy.needs)
        passed = self.heard.passed(job.id, job.fence)
        if known.key is not None:
            workers = rank_sticky(known.key, candidates.weights, loads(tx.session, job.kind, candidates))
            left = [each for each in workers if each not in passed]
            return left.index(self.worker) if self.worker in left else len(left)
        before = self._ranks.get(job.id)
        if before is not None and before[0] is candidates and before[1] == passed:
            return before[2]
        weights = {worker: weight for worker, weight in candidates.weights.items() if worker not in passed}
        rank = rank_of(ulid_text(job.id), known.seed, self.worker, weights)
        self._ranks[job.id] = candidates, passed, rank
        return rank
