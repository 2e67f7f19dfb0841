"""The worker loop: claims jobs that it can finish, runs their handlers, renews their leases, and puts outcomes on the
log, many in one commit. The sweep takes care of what other processes leave behind. One turn of the loop is one
transaction; between turns the worker sleeps until something happens. Where another node is the arbiter, the worker's
ops are offers: a job begins when the arbiter has accepted the claim, and an end counts when the arbiter has accepted
it.
"""

import asyncio
import functools
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from msgspec.structs import replace

from hocket.bus.hints import CLAIM, IDLE, Changes, about
from hocket.errors import StoreAway, StoreError
from hocket.events.jobs import KindsNotDefined
from hocket.events.nodes import CoordinatorUnknown
from hocket.events.troubles import Troubles, described
from hocket.events.workers import AvailabilityChanged, BatchFailed, StoreUnavailable, WorkerDeclaredDead
from hocket.families.availability.facts import AVAILABILITY, Availability
from hocket.families.jobs.candidates import worker_id
from hocket.families.jobs.claiming import OfferedClaim
from hocket.families.jobs.rendezvous import WEIGHT_MIN
from hocket.families.jobs.requests import Claim, Decision, Offer
from hocket.families.jobs.rules import Job
from hocket.families.lease import COUNTED, store_pause_s
from hocket.families.liveness import BEAT_S, SignOfLife
from hocket.kernel.arbitration import Reason
from hocket.kernel.retrying import STORE_RETRIES
from hocket.log import Transaction
from hocket.log import load as load_log
from hocket.work.batch import Batch, BatchResult, BatchRunner, renew_outputs
from hocket.work.claim_order import ClaimOrder, HeardClaims
from hocket.work.derivation import DerivationWatch
from hocket.work.environment import Environment, WorkerAccess, WorkerOptions, supervised
from hocket.work.handler_threads import HandlerWatch
from hocket.work.handlers import define_kinds
from hocket.work.held_jobs import AHEAD_S, HeldJobs
from hocket.work.members import Members
from hocket.work.pending_decisions import PendingDecisions
from hocket.work.presence import ClaimTally, Serving, serving, serving_text
from hocket.work.ranked_claims import RankedClaims
from hocket.work.run_outcomes import RunOutcomes
from hocket.work.runner import Run

T = TypeVar("T")

# How often a worker looks for handlers that run too long, or block the loop of the async ones, and how often without a
# run.
ROUND_S = 0.25
QUIET_S = 1.0
# Ends are put on the log together if the runs that are under way are expected to end within this time.
LINGER_S = 0.002
# A job whose claim the arbiter did not accept is not claimed again for this long, unless something happens to it.
REFUSED_REST_S = 1.0
# An idle worker tells those that hold jobs at most this often that it has a free slot.
ASKED_OTHERS_S = 1.0
# At the end, the undecided offers are sent to the arbiter once more, for this long.
LAST_ASK_S = 1.0

CANCELLED = "it was cancelled, or its lease was lost"

_LOST, _IDLE = about(CLAIM), about(IDLE)


