"""The worker loop: claims jobs that it can finish, runs their handlers, renews their leases, and puts outcomes on the
log, many in one commit. The sweep takes care of what other processes leave behind. One turn of the loop is one
transaction; between turns the worker sleeps until something happens. Where another node is the arbiter, the worker's
ops are offers: a job begins when the arbiter has accepted the claim, and an end counts when the arbiter has accepted
it.
"""

import asyncio
import functools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from hocket.bus.changes import CLAIM, Changes, about
from hocket.errors import StoreError, StoreLocked, Usage
from hocket.events import (
    AvailabilityChanged,
    BatchFailed,
    CoordinatorUnknown,
    Emit,
    HandlerLoopBlocked,
    HandlerStuck,
    JobClaimed,
    JobHandedBack,
    JobPostponed,
    KindsNotDefined,
    LeaseLost,
    ResultDiscarded,
    RetryPlanned,
    RunFailed,
    RunFinished,
    RunStarted,
    StepFailed,
    StoreUnavailable,
    WorkerDeclaredDead,
    WorkerSpent,
    ignore,
)
from hocket.kernel.backoff import STORE_RETRIES
from hocket.kernel.coordination_payloads import Availability
from hocket.kernel.placement import check_labels
from hocket.kernel.reasons import Reason
from hocket.kernel.roster import Job, Outcome
from hocket.kernel.subjects import AVAILABILITY
from hocket.log import Transaction
from hocket.work import kinds, lease
from hocket.work.batch import Batch, BatchResult, BatchRunner
from hocket.work.checkpoints import interval_s
from hocket.work.claiming import OfferedClaim
from hocket.work.environment import Environment
from hocket.work.handler_processes import ProcessPlan
from hocket.work.handlers import Handlers
from hocket.work.jobs import Claim, Held, Offer, Result
from hocket.work.liveness import BEAT_S, SignOfLife
from hocket.work.node_access import WorkerAccess
from hocket.work.pending_decisions import Decision, PendingDecisions
from hocket.work.runner import ERROR_CHARS_MAX, Run
from hocket.work.serving import Serving, serving, serving_text
from hocket.work.troubles import Troubles, described

T = TypeVar("T")

# How often a worker looks for handlers that run too long, or block the loop of the async ones.
ROUND_S = 0.25
# Work queued behind each slot, beyond what runs: enough to keep a slot busy during a commit.
AHEAD_S = 0.05
# Ends are put on the log together if the runs that are under way are expected to end within this time.
LINGER_S = 0.002
# Jobs that a worker holds by default, those that run included. Runs that ended since the last commit are among them:
# when the worker is killed, they are run again.
HELD_MAX = 32
# A job that waits this long behind a slow one goes back, so that a free worker can take it.
QUEUED_MAX_S = 1.0
# A run younger than this is not checked for having been cancelled: it will be over before that matters.
YOUNG_S = 0.05
# A run is checked this often without a hint, because a hint can be lost.
CHECK_S = 5.0
PROGRESS_S = 0.5
BLOCKED_LOOP_S = 5.0
# A job whose claim the arbiter did not accept is not claimed again for this long, unless something happens to it.
REFUSED_REST_S = 1.0
# At the end, the undecided offers are sent to the arbiter once more, for this long.
LAST_ASK_S = 1.0

_LOST = about(CLAIM)


@dataclass
class WorkerOptions:
    """`grace` is how many seconds running handlers may go on after the worker is told to stop. `ahead` is how many jobs
    it may claim beyond those that run; by default as many as make 32 with them. `labels` are what jobs may need, like
    `gpu` or `gpu=a100`. `processes` are the processes that run its handlers; None for threads of this one. `serving` is
    what it tells others about itself, besides its labels; by default the kinds of its handlers.
    """

    handlers: Handlers
    concurrency: int = 4
    until_idle: bool = False
    grace: float = 10.0
    ahead: int | None = None
    labels: Iterable[str] = ()
    emit: Emit = ignore
    finished: Callable[[Run, Job | Reason], None] = lambda run, outcome: None
    processes: ProcessPlan | None = None
    serving: Serving | None = None

    def __post_init__(self) -> None:
        try:
            self.labels = frozenset(check_labels(self.labels))
        except ValueError as error:
            raise Usage(str(error)) from None

    @property
    def ahead_max(self) -> int:
        return max(0, HELD_MAX - self.concurrency) if self.ahead is None else self.ahead


