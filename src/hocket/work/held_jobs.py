"""The jobs that a worker holds: their runs, from the claim until the end is on the log. It starts runs, tells which of
them must be renewed, checked or returned, and stops those whose lease is lost. The worker decides when to look.
"""

import asyncio
import functools
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress

import msgspec

from hocket.bus.hints import IDLE, Changes, about
from hocket.errors import StoreError
from hocket.events import Emit, listens
from hocket.events.jobs import JobClaimed, JobRunsAlone, LeaseLost, RunStarted
from hocket.events.troubles import Troubles
from hocket.families import lease
from hocket.families.jobs import progress
from hocket.families.jobs.requests import Claim, Held, Spare
from hocket.families.jobs.rules import RETURN_REST_MS, RETURN_REST_MS_MAX, UNSTARTED, Job
from hocket.families.jobs.tracing import tracer
from hocket.kernel.arbitration import Reason
from hocket.kernel.policy import run_options
from hocket.kernel.retrying import backoff_ms
from hocket.work.batch import Batch
from hocket.work.context import Context
from hocket.work.handler_threads import HandlerThreads
from hocket.work.handlers import Handlers
from hocket.work.run_outputs import RunServices
from hocket.work.runner import Run

# Runs that have ended and are not on the log yet, with those that may end before the next commit; with more slots, as
# many as there are slots. When the worker is killed, only these are run again.
ENDED_MAX = 32
# Work queued behind each slot, beyond what runs: enough to keep a slot busy during a commit.
AHEAD_S = 0.05
# Jobs are claimed ahead only if they begin within this time, by what a job has taken until it was on the log.
BEGUN_S = 0.25
# One thread executes runs that take less than this, unless one of them goes on for so long.
QUICK_S = 0.0001
SPREAD_S = 0.002
# A job that waits this long behind a slow one goes back, so that a free worker can take it.
QUEUED_MAX_S = 1.0
# How long a worker goes by it that another one has said to be idle. An idle worker says so again within this time.
OTHERS_IDLE_S = 2.5
# A run younger than this is not checked for having been cancelled: it will be over before that matters.
YOUNG_S = 0.05
# Checkpoints are at least this far apart, and at least a hundredth of the time that the run has taken: a long run then
# leaves hundreds of them on the log and not thousands, and a worker that dies loses about a hundredth of its work.
CHECKPOINT_S = 0.5
CHECKPOINT_SHARE = 0.01
# A run is checked this often without a hint, because a hint can be lost.
CHECK_S = 5.0


