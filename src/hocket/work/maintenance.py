"""What every long-running process does for its whole node, once per process, whether or not it runs jobs; the first one
has done it for all. The sweep takes care of what is urgent: jobs of dead processes, leases past their deadline, jobs
that no worker began in time, due schedules. The maintenance does the rest: ops whose time has come, expired artifacts,
unused blobs, disk space of the store, the checkpoints of authors, clocks that disagree,
presence in a store that nodes share, what retention lets go.
"""

import asyncio
import math

from hocket.errors import StoreError
from hocket.events import Emit, Event
from hocket.events.jobs import JobRescued, JobsReclaimed, ScheduleSkipped
from hocket.events.troubles import Troubles, described
from hocket.events.workers import BatchFailed, ClockDisagrees, EvictionNotAllowed, StoreUnavailable
from hocket.families import artifacts, erasing
from hocket.families.access import NodeAccess
from hocket.families.jobs import claiming as accepting
from hocket.families.jobs import cron, rescue
from hocket.families.jobs.requests import NEVER
from hocket.families.liveness import BEAT_S, kept_by_leases
from hocket.kernel.ids import ulid_text
from hocket.log import Transaction
from hocket.log.machine_clock import MachineClock
from hocket.log.snapshots.own_late import write_late_again
from hocket.store import JobEntry, OpSession, Schedule, Session
from hocket.work.environment import Environment
from hocket.work.presence import AHEAD_MS, KEPT_MS, own_presence

# How often held ops and artifacts are checked.
ROUND_S = 1.0
# How often unused blobs are searched for.
CLEAR_S = 3600.0
# How often the store is asked to give back disk space.
TRIM_S = 10.0
# How long a round reads the log for checkpoints, at most.
CHECKPOINTS_S = 0.05
# How often it is asked whether the horizon moves, and how long a round follows it, at most.
PRUNE_S = 30.0
PRUNING_S = 0.05
_EVICTING = "evicting artifacts"


class Maintenance:
    def __init__(self, access: NodeAccess, environment: Environment, emit: Emit) -> None:
        self._access, self._environment, self._blobs, self._emit = access, environment, access.blobs, emit
        self._troubles = Troubles(emit, environment.monotonic)
        self._clear_at = environment.monotonic() + CLEAR_S
        self._erased: set[bytes] = set()
        self._trim_at = environment.monotonic() + TRIM_S
        self._prune_at = environment.monotonic() + PRUNE_S
        self._has_to_prune = False

    async def run(self) -> None:
        """Runs until it is cancelled. Each part of a round runs separately, so that a failure does not stop the
        others.
        """
        parts = (
            ("admitting the ops whose time has come", self._release),
            (_EVICTING, self._evict),
            ("deleting what was erased", self._erase),
            ("deleting unused blobs", self._clear),
            ("giving back disk space", self._trim),
            ("keeping checkpoints", self._keep_checkpoints),
            ("letting go what the log need not keep", self._prune),
        )
        while True:
            await asyncio.sleep(ROUND_S * self._environment.chance.uniform(0.8, 1.2))
            for name, part in parts:
                try:
                    with self._troubles.contained(name, name):
                        if not self._troubles.is_resting(name):
                            await part()
                except StoreError as error:
                    self._emit(StoreUnavailable(str(error)))
                    break  # the other parts would fail the same way

    async def _release(self) -> None:
        log = self._access.log
        await self._access.call(lambda: log.release(accepting.accept))

    async def _evict(self) -> None:
        access, log = self._access, self._access.log

        def is_due(session: Session) -> bool:
            return artifacts.is_due(session, log.permissions(session), log.node, self._now(session))

        if not await access.peek(is_due):
            return
        if not await artifacts.maintenance(access, self._blobs, self._troubles):
            # It stays due, and trying each second would cost a transaction each time.
            self._troubles.tell(_EVICTING, EvictionNotAllowed())

    async def _erase(self) -> None:
        """Deletes the content of jobs that were erased since, here or by an op from another node; at first of all."""
        access, blobs = self._access, self._blobs
        erased = set(await access.peek(erasing.erased_jobs)) - self._erased
        if not erased:
            return
        for job_id in await access.call(lambda: erasing.has_content(access.log.store, blobs, sorted(erased))):
            await access.run(lambda tx, job_id=job_id: erasing.remove_content(tx, blobs, job_id, self._troubles))  # type: ignore[misc]
        self._erased |= erased

    async def _clear(self) -> None:
        if self._environment.monotonic() >= self._clear_at:
            self._clear_at = self._environment.monotonic() + CLEAR_S
            store, blobs, troubles = self._access.log.store, self._blobs, self._troubles
            await self._access.call(lambda: artifacts.clear(store, blobs, troubles=troubles))

    async def _trim(self) -> None:
        if self._environment.monotonic() >= self._trim_at:
            has_more = await self._access.call(self._access.log.store.trim)
            self._trim_at = self._environment.monotonic() + (0.0 if has_more else TRIM_S)

    async def _keep_checkpoints(self) -> None:
        """Reads the log on for a part of each round, so that a long log holds up nothing else."""
        keeper, until = self._access.log.checkpoints, self._environment.monotonic() + CHECKPOINTS_S
        has_more = True
        while has_more and self._environment.monotonic() <= until:
            has_more, events = await self._access.call(keeper.step)
            for event in events:
                self._emit(event)

    async def _prune(self) -> None:
        """Follows the horizon for a part of each round. Now and then, looks whether it is to be moved, and whether ops
        of this node came too late for it.
        """
        log, now = self._access.log, self._environment.monotonic()
        keeper = log.horizons
        if now >= self._prune_at:
            self._prune_at = now + PRUNE_S
            await self._access.call(keeper.move_if_due)
            await self._access.call(lambda: write_late_again(log))
            self._has_to_prune = True
        while self._has_to_prune and self._environment.monotonic() <= now + PRUNING_S:
            self._has_to_prune, events = await self._access.call(keeper.step)
            for event in events:
                self._emit(event)

    def _now(self, session: OpSession) -> int:
        return max(session.head().wall, self._environment.physical_ms())


