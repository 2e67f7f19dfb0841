"""One turn of a worker: its requests to the log, all in one transaction, and their results. The worker decides when a
turn is due and what follows from it. If a turn fails as a whole, each request is tried alone.
"""

import functools
import random
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from hocket.bus.hints import IDLE, Changes, gathered
from hocket.bus.hints import NOTHING as NO_CHANGES
from hocket.events.jobs import JobSkipped
from hocket.events.troubles import Troubles
from hocket.families.access import NodeAccess
from hocket.families.availability.facts import Availability
from hocket.families.jobs import claiming, cron, progress
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.claiming import Claims, HoldMs, OfferedClaim, whole_beats
from hocket.families.jobs.progress import DueNote
from hocket.families.jobs.requests import NOTHING, Claim, Result, Spare, WrittenOutputs
from hocket.families.jobs.rules import UNSTARTED, Job
from hocket.families.liveness import SignOfLife
from hocket.kernel.arbitration import Reason
from hocket.kernel.ids import ulid_text
from hocket.kernel.policy import DEFAULT
from hocket.kernel.retrying import backoff_ms
from hocket.log import Transaction
from hocket.store import Session
from hocket.work.claim_order import ClaimOrder, ContestedClaims
from hocket.work.handlers import Handlers
from hocket.work.runner import Run

# The jobs that a worker without a free slot looks at, to say which it leaves to others.
PASSES_MAX = 32
# A worker remembers this many of them, and forgets first the one that it has left alone longest.
RESTS_MAX = 10_000
# Without a hint, an idle worker looks at the queue after this long, or up to twice as long.
LOOK_S = 1.0


class Batch(NamedTuple):
    """The requests. `spare` are holds that this worker no longer needs; `closed` are offered claims that are decided.
    `beat` is whether the worker's own sign of life is due, `passing` whether it has no room for the jobs whose turn it
    has, `is_free` whether it holds nothing but what it gives up with this turn. If the worker `has_waited` with a free
    slot and finds no job, it says so to workers that hold some.
    """

    ended: Sequence[Run] = ()
    unstarted: Sequence[Run] = ()
    spare: Sequence[Spare] = ()
    renewals: Sequence[Run] = ()
    notes: Sequence[DueNote] = ()
    checkpoints: Sequence[tuple[Run, bytes]] = ()
    doubtful: Sequence[Run] = ()
    closed: Sequence[bytes] = ()
    wanted: int = 0
    offering: bool = False
    beat: bool = False
    passing: bool = False
    is_free: bool = True
    has_waited: bool = False

    @property
    def is_worth_it(self) -> bool:
        return bool(
            self.ended
            or self.unstarted
            or self.spare
            or self.renewals
            or self.notes
            or self.checkpoints
            or self.doubtful
            or self.closed
            or self.wanted
            or self.beat
            or self.passing
        )


class BatchResult(NamedTuple):
    """The results. `spared` are the results of handing back the spare holds. None stands for a request that could not
    be put on the log at all, which was reported. `availability` is that of this node, if it was looked up. `passes` are
    the jobs that this worker leaves to others. `elsewhere` are the kinds of which other workers hold jobs, if the
    worker says that it found none.
    """

    outcomes: list[Result | None]
    spared: list[Result | None]
    renewed: list[Result | None]
    lost: list[Run]
    claims: Claims
    now_ms: int
    idle: bool
    availability: Availability | None = None
    passes: Sequence[Job] = ()
    elsewhere: Changes = NO_CHANGES

    def patience(self, chance: random.Random) -> float:
        """How long until the next look at the queue without a hint: until the next job is due, else a slow, uneven
        beat.
        """
        slow = chance.uniform(LOOK_S, 2 * LOOK_S)
        again_at = self.claims.again_at
        return slow if again_at is None else min(slow, max(0.0, (again_at - self.now_ms) / 1000.0) + 0.001)


class Rests:
    """Jobs that a worker of a strict mesh leaves alone for a while, because its handler failed or wanted to run later.
    Likewise v0.1 has no op that says so: the job is pending for every node, and only this worker waits.
    """

    def __init__(self) -> None:
        self._until: dict[bytes, int] = {}

    def after(self, tx: Transaction, run: Run, result: Result) -> Result:
        """The result of a run, with the time until which this worker leaves the job alone."""
        is_returned = run.stopped and not run.timed_out
        if run.error is None or is_returned or not tx.is_strict or not isinstance(result, Job):
            return result
        until = tx.now + _rest_ms(run, result)
        self._until.pop(result.id, None)
        while len(self._until) >= RESTS_MAX:
            del self._until[next(iter(self._until))]
        self._until[result.id] = until
        return replace(result, ready_at=max(until, result.ready_at))

    def until(self, job_id: bytes, now: int) -> int:
        """A time that has passed, unless the job is left alone."""
        if (at := self._until.get(job_id, 0)) and at <= now:
            del self._until[job_id]
        return at


