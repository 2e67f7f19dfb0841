"""Claims: a worker takes jobs from the queue, the most urgent first, within the limits of their kinds; and the arbiter
decides on the offers of other nodes, claims above all.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from hocket.families.availability.facts import Availability
from hocket.families.availability.rules import allows
from hocket.families.jobs.requests import NEVER, Claim, Draft, Offer, call_off_dependents, must, stamp, submit_one
from hocket.families.jobs.rescue import DEATHS_ALONE, deaths
from hocket.families.jobs.rules import Job, State, retry_rest_ms
from hocket.kernel.arbitration import Reason
from hocket.kernel.clock import unpack
from hocket.kernel.ops import Op
from hocket.kernel.policy import DEFAULT, LEASE_MS_MAX, Policy, Rate
from hocket.kernel.texts import BEAT_MS_DEFAULT
from hocket.kernel.vocabulary import (
    JOB,
    AcceptOffer,
    AcceptWork,
    ClaimWork,
    CompleteJob,
    ExpireWork,
    Subject,
    by_payload,
    subject_of,
)
from hocket.log import SETTLE_STEP, Transaction
from hocket.log.limits import is_given_up
from hocket.store import IsLeft, JobEntry
from hocket.store.statements import LIMIT

# How many unsuitable jobs a claim skips at most.
LOOKED_AT_MAX = 5_000
# After so long a claimer looks again for jobs, or for room within a limit, that another node's transaction had locked.
HIDDEN_MS = 20


class OfferedClaim(NamedTuple):
    """A claim that is offered to the arbiter. `schedule` is the encoded op that carries the payload; `lease_ms` is the
    requested lease.
    """

    offer: Offer
    schedule: bytes
    lease_ms: int
    job: Job
    deaths: int = 0


class _Asked(NamedTuple):
    """A claim that is about to be written."""

    job: Job
    body: bytes
    lease_ms: int
    died: int


class Claims(NamedTuple):
    """The claimed jobs, the offered claims, and when to try again: None to wait for a hint."""

    taken: list[Claim]
    again_at: int | None
    wanted: list[OfferedClaim] = []  # noqa: RUF012


HoldMs = Callable[[int, int], int]
"""How many milliseconds a lease of so many beats lasts that is taken or renewed at that time: until a beat."""


LeftUntil = Callable[[bytes, int], int]
"""Until when a claimer has left the job with this id and fence to others; any time that has passed if it has not."""


def whole_beats(beats: int, now_ms: int) -> int:
    """For a worker without a tempo."""
    left_ms = -now_ms % BEAT_MS_DEFAULT
    return min(left_ms + beats * BEAT_MS_DEFAULT, LEASE_MS_MAX)


def claim(
    tx: Transaction,
    worker: int,
    limit: int,
    lease_of: Callable[[str], int | None],
    offering: bool = False,
    wants: Callable[[Job, bytes], bool] = lambda job, schedule: True,
    may_claim_at: Callable[[Job, bytes], int] = lambda job, schedule: 0,
    hold_ms: HoldMs = whole_beats,
    left_until: LeftUntil | None = None,
    isolates: Callable[[str], bool] = lambda kind: True,
    is_free: Callable[[], bool] = lambda: True,
    options_of: Callable[[str], Policy] = lambda kind: DEFAULT,
    takes_plain: Callable[[str], bool] = lambda kind: False,
) -> Claims:
    """Claims up to `limit` jobs, the most urgent first, of the kinds for which `lease_of` returns a lease. Takes only
    jobs that the claimer `wants`, by the job and the op that carries the payload, and not before it `may_claim_at`.
    Skips jobs that another node arbitrates unless `offering`; then it offers claims on them. `hold_ms` is how long a
    lease lasts that is counted in beats. Jobs that are `left_until` later are not read again until then. A job with
    which workers died is claimed alone, by a claimer that `is_free`, unless the claimer `isolates` its kind; a claimer
    that is not free claims nothing after it. `options_of` are the options of the claimer's handler for a kind; they
    hold where a job has none. Of a kind that it `takes_plain`, the claimer wants every job without options, at once.
    """
    tx.settle(SETTLE_STEP)
    tx.projection.flush()
    tx.session.promote(tx.now)
    leases = {kind: lease_of(kind) for kind in tx.session.ready_kinds()}
    kinds = [kind for kind, lease in leases.items() if limit and lease is not None and tx.admits(kind)]
    # Jobs with a claim that waits for the arbiter stay ready; later claims skip them.
    offered = tx.session.offered_jobs() if kinds else set()
    taken: list[Claim] = []
    wanted: list[OfferedClaim] = []
    asked: list[_Asked] = []
    turns: list[int] = []
    roster = tx.projection.jobs
    claims_all = tx.decides(DEFAULT) or (offering and not tx.is_uninformed)
    unlimited = (kind for kind in kinds if limits_of(tx, kind, DEFAULT, options_of(kind)) == NO_LIMITS)
    plain_kinds = {kind for kind in unlimited if takes_plain(kind)}

    def is_left(job_id: bytes, fence: int) -> bool:
        assert left_until is not None
        at = left_until(job_id, fence)
        if at > tx.now:
            turns.append(at)
        return at > tx.now

    def write() -> None:
        """Writes the claims that were asked for, together."""
        ops = tx.author_all([(ClaimWork(each.job.id, tx.node, each.lease_ms), ()) for each in asked], is_awaited=True)
        for (job, body, lease_ms, died), op in zip(asked, ops, strict=True):
            if isinstance(op, Reason):
                continue
            if op.is_offer:
                tx.session.put_offer(op.id, job.id, worker)
                wanted.append(OfferedClaim(Offer(op.id, job.id), body, lease_ms, job, died))
            else:
                taken.append(Claim(roster.assign(job.id, worker), body, died))
        asked.clear()

    for entry, schedule in _by_urgency(tx, kinds, limit + len(offered), is_left if left_until else None):
        known = roster.know(entry)
        if known is None or (known is not entry and known.job != entry.job):
            continue
        job = known.job
        if job.policy.after and roster.is_blocked(job):
            continue
        if job.id in offered or not (claims_all or job.policy.open):
            continue
        body = schedule or tx.body(job.schedule_op)
        if not body:
            continue
        died, is_alone = 0, False
        if job.policy is not DEFAULT or job.kind not in plain_kinds or job.failures or job.returns:
            if not wants(job, body):
                continue
            at = may_claim_at(job, body)
            died = deaths(tx.session, job, tx.node)
            is_alone = died >= DEATHS_ALONE and not isolates(job.kind)
            if is_alone and at <= tx.now and (taken or wanted or asked or not is_free()):
                break
            options = options_of(job.kind)
            if job.failures and options is not DEFAULT:
                at = max(at, _rests_until(tx, job, options))
            if at <= tx.now and (limits := limits_of(tx, job.kind, job.policy, options)) != NO_LIMITS:
                write()
                at = turn(tx, job.kind, limits)
            if at > tx.now:
                turns.append(at)
                continue
        beats = job.policy.lease_beats
        lease_ms = job.policy.lease_ms or (leases[job.kind] if beats is None else hold_ms(beats, tx.now))
        assert lease_ms is not None
        asked.append(_Asked(job, body, lease_ms, died))
        if is_alone or len(taken) + len(wanted) + len(asked) == limit:
            write()
            if taken or wanted:
                return Claims(taken, tx.now, wanted)
    write()
    hidden = tx.now + HIDDEN_MS if tx.session.has_skipped else None
    again = [*turns, tx.session.next_ready_at(), tx.now if tx.unsettled else None, hidden]
    return Claims(taken, _earliest(again), wanted)


def ready_ranked(tx: Transaction, kinds: Callable[[str], int | None], limit: int) -> list[tuple[Job, bytes]]:
    """The most urgent ready jobs that go by rank, each with its ScheduleJob op, without those on which this node has
    offered a claim.
    """
    offered = tx.session.offered_jobs()
    served = [kind for kind in tx.session.ready_kinds() if kinds(kind) is not None and tx.admits(kind)]
    found = (
        (entry.job, body)
        for kind in served
        for entry, schedule in tx.session.ready(kind, limit)
        if entry.job.policy.is_ranked
        and entry.job.id not in offered
        and (body := schedule or tx.body(entry.job.schedule_op))
    )
    return list(islice(found, limit))


def take(tx: Transaction, draft: Draft, worker: int, lease_ms: int) -> Claim:
    """Submits a job that is decided outside the log, and claims it at once, for the log."""
    assert draft.policy.open
    job_id = submit_one(tx, draft).job_id
    must(tx.author(ClaimWork(job_id, tx.node, lease_ms)), job_id)
    job = tx.projection.jobs.assign(job_id, worker)
    return Claim(job, tx.body(job.schedule_op))


def _by_urgency(
    tx: Transaction, kinds: list[str], page: int, is_left: IsLeft | None
) -> Iterator[tuple[JobEntry, bytes | None]]:
    """The ready jobs of those kinds, each with its ScheduleJob op, up to a limit. Reads page by page, since the first
    jobs may be for other workers.
    """

    def of(kind: str) -> Iterator[tuple[JobEntry, bytes | None]]:
        last: JobEntry | None = None
        while rows := tx.session.take_ready(kind, page, last, is_left):
            yield from rows
            if len(rows) < page:
                return
            last = rows[-1][0]

    urgency = lambda row: (-row[0].job.policy.priority, row[0].job.scheduled)  # noqa: E731
    return islice(heapq.merge(*map(of, kinds), key=urgency), page + LOOKED_AT_MAX)


def _earliest(times: list[int | None]) -> int | None:
    return min((each for each in times if each is not None and each < NEVER), default=None)


def _rests_until(tx: Transaction, job: Job, options: Policy) -> int:
    """Until when a failed job rests by its handler's backoff, if it was submitted before the handler's options were
    known. The fold knows only the job's own.
    """
    own, usual = job.policy, (DEFAULT.backoff_ms, DEFAULT.backoff_max_ms)
    if (own.backoff_ms, own.backoff_max_ms) != usual or (options.backoff_ms, options.backoff_max_ms) == usual:
        return 0
    defined = tx.projection.defined_at(job.kind)
    if job.error_op is None or (defined is not None and defined <= job.scheduled):
        return 0
    failed = tx.session.op(job.error_op)
    if failed is None:
        return 0
    failed_ms = unpack(failed.hlc).wall
    rest, counted = (retry_rest_ms(job.failures, each, job.error_op) for each in (options, own))
    return failed_ms + rest if job.ready_at == failed_ms + counted else 0  # otherwise a person has moved it


class KindLimits(NamedTuple):
    concurrency: int | None
    rate: Rate | None


NO_LIMITS = KindLimits(None, None)


def limits_of(tx: Transaction, kind: str, policy: Policy, options: Policy = DEFAULT) -> KindLimits:
    """The limits that a job of this kind and policy states, or else those of its kind, or else those of the claimer's
    handler.
    """
    defaults = tx.projection.defaults(kind)
    concurrency = policy.concurrency or defaults.concurrency or options.concurrency
    return KindLimits(concurrency, policy.rate or defaults.rate or options.rate)


def turn(tx: Transaction, kind: str, limits: KindLimits) -> int:
    """When the limits leave room for one more job of the kind: now, or later."""
    if limits != NO_LIMITS and not tx.session.try_lock(Subject(LIMIT, kind.encode())):
        return tx.now + HIDDEN_MS
    if limits.concurrency is not None:
        tx.projection.flush()
        if tx.session.claimed_count(kind) >= limits.concurrency:
            return NEVER
    return tx.now if limits.rate is None else _next_turn(tx, kind, limits.rate)


def _next_turn(tx: Transaction, kind: str, rate: Rate) -> int:
    """Takes the turn if it is now."""
    turn, due = turn_at(tx.session.rate(kind), tx.now, rate)
    if turn <= tx.now:
        tx.session.set_rate(kind, due)
    return turn


def turn_at(used_until: int, now_ms: int, rate: Rate) -> tuple[int, int]:
    """Evenly spaced turns, with room for a burst of `count` after a rest: `used_until` is when the turns taken so far
    are used up, in microseconds. Returns when the next turn is, and until when the turns are used up with it.
    """
    spacing = rate.per_ms * 1000 // rate.count
    now = now_ms * 1000
    due = max(used_until, now)
    early = due - now - (rate.per_ms * 1000 - spacing)
    return (now_ms + 1 + early // 1000 if early > 0 else now_ms), due + spacing


# The payloads that withdraw an offer of their author's, and the field that names it.
_WITHDRAWING = by_payload(lambda each: each.withdraws or None)


def accept(tx: Transaction, offers: Sequence[Op]) -> int:
    """The arbiter's part: decides on other nodes' offers, in the order of the offers' own times. It decides here and
    now what spans jobs and what depends on the rest of the log; the fold does not check that again. It also accepts
    completions of open jobs, which need no acceptance: then they stand, whatever arrives later. Returns how many it
    accepted.
    """
    if tx.projection.arbiter(tx.latest) != tx.node or not tx.may_decide:
        return 0
    withdrawals = ((op, _WITHDRAWING[type(op.payload)]) for op in offers if type(op.payload) in _WITHDRAWING)
    withdrawn = {(op.node_id, getattr(op.payload, field)) for op, field in withdrawals}
    deciding = _Deciding(tx)
    for op in sorted(offers, key=lambda op: op.timestamp):
        if (op.node_id, op.id) not in withdrawn:
            deciding.take(op)
    deciding.write()
    return deciding.accepted


class _Deciding:
    """Decisions on offers, one after the other. The acceptances of offers that do not bear on each other are written
    together.
    """

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._asked: dict[bytes, bytes] = {}
        self._availabilities: dict[int, Availability] = {}
        self._routes: dict[str, int | None] = {}
        self.accepted = 0

    def take(self, op: Op) -> None:
        subject = subject_of(op.payload)
        if subject is None or subject.family != JOB or subject.key in self._asked:
            self.write()
        if not self._tx.is_offer(op):
            if isinstance(op.payload, CompleteJob):
                self.accepted += stamp(self._tx, op.payload.job_id, op.id)
        elif subject is not None and self._is_good(op, subject):
            if subject.family == JOB:
                self._asked[subject.key] = op.id
            else:
                written = self._tx.author(AcceptOffer(subject.family, subject.key, op.id))
                self.accepted += not isinstance(written, Reason)

    def write(self) -> None:
        """Writes the acceptances so far."""
        tx, asked = self._tx, self._asked
        written = tx.author_all([(AcceptWork(job_id, offer), ()) for job_id, offer in asked.items()])
        for job_id, op in zip(asked, written, strict=True):
            if not isinstance(op, Reason):
                self.accepted += 1
                call_off_dependents(tx, job_id)
        asked.clear()

    def _is_good(self, op: Op, subject: Subject) -> bool:
        tx, payload = self._tx, op.payload
        if isinstance(payload, ExpireWork):
            return False  # the arbiter expires by its own clock
        availability = self._availability(op.node_id)
        if subject.family != JOB:
            return allows(availability, payload, is_held=False)
        entry = tx.projection.jobs.entry(subject.key)
        if entry is None:
            return False
        job = entry.job
        if not allows(availability, payload, is_held=job.claimer == op.node_id):
            return False
        if not isinstance(payload, ClaimWork):
            return True
        if self._route(job.kind) not in (None, op.node_id):
            return False  # a first claim as well as a renewal
        return job.state is not State.PENDING or self._may_start(op, payload, job)

    def _availability(self, node: int) -> Availability:
        """No acceptance changes it."""
        if node not in self._availabilities:
            self._availabilities[node] = self._tx.projection.availability(node)
        return self._availabilities[node]

    def _route(self, kind: str) -> int | None:
        """No acceptance changes it."""
        if kind not in self._routes:
            self._routes[kind] = self._tx.projection.jobs.route(kind, self._tx.latest)
        return self._routes[kind]

    def _may_start(self, op: Op, payload: ClaimWork, job: Job) -> bool:
        """Whether a claim from another node would be useful if accepted, and would break no limit."""
        tx = self._tx
        if is_given_up(op, payload.lease_duration_ms, tx.physical, tx.now):
            return False
        limits, dependencies = limits_of(tx, job.kind, job.policy), job.policy.dependencies()
        if dependencies or limits != NO_LIMITS:
            self.write()
        if any(tx.projection.jobs.succeeded(dependency) is None for dependency in dependencies):
            return False
        return turn(tx, job.kind, limits) <= tx.now