COMPARE_S = 5.0


class ClockWatch:
    """`clock` is None where time is simulated: then there is nothing to compare."""

    def __init__(self, access: NodeAccess, environment: Environment, clock: MachineClock | None, emit: Emit) -> None:
        self._access, self._environment, self._clock, self._emit = access, environment, clock, emit

    async def run(self) -> None:
        """Runs until it is cancelled. A clock that is off at two looks in a row is reported: when the machine's clock
        is set, the other processes may notice a moment later.
        """
        clock = self._clock
        was_off = has_told = False
        while clock is not None:
            off_ms = await self._access.call(lambda: clock.compare(vouch=True))
            if off_ms and was_off and not has_told:
                self._emit(ClockDisagrees(off_ms))
            has_told = bool(off_ms) and (has_told or was_off)
            was_off = bool(off_ms)
            await asyncio.sleep(COMPARE_S * self._environment.chance.uniform(0.8, 1.2))


class SharedPresence:
    def __init__(self, access: NodeAccess, environment: Environment) -> None:
        self._access, self._environment = access, environment

    async def run(self) -> None:
        """Runs until it is cancelled; ends at once if no other node shares the store."""
        while self._access.log.is_shared:
            await self._access.call(self._say)
            await asyncio.sleep(BEAT_S * self._environment.chance.uniform(0.8, 1.0))

    def _say(self) -> None:
        log, environment = self._access.log, self._environment
        with log.store.read() as session:
            own = own_presence(session, environment.liveness, log, environment.hardware)
        with log.store.write() as session:
            session.drop_presence(own.heard_ms - KEPT_MS, own.heard_ms + AHEAD_MS)
            session.put_presence(own.row)


# How often a process checks whether a sweep is due while a job is claimed, and otherwise. A dead process's jobs restart
# within this time.
SWEEP_S = 0.25
SWEEP_QUIET_S = 1.0
EXPIRED_MAX = 500
# How often the claims are compared with the workers while no worker comes or goes: many workers hold many jobs.
CLAIMS_S = 1.0
# After this process has found the store away, it expires no lease for so long: the holders could not renew, and have
# results to deliver. They try the store again at least every few seconds (`lease.STORE_PAUSE_S_MAX`).
RETURN_S = 15.0
# How often some of the jobs that wait for others are looked at, and how many.
BLOCKED_EVERY_MS = 5_000
BLOCKED_AT_ONCE = 500


