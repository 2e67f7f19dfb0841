"""What a worker holds: how many jobs it claims ahead, how many runs may end before they are on the log, and which jobs
go back that have not begun.
"""

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket.bus.hints import IDLE, about
from hocket.events import ignore
from hocket.events.troubles import Troubles
from hocket.families.jobs import claiming
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.rules import UNSTARTED
from hocket.node.local_node import run_services
from hocket.node.runtime import Runtime
from hocket.work.environment import AHEAD_DEFAULT
from hocket.work.handler_threads import HandlerThreads
from hocket.work.handlers import Handlers, JobType
from hocket.work.held_jobs import AHEAD_S, BEGUN_S, ENDED_MAX, OTHERS_IDLE_S, QUEUED_MAX_S, HeldJobs
from hocket.work.runner import Run
from tests.work.mesh import PATIENCE_S, wait_for

KIND = "acme.held"
LEASE_MS = 600_000
QUICK = 1e-5


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def wrapped(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))

    return wrapped


class Holder:
    """The jobs of one worker, with real claims and real threads, on a clock that the test moves."""

    def __init__(self, runtime: Runtime, slots: int, function: Callable[[Any], Any]) -> None:
        self.now = 100.0
        self._runtime = runtime
        self._type = JobType(KIND, function=function)
        self._clock = lambda: self.now
        self.threads = HandlerThreads(slots, self._ended, self._clock)
        kit = lambda kind: run_services(runtime, kind, self._clock)  # noqa: E731
        troubles = Troubles(ignore, self._clock)
        self.held = HeldJobs(Handlers([self._type]), self.threads, kit, AHEAD_DEFAULT, troubles, ignore, self._clock)

    def _ended(self, run: Run) -> None:
        self.held.ended.append(run)

    def hold(self, count: int) -> list[Run]:
        """Claims new jobs, and begins them."""
        drafts = [self._type.draft({}) for _ in range(count)]
        self._runtime.submit(drafts)
        return self._begin_claims(count)

    def _begin_claims(self, count: int) -> list[Run]:
        lease_of = {self._type.kind: LEASE_MS}.get
        claims = self._runtime.log.run(lambda tx: claiming.claim(tx, 0, count, lease_of)).taken
        self.held.begin(claims, self.now)
        self.held.hand_over()
        return [self.held.runs[claim.job.id] for claim in claims]

    def claim_again(self, run: Run) -> list[Run]:
        """The claim of the run ends on the log; the job is claimed again, and begun."""
        self._runtime.log.run(lambda tx: jobs.hand_back(tx, run.held, UNSTARTED))
        return self._begin_claims(1)

    def wait_ended(self, count: int) -> None:
        wait_for(lambda: len(self.held.ended) == count, f"{count} runs to end")

    def log(self) -> int:
        """Takes what has ended, as after a commit. Returns how many that were."""
        ended = self.held.due(self.now, False, 0.0).ended
        for run in ended:
            self.held.drop(run)
        self.held.logged(ended)
        self.held.hand_over()
        return len(ended)


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    Runtime.init(tmp_path / "home").close()
    with Runtime.open(tmp_path / "home") as runtime:

        @contextmanager
        def make(slots: int = 1, function: Callable[[Any], Any] = lambda ctx: None) -> Iterator[Holder]:
            made = Holder(runtime, slots, function)
            try:
                yield made
            finally:
                made.held.abandon()
                made.threads.close()

        yield make


@pytest.mark.touches("LW-39")
@on_a_loop
async def test_no_more_runs_end_than_may_be_repeated_after_a_kill(holder: Any) -> None:
    with holder() as worker:
        runs = worker.hold(100)
        for number in (1, 2, 3):
            worker.wait_ended(ENDED_MAX)
            assert sum(run.started_at is not None for run in runs) == number * ENDED_MAX
            assert worker.log() == ENDED_MAX
        worker.wait_ended(100 - 3 * ENDED_MAX)


@pytest.mark.touches("LW-39")
@on_a_loop
async def test_runs_under_way_count_as_such_that_may_end(holder: Any) -> None:
    gate = threading.Event()
    with holder(slots=4, function=lambda ctx: gate.wait(PATIENCE_S) and None) as worker:
        runs = worker.hold(100)
        gate.set()
        worker.wait_ended(ENDED_MAX)
        assert sum(run.started_at is not None for run in runs) == ENDED_MAX