class Worker:
    """Run it once. `stop` makes it finish or hand back its jobs; a second `stop` makes it do so at once."""

    def __init__(self, access: WorkerAccess, environment: Environment, options: WorkerOptions) -> None:
        self._access, self._environment, self._options = access, environment, options
        self._monotonic, self._emit = environment.monotonic, options.emit
        self._store_failures = 0
        self._name = environment.name("worker")
        self._sign: SignOfLife
        self._serving: Serving
        self._number = 0
        self._beat_at = 0.0
        self._runner = environment.slots(options.concurrency, self._ended_in_thread, options.processes)
        self._troubles = Troubles(options.emit, environment.monotonic)
        # A program may set `finished` until the worker runs.
        self._outcomes = RunOutcomes(lambda *end: options.finished(*end), self._troubles, options.emit)
        self._handler_watch = HandlerWatch(self._runner, options.concurrency, self._troubles, options.emit)
        self._tally = ClaimTally(access.log.physical)
        self._held = HeldJobs(
            *(options.handlers, self._runner, access.kit, options.ahead_max, self._troubles, options.emit),
            *(environment.monotonic, self._tally.add, access.log.node),
        )
        self.id = worker_id(access.log.node, self._name)
        members = Members(environment.liveness, access.log)
        order = ClaimOrder(self.id, members, HeardClaims(access.log.physical))
        self._ranked = RankedClaims(order, self._held)
        self._transact = BatchRunner(
            *(options.handlers, options.until_idle, self._troubles, order, frozenset(options.labels)),
            *(options.hold_ms, self._held.isolates, self._held.kinds, environment.bus.announce),
        )
        self._wake = asyncio.Event()
        consult = lambda offers, is_urgent: access.consult(offers, is_urgent=is_urgent)  # noqa: E731
        self._pending_decisions = PendingDecisions(consult, environment, self._wake.set, options.emit)
        self._closed: list[tuple[float, bytes]] = []
        self._guests: list[asyncio.Future[None]] = []
        # Whether an end wakes the loop: not while it is about to look anyway, unless as many have ended as it awaits.
        self._is_asleep = False
        self._awaited = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: float | None = None
        self._hurry = False
        self._hungry = True
        self._served = Changes(options.handlers.topics())
        self._own_availability = about(AVAILABILITY, access.log.node.to_bytes(8, "big"))
        self._availability = Availability.ACTIVE
        self._lost_at = 0.0
        self._idle_since = math.inf
        self._asked_others_at = -math.inf
        self._next_round = self._next_look = 0.0

    @property
    def succeeded(self) -> int:
        return self._outcomes.succeeded

    @property
    def failed(self) -> int:
        return self._outcomes.failed

    @property
    def handed_back(self) -> int:
        return self._outcomes.handed_back

    @property
    def postponed(self) -> int:
        return self._outcomes.postponed

    @property
    def is_spent(self) -> bool:
        """Whether it ended because every slot has a stuck handler: its process must be replaced."""
        return self._handler_watch.is_spent

    # The life of a worker.

    async def run(self) -> None:
        load_log()
        self._loop = asyncio.get_running_loop()
        self._sign = self._environment.liveness.announce(self._name)
        told = self._options.serving or serving(self._options.handlers.topics())
        ranked = told.ranked(self.id, self._options.weight, self._access.log.physical())
        self._serving = ranked.labelled(self._options.labels)
        self._sign.serves = serving_text([self._serving])
        topics = self._served | _LOST | _IDLE | self._own_availability
        hints = self._environment.bus.subscribe(topics)
        hints.attach(self._loop, self._hinted)
        beside = self._start_beside()
        try:
            await self._runner.open()
            with self._access.holding(self._held.shortest_lease_s):
                await self._join()
                await self._work()
        finally:
            for task in beside:
                task.cancel()
            self._runner.close()
            self._pending_decisions.close()
            self._let_guests_in()
            self._held.abandon()
            self._loop = None
            hints.close()
            self._sign.close()
            if self._sign.number:
                with suppress(StoreError):
                    await self._access.run(lambda tx: tx.session.drop_worker(self._sign.number))

    def _start_beside(self) -> list[asyncio.Task[None]]:
        """Starts what goes on beside the turns: talking about claims, and asking for derivations."""
        served = self._options.handlers
        loops: dict[str, Callable[[], Awaitable[None]]] = {}
        if (messages := self._options.messages) is not None:
            mesh, kinds = self._access.log.user, served.topics()
            talk = self._ranked.talk
            loops["talking about claims"] = functools.partial(talk, messages, mesh, kinds, self._look_again)
        if (watch := DerivationWatch(self._access, served)).derivations:
            loops["asking for derivations"] = watch.run
        running = [supervised(name, loop, self._emit, self._environment) for name, loop in loops.items()]
        return [asyncio.create_task(each) for each in running]

    def _look_again(self) -> None:
        self._hungry = True
        self._wake.set()

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
        """Submits a job by a request, in one transaction with the next turn, so that the job is claimed with it."""
        if self._loop is not None:
            let_in: asyncio.Future[None] = self._loop.create_future()
            self._guests.append(let_in)
            self._wake.set()
            await let_in
        return await self._access.run(request, beside=True)

    def _let_guests_in(self) -> bool:
        guests, self._guests = self._guests, []
        for guest in guests:
            if not guest.done():
                guest.set_result(None)
        return bool(guests)

    async def _join(self) -> None:
        """Registers this worker. If the store is away, full or locked, the worker waits until that has passed."""
        failures = 0
        while self._stopping is None:
            try:
                return await self._access.run(self._register)
            except StoreAway as error:
                self._emit(StoreUnavailable(str(error)))
            failures += 1
            rest_s = STORE_RETRIES.delay_s(failures, self._environment.chance.random())
            with suppress(TimeoutError):
                async with asyncio.timeout(rest_s):
                    await self._wake.wait()
            self._wake.clear()

    def _register(self, tx: Transaction) -> None:
        if tx.is_uninformed:
            self._emit(CoordinatorUnknown())
        if undefined := define_kinds(tx, self._options.handlers):
            self._emit(KindsNotDefined(tuple(undefined)))
        self._sign.beat(tx)
        self._number = self._sign.number
        self._beat_at = self._monotonic() + BEAT_S

    def _hinted(self, changes: Changes) -> None:
        if changes.matches(self._served):
            self._hungry = self._ranked.is_news = True
            self._wake.set()
        if changes.matches(self._own_availability):
            self._hungry, self._lost_at = True, self._monotonic()
            self._wake.set()
        if self._held.runs and changes.matches(_IDLE):
            self._held.hear_idle(changes)
            self._wake.set()
        if changes.matches(_LOST):
            held = Changes(subjects=frozenset((CLAIM, job_id) for job_id in self._held.runs))
            if changes.matches(held):
                self._lost_at = self._monotonic()
                self._wake.set()

    def _ended_in_thread(self, run: Run) -> None:
        """The runner's threads call this. However many runs end before the loop looks, it is woken once."""
        self._held.ended.append(run)
        loop = self._loop
        if (self._is_asleep or len(self._held.ended) == self._awaited) and loop is not None:
            self._is_asleep = False
            loop.call_soon_threadsafe(self._wake.set)

    async def _turn_until_done(self) -> None:
        while True:
            self._wake.clear()
            self._pending_decisions.settle()
            self._held.hand_over()
            await self._linger()
            turn = self._plan()
            turned: BatchResult | None = None
            if turn.is_worth_it or self._guests:
                before = self._monotonic()
                turned = await self._commit(turn)
                if turned is not None:
                    self._take(turn, turned, before)
                    self._held.hand_over()
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
        return not self._held.runs and not self._held.spare and self._pending_decisions.is_empty

    async def _commit(self, turn: Batch) -> BatchResult | None:
        """One transaction. If the store cannot take it (full, locked, being rebuilt), the ended runs are kept and tried
        again. If a request in it fails, each request is tried alone.
        """
        if self._let_guests_in():
            await asyncio.sleep(0)  # their requests go first
        try:
            try:
                await renew_outputs(self._access, turn)
                await self._transact.look_ahead(self._access, turn)
                turned = await self._access.run(lambda tx: self._transact(tx, self._sign, turn), beside=True)
                self._store_failures = 0
                return turned
            except StoreError:
                raise
            except Exception as error:
                self._troubles.tell("turn", BatchFailed("a turn of the worker", described(error)))
                return await self._transact.one_by_one(self._access, self._sign, turn)
        except StoreError as error:
            self._emit(StoreUnavailable(str(error)))
            self._held.put_back(turn)
            self._hungry |= turn.wanted > 0
            self._store_failures += 1
            rest_s = STORE_RETRIES.delay_s(self._store_failures, self._environment.chance.random())
            await asyncio.sleep(min(rest_s, store_pause_s(self._held.shortest_lease_s())))
            return None

    async def _sleep(self) -> None:
        now = self._monotonic()
        looking = self._stopping is None and self._room(now) > 0
        if self._held.spare or self._guests or (looking and self._hungry) or self._expected_ends():
            return
        self._is_asleep = True
        try:
            if not self._held.ended:
                await self._doze(now, looking)
        finally:
            self._is_asleep = False

    async def _doze(self, now: float, looking: bool) -> None:
        if self._held.runs:
            self._next_round = min(self._next_round, now + ROUND_S)
        until = min(self._next_round, self._held.due_at)
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
        """Lets quick runs end together: a commit costs the same for one of them and for all. What has ended by then is
        committed, even if others go on.
        """
        if not (awaited := self._expected_ends()):
            return
        ended, self._awaited = self._held.ended, awaited
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while len(ended) < awaited and not self._guests and self._stopping is None:
                    await self._wake.wait()
                    self._wake.clear()
        self._awaited = 0

    def _expected_ends(self) -> int:
        """How many runs will have ended in a moment, if it pays to wait for them, else 0."""
        ended = self._held.ended
        is_new = self._monotonic() < self._held.handed_over_at + LINGER_S
        if self._stopping is not None or self._guests or not (ended or is_new):
            return 0
        awaited = self._held.soon_ended(LINGER_S)
        return awaited if awaited > len(ended) else 0

    def _plan(self) -> Batch:
        now = self._monotonic()
        if now >= self._next_round:
            self._next_round = self._held.next_step_at(now, now + (ROUND_S if self._held.runs else QUIET_S))
            weight = max(WEIGHT_MIN, self._options.weight * self._options.reliability())
            self._sign.serves = serving_text([replace(self._serving, claimed=self._tally.told(), weight=weight)])
            self._handler_watch.look(now)
            if self.is_spent and self._stopping is None:
                self.stop()
        turn = self._held.due(now, self._stopping is not None, self._lost_at)
        others = len(self._held.runs) - len(turn.ended) - len(turn.unstarted) + self._pending_decisions.claims
        is_hungry = (self._hungry or self._guests) and self._stopping is None
        wanted = max(0, self._room(now, len(turn.ended) + len(turn.unstarted))) if is_hungry else 0
        if wanted:
            self._hungry = False  # a hint that comes while the turn commits sets it again
        return turn._replace(
            closed=[op_id for due, op_id in self._closed if due <= now],
            wanted=wanted,
            offering=not self._pending_decisions.is_resting(now),
            beat=now >= self._beat_at,
            passing=not wanted and self._ranked.may_pass(now),
            is_free=others == 0,
            has_waited=bool(wanted) and now >= max(self._idle_since + AHEAD_S, self._asked_others_at + ASKED_OTHERS_S),
        )

    def _room(self, now: float, leaving: int = 0) -> int:
        return self._held.room(now, self._pending_decisions.claims - leaving)

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
        self._outcomes.look_for_listeners()
        for run, outcome in zip((*turn.ended, *turn.unstarted), turned.outcomes, strict=True):
            self._held.drop(run)
            if isinstance(outcome, Offer):
                self._pending_decisions.follow(outcome, functools.partial(self._outcomes.count, run))
            elif outcome is not None:
                self._outcomes.count(run, outcome)
        self._held.logged(turn.ended)
        for spared in turned.spared:
            self._pending_decisions.follow(spared, lambda decision: None)
        for run, renewed in zip(turn.renewals, turned.renewed, strict=True):
            if renewed is None:
                self._held.renewal_failed(run)
            else:
                run.lease.renewing()
                self._pending_decisions.follow(renewed, functools.partial(self._held.renewed, run, before))
        del self._held.spare[: len(turn.spare)]
        self._closed = [each for each in self._closed if each[1] not in turn.closed]
        if turned.availability not in (None, self._availability):
            self._availability = turned.availability
            self._emit(AvailabilityChanged(self._availability.name.lower()))
        is_quarantined = self._availability is Availability.QUARANTINED
        for run in turned.lost:
            self._held.lose(run, "this node is quarantined" if is_quarantined else CANCELLED)
        self._held.begin(turned.claims.taken, before)
        self._ranked.tell(turned)
        for wanted in turned.claims.wanted:
            self._pending_decisions.add(wanted.offer, functools.partial(self._claimed, wanted, before), is_claim=True)
        if turn.wanted:
            self._hungry |= len(turned.claims.taken) + len(turned.claims.wanted) == turn.wanted
            self._next_look = self._monotonic() + turned.patience(self._environment.chance)
            self._look_for_others(turn, turned, before)

    def _look_for_others(self, turn: Batch, turned: BatchResult, now: float) -> None:
        """If this worker finds no job for a free slot, it looks again after a moment. If it finds none then, it tells
        the workers that hold some.
        """
        if turned.elsewhere:
            self._environment.bus.publish(turned.elsewhere)
        if turned.claims.taken or turned.claims.wanted or not self._held.has_free_slot:
            self._idle_since = math.inf
        elif turn.has_waited:
            self._asked_others_at = now
        elif self._idle_since == math.inf:
            self._idle_since = now
            if now >= self._asked_others_at + ASKED_OTHERS_S:
                self._next_look = min(self._next_look, now + AHEAD_S)

    def _claimed(self, wanted: OfferedClaim, before: float, decision: Decision, dropped: bool) -> None:
        """The arbiter's decision on a claim. One that is too late, or was dropped and finds no slot, goes back."""
        now = self._monotonic()
        is_held = isinstance(decision, Job)
        self._closed.append((now if is_held else now + REFUSED_REST_S, wanted.offer.op_id))
        if isinstance(decision, Reason):
            self._transact.contested.lost()
            return
        claim = Claim(decision, wanted.schedule, wanted.deaths)
        is_over = now >= before + wanted.lease_ms / 1000 * COUNTED
        if self._stopping is not None or is_over or (dropped and not self._held.has_free_slot):
            self._held.give_back(claim)
        else:
            self._held.begin((claim,), before)

    def _wind_down(self) -> bool:
        """While stopping: whether it is time to go. Past the grace, or when hurried, handlers are stopped and their
        jobs handed back.
        """
        assert self._stopping is not None
        is_over = self._hurry or self._monotonic() >= self._stopping
        if not self._held.runs:
            return self._has_nothing or (not self._held.spare and is_over)
        if is_over:
            self._held.end_all()
        return False
