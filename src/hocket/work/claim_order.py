"""When a worker may claim a job of a kind that goes by rank. The first in rank may at once, each further one after
another claim timeout, and each node has one turn before any node has a second. This decides only who tries: the
arbiter, or for `open` jobs the order of the log, decides who holds the job.

Workers tell each other of claims and passes (`ranked_claims`). Such a message moves a turn by one claim timeout at
most, since it may be a lie or lost.

Every worker ranks every job. Most of that is done outside transactions, which exclude each other.
"""

from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import NamedTuple, Protocol

import msgspec

from hocket.families.jobs.candidates import EPOCH_MS, Candidates, node_of
from hocket.families.jobs.rendezvous import (
    AnnouncedClaim,
    NotSigned,
    in_turns,
    may_try_at,
    rank_sticky,
    rank_weighted,
    seed_in,
    seed_of,
    turn_of,
    turn_outside,
    winning_claim,
)
from hocket.families.jobs.rules import Job, Outcome
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import ulid_text
from hocket.kernel.ops import Op, decode
from hocket.kernel.signing import is_marked
from hocket.kernel.vocabulary import ScheduleJob
from hocket.store import JobEntry, Session
from hocket.work.members import Members

# An op that another process has yet to sign is looked at again after this long.
UNSIGNED_MS = 20
# The jobs whose ranks are remembered.
REMEMBERED_MAX = 10_000
# A look ahead reads this many jobs at once, and at most so many in all.
AHEAD_PAGE = 256
AHEAD_MAX = 2_048
# The jobs about which announcements are remembered.
JOBS_MAX = 4_096
# The claims on a job that are remembered, one for each node, and the passes.
SAID_MAX = 64
_NOBODY: frozenset[str] = frozenset()
# For this long after a lost claim a worker leaves jobs to others, each of them for so long.
CONTESTED_MS = 5_000
LEFT_MS = 1_000
# The jobs that are left to others; beyond that, the worker forgets since when.
LEFT_MAX = 10_000


def ready_since(job: Job, succeeded: Callable[[bytes], Hlc | None]) -> int:
    """When the job became ready, or came back, by the clock of the log. `succeeded` tells when a job did."""
    at = job.scheduled.wall if job.fence == 0 and job.failures == 0 and job.returns == 0 else job.last.wall
    done = [found.wall for each in job.policy.dependencies() if (found := succeeded(each)) is not None]
    return max(at, job.ready_at, *done)


def _succeeded(session: Session, job_id: bytes) -> Hlc | None:
    entry = session.job(job_id)
    return entry.job.done if entry is not None and entry.job.outcome is Outcome.SUCCEEDED else None


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


class QueueView(Protocol):
    """The queue of a node, seen by one of its workers: in a transaction or outside. `now` is the clock of the log,
    `physical` that of the machine.
    """

    @property
    def session(self) -> Session: ...
    @property
    def node(self) -> int: ...
    @property
    def now(self) -> int: ...
    @property
    def physical(self) -> int: ...
    def signed(self, op: bytes) -> bytes:
        """An op of this node with its signature."""


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
    return Ranking(candidates, in_turns(workers), ready_ms, key)


class _ReadyJob(NamedTuple):
    """What is remembered of a job that is ready: it stays the same while its fence does."""

    fence: int
    ready_ms: int
    seed: bytes
    key: str | None


class _LeftJob(NamedTuple):
    """A job that is left to others until a time, unless more workers than these pass it on."""

    fence: int
    until_ms: int
    passed: frozenset[str]


class _LeftJobs:
    """The jobs that are left to others because these candidates come first."""

    def __init__(self, candidates: Candidates) -> None:
        self.candidates = candidates
        self.job_ids: list[bytes] = []
        self.until_ms = 0


class _HeardSaid(NamedTuple):
    """`heard_ms` is when the first claim came."""

    claims: dict[int, AnnouncedClaim]
    passes: frozenset[str]
    heard_ms: int


_NOTHING = _HeardSaid({}, _NOBODY, 0)