class Worker:
    """Run it once. `stop` makes it finish or hand back its jobs; a second `stop` makes it do so at once."""

    def __init__(self, access: WorkerAccess, environment: Environment, options: WorkerOptions) -> None:
        self._access = access
        self._environment = environment
        self._monotonic = environment.monotonic
        self._options = options
        self._emit = options.emit
        self._store_failures = 0
        self._name = environment.name("worker")
        self._sign: SignOfLife
        self._number = 0
        self._beat_at = 0.0
        self._runner = environment.slots(options.concurrency, self._ended_in_thread, options.processes)
        self._troubles = Troubles(options.emit, environment.monotonic)
        self._transact = BatchRunner(options.handlers, options.until_idle, self._troubles, frozenset(options.labels))
        self._pending_decisions = PendingDecisions(self._consult, environment, self._heard, options.emit)
        self._held: dict[bytes, Run] = {}
        self._unstarted: list[Run] = []
        self._spare: list[Held] = []
        self._closed: list[tuple[float, bytes]] = []
        self._ended: deque[Run] = deque()
        self._guests: list[asyncio.Future[None]] = []
        self._wake = asyncio.Event()
        self._waking = False
        self._awaited = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: float | None = None
        self._hurry = False
        self._hungry = True
        self._served = Changes(options.handlers.topics())
        self._own_availability = about(AVAILABILITY, access.log.node.to_bytes(8, "big"))
        self._availability = Availability.ACTIVE
        self._lost_at = 0.0
        self._moved_at = self._monotonic()
        self._next_round = 0.0
        self._next_look = 0.0
        self._pace_s = AHEAD_S
        self._beat_sent: float | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._watch_at = 0.0
        self.succeeded = 0
        self.failed = 0
        self.handed_back = 0
        self.postponed = 0
        self.is_spent = False
        """Whether it ended because every slot has a stuck handler: its process must be replaced."""

    # The life of a worker.

    async def run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._sign = self._environment.liveness.announce(self._name)
        told = self._options.serving or serving(self._options.handlers.topics())
        self._sign.serves = serving_text([told.labelled(self._options.labels)])
        topics = self._served | _LOST | self._own_availability
        hints = self._environment.bus.subscribe(topics)
        hints.attach(self._loop, self._hinted)
        try:
            await self._runner.open()
            await self._join()
            await self._work()
        finally:
            self._abandon()
            self._loop = None
            hints.close()
            self._sign.close()
            if self._sign.number:
                with suppress(StoreError):
                    await self._access.run(lambda tx: tx.session.drop_worker(self._sign.number))

    async def _work(self) -> None:
        """If the task is cancelled, hands all jobs back first; if it is cancelled again, leaves them to the others."""
        turning = asyncio.create_task(self._turn_until_done())
        try:
            await asyncio.shield(turning)
        except asyncio.CancelledError:
            self.stop()
            self.stop()
            await turning
            raise

    def _abandon(self) -> None:
        """At the end the worker holds no job, unless it ends with an error: then the other workers return its jobs."""
        self._runner.close()
        self._pending_decisions.close()
        self._let_guests_in()
        if self._watch is not None:
            self._watch.cancel()
        for run in self._held.values():
            if not run.revoke() and not run.stopped:
                self._runner.stop(run)

    @property
    def is_stopping(self) -> bool:
        return self._stopping is not None

    def stop(self) -> None:
        """May be called from any thread."""
        if self._stopping is None:
            self._stopping = self._monotonic() + self._options.grace
        else:
            self._hurry = True
        loop = self._loop
        if loop is not None:
            loop.call_soon_threadsafe(self._wake.set)

    async def bring(self, request: Callable[[Transaction], T]) -> T:
        """Runs a request in one transaction with the next turn, so that a job which it submits is claimed with it."""
        if self._loop is not None:
            let_in: asyncio.Future[None] = self._loop.create_future()
            self._guests.append(let_in)
            self._wake.set()
            await let_in
        return await self._access.run(request)

    def _let_guests_in(self) -> bool:
        guests, self._guests = self._guests, []
        for guest in guests:
            if not guest.done():
                guest.set_result(None)
        return bool(guests)

    async def _join(self) -> None:
        """Registers this worker. If another process holds up every writer, the worker waits until that has passed."""
        failures = 0
        while self._stopping is None:
            try:
                return await self._access.run(self._register)
            except StoreLocked as error:
                self._emit(StoreUnavailable(str(error)))
            failures += 1
            await asyncio.sleep(STORE_RETRIES.delay_s(failures, self._environment.chance.random()))

    def _register(self, tx: Transaction) -> None:
        if tx.is_uninformed:
            self._emit(CoordinatorUnknown())
        if undefined := kinds.define(tx, self._options.handlers):
            self._emit(KindsNotDefined(tuple(undefined)))
        self._sign.beat(tx)
        self._number = self._sign.number
        self._beat_at = self._monotonic() + BEAT_S

    async def _consult(self, offers: Sequence[Offer], is_urgent: bool) -> list[Decision]:
        return await self._access.consult(offers, is_urgent=is_urgent)

    def _heard(self) -> None:
        self._wake.set()

    def _hinted(self, changes: Changes) -> None:
        if changes.matches(self._served):
            self._hungry = True
            self._wake.set()
        if changes.matches(self._own_availability):
            self._hungry, self._lost_at = True, self._monotonic()
            self._wake.set()
        if changes.matches(_LOST):
            held = Changes(subjects=frozenset((CLAIM, job_id) for job_id in self._held))
            if changes.matches(held):
                self._lost_at = self._monotonic()
                self._wake.set()

    def _ended_in_thread(self, run: Run) -> None:
        """The runner's threads call this. However many runs end before the loop looks, it is woken once."""
        self._ended.append(run)
        loop = self._loop
        if (not self._waking or len(self._ended) == self._awaited) and loop is not None:
            self._waking = True
            loop.call_soon_threadsafe(self._wake.set)

    async def _turn_until_done(self) -> None:
        while True:
            self._wake.clear()
            self._waking = False
            self._pending_decisions.settle()
            await self._linger()
            turn = self._plan()
            turned: BatchResult | None = None
            if turn.is_worth_it or self._guests:
                before = self._monotonic()
                turned = await self._commit(turn)
                if turned is not None:
                    self._take(turn, turned, before)
            self._pending_decisions.ask(self._monotonic())
            if self._stopping is not None and self._wind_down():
                break
            if turned is not None and turned.idle and self._has_nothing:
                break
            await self._sleep()
        if not self._pending_decisions.is_empty:
            await self._pending_decisions.last_ask(LAST_ASK_S)

    @property
    def _has_nothing(self) -> bool:
        return not self._held and not self._spare and self._pending_decisions.is_empty

    async def _commit(self, turn: Batch) -> BatchResult | None:
        """One transaction. If the store cannot take it (full, locked, being rebuilt), the ended runs are kept and tried
        again. If a request in it fails, each request is tried alone.
        """
        if self._let_guests_in():
            await asyncio.sleep(0)  # their requests go first
        try:
            try:
                turned = await self._access.run(lambda tx: self._transact(tx, self._sign, turn))
                self._store_failures = 0
                return turned
            except StoreError:
                raise
            except Exception as error:
                self._troubles.tell("turn", BatchFailed("a turn of the worker", described(error)))
                return await self._transact.one_by_one(self._access, self._sign, turn)
        except StoreError as error:
            self._emit(StoreUnavailable(str(error)))
            self._ended.extendleft(reversed(turn.ended))
            for run, note in turn.notes:
                run.note = run.note or note
            for run, state in turn.checkpoints:
                run.checkpoint = run.checkpoint or state
            self._store_failures += 1
            await asyncio.sleep(STORE_RETRIES.delay_s(self._store_failures, self._environment.chance.random()))
            return None

    async def _sleep(self) -> None:
        now = self._monotonic()
        looking = self._stopping is None and self._room(now) > 0
        if self._ended or self._spare or self._guests or (looking and self._hungry):
            return
        until = min((run.lease.renews_at for run in self._held.values() if not run.stopped), default=self._next_round)
        until = min(until, self._next_round)
        is_resting = self._pending_decisions.is_resting(now)
        if is_resting:
            until = min(until, self._pending_decisions.rests_until)
        if looking:
            until = min(until, self._next_look)
        if self._stopping is not None:
            until = min(until, self._stopping)
        if until > now:
            with suppress(TimeoutError):
                async with asyncio.timeout(until - now):
                    await self._wake.wait()
        now = self._monotonic()
        if now >= self._next_look or (is_resting and not self._pending_decisions.is_resting(now)):
            self._hungry = True

    async def _linger(self) -> None:
        """Lets quick runs end together: a commit costs the same for one of them and for all."""
        if not self._ended or self._stopping is not None:
            return
        since = self._monotonic() - LINGER_S
        # A run that has taken longer than that already is not waited for.
        left = sum(run.ended_at is None and (run.started_at or since) >= since for run in self._held.values())
        if not left or left * self._pace_s / self._options.concurrency > LINGER_S:
            return
        # Until all of these have ended, no end wakes the loop.
        self._waking, self._awaited = True, len(self._ended) + left
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while len(self._ended) < self._awaited:
                    await self._wake.wait()
                    self._wake.clear()
        self._waking, self._awaited = False, 0

    # Planning a turn.

    def _plan(self) -> Batch:
        now = self._monotonic()
        if now >= self._next_round:
            self._next_round = now + ROUND_S
            self._watch_loop(now)
            self._look_at_handlers(now)
        if self._watch is not None and now >= self._watch_at:
            self._look_at_leases()
        self._tell_starts()
        popped = [self._ended.popleft() for _ in range(len(self._ended))]
        ended = [run for run in dict.fromkeys(popped) if self._held.get(run.job.id) is run]
        for run in ended:
            assert run.started_at is not None and run.ended_at is not None
            self._pace_s += (run.ended_at - run.started_at - self._pace_s) * 0.1
            self._moved_at = now
        over = {run.job.id for run in ended}
        current = [run for run in self._held.values() if run.job.id not in over]
        unstarted = [run for run in current if run.started_at is None and self._overstayed(run, now) and run.revoke()]
        gone = {run.job.id for run in unstarted}
        live = [run for run in current if run.job.id not in gone and not run.stopped]
        renewals = lease.to_renew(live, now)
        for run in renewals:
            run.lease_ms = round(run.lease.next_s(now) * 1000)
        notes = [(run, note) for run in live if (note := self._note(run, now)) is not None]
        checkpoints = [(run, state) for run in live if (state := self._checkpoint(run, now)) is not None]
        checked = max(self._lost_at, now - CHECK_S)
        doubtful = [run for run in live if run.checked_at < checked and now - (run.started_at or now) > YOUNG_S]
        closed = [op_id for due, op_id in self._closed if due <= now]
        is_hungry = (self._hungry or self._guests) and self._stopping is None
        wanted = self._room(now) + len(ended) + len(unstarted) if is_hungry else 0
        offering = not self._pending_decisions.is_resting(now)
        spare = list(self._spare)
        beat = now >= self._beat_at
        return Batch(
            ended, unstarted, spare, renewals, notes, checkpoints, doubtful, closed, max(0, wanted), offering, beat
        )

    def _tell_starts(self) -> None:
        """Handlers start in other threads. Events are emitted in this one, so a start is reported at the next turn."""
        for run in self._unstarted:
            if run.started_at is not None:
                self._emit(RunStarted(run.context.job_id, run.job.kind, run.job.fence))
        held = self._held
        self._unstarted = [run for run in self._unstarted if run.started_at is None and held.get(run.job.id) is run]

    def _overstayed(self, run: Run, now: float) -> bool:
        return self._stopping is not None or now - run.claimed_at > QUEUED_MAX_S or now >= run.lease.ends_at

    def _note(self, run: Run, now: float) -> bytes | None:
        if run.note is None or now - run.noted_at < PROGRESS_S:
            return None
        note, run.note = run.note, None
        run.noted_at = now
        return note

    def _checkpoint(self, run: Run, now: float) -> bytes | None:
        if run.checkpoint is None or now - run.checkpoint_at < interval_s(now - (run.started_at or now)):
            return None
        state, run.checkpoint = run.checkpoint, None
        run.checkpoint_at = now
        return state

    def _room(self, now: float) -> int:
        """How many more jobs may be held: one for each slot, and ahead of that as much as is done in a moment, going
        by the runs that ended and by how long none has.
        """
        slots = self._runner.slots
        if len(self._held) < slots:
            self._moved_at = now
        pace = max(self._pace_s, now - self._moved_at, 1e-6)
        ahead = min(self._options.ahead_max, int(slots * AHEAD_S / pace))
        return slots + ahead - len(self._held) - self._pending_decisions.claims

    def _watch_loop(self, now: float) -> None:
        loop = self._runner.loop
        if loop is None:
            return
        if self._beat_sent is None:
            self._beat_sent = now
            loop.call_soon_threadsafe(self._beaten)
        elif now - self._beat_sent > BLOCKED_LOOP_S:
            self._emit(HandlerLoopBlocked(now - self._beat_sent))
            self._beat_sent = now

    def _beaten(self) -> None:
        self._beat_sent = None

    # What follows from a turn.

    def _take(self, turn: Batch, turned: BatchResult, before: float) -> None:
        if turn.beat:
            self._beat_at = before + BEAT_S
        if self._sign.number != self._number:
            self._number = self._sign.number
            self._emit(WorkerDeclaredDead())
            self._hungry, self._lost_at = True, self._monotonic()
            self._wake.set()
        for run in turn.doubtful:
            run.checked_at = before
        for run, outcome in zip((*turn.ended, *turn.unstarted), turned.outcomes, strict=True):
            self._held.pop(run.job.id, None)
            self._when_decided(outcome, functools.partial(self._count, run))
        for spared in turned.spared:
            self._when_decided(spared, lambda decision: None)
        for run, renewed in zip(turn.renewals, turned.renewed, strict=True):
            if renewed is None:
                run.lease.try_again(self._monotonic())
            else:
                run.lease.renewing()
                self._when_decided(renewed, functools.partial(self._renewed, run, before))
        del self._spare[: len(turn.spare)]
        self._closed = [each for each in self._closed if each[1] not in turn.closed]
        if turned.availability not in (None, self._availability):
            self._availability = turned.availability
            self._emit(AvailabilityChanged(self._availability.name.lower()))
        is_quarantined = self._availability is Availability.QUARANTINED
        for run in turned.lost:
            self._lose(run, "this node is quarantined" if is_quarantined else "it was cancelled, or its lease was lost")
        for claim in turned.claims.taken:
            self._try_to_begin(claim, before)
        for wanted in turned.claims.wanted:
            self._pending_decisions.add(wanted.offer, functools.partial(self._claimed, wanted, before), is_claim=True)
        if turn.wanted:
            self._hungry = len(turned.claims.taken) + len(turned.claims.wanted) == turn.wanted
            self._next_look = self._monotonic() + turned.patience(self._environment.chance)

    def _when_decided(self, result: Result | None, follow: Callable[[Decision], None]) -> None:
        if result is None:
            return
        if isinstance(result, Offer):
            self._pending_decisions.add(result, lambda decision, dropped: follow(decision))
        else:
            follow(result)

    def _renewed(self, run: Run, before: float, decision: Decision) -> None:
        if self._held.get(run.job.id) is not run:
            return
        if isinstance(decision, Reason):
            self._lose(run, decision.sentence)
        elif decision.claim_op != run.held.claim_op or decision.deadline is None:
            self._lose(run, Reason.STALE_CLAIM.sentence)
        else:
            run.lease.renewed(run.lease_ms / 1000, before)
            run.deadline_ms = decision.deadline
            self._runner.renewed(run)

    def _claimed(self, wanted: OfferedClaim, before: float, decision: Decision, dropped: bool) -> None:
        """The arbiter's decision on a claim. A claim that was given up meanwhile, or is decided too late, goes back."""
        now = self._monotonic()
        is_held = isinstance(decision, Job)
        self._closed.append((now if is_held else now + REFUSED_REST_S, wanted.offer.op_id))
        if isinstance(decision, Reason):
            return
        if dropped or self._stopping is not None:
            assert decision.claim_op is not None
            self._spare.append(Held(decision.id, decision.claim_op))
        else:
            self._try_to_begin(Claim(decision, wanted.schedule), before)

    def _try_to_begin(self, claim: Claim, before: float) -> None:
        with self._troubles.contained(claim.job.id, "starting job", claim.job.id):
            self._begin(claim, before)
            return
        assert claim.job.claim_op is not None
        self._held.pop(claim.job.id, None)
        self._spare.append(Held(claim.job.id, claim.job.claim_op))

    def _begin(self, claim: Claim, before: float) -> None:
        job_type = self._options.handlers.find(claim.job.kind)
        assert job_type is not None
        lease_ms = claim.job.policy.lease_ms or job_type.lease_ms
        run = Run(claim, job_type, lease_ms, before, self._access.kit(claim.job.kind))
        self._held[claim.job.id] = run
        self._emit(JobClaimed(run.context.job_id, run.job.kind, run.job.fence))
        self._unstarted.append(run)
        if run.lease.ends_at > self._monotonic():
            self._runner.start(run)
            self._watch_leases(run.lease.ends_at)

    def _watch_leases(self, until: float) -> None:
        """Stops handlers when their leases run out, whatever the loop is waiting for."""
        assert self._loop is not None
        if self._watch is None or until < self._watch_at:
            if self._watch is not None:
                self._watch.cancel()
            self._watch_at = until
            self._watch = self._loop.call_later(max(0.0, until - self._monotonic()), self._look_at_leases)

    def _look_at_leases(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        now = self._monotonic()
        live = [run for run in self._held.values() if not run.stopped and run.ended_at is None]
        for run in lease.run_out(live, now):
            if not run.revoke():
                self._emit(LeaseLost(run.context.job_id, "the lease ran out here"))
                self._runner.stop(run)
        following = min((run.lease.ends_at for run in live if now < run.lease.ends_at), default=None)
        if following is not None:
            self._watch_leases(following)

    def _look_at_handlers(self, now: float) -> None:
        for run in self._runner.look(now):
            self._emit(HandlerStuck(run.context.job_id, run.job.kind))
        trouble, self._runner.trouble = self._runner.trouble, None
        if trouble is not None:
            self._troubles.tell("slots", StepFailed("starting a handler process", trouble))
        if self._runner.is_spent and not self.is_spent:
            self.is_spent = True
            self._emit(WorkerSpent(self._options.concurrency))
            if self._stopping is None:
                self.stop()

    def _lose(self, run: Run, why: str) -> None:
        if not run.stopped:
            self._emit(LeaseLost(run.context.job_id, why))
            self._runner.stop(run)

    def _count(self, run: Run, outcome: Job | Reason) -> None:
        if isinstance(outcome, Reason):
            self._emit(ResultDiscarded(run.context.job_id, outcome.sentence))
        elif outcome.outcome is Outcome.SUCCEEDED:
            self.succeeded += 1
            self._emit(RunFinished(run.context.job_id, run.job.kind, run.job.fence))
        elif run.later_ms is not None:
            self.postponed += 1
            self._emit(
                JobPostponed(run.context.job_id, run.job.kind, run.job.fence, run.later_ms / 1000, run.error or "")
            )
        elif run.error is not None:
            self.failed += 1
            self._tell_failure(run, run.error, outcome)
        else:
            self.handed_back += 1
            self._emit(JobHandedBack(run.context.job_id, run.job.kind, run.job.fence))
        with self._troubles.contained("finished", "telling the end of job", run.job.id):
            self._options.finished(run, outcome)

    def _tell_failure(self, run: Run, error: str, job: Job) -> None:
        about = run.context.job_id, run.job.kind, run.job.fence
        last_line = run.traceback.rstrip().rpartition("\n")[2].strip()
        # A one-line error is the last line of its traceback.
        more = "" if last_line in error or error in last_line else last_line[:ERROR_CHARS_MAX]
        self._emit(RunFailed(*about, error, more, job.outcome is not None))
        if job.outcome is None:
            self._emit(RetryPlanned(*about, job.failures, max(0, job.ready_at - job.last.wall) / 1000))

    def _wind_down(self) -> bool:
        """While stopping: whether it is time to go. Past the grace, or when hurried, handlers are stopped and
        their jobs handed back.
        """
        assert self._stopping is not None
        if not self._held:
            return self._has_nothing or (not self._spare and (self._hurry or self._monotonic() >= self._stopping))
        if self._hurry or self._monotonic() >= self._stopping:
            for run in list(self._held.values()):
                if run in self._ended:
                    continue
                if not run.stopped:
                    self._runner.stop(run)
                run.started_at = run.started_at or self._monotonic()
                run.end(self._monotonic())
                self._ended.append(run)
        return False