def _rest_ms(run: Run, job: Job) -> int:
    """As long as another mesh's log would have the job wait. The longest wait stands for "never again"."""
    if run.later_ms is not None:
        return run.later_ms
    policy = job.policy
    if not run.may_retry:
        return policy.backoff_max_ms
    return backoff_ms(job.returns, policy.backoff_ms, policy.backoff_max_ms)


class BatchRunner:
    """Runs the turns of one worker. `until_idle` is whether the worker needs to know that nothing is left to do.
    `held_kinds` is how many jobs of each kind the worker holds, and `announce` carries a hint to workers of other nodes
    with a commit.
    """

    def __init__(
        self,
        handlers: Handlers,
        until_idle: bool,
        troubles: Troubles,
        order: ClaimOrder,
        labels: frozenset[str] = frozenset(),
        hold_ms: HoldMs = whole_beats,
        isolates: Callable[[str], bool] = lambda kind: True,
        held_kinds: Callable[[], Mapping[str, int]] = dict,
        announce: Callable[[Session, Changes], None] = lambda session, changes: None,
    ) -> None:
        self._handlers, self._isolates = handlers, isolates
        self._held_kinds, self._announce = held_kinds, announce
        self._order = order
        self._labels = labels
        self._hold_ms = hold_ms
        self._until_idle = until_idle
        self._troubles = troubles
        self._rests = Rests()
        self.contested = ContestedClaims(order.members)

    def __call__(self, tx: Transaction, sign: SignOfLife, turn: Batch, only: str | None = None) -> BatchResult:
        """Runs the whole turn in one transaction. With `only`, it claims jobs of that kind alone."""
        if turn.beat:
            sign.beat(tx)
        tx.projection.jobs.load([run.job.id for run in turn.ended])
        ends = zip(turn.ended, settle(tx, turn.ended), strict=True)
        outcomes: list[Result | None] = [self._rests.after(tx, run, end) for run, end in ends]
        outcomes += [jobs.hand_back(tx, run.held, UNSTARTED) for run in turn.unstarted]
        spared: list[Result | None] = [jobs.hand_back(tx, each.held, each.reason) for each in turn.spare]
        for run in turn.renewals:
            if run.job.policy.lease_beats is not None:
                run.lease_ms = self._hold_ms(run.job.policy.lease_beats, tx.now)
        renewed: list[Result | None] = [jobs.renew(tx, run.held, run.lease_ms) for run in turn.renewals]
        progress.write(tx, turn.notes)
        for run, state in turn.checkpoints:
            jobs.checkpoint(tx, run.held, state)
        availability = tx.projection.availability(tx.node) if turn.wanted or turn.doubtful else None
        is_quarantined = availability is Availability.QUARANTINED
        lost = [run for run in turn.doubtful if is_quarantined or not _holds(tx, run)]
        for op_id in turn.closed:
            tx.session.drop_offer(op_id)
        claims = Claims([], None)
        if turn.wanted:
            lease_of = self._handlers.lease_of if only is None else {only: self._handlers.lease_of(only)}.get
            wants = functools.partial(self._wants, tx)
            may_claim_at = functools.partial(self._may_claim_at, tx)
            left_until = self._order.look(tx)
            claims = claiming.claim(
                *(tx, sign.row(tx), turn.wanted, lease_of, turn.offering, wants, may_claim_at, self._hold_ms),
                *(left_until, self._isolates, lambda: turn.is_free, self._handlers.options_of),
                functools.partial(self._takes_plain, tx),
            )
        passes = self._passes(tx) if turn.passing else ()
        # A worker that holds other jobs is not idle, so it need not look.
        is_idle = self._until_idle and turn.is_free and not claims.taken and not claims.wanted
        idle = is_idle and (availability not in (None, Availability.ACTIVE) or self._is_idle(tx))
        is_hungry = turn.has_waited and not claims.taken and not claims.wanted and availability is Availability.ACTIVE
        elsewhere = self._elsewhere(tx) if is_hungry else NO_CHANGES
        if elsewhere:
            self._announce(tx.session, elsewhere)
        return BatchResult(outcomes, spared, renewed, lost, claims, tx.now, idle, availability, passes, elsewhere)

    def _elsewhere(self, tx: Transaction) -> Changes:
        """The kinds of this worker's handlers of which other workers hold jobs. Only those that share this store would
        hear of it.
        """
        if len(tx.session.workers()) < 2:
            return NO_CHANGES
        tx.projection.flush()
        held = self._held_kinds()
        kinds = [kind for kind in tx.session.busy_kinds() if self._handlers.find(kind) is not None]
        found = [kind.encode() for kind in kinds if tx.session.claimed_count(kind) > held.get(kind, 0)]
        return gathered((), {IDLE: found} if found else {})

    async def look_ahead(self, access: NodeAccess, turn: Batch) -> None:
        """Ranks the jobs that the turn may claim. The turn itself, which other writers wait for, then need not."""
        if not turn.wanted or not self._order.leaves_jobs:
            return
        log = access.log

        def look(session: Session) -> None:
            kinds = [kind for kind in session.ready_kinds() if self._handlers.find(kind) is not None]
            physical = log.physical()
            view = _QueueOutside(session, log.node, max(physical, session.head().wall), physical, log.signed)
            self._order.look_ahead(view, kinds, turn.wanted)

        await access.peek(look)

    def _passes(self, tx: Transaction) -> list[Job]:
        """The ready jobs for which this worker ranks first."""
        found = claiming.ready_ranked(tx, self._handlers.lease_of, PASSES_MAX)
        return [
            job
            for job, body in found
            if self._wants(tx, job, body) and self._order.may_claim_at(tx, job, body) <= tx.now
        ]

    async def one_by_one(self, access: NodeAccess, sign: SignOfLife, turn: Batch) -> BatchResult:
        """Runs a turn that has failed as a whole again: each request gets its own transaction, so that only the bad one
        fails.
        """

        async def alone(part: Batch, thing: Hashable, name: str, only: str | None = None) -> BatchResult | None:
            with self._troubles.contained(thing, name):
                return await access.run(lambda tx: self(tx, sign, part, only))
            return None

        async def each(parts: Iterable[tuple[bytes, Batch]]) -> list[BatchResult | None]:
            found = []
            for job_id, part in parts:
                found.append(await alone(part, job_id, f"the update of job {ulid_text(job_id)}"))
            return found

        if turn.beat:
            await alone(Batch(beat=True), "beat", "the worker's sign of life")
        ended = await each((run.job.id, Batch(ended=[run])) for run in turn.ended)
        for index, run in enumerate(turn.ended):
            if ended[index] is None:
                # Perhaps the handler's outputs cannot be written, but its failure can.
                run.error, run.traceback = "its outcome cannot be put on the log", ""
                (ended[index],) = await each([(run.job.id, Batch(ended=[run]))])
        unstarted = await each((run.job.id, Batch(unstarted=[run])) for run in turn.unstarted)
        spare = await each((spare.held.job_id, Batch(spare=[spare])) for spare in turn.spare)
        renewals = await each((run.job.id, Batch(renewals=[run])) for run in turn.renewals)
        await each((note.run.job.id, Batch(notes=[note])) for note in turn.notes)
        await each((run.job.id, Batch(checkpoints=[(run, state)])) for run, state in turn.checkpoints)
        doubtful = await each((run.job.id, Batch(doubtful=[run])) for run in turn.doubtful)
        await alone(Batch(closed=turn.closed), "closed", "forgetting offers that are decided")
        parts = [*ended, *unstarted, *spare, *renewals, *doubtful]
        taken: list[Claim] = []
        wanted: list[OfferedClaim] = []
        for kind in sorted(await access.run(lambda tx: tx.session.ready_kinds())) if turn.wanted else ():
            room = turn.wanted - len(taken) - len(wanted)
            if room > 0 and self._handlers.find(kind) is not None:
                is_free = turn.is_free and not taken and not wanted
                asked = Batch(wanted=room, offering=turn.offering, is_free=is_free)
                parts.append(found := await alone(asked, ("kind", kind), f"claiming {kind} jobs", kind))
                taken += found.claims.taken if found else []
                wanted += found.claims.wanted if found else []
        done = [part for part in parts if part is not None]
        again = [part.claims.again_at for part in done if part.claims.again_at is not None]
        return BatchResult(
            [part and part.outcomes[0] for part in (*ended, *unstarted)],
            [part and part.spared[0] for part in spare],
            [part and part.renewed[0] for part in renewals],
            [run for part in doubtful if part for run in part.lost],
            Claims(taken, min(again, default=None), wanted),
            max((part.now_ms for part in done), default=0),
            idle=False,
        )

    def _takes_plain(self, tx: Transaction, kind: str) -> bool:
        """Whether `_wants` and `_may_claim_at` let this worker claim every job of this kind that has no options and has
        not run yet.
        """
        if tx.is_strict or not self.contested.is_over(tx.now):
            return False
        return self._handlers.takes_all(kind) and self._handlers.fits(kind, DEFAULT, self._labels)

    def _may_claim_at(self, tx: Transaction, job: Job, schedule: bytes) -> int:
        rests_until = self._rests.until(job.id, tx.now) if tx.is_strict else 0
        if rests_until > tx.now:
            return rests_until
        return (
            self._order.may_claim_at(tx, job, schedule)
            if job.policy.is_ranked
            else self.contested.may_claim_at(tx, job)
        )

    def _wants(self, tx: Transaction, job: Job, schedule: bytes) -> bool:
        with self._troubles.contained(job.id, "job", job.id):
            if job.policy.schedule_op is not None and cron.is_tick(tx.session, job) is False:
                self._troubles.tell(job.id, JobSkipped(ulid_text(job.id), "not a tick by this machine's timezones"))
                return False
            if not self._handlers.fits(job.kind, job.policy, self._labels):
                return False
            kind = job.kind
            return self._handlers.takes_all(kind) or self._handlers.wants(tx.session, kind, schedule)
        return False

    def _is_idle(self, tx: Transaction) -> bool:
        tx.projection.flush()
        if tx.unsettled or tx.is_uninformed:
            return False
        served = [kind for kind in tx.session.busy_kinds() if self._handlers.find(kind) is not None and tx.admits(kind)]
        return not any(self._is_wanted(tx, kind) for kind in served)

    def _is_wanted(self, tx: Transaction, kind: str) -> bool:
        """Whether there is a job of this kind that this worker would take, or that may come back from another."""
        if self._handlers.takes_all(kind) and tx.session.claimed_count(kind):
            return True
        # Usually the first one is wanted, and the others need not be read.
        for limit in (1, claiming.LOOKED_AT_MAX):
            busy = tx.session.busy(kind, limit)
            if any(self._wants(tx, entry.job, tx.body(entry.job.schedule_op)) for entry in busy):
                return True
        return False