class Sweep:
    """Returns the jobs of dead processes to the queue, expires leases past their deadline, ends jobs that no worker
    began in time or that wait for a job that did not succeed, and submits the jobs of due schedules. All of it is one
    transaction; if that fails, each part gets a transaction of its own, so that one bad job or schedule does not stop
    the others. Returned jobs are reported when the transaction is durable.
    """

    def __init__(self, troubles: Troubles, emit: Emit) -> None:
        self._troubles = troubles
        self._emit = emit
        self._next_ticks: dict[tuple[bytes, int], int | None] = {}
        self._looked_at: JobEntry | None = None
        self._look_again_at = 0
        self._hopeless: list[JobEntry] = []
        self.due_ms = 0
        """When a lease, a time to begin or a tick is due next, as far as the last look knew."""
        self.spares_leases = False
        """Whether leases that are past their deadline stay for now."""

    def is_due(self, session: Session, now: int) -> bool:
        """Whether a lease is past its deadline, a job was not begun in time or waits in vain, or a schedule has a tick
        without a job.
        """
        times = (None if self.spares_leases else session.next_deadline(), session.next_begin_by())
        self._look_at_blocked(session, now)
        is_late = any(each is not None and each < now for each in times)
        has_tick = bool(self._due(session, now))
        self.due_ms = min((each for each in (*times, *self._next_ticks.values()) if each is not None), default=NEVER)
        return is_late or bool(self._hopeless) or has_tick

    def _look_at_blocked(self, session: Session, now: int) -> None:
        """Looks at some of the blocked jobs, and at those that follow the next time."""
        self._hopeless = []
        if now < self._look_again_at:
            return
        self._look_again_at = now + BLOCKED_EVERY_MS
        page = session.blocked(BLOCKED_AT_ONCE, self._looked_at)
        self._looked_at = page[-1] if len(page) == BLOCKED_AT_ONCE else None
        self._hopeless = [entry for entry in page if rescue.lost_dependency(session, entry) is not None]

    def _due(self, session: Session, now: int) -> list[Schedule]:
        """The next tick of each schedule is computed once, because a check four times a second must be cheap, however
        many schedules there are. A tick that overlaps the last job is skipped: the schedule is due at the one after.
        """
        known, self._next_ticks = self._next_ticks, {}
        due = []
        for each in session.schedules():
            key = each.op, each.last_tick
            tick = known[key] if key in known else cron.next_tick(each, each.last_tick)
            self._next_ticks[key] = tick
            if tick is None or tick > now or self._troubles.is_resting(each.op):
                continue
            newest, last = cron.last_tick(each, now), session.job(cron.last_job_id(each))
            if newest is not None and cron.is_overlapped(each, newest, None if last is None else last.job):
                self._next_ticks[key] = cron.next_tick(each, now)
            else:
                due.append(each)
        return due

    def __call__(self, tx: Transaction, dead: set[int]) -> list[Event]:
        """`dead` are worker processes of this node that were found dead. Returns what to report after the commit."""
        told = self._reclaim(tx, dead)
        if not self.spares_leases:
            rescue.expire(tx, EXPIRED_MAX, _reporter(told))
        rescue.end_unbegun(tx, EXPIRED_MAX)
        rescue.end_hopeless(tx, self._hopeless)
        for schedule in self._due(tx.session, tx.now):
            self._tick(tx, schedule)
        return told

    async def one_by_one(self, access: NodeAccess, dead: set[int]) -> None:
        with self._troubles.contained("reclaim", "returning the jobs of dead worker processes"):
            self.report(await access.run(lambda tx: self._reclaim(tx, dead)))
        with self._troubles.contained("expire", "looking for expired leases"):
            for job_id in [] if self.spares_leases else await access.run(_overdue):
                with self._troubles.contained(job_id, "expiring job", job_id):
                    self.report(await access.run(lambda tx, job_id=job_id: _expire_one(tx, job_id)))  # type: ignore[misc]
        with self._troubles.contained("unbegun", "ending jobs that no worker began in time"):
            await access.run(lambda tx: rescue.end_unbegun(tx, EXPIRED_MAX))
        with self._troubles.contained("hopeless", "ending jobs that wait for a job that did not succeed"):
            await access.run(lambda tx: rescue.end_hopeless(tx, self._hopeless))
        with self._troubles.contained("schedules", "looking for due schedules"):
            for schedule in await access.run(lambda tx: self._due(tx.session, tx.now)):
                with self._troubles.contained(schedule.op, f"schedule {schedule.name!r}"):
                    await access.run(lambda tx, schedule=schedule: self._tick(tx, schedule))  # type: ignore[misc]

    def report(self, events: list[Event]) -> None:
        for event in events:
            self._emit(event)

    def _reclaim(self, tx: Transaction, dead: set[int]) -> list[Event]:
        told: list[Event] = []
        if lost := rescue.reclaim(tx, dead, _reporter(told)):
            told.append(JobsReclaimed(lost))
        return told

    def _tick(self, tx: Transaction, schedule: Schedule) -> None:
        cron.make_tick(tx, schedule, self._untold)

    def _untold(self, schedule: Schedule, why: str) -> None:
        self._troubles.tell(schedule.op, ScheduleSkipped(schedule.name, why))


