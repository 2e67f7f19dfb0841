"""A worker for the jobs of a git repository. It claims jobs that its owner allows, runs them with the same runner as
any other command, renews its claims while they run, and pushes the results. The repository decides who holds a job; the
node's own log has a job for each hold, with the same evidence and the same proof.
"""

import random
import shlex
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple

from hocket.errors import Failed, HocketError, NotAuthorised, StoreError, StoreLocked, Unreachable
from hocket.events import Emit
from hocket.events.jobs import (
    GitRunFailed,
    GitUnavailable,
    JobSkipped,
    LeaseLost,
    RunFailed,
    RunFinished,
    RunStarted,
)
from hocket.extensions.command.job import RUN_S_MAX, Commands, result
from hocket.extensions.command.manifest import canonical
from hocket.extensions.command.proofs import GIT_KIND, NOTHING
from hocket.extensions.git import git_jobs, holding
from hocket.extensions.git.git import QUOTE
from hocket.extensions.git.git_jobs import GitJob, GitOrder, JobRefs
from hocket.extensions.git.holding import ClaimWatch, HeldClaim, RunningClaim
from hocket.extensions.git.plane import Plane
from hocket.extensions.git.results import BLOBS_BYTES_MAX, state_of
from hocket.families import lease
from hocket.families.availability.facts import Availability
from hocket.families.jobs import claiming, rescue
from hocket.families.jobs import requests as log_jobs
from hocket.families.jobs.requests import Draft
from hocket.families.jobs.rules import State
from hocket.families.liveness import BEAT_S, SignOfLife
from hocket.kernel.ids import hash_text, ulid_text
from hocket.kernel.policy import Policy
from hocket.kernel.retrying import GIT_RETRIES, RACE_RETRIES, STORE_RETRIES
from hocket.log import Log, Transaction
from hocket.log.projectors import availability_of
from hocket.work.batch import settle
from hocket.work.context import Context
from hocket.work.environment import Environment
from hocket.work.handlers import JobType
from hocket.work.presence import Serving, serving_text
from hocket.work.run_outputs import RunServices
from hocket.work.runner import Run

# How often the refs are listed without a hint: rarely enough for a server that is not ours.
LISTED_EVERY_S = 2.0
ROUND_S = 0.2
# On the log a hold lasts as long as a command can: only the lease in the repository counts.
LEASE_MS = (RUN_S_MAX + 3_600) * 1000
# With --until-idle, how long a worker waits for an unreachable repository.
PATIENCE_S = 60.0
SWEEP_MAX = 500
# How long a result is pushed again that the repository refuses.
REFUSED_S_MAX = 600.0


class Parts(NamedTuple):
    """What a git worker needs from its node."""

    log: Log
    environment: Environment
    kit: RunServices
    commands: Commands


class Known(NamedTuple):
    """What this worker knows about a job: its commit, and its manifest, unless the job is not for this worker."""

    commit: str
    order: GitOrder | None