class _QueueOutside(NamedTuple):
    """The queue, outside a transaction."""

    session: Session
    node: int
    now: int
    physical: int
    signed: Callable[[bytes], bytes]


async def renew_outputs(access: NodeAccess, turn: Batch) -> None:
    """What runs have staged must still be there when the turn writes their ends."""
    for run in turn.ended:
        if run.has_staged:
            await access.call(run.products.renew)


def settle(tx: Transaction, runs: Sequence[Run]) -> list[Result]:
    """Puts the ends of runs on the log: together those of the runs that have succeeded."""
    ends = [_end(tx, run) for run in runs]
    completed = iter(jobs.complete_all(tx, [end for end in ends if isinstance(end, jobs.Completion)]))
    return [next(completed) if isinstance(end, jobs.Completion) else end for end in ends]


def _end(tx: Transaction, run: Run) -> Result | jobs.Completion:
    """How a run has succeeded; any other end is put on the log."""
    assert run.started_at is not None and run.ended_at is not None
    made: WrittenOutputs | Reason = NOTHING
    if run.seal(tx):
        is_stopped = run.stopped or jobs.stale_claim(tx, run.held) is not None
        made = run.products.write(tx, not is_stopped and run.error is None, is_stopped)
    if isinstance(made, Reason):
        run.error, made = f"the handler's outputs would not count: {made.sentence}", NOTHING
    is_returned = run.stopped and not run.timed_out
    if run.checkpoint is not None and (is_returned or run.error is not None):
        jobs.checkpoint(tx, run.held, run.checkpoint)
    if is_returned:
        return jobs.hand_back(tx, run.held, "the worker stopped it")
    if run.error is None:
        return jobs.Completion(run.held, run.result, int((run.ended_at - run.started_at) * 1000), made)
    if run.later_ms is not None:
        return jobs.postpone(tx, run.held, run.later_ms, run.error)
    return jobs.fail(tx, run.held, run.error, run.traceback, run.may_retry and _has_tries_left(run))


def _has_tries_left(run: Run) -> bool:
    """Whether its handler or its score lets the job be tried again. A policy's own number of retries counts besides."""
    if (score := run.job.policy.score) is not None:
        return run.job.failures + 1 < score.max_phrases
    return run.job.failures < (run.job_type.retries if run.job.policy.retries is None else run.job.policy.retries)


def _holds(tx: Transaction, run: Run) -> bool:
    entry = tx.projection.jobs.entry(run.job.id)
    return entry is not None and entry.job.claim_op == run.held.claim_op and entry.job.deadline is not None