@pytest.mark.touches("LW-18")
@on_a_loop
async def test_only_what_begins_in_a_moment_is_claimed_ahead(holder: Any) -> None:
    with holder() as worker:
        held = worker.held
        assert held.room(worker.now) == 2  # nothing is known yet: a run may take as long as a worker looks ahead
        held.pace_s = QUICK
        assert held.room(worker.now) == 1 + AHEAD_DEFAULT
        # Jobs are claimed together, when half of them have begun.
        assert held.room(worker.now, AHEAD_DEFAULT // 2 + 1) == 0
        assert held.room(worker.now, AHEAD_DEFAULT // 2) == 1 + AHEAD_DEFAULT // 2
        held.pace_s = AHEAD_S / 10
        assert held.room(worker.now) == 11
        held.pace_s = 10 * AHEAD_S
        assert held.room(worker.now) == 1


@pytest.mark.touches("LW-18")
@on_a_loop
async def test_a_slow_log_makes_a_worker_claim_less_ahead(holder: Any) -> None:
    """But no less than one commit can end: a slow server would otherwise get a commit for every few jobs."""
    with holder() as worker:
        held = worker.held
        for _ in range(20):
            worker.hold(1)
            worker.wait_ended(1)
            worker.now += BEGUN_S / 10
            worker.log()
        held.pace_s = QUICK
        assert ENDED_MAX <= held.room(worker.now) <= ENDED_MAX + 2
        held.hear_idle(about(IDLE))
        assert held.room(worker.now) < ENDED_MAX


@pytest.mark.touches("LW-18")
@on_a_loop
async def test_what_has_not_begun_goes_back_when_the_worker_stops(holder: Any) -> None:
    gate = threading.Event()
    with holder(function=lambda ctx: gate.wait(PATIENCE_S) and None) as worker:
        first, *others = worker.hold(100)
        assert worker.held.due(worker.now, False, 0.0).unstarted == []
        assert set(worker.held.due(worker.now, True, 0.0).unstarted) == set(others)
        gate.set()
        worker.wait_ended(1)
        assert worker.held.ended[0] is first


@pytest.mark.touches("LW-18")
@on_a_loop
async def test_what_waits_too_long_goes_back_and_is_looked_at_only_then(holder: Any) -> None:
    gate = threading.Event()
    with holder(function=lambda ctx: gate.wait(PATIENCE_S) and None) as worker:
        _, *others = worker.hold(100)
        assert worker.held.due_at == worker.now + QUEUED_MAX_S
        worker.now += QUEUED_MAX_S
        assert set(worker.held.due(worker.now, False, 0.0).unstarted) == set(others)
        gate.set()
        worker.wait_ended(1)


@pytest.mark.touches("LW-08")
@on_a_loop
async def test_the_lease_of_a_job_that_waits_is_renewed(holder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hocket.work.held_jobs.QUEUED_MAX_S", LEASE_MS)
    gate = threading.Event()
    with holder(function=lambda ctx: gate.wait(PATIENCE_S) and None) as worker:
        runs = worker.hold(100)
        due_at = worker.held.due_at
        assert due_at < worker.now + LEASE_MS / 1000
        worker.now = due_at
        due = worker.held.due(worker.now, False, 0.0)
        assert set(due.renewals) == set(runs)
        for run in due.renewals:
            run.lease.renewing()
            worker.held.renewed(run, worker.now, run.job)
        assert worker.held.due_at > worker.now
        # A renewal that fails is tried again, also of a job that waits.
        worker.now = worker.held.due_at
        for run in worker.held.due(worker.now, False, 0.0).renewals:
            run.lease.renewing()
            worker.held.renewal_failed(run)
        assert worker.now < worker.held.due_at < worker.now + LEASE_MS / 1000 / 5
        gate.set()
        worker.wait_ended(ENDED_MAX)


@pytest.mark.touches("LW-18")
@on_a_loop
async def test_one_thread_executes_quick_runs(holder: Any) -> None:
    threads: list[int] = []
    with holder(slots=4, function=lambda ctx: threads.append(threading.get_ident())) as worker:
        worker.held.pace_s = QUICK
        worker.hold(ENDED_MAX)
        worker.wait_ended(ENDED_MAX)
        assert len(threads) == ENDED_MAX and len(set(threads)) == 1


@pytest.mark.touches("LW-18")
@on_a_loop
async def test_the_time_until_a_thread_is_awake_does_not_make_a_run_slow(
    holder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with holder() as worker:
        launch = worker.threads._launch

        def launch_late(run: Run) -> None:
            worker.now += 1.0
            launch(run)

        monkeypatch.setattr(worker.threads, "_launch", launch_late)
        worker.held.pace_s = 0.0
        (run,) = worker.hold(1)
        worker.wait_ended(1)
        assert worker.log() == 1 and run.ran_s == 1.0 and worker.held.pace_s == 0.0


@pytest.mark.touches("LW-18")
@on_a_loop
async def test_other_threads_take_over_when_a_quick_run_is_slow(holder: Any) -> None:
    gate, begun = threading.Event(), threading.Semaphore(0)

    def blocks(ctx: hocket.Context) -> None:
        begun.release()
        gate.wait(PATIENCE_S)

    with holder(slots=4, function=blocks) as worker:
        worker.held.pace_s = QUICK
        worker.hold(ENDED_MAX)
        assert begun.acquire(timeout=PATIENCE_S)
        worker.now += 1.0
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(3):
                while not begun.acquire(blocking=False):
                    await asyncio.sleep(0.001)
        gate.set()
        worker.wait_ended(ENDED_MAX)


@pytest.mark.req("LW-08")
@on_a_loop
async def test_a_job_that_is_claimed_again_stops_its_earlier_run(holder: Any) -> None:
    """The claim was lost, and the worker takes the job up again before a hint tells it so."""
    gate = threading.Event()
    with holder(slots=2, function=lambda ctx: gate.wait(PATIENCE_S) and None) as worker:
        (earlier,) = worker.hold(1)
        (later,) = worker.claim_again(earlier)
        assert earlier.cancelled and earlier.stopped and not later.stopped
        assert worker.held.runs == {later.job.id: later} and later.job.fence == 2
        gate.set()
        worker.wait_ended(2)
        assert worker.held.due(worker.now, False, 0.0).ended == [later]


# Another worker is idle.


@pytest.mark.touches("LW-18")
@on_a_loop
async def test_what_would_not_begin_in_a_moment_goes_to_an_idle_worker(holder: Any) -> None:
    gate = threading.Event()
    with holder(function=lambda ctx: gate.wait(PATIENCE_S) and None) as worker:
        held = worker.held
        held.pace_s = QUICK
        first, *others = worker.hold(100)
        worker.now += AHEAD_S / 10
        assert held.due(worker.now, False, 0.0).unstarted == []
        held.hear_idle(about(IDLE, b"acme.other"))
        assert held.due(worker.now, False, 0.0).unstarted == []
        # Nothing has ended for a tenth of the moment, so ten runs would end in it.
        held.hear_idle(about(IDLE, KIND.encode()))
        back = held.due(worker.now, False, 0.0).unstarted
        assert back == others[10:]
        for run in back:
            held.drop(run)
        assert held.room(worker.now) == 0
        # If still nothing ends, the rest goes back as well, and the worker looks in time.
        assert held.due_at == worker.now + AHEAD_S
        worker.now = held.due_at
        assert held.due(worker.now, False, 0.0).unstarted == others[:10]
        gate.set()
        worker.wait_ended(1)
        assert held.ended[0] is first


@pytest.mark.touches("LW-18")
@on_a_loop
async def test_quick_jobs_stay_and_an_idle_worker_is_forgotten_after_a_while(
    holder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hocket.work.held_jobs.QUEUED_MAX_S", LEASE_MS)
    gate = threading.Event()
    with holder(function=lambda ctx: gate.wait(PATIENCE_S) and None) as worker:
        held = worker.held
        held.pace_s = QUICK
        _, *others = worker.hold(100)
        held.hear_idle(about(IDLE))
        assert held.due(worker.now, False, 0.0).unstarted == []  # all of them will have begun in a moment
        worker.now += OTHERS_IDLE_S
        assert held.due(worker.now, False, 0.0).unstarted == []
        held.hear_idle(about(IDLE))
        assert held.due(worker.now, False, 0.0).unstarted == others
        gate.set()
        worker.wait_ended(1)