class SweepLoop:
    """Sweeps whenever something is due. Run it once in each long-running process."""

    def __init__(
        self, access: NodeAccess, environment: Environment, emit: Emit, quiet_s: float = SWEEP_QUIET_S
    ) -> None:
        self._access, self._environment, self._emit, self._quiet_s = access, environment, emit, quiet_s
        self._troubles = Troubles(emit, environment.monotonic)
        self._sweep = Sweep(self._troubles, emit)
        self._spares_until = 0.0
        self._round_s = SWEEP_S
        self._alive: set[int] = set()
        self._claims_at = -math.inf

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            await asyncio.sleep(self._round_s * self._environment.chance.uniform(0.8, 1.2))
            await self.look()

    async def look(self) -> None:
        """Sweeps if something is due."""
        self._sweep.spares_leases = self._environment.monotonic() < self._spares_until
        try:
            with self._troubles.contained("round", "checking whether a sweep is due"):
                dead = await self._access.peek(self._survey)
                if dead is not None:
                    await self._all(dead)
                    self._environment.liveness.forget(dead)
        except StoreError as error:
            self._spares_until = self._environment.monotonic() + RETURN_S
            self._emit(StoreUnavailable(str(error)))

    def _survey(self, session: Session) -> set[int] | None:
        """Which worker processes of this node have died; None if neither they, nor a lease, nor a schedule needs a
        sweep.
        """
        if not self._access.log.lead.may_decide(session):
            return None  # the coordinator says so itself
        now_ms = max(session.head().wall, self._environment.physical_ms())
        node = self._access.log.node
        workers = session.workers(node.to_bytes(8, "big"))
        dead = self._environment.liveness.dead(workers)
        dead -= kept_by_leases(session, (each for each in workers if each.number in dead))
        alive, before = {each.number for each in workers} - dead, self._alive
        lost, now, self._alive = False, self._environment.monotonic(), alive
        if alive != before or now >= self._claims_at:
            lost = any(e.job.claimer == node and e.worker not in alive for e in session.claimed())
            self._claims_at = -math.inf if lost else now + CLAIMS_S
        is_due = self._sweep.is_due(session, now_ms)
        due_s = (self._sweep.due_ms - now_ms) / 1000
        is_claimed = session.next_deadline() is not None
        self._round_s = SWEEP_S if is_claimed else max(SWEEP_S, min(self._quiet_s, due_s))
        return dead if lost or dead or is_due else None

    async def _all(self, dead: set[int]) -> None:
        try:
            self._sweep.report(await self._access.run(lambda tx: self._sweep(tx, dead)))
        except StoreError:
            raise
        except Exception as error:
            self._troubles.tell("sweep", BatchFailed("a sweep", described(error)))
            await self._sweep.one_by_one(self._access, dead)


def _reporter(events: list[Event]) -> rescue.Rescued:
    return lambda job, reason: events.append(JobRescued(ulid_text(job.id), job.kind, job.fence, reason))


def _expire_one(tx: Transaction, job_id: bytes) -> list[Event]:
    told: list[Event] = []
    rescue.expire_one(tx, job_id, _reporter(told))
    return told


def _overdue(tx: Transaction) -> list[bytes]:
    return [entry.job.id for entry in tx.session.overdue(tx.now, EXPIRED_MAX)]