class HeardClaims:
    """What other workers have said about claims on jobs that the log still shows as ready. A claim holds the others
    back for one claim timeout, however many claims follow; a pass takes its worker out of the ranking for this job.
    What was said holds for one fence: a job that was claimed and comes back begins anew.

    `now_ms` is this machine's clock. Messages come on the event loop and are looked up in another thread: each call
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


class ClaimOrder:
    """The turns of one worker. Use it from one thread at a time."""

    def __init__(self, worker: str, members: Members, heard: HeardClaims) -> None:
        self.worker, self.members, self.heard = worker, members, heard
        self._known: dict[bytes, _ReadyJob] = {}
        self._ranks: dict[bytes, tuple[Candidates, frozenset[str], int]] = {}
        self._left: dict[bytes, _LeftJob] = {}
        # By the kind, the epoch of the announcement and the labels that the jobs need.
        self._left_to: dict[tuple[str, int, tuple[str, ...]], _LeftJobs] = {}
        # How far the queue of each kind was looked at ahead.
        self._ahead: dict[str, JobEntry] = {}

    @property
    def leaves_jobs(self) -> bool:
        """Whether there are jobs that this worker leaves to others. Then it pays to look ahead."""
        return bool(self._left_to)

    def look_ahead(self, view: QueueView, kinds: Iterable[str], wanted: int) -> None:
        """Ranks the ready jobs of these kinds that were not ranked yet, until that has found as many as are wanted.
        What was ranked need not be ranked in the transaction that claims.
        """
        for kind in kinds:
            found = looked_at = 0
            while found < wanted and looked_at < AHEAD_MAX:
                rows = view.session.ready(kind, AHEAD_PAGE, self._ahead.get(kind))
                for entry, schedule in rows:
                    if schedule is None or entry.job.policy.claim != "rendezvous":
                        found += 1  # the rank for a sticky job is that of the moment, and not remembered
                    else:
                        found += self.may_claim_at(view, entry.job, schedule) <= view.now
                if rows:
                    self._ahead[kind] = rows[-1][0]
                looked_at += len(rows)
                if len(rows) < AHEAD_PAGE:
                    break

    def look(self, tx: QueueView) -> Callable[[bytes, int], int] | None:
        """Call this before a look at the queue. The returned function says until when this worker leaves a job, by its
        id and fence, to others, if it has asked `may_claim_at` before and nothing has changed since. None if it leaves
        none.
        """
        if not self._left_to:
            return None
        self.members.refresh(tx.session, tx.physical)
        for (kind, epoch, needs), left in list(self._left_to.items()):
            is_over = left.until_ms <= tx.now
            if is_over or self.members.candidates(kind, epoch * EPOCH_MS, needs) != left.candidates:
                del self._left_to[kind, epoch, needs]
                self._ahead.pop(kind, None)
                for job_id in left.job_ids:
                    self._left.pop(job_id, None)
        return self._left_until if self._left_to else None

    def _left_until(self, job_id: bytes, fence: int) -> int:
        left = self._left.get(job_id)
        if left is None or left.fence != fence or left.passed != self.heard.passed(job_id, fence):
            return 0
        return left.until_ms

    def _leave(self, job: Job, candidates: Candidates, passed: frozenset[str], until_ms: int) -> None:
        key = job.kind, candidates.epoch, job.policy.needs
        left_to = self._left_to.get(key)
        if left_to is None or left_to.candidates is not candidates:
            left_to = self._left_to[key] = _LeftJobs(candidates)
        left_to.job_ids.append(job.id)
        left_to.until_ms = max(left_to.until_ms, until_ms)
        self._left[job.id] = _LeftJob(job.fence, until_ms, passed)

    def may_claim_at(self, tx: QueueView, job: Job, schedule: bytes) -> int:
        """When this worker may claim a ready job, by the clock of the log; any time that has passed means now."""
        if not job.policy.is_ranked:
            return tx.now
        known = self._known.get(job.id)
        if known is None or known.fence != job.fence:
            try:
                known = self._know(tx, job, schedule)
            except NotSigned:
                return tx.now + UNSIGNED_MS
        candidates, passed = self._candidates(tx, job, known), self.heard.passed(job.id, job.fence)
        rank = self._rank(tx, job, known, candidates, passed)
        timeout_ms = job.policy.claim_timeout_ms
        at = may_try_at(rank, known.ready_ms, timeout_ms)
        if rank == 0 and not job.policy.open:
            return at  # the arbiter decides between two claims: a lie costs this worker nothing
        at = max(at, self.heard.claimed_until(job.id, job.fence, self.worker, timeout_ms))
        if known.key is None and at > tx.now:
            self._leave(job, candidates, passed, at)
        return at

    def rank(self, tx: QueueView, job: Job, schedule: bytes) -> int | None:
        """This worker's rank for a ready job; None if it has no seed yet."""
        try:
            known = self._know(tx, job, schedule)
        except NotSigned:
            return None
        return self._rank(tx, job, known, self._candidates(tx, job, known), self.heard.passed(job.id, job.fence))

    def _know(self, tx: QueueView, job: Job, schedule: bytes) -> _ReadyJob:
        if job.scheduled.node == tx.node and is_marked(schedule):
            schedule = tx.signed(schedule)
        key = None if job.policy.claim != "sticky" else sticky_key(job, decode(schedule))
        known = _ReadyJob(
            job.fence, ready_since(job, lambda each: _succeeded(tx.session, each)), seed_in(schedule), key
        )
        if len(self._known) >= REMEMBERED_MAX:
            for remembered in (self._known, self._ranks, self._left, self._left_to, self._ahead):
                remembered.clear()
        self._known[job.id] = known
        return known

    def _candidates(self, tx: QueueView, job: Job, known: _ReadyJob) -> Candidates:
        self.members.refresh(tx.session, tx.physical)
        return self.members.candidates(job.kind, tx.physical - (tx.now - known.ready_ms), job.policy.needs)

    def _rank(self, tx: QueueView, job: Job, known: _ReadyJob, candidates: Candidates, passed: frozenset[str]) -> int:
        if known.key is not None:
            workers = rank_sticky(known.key, candidates.weights, loads(tx.session, job.kind, candidates))
            left = in_turns(each for each in workers if each not in passed)
            return left.index(self.worker) if self.worker in left else turn_outside(self.worker, left)
        before = self._ranks.get(job.id)
        if before is not None and before[0] is candidates and before[1] == passed:
            return before[2]
        weights = {worker: weight for worker, weight in candidates.weights.items() if worker not in passed}
        rank = turn_of(ulid_text(job.id), known.seed, self.worker, weights)
        self._ranks[job.id] = candidates, passed, rank
        return rank


class ContestedClaims:
    """Which node tries first for a job that the first claim gets, while several nodes want the same jobs. Each node
    sees the same queue, so their workers offer claims on the same jobs, and the arbiter refuses all but one of each. A
    worker that has lost a claim leaves each job for a moment to the node that a hash of the job chooses among those
    that serve its kind. This decides only who tries: after that moment every worker may.

    Of one worker. Use it from one thread at a time; any thread may call `lost`.
    """

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