class HeldJobs:
    """`runner` runs the handlers, `kit` makes what a run of a kind needs, `ahead_max` is how many jobs may be held
    beyond those that run. `begun` is called with each job that it begins. `node` is the node's id, for traces.
    """

    def __init__(
        self,
        handlers: Handlers,
        runner: HandlerThreads,
        kit: Callable[[str], RunServices],
        ahead_max: int,
        troubles: Troubles,
        emit: Emit,
        monotonic: Callable[[], float],
        begun: Callable[[Job], None] = lambda job: None,
        node: int = 0,
    ) -> None:
        self._node, self._tracer = node, tracer()
        self._handlers, self._runner, self._kit, self._ahead_max = handlers, runner, functools.cache(kit), ahead_max
        self._troubles, self._emit, self._monotonic, self._begun = troubles, emit, monotonic, begun
        self.runs: dict[bytes, Run] = {}
        """The runs by job."""
        self.ended: deque[Run] = deque()
        """Runs that have ended, and are not on the log yet. Other threads append to it."""
        self.spare: list[Spare] = []
        """Holds to give back."""
        self.handed_over_at = 0.0
        """When runs were last handed over to the threads."""
        self._waiting: deque[Run] = deque()
        self._waiting_due = math.inf
        self._handed_over: dict[bytes, Run] = {}
        self._alone: list[Run] = []
        self._untold: list[Run] = []
        self.pace_s = AHEAD_S
        """How long a run takes, by those that ended lately."""
        self._logged_s = 0.0
        self._logged_at = 0.0
        self._others_idle: Changes | None = None
        self._others_idle_until = 0.0
        self._moved_at = monotonic()
        self._stalls = 0
        self._rests_until = 0.0
        self._watch: asyncio.TimerHandle | None = None
        self._watch_at = 0.0
        self._spreading: asyncio.TimerHandle | None = None

    # Beginning.

    def begin(self, claims: Iterable[Claim], before: float) -> None:
        """Holds jobs whose claims were requested after `before`; `hand_over` starts them. One that cannot be started
        goes back.
        """
        is_heard = listens(self._emit, JobClaimed)
        for claim in claims:
            try:
                self._begin(claim, before, is_heard)
            except StoreError:
                raise
            except Exception as error:
                self._troubles.failed(claim.job.id, "starting job", error, claim.job.id)
                if (run := self.runs.get(claim.job.id)) is not None:
                    self.drop(run)
                self.give_back(claim, "the worker could not start it")

    def give_back(self, claim: Claim, reason: str = UNSTARTED) -> None:
        assert claim.job.claim_op is not None
        self.spare.append(Spare(Held(claim.job.id, claim.job.claim_op), reason))

    def _begin(self, claim: Claim, before: float, is_heard: bool) -> None:
        job_type = self._handlers.find(claim.job.kind)
        assert job_type is not None
        policy = run_options(claim.job.policy, job_type.options)
        if policy is not claim.job.policy:
            claim = claim._replace(job=msgspec.structs.replace(claim.job, policy=policy))
        job = claim.job
        lease_ms = job.policy.lease_ms or job_type.lease_ms
        if job.policy.lease_beats is not None and job.deadline is not None:
            lease_ms = max(1, job.deadline - job.last.wall)
        run = Run(claim, job_type, lease_ms, before, self._kit(job.kind), Context)
        if (earlier := self.runs.get(job.id)) is not None:
            self._replace(earlier)
        self.runs[job.id] = run
        if self._tracer is not None:
            run.trace = self._tracer.run(run.job, self._node)
        if is_heard:
            waited_ms = job.last.wall - max(job.scheduled.wall, job.ready_at)
            waited_s = max(0, waited_ms) / 1000 if job.fence == 1 else None
            self._emit(JobClaimed(run.job_id, job.kind, job.fence, waited_s))
        if run.is_alone:
            self._alone.append(run)
            is_isolated = self.isolates(run.job.kind)
            self._emit(JobRunsAlone(run.job_id, run.job.kind, run.job.fence, claim.deaths, is_isolated))
        self._begun(job)
        if run.timeout_s <= 0:
            self._handed_over[job.id] = run
            self._untold.append(run)
            self._runner.refuse(run)
            return
        self._waiting.append(run)
        self._waiting_due = min(self._waiting_due, run.lease.renews_at, run.waits_since + QUEUED_MAX_S)
        self._watch_leases(run.lease.ends_at)

    def _replace(self, earlier: Run) -> None:
        """The worker has claimed a job again that it holds: the earlier claim was lost, and no hint has come yet."""
        if not earlier.revoke():
            self.lose(earlier, Reason.STALE_CLAIM.sentence)
        self.drop(earlier)

    def hand_over(self) -> None:
        """Gives the next runs to the threads, together: as many as may end without being on the log."""
        room = max(ENDED_MAX, self._runner.slots) - len(self._handed_over)
        if room <= 0 or not self._waiting:
            return
        batch = [self._waiting.popleft() for _ in range(min(room, len(self._waiting)))]
        now = self._monotonic()
        if not self._handed_over:
            self._logged_at = now
        self.handed_over_at = now
        for run in batch:
            self._handed_over[run.job.id] = run
        if listens(self._emit, RunStarted):
            self._untold += batch
        are_quick = self.pace_s < QUICK_S
        self._runner.start_all(batch, are_quick)
        if are_quick and self._spreading is None and self._runner.slots > 1:
            self._spread_later()

    def _spread_later(self) -> None:
        self._spreading = asyncio.get_running_loop().call_later(SPREAD_S, self._spread)

    def _spread(self) -> None:
        self._spreading = None
        if not self._runner.spread(SPREAD_S):
            self._spread_later()

    def drop(self, run: Run) -> None:
        """The run is no longer this worker's."""
        if self.holds(run):
            del self.runs[run.job.id]
        if self._handed_over.get(run.job.id) is run:
            del self._handed_over[run.job.id]
        else:
            with suppress(ValueError):
                self._waiting.remove(run)

    def logged(self, ended: Sequence[Run]) -> None:
        """The ends of these runs are on the log."""
        if ended:
            now = self._monotonic()
            self._logged_s += ((now - self._logged_at) / len(ended) - self._logged_s) * 0.3
            self._logged_at = now

    def _tell_starts(self) -> None:
        """Handlers start in other threads. Events are emitted in this one, so a start is reported at the next turn."""
        for run in self._untold:
            if run.started_at is not None:
                self._emit(RunStarted(run.job_id, run.job.kind, run.job.fence))
        self._untold = [run for run in self._untold if run.started_at is None and self.holds(run)]

    def holds(self, run: Run) -> bool:
        return self.runs.get(run.job.id) is run

    def soon_ended(self, within_s: float) -> int:
        """How many runs will have ended after this time, if they are as quick as those before: all that were handed
        over, less those that have taken longer already; 0 if the others are expected to take longer.
        """
        since = self._monotonic() - within_s
        slow = sum(
            run.ended_at is None and run.started_at is not None and run.started_at < since
            for run in self._handed_over.values()
        )
        quick = len(self._handed_over) - slow
        left = quick - len(self.ended)
        return 0 if left * self.pace_s / max(1, self._runner.slots) > within_s else quick

    # What is due.

    def due(self, now: float, is_stopping: bool, doubted_at: float) -> Batch:
        """What the next turn has to put on the log about the held jobs. Runs that were last checked before `doubted_at`
        are checked.
        """
        if self._watch is not None and now >= self._watch_at:
            self._look_at_leases()
        self._tell_starts()
        ended = self._take_ended(now)
        over = {run.job.id for run in ended}
        current = [run for run in self._handed_over.values() if run.job.id not in over]
        if is_stopping or now >= self._waiting_due:
            current += self._waiting
        unstarted = [
            run
            for run in current
            if run.started_at is None and (is_stopping or self._overstayed(run, now)) and run.revoke()
        ]
        if unstarted and not is_stopping and len(self.runs) - len(over) - len(unstarted) < self._runner.slots:
            self._stalled(now)
        if self._others_idle is not None and not is_stopping:
            unstarted += self._unshared(now, {*over, *(run.job.id for run in unstarted)})
        gone = {run.job.id for run in unstarted}
        live = [run for run in current if run.job.id not in gone and not run.stopped]
        renewals = lease.to_renew(live, now)
        for run in renewals:
            run.lease_ms = round(run.lease.next_s(now) * 1000)
        if now >= self._waiting_due:
            self._waiting_due = min((_due_at(run, now) for run in self._waiting), default=math.inf)
        notes = [note for run in live if (note := progress.due_note(run, now)) is not None]
        checkpoints = [(run, state) for run in live if (state := _checkpoint(run, now)) is not None]
        checked = max(doubted_at, now - CHECK_S)
        doubtful = [run for run in live if run.checked_at < checked and now - (run.started_at or now) > YOUNG_S]
        return Batch(ended, unstarted, list(self.spare), renewals, notes, checkpoints, doubtful)

    def _take_ended(self, now: float) -> list[Run]:
        popped = [self.ended.popleft() for _ in range(len(self.ended))]
        ended = [run for run in dict.fromkeys(popped) if self.holds(run)]
        for run in ended:
            assert run.started_at is not None and run.ended_at is not None
            # Not from its start: to wake a thread takes longer than a quick run.
            self.pace_s += (run.ended_at - (run.entered_at or run.started_at) - self.pace_s) * 0.1
        if ended:
            self._moved_at, self._stalls, self._rests_until = now, 0, 0.0
        return ended

    def hear_idle(self, kinds: Changes) -> None:
        """Another worker has a free slot and found no job of these kinds, the subjects of the changes. What waits here
        for longer than a moment goes back, and no more than that is claimed, for a while.
        """
        self._others_idle, self._others_idle_until = kinds, self._monotonic() + OTHERS_IDLE_S

    def _unshared(self, now: float, gone: Set[bytes]) -> list[Run]:
        """The runs that go back because another worker is idle: those that would not begin in a moment."""
        if now >= self._others_idle_until or self._others_idle is None:
            self._others_idle = None
            return []
        queued = [run for run in self._handed_over.values() if run.started_at is None and run.job.id not in gone]
        waiting = [run for run in self._waiting if run.job.id not in gone]
        late = [*queued, *waiting][self._ahead(now) :]
        return [run for run in late if about(IDLE, run.job.kind.encode()).matches(self._others_idle) and run.revoke()]

    def _stalled(self, now: float) -> None:
        """Slots are free and yet nothing starts. The worker claims more and more rarely until a run ends: what it
        claims only goes back.
        """
        self._stalls += 1
        self._rests_until = now + backoff_ms(self._stalls, RETURN_REST_MS, RETURN_REST_MS_MAX) / 1000

    def _overstayed(self, run: Run, now: float) -> bool:
        return now >= run.waits_since + QUEUED_MAX_S or now >= run.lease.ends_at

    def put_back(self, turn: Batch) -> None:
        """The turn could not be put on the log: what it took is due again."""
        self.ended.extendleft(reversed(turn.ended))
        self._waiting_due = -math.inf
        for note in turn.notes:
            progress.put_back(note)
        for run, state in turn.checkpoints:
            run.checkpoint, run.kept_checkpoint = run.checkpoint or state, None

    def next_step_at(self, now: float, latest: float) -> float:
        """When a handler has to be told to stop, if that is before `latest`: phrases end on their beat."""
        steps = (run.next_step()[0] for run in self._handed_over.values())
        return min((due for due in steps if now < due < latest), default=latest)

    @property
    def due_at(self) -> float:
        """When the next lease has to be renewed, or the next job that waits has to go back."""
        renewals = (run.lease.renews_at for run in self._handed_over.values() if not run.stopped)
        is_sharing = self._others_idle is not None and len(self.runs) > self._runner.slots
        looks = self._monotonic() + AHEAD_S if is_sharing else math.inf
        return min((self._waiting_due if self._waiting else math.inf, looks, *renewals))

    @property
    def has_free_slot(self) -> bool:
        return len(self.runs) < self._runner.slots

    def isolates(self, kind: str) -> bool:
        """Whether a job of that kind runs in a process of its own if it must be alone."""
        job_type = self._handlers.find(kind)
        return (job_type is not None and job_type.is_isolated) or self._runner.isolates(kind)

    def shortest_lease_s(self) -> float:
        """The shortest lease that is held; infinity for none. Any thread may call this."""
        return min((run.lease_ms / 1000 for run in list(self.runs.values())), default=math.inf)

    def room(self, now: float, more: int = 0) -> int:
        """How many more jobs to claim, if so many `more` than now are held: one for each slot, and ahead of that as
        much as begins in a moment, going by the runs that ended and by how long none has. Jobs are claimed ahead
        together, when half of them have begun. No other job is held beside a run that must be alone.
        """
        if now < self._rests_until:
            return 0
        if self._alone:
            self._alone = [run for run in self._alone if self.holds(run)]
            if any(not self.isolates(run.job.kind) for run in self._alone):
                return 0
        slots = self._runner.slots
        if len(self.runs) < slots:
            self._moved_at = now
        ahead = self._ahead(now)
        held = len(self.runs) + more
        return 0 if ahead and held >= slots + (ahead + 1) // 2 else slots + ahead - held

    def _ahead(self, now: float) -> int:
        """How many jobs to hold beyond those that run. If commits are slow, few of them must end many runs, so a commit
        has work for the next one, unless another worker is idle.
        """
        pace, logged_s = max(self.pace_s, now - self._moved_at, 1e-6), max(self._logged_s, 1e-6)
        by_log = max(ENDED_MAX, int(BEGUN_S / logged_s)) if self._others_idle is None else int(AHEAD_S / logged_s)
        return min(self._ahead_max, int(self._runner.slots * AHEAD_S / pace), by_log)

    def kinds(self) -> Mapping[str, int]:
        """How many jobs of each kind are held. Call it while a turn is under way: no run comes or goes then."""
        return Counter(run.job.kind for run in self.runs.values())

    # Keeping and ending.

    def renewed(self, run: Run, before: float, decision: Job | Reason) -> None:
        """The decision about a renewal that was requested after `before`."""
        if not self.holds(run):
            return
        if isinstance(decision, Reason):
            self.lose(run, decision.sentence)
        elif decision.claim_op != run.held.claim_op or decision.deadline is None:
            self.lose(run, Reason.STALE_CLAIM.sentence)
        else:
            run.lease.renewed(run.lease_ms / 1000, before)
            self._waiting_due = min(self._waiting_due, _due_at(run))
            run.deadline_ms = decision.deadline
            self._runner.renewed(run)

    def renewal_failed(self, run: Run) -> None:
        """The outcome of a renewal is unknown."""
        run.lease.try_again(self._monotonic())
        self._waiting_due = min(self._waiting_due, _due_at(run))

    def lose(self, run: Run, why: str) -> None:
        if not run.stopped:
            self._emit(LeaseLost(run.job_id, why))
            self._runner.stop(run)

    def _watch_leases(self, until: float) -> None:
        """Stops handlers when their leases run out, whatever the loop is waiting for."""
        if self._watch is None or until < self._watch_at:
            if self._watch is not None:
                self._watch.cancel()
            self._watch_at = until
            delay_s = max(0.0, until - self._monotonic())
            self._watch = asyncio.get_running_loop().call_later(delay_s, self._look_at_leases)

    def _look_at_leases(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        now = self._monotonic()
        live = [run for run in self.runs.values() if not run.stopped and run.ended_at is None]
        for run in lease.run_out(live, now):
            if not run.revoke():
                self._emit(LeaseLost(run.job_id, "the lease ran out here"))
                self._runner.stop(run)
        following = min((run.lease.ends_at for run in live if now < run.lease.ends_at), default=None)
        if following is not None:
            self._watch_leases(following)

    def end_all(self) -> None:
        """Stops every handler; the jobs go back."""
        for run in list(self.runs.values()):
            if run in self.ended:
                continue
            if not run.stopped:
                self._runner.stop(run)
            run.started_at = run.started_at or self._monotonic()
            run.end(self._monotonic())
            self.ended.append(run)

    def abandon(self) -> None:
        """The worker ends. It holds no job then, unless it ends with an error: then the other workers return its
        jobs.
        """
        for timer in (self._watch, self._spreading):
            if timer is not None:
                timer.cancel()
        for run in self.runs.values():
            if not run.revoke() and not run.stopped:
                self._runner.stop(run)


def _due_at(run: Run, after: float = -math.inf) -> float:
    """When a run that waits has to be renewed or given back; only times after this one count."""
    times = run.lease.renews_at, run.lease.ends_at, run.waits_since + QUEUED_MAX_S
    due = min(times)
    return due if due > after else min((each for each in times if each > after), default=math.inf)


def interval_s(running_s: float) -> float:
    """How long after a checkpoint the next one is stored."""
    return max(CHECKPOINT_S, running_s * CHECKPOINT_SHARE)


def _checkpoint(run: Run, now: float) -> bytes | None:
    if run.checkpoint is None or now - run.checkpoint_at < interval_s(now - (run.started_at or now)):
        return None
    if not all([pacer.may_save() for pacer in run.pacers.values()]):
        return None
    state, run.checkpoint = run.checkpoint, None
    run.kept_checkpoint, run.checkpoint_at = state, now
    return state