class GitWorker:
    """Run it once. `stop` lets running commands finish; a second `stop` stops them."""

    def __init__(
        self,
        plane: Plane,
        parts: Parts,
        worker: holding.GitWorkerKey,
        *,
        concurrency: int,
        until_idle: bool,
        emit: Emit,
        finished: Callable[[bytes, str, str], None],
    ) -> None:
        self._plane = plane
        self._parts = parts
        self._worker = worker
        self._concurrency = concurrency
        self._until_idle = until_idle
        self._emit = emit
        self._finished = finished
        self._monotonic = parts.environment.monotonic
        self._chance: random.Random = parts.environment.chance
        self._alive: set[str] = set()
        self._watch = ClaimWatch(worker.key.public, lambda process: process in self._alive, self._monotonic)
        self._known: dict[bytes, Known] = {}
        self._unfit: set[bytes] = set()
        self._damaged: dict[bytes, str] = {}
        self._running: dict[Future[None], RunningClaim] = {}
        self._sign: SignOfLife
        self._wake = threading.Event()
        self._stops = 0
        self._losses = 0
        self._failures = 0
        self._has_listed = False
        self._told: dict[str | None, str] = {}
        self._reached_at = self._monotonic()
        self.succeeded = 0
        self.failed = 0
        self.lost = 0

    def stop(self) -> None:
        self._stops += 1
        self._wake.set()

    def wake(self) -> None:
        """Makes the worker look for jobs sooner."""
        self._wake.set()

    def run(self) -> None:
        parts = self._parts
        self._sign = parts.environment.liveness.announce(self._worker.process)
        self._sign.serves = serving_text([Serving((GIT_KIND,))])
        parts.environment.liveness.forget(self._join())
        over = threading.Event()
        beside = [
            threading.Thread(target=each, args=(over,), name=f"hocket-git-{name}", daemon=True)
            for name, each in (("leases", self._watch_leases), ("beat", self._beat))
        ]
        for thread in beside:
            thread.start()
        try:
            with ThreadPoolExecutor(self._concurrency, "hocket-git") as slots:
                self._rounds(slots)
        finally:
            over.set()
            for thread in beside:
                thread.join()
            with suppress(StoreError):
                parts.log.run(lambda tx: tx.session.drop_worker(self._sign.number))
            self._sign.close()

    def _join(self) -> set[int]:
        """Registers this process. If another process holds up every writer, it waits until that has passed."""
        failures = 0
        while True:
            try:
                return self._parts.log.run(self._register)
            except StoreLocked as error:
                if self._stops:
                    raise
                self._tell_once(str(error))
            failures += 1
            self._wake.wait(STORE_RETRIES.delay_s(failures, self._chance.random()))

    def _register(self, tx: Transaction) -> set[int]:
        """Registers this process with the node, and cancels the log jobs of dead processes: the repository decides who
        continues them. Returns the pids of the dead processes.
        """
        self._sign.beat(tx)
        dead = self._parts.environment.liveness.dead(tx.session.workers(tx.node.to_bytes(8, "big")))
        rescue.reclaim(tx, dead)
        tx.projection.flush()
        for entry in tx.session.busy(GIT_KIND, SWEEP_MAX):
            if entry.job.state is State.PENDING:
                log_jobs.call_off(tx, entry.job.id, "its process died; the repository decides who continues")
        return dead

    def _rounds(self, slots: ThreadPoolExecutor) -> None:
        """Looks for jobs, watches running ones, and sleeps, until nothing is left to do."""
        look_at = 0.0
        while True:
            self._wake.clear()
            self._gather()
            self._renew()
            availability = self._availability()
            if self._stops > 1 or availability is Availability.QUARANTINED:
                for each in self._running.values():
                    self._call_off(each)
            if self._stops and not self._running:
                return
            room = self._concurrency - len(self._running)
            if not self._stops and room and self._monotonic() >= look_at:
                taken, is_idle = self._look(slots, room) if availability is Availability.ACTIVE else (0, True)
                if is_idle and self._until_idle and not self._running:
                    return
                look_at = self._monotonic() + self._rest(taken)
            until = min(self._monotonic() + ROUND_S, look_at) if room else self._monotonic() + ROUND_S
            self._wake.wait(max(0.0, until - self._monotonic()))
            if self._wake.is_set():
                look_at = 0.0

    def _availability(self) -> Availability:
        log = self._parts.log
        with log.store.read() as session:
            state = availability_of(session, log.node)
        return Availability.ACTIVE if state is None else state.availability

    def _rest(self, taken: int) -> float:
        if taken:
            return 0.0
        if self._failures:
            return GIT_RETRIES.delay_s(self._failures, self._chance.random())
        if self._losses:
            return RACE_RETRIES.delay_s(self._losses, self._chance.random())
        return LISTED_EVERY_S * self._chance.uniform(0.7, 1.3)

    # Finding jobs.

    def _look(self, slots: ThreadPoolExecutor, room: int) -> tuple[int, bool]:
        """Claims what it can. Returns how many jobs, and whether there is nothing left to wait for."""
        try:
            listed = git_jobs.unfinished(self._plane)
            self._has_listed = True
            self._tell_damaged(listed)
            waiting = [job for job in listed if git_jobs.is_waiting(job)]
            self._learn(waiting)
            orders = [self._order(job.refs.content_id) for job in waiting]
            ours = [job._replace(tree=each.tree) for job, each in zip(waiting, orders, strict=True) if each is not None]
            self._alive = self._living()
            mine = {each.held.refs.content_id for each in self._running.values()}
            open_ones = [job for job in self._watch.open(ours) if job.refs.content_id not in mine]
            # A random order, so that not all workers try the same job first.
            self._chance.shuffle(open_ones)
            asked_at = self._monotonic()
            won = self._claim(open_ones[:room])
        except (Unreachable, Failed, NotAuthorised) as error:
            is_over = self._until_idle and not self._running and self._monotonic() > self._reached_at + PATIENCE_S
            if is_over or (isinstance(error, NotAuthorised) and not self._has_listed):
                raise
            self._failures += 1
            self._tell_once(str(error))
            return 0, False
        self._failures = 0
        self._told.pop(None, None)
        self._reached_at = self._monotonic()
        self._losses = self._losses + 1 if open_ones and not won else 0
        for held in won:
            order = self._order(held.refs.content_id)
            assert order is not None
            each = RunningClaim(held, order, asked_at)
            future = slots.submit(self._serve, each)
            self._running[future] = each
            future.add_done_callback(lambda _: self._wake.set())
        return len(won), not ours

    def _tell_once(self, error: str, name: str | None = None) -> None:
        """Reports why the repository cannot be used now, for all jobs or for one, until the reason changes."""
        reason = error.partition(QUOTE)[0]  # git's own words name other objects each time
        if self._told.get(name) != reason:
            self._told[name] = reason
            self._emit(GitUnavailable(error, name))

    def _tell_damaged(self, listed: list[GitJob]) -> None:
        """Reports each damaged job once."""
        damaged = {job.refs.content_id: job.trouble for job in listed if job.trouble is not None}
        for content_id, trouble in damaged.items():
            if self._damaged.get(content_id) != trouble:
                self._emit(JobSkipped(hash_text(content_id), f"damaged: {trouble}"))
        self._damaged = damaged

    def _claim(self, some: list[GitJob]) -> list[HeldClaim]:
        """Claims several jobs. If git refuses one for another reason than a lost race, the others are claimed one by
        one, and that one is skipped from then on.
        """
        try:
            return holding.claim_each(self._plane, some, self._worker, self._now())
        except Failed:
            won = []
        for job in some:
            try:
                won += holding.claim_each(self._plane, [job], self._worker, self._now())
            except Failed as error:
                self._emit(JobSkipped(hash_text(job.refs.content_id), f"cannot be claimed: {error}"))
                self._unfit.add(job.refs.content_id)
        return won

    def _living(self) -> set[str]:
        """The names of this node's workers that are not dead. A worker that ended has no row."""
        log = self._parts.log
        with log.store.read() as session:
            workers = session.workers(log.node.to_bytes(8, "big"))
        dead = self._parts.environment.liveness.dead(workers)
        return {each.name for each in workers if each.number not in dead}

    def _learn(self, waiting: list[GitJob]) -> None:
        """Reads the manifests of new jobs, all in one request, and decides which are for this worker."""
        known = {job.refs.content_id: self._known[job.refs.content_id] for job in waiting if self._is_known(job.refs)}
        fresh = [job.refs for job in waiting if job.refs.content_id not in known]
        for content_id, order in git_jobs.orders_of(self._plane, fresh).items():
            if isinstance(order, str):
                self._emit(JobSkipped(hash_text(content_id), f"{order}"))
            elif self._parts.commands.allowance.allows(order.manifest):
                known[content_id] = Known(order.commit, order)
            else:
                line = shlex.join(order.manifest.argv)
                self._emit(JobSkipped(hash_text(content_id), f"not allowed here: {line}"))
        known |= {refs.content_id: Known(str(refs.job), None) for refs in fresh if refs.content_id not in known}
        self._known = known
        # A job that was removed and submitted again may be acceptable now.
        self._unfit &= known.keys() - {refs.content_id for refs in fresh}

    def _is_known(self, refs: JobRefs) -> bool:
        """Whether the worker has seen this very commit: a job that was removed and submitted again has another one."""
        known = self._known.get(refs.content_id)
        return known is not None and known.commit == refs.job

    def _order(self, content_id: bytes) -> GitOrder | None:
        return None if content_id in self._unfit else self._known[content_id].order

    # Running jobs, each in a thread of its own.

    def _serve(self, each: RunningClaim) -> None:
        with each.lock:
            before = self._monotonic()
            running = holding.run(self._plane, each.held, self._worker, self._now())
            if running is None:
                each.lease.end()
                return
            each.renewed(running, before)
        self._emit(RunStarted(each.name, GIT_KIND, running.claim.fence))
        manifest = each.order.manifest
        draft = Draft(GIT_KIND, canonical(manifest), Policy(open=True))
        taken = self._parts.log.run(lambda tx: claiming.take(tx, draft, self._sign.row(tx), LEASE_MS))

        def handler(ctx: Context, /, **payload: Any) -> dict[str, Any]:
            ctx.fence = each.held.claim.fence
            each.performed = self._parts.commands.perform(ctx, manifest, self._content(each.order))
            return result(manifest, each.performed)

        each.run = Run(
            taken, JobType(GIT_KIND, function=handler), LEASE_MS, self._monotonic(), self._parts.kit, Context
        )
        if each.is_lost or each.is_called_off:
            each.run.stop()
        if each.run.begin(self._monotonic()):
            each.run.execute()
        each.run.end(self._monotonic())
        self._deliver(each)
        run = each.run
        self._parts.log.run(lambda tx: self._settle(tx, run))

    def _settle(self, tx: Transaction, run: Run) -> None:
        """Ends the job on the log. A job that was not delivered is cancelled there: the repository decides who
        continues.
        """
        settle(tx, [run])
        if run.stopped:
            log_jobs.call_off(tx, run.job.id, "its result is not in the repository, which decides who continues")

    def _content(self, order: GitOrder) -> Callable[[bytes], bytes]:
        def content(hash: bytes) -> bytes:
            oid = order.inputs.get(hash)
            return self._parts.commands.content(hash) if oid is None else git_jobs.read_input(self._plane, hash, oid)

        return content

    def _deliver(self, each: RunningClaim) -> None:
        """Pushes the result, for as long as the claim may still hold. A repository that refuses it may be read-only
        for a moment, or change its mind.
        """
        run, performed = each.run, each.performed
        assert run is not None
        if performed is None or run.stopped:
            if not run.stopped:
                # It cannot be run here at all. Perhaps another worker can.
                self._emit(GitRunFailed(each.name, run.error or ""))
                self._unfit.add(each.held.refs.content_id)
            self._release(each)
            run.stopped = True
            return
        contents = {NOTHING: b""} | run.products.contents(BLOBS_BYTES_MAX)
        failures, began = 0, self._monotonic()
        while not each.is_lost:
            with each.lock:
                try:
                    commit = holding.finish(
                        self._plane,
                        each.held,
                        self._worker,
                        performed.proof,
                        contents,
                        self._now(),
                        each.order.manifest.policy_root,
                    )
                    if commit is None:
                        each.lease.end()
                    else:
                        each.is_delivered = True
                    break
                except (Unreachable, NotAuthorised) as error:
                    if isinstance(error, NotAuthorised) and self._monotonic() - began > REFUSED_S_MAX:
                        self._unfit.add(each.held.refs.content_id)
                        raise
                    self._tell_once(str(error), each.name)
            failures += 1
            time.sleep(RACE_RETRIES.delay_s(failures, self._chance.random()))
        run.stopped = run.stopped or each.is_lost

    def _release(self, each: RunningClaim) -> None:
        """Returns an unfinished job to the queue, so that no worker has to wait for the end of its lease."""
        with each.lock:
            if each.is_lost:
                return
            each.lease.end()
            try:
                each.is_released = holding.release(self._plane, each.held, self._worker, self._now())
            except HocketError as error:
                self._emit(GitRunFailed(each.name, f"cannot return it to the queue before its lease ends: {error}"))

    # Watching running jobs.

    def _gather(self) -> None:
        for future in [future for future in self._running if future.done()]:
            each = self._running.pop(future)
            self._told.pop(each.name, None)
            try:
                future.result()
            except HocketError as error:
                self._emit(GitRunFailed(each.name, str(error)))
                each.lease.end()
                if not isinstance(error, Unreachable | NotAuthorised):
                    self._unfit.add(each.held.refs.content_id)
            except Exception as error:  # a bug in one job must not stop the worker for the others
                self._emit(GitRunFailed(each.name, f"{type(error).__name__}: {error}; this is a bug in Hocket"))
                each.lease.end()
                self._unfit.add(each.held.refs.content_id)
            if each.is_lost or each.performed is None or (each.run is not None and each.run.stopped):
                self.lost += 1
                self._finished(each.held.refs.content_id, "released" if each.is_released else "lost", "")
                continue
            state = state_of(each.performed.execution)
            self.succeeded += state == "succeeded"
            self.failed += state == "failed"
            self._tell_end(each)
            self._finished(each.held.refs.content_id, state, ulid_text(each.run.job.id) if each.run else "")

    def _tell_end(self, each: RunningClaim) -> None:
        about = each.name, GIT_KIND, each.held.claim.fence
        error = None if each.run is None else each.run.error
        self._emit(RunFinished(*about) if error is None else RunFailed(*about, error))

    def _renew(self) -> None:
        for each in lease.to_renew(self._undelivered(), self._monotonic()):
            if not each.lock.acquire(blocking=False):
                continue
            before = self._monotonic()
            try:
                worker = self._worker._replace(lease_s=int(each.lease.next_s(before)))
                renewed = holding.renew(self._plane, each.held, worker, self._now())
                if renewed is None:
                    self._emit(LeaseLost(each.name, "another worker holds the job now, or it was aborted"))
                    self._end(each)
                else:
                    each.renewed(renewed, before)
            except HocketError as error:
                self._tell_once(f"cannot renew its claim: {error}", each.name)
                each.lease.try_again(self._monotonic())
            finally:
                each.lock.release()

    def _undelivered(self) -> list[RunningClaim]:
        return [each for each in [*self._running.values()] if not each.is_delivered]

    def _beat(self, over: threading.Event) -> None:
        """Renews the heartbeat, however long git takes."""
        while not over.wait(BEAT_S):
            with suppress(StoreError):
                self._parts.log.run(self._sign.beat)

    def _watch_leases(self, over: threading.Event) -> None:
        """Stops a run when its lease must have ended, whatever git is doing."""
        while not over.wait(ROUND_S):
            for each in lease.run_out(self._undelivered(), self._monotonic()):
                self._emit(LeaseLost(each.name, "the lease ran out here"))
                self._end(each)

    def _call_off(self, each: RunningClaim) -> None:
        """Stops a command whose claim is still ours."""
        each.is_called_off = True
        if each.run is not None and not each.run.stopped:
            each.run.stop()

    def _end(self, each: RunningClaim) -> None:
        """Stops a command whose claim is no longer ours."""
        each.lease.end()
        if each.run is not None and not each.run.stopped:
            each.run.stop()

    def _now(self) -> int:
        return self._parts.environment.physical_ms()
