"""One run of a handler: it begins only under a lease, it ends in the worker's books whatever its handler raises, and an
exception that stops it reaches no thread that does not run it.
"""

import asyncio
import contextvars
import threading
import time
from pathlib import Path

import pytest

import hocket
from hocket.families.jobs import claiming
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.drafts import draft
from hocket.families.jobs.rules import Job, Outcome
from hocket.families.json_values import encode_json
from hocket.kernel.ids import ulid_text
from hocket.node.local_node import run_services
from hocket.node.runtime import Runtime
from hocket.work import runner
from hocket.work.batch import settle
from hocket.work.context import Context
from hocket.work.handler_threads import HandlerThreads
from hocket.work.handlers import JobType
from hocket.work.output_capture import catching
from hocket.work.output_files import HANDLER, OutputFiles
from hocket.work.runner import Run, Step
from tests.work.mesh import PATIENCE_S, Mesh, wait_for
from tests.work.test_timeouts import MODULES

LEASE_MS = 1_000


class Mute(BaseException):
    """Whatever one asks it, it raises something that is no Exception."""

    def __str__(self, *more: object) -> str:
        raise KeyboardInterrupt

    __repr__ = __format__ = __str__


class Runs:
    """Runs of real claims, on a clock that the test moves."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.now = 100.0

    def run(self, handler: JobType) -> Run:
        log, made = self.runtime.log, handler.draft({})
        job_id = log.run(lambda tx: jobs.submit(tx, [made]))[0].job_id
        claims = log.run(lambda tx: claiming.claim(tx, 0, 1, {handler.kind: LEASE_MS}.get))
        assert [ulid_text(each.job.id) for each in claims.taken] == [ulid_text(job_id)]
        kit = run_services(self.runtime, handler.kind, lambda: self.now)
        return Run(claims.taken[0], handler, LEASE_MS, self.now, kit, Context)


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    Runtime.init(tmp_path / "home").close()
    return Runs(Runtime.open(tmp_path / "home"))


def test_no_exception_reaches_a_thread_that_does_not_run_the_job(runs: Runs) -> None:
    """The system gives the ident of a thread that has ended to another one; here this thread is both."""

    def mute(ctx: hocket.Context) -> None:
        raise Mute

    for handler in (mute, lambda ctx: None):
        run = runs.run(JobType("acme.mute", function=handler))
        assert run.begin(runs.now)
        run.execute()
        run.stop()
        for _ in range(10_000):  # an exception from outside arrives between two steps
            pass


def test_a_stopped_handler_is_interrupted_once(runs: Runs) -> None:
    arrived: list[int] = []
    ready, told = threading.Event(), threading.Event()

    def stubborn(ctx: hocket.Context) -> None:
        ready.set()
        while not told.is_set():
            try:
                time.sleep(0.001)
            except hocket.Cancelled:
                arrived.append(1)

    run = runs.run(JobType("acme.stubborn", function=stubborn))
    assert run.begin(runs.now)
    thread = threading.Thread(target=run.execute)
    thread.start()
    assert ready.wait(PATIENCE_S)
    run.take(Step.TIME_OUT)
    run.take(Step.INTERRUPT)
    wait_for(lambda: arrived, "the exception")
    run.stop()
    told.set()
    thread.join(PATIENCE_S)
    assert arrived == [1] and not thread.is_alive()


@pytest.mark.req("LW-18")
def test_a_run_whose_lease_ends_before_its_first_line_does_not_begin(runs: Runs) -> None:
    """A process can be suspended at any step; its leases end meanwhile."""
    called: list[str] = []
    late = runs.run(JobType("acme.late", function=lambda ctx: called.append("late")))
    begun = runs.run(JobType("acme.begun", function=lambda ctx: called.append("begun")))
    good = runs.run(JobType("acme.good", function=lambda ctx: called.append("good")))
    assert good.begin(runs.now)
    good.execute()
    assert begun.begin(runs.now)
    runs.now += LEASE_MS / 1000
    begun.execute()
    assert not late.begin(runs.now)
    assert called == ["good"]
    assert begun.stopped and begun.cancelled and late.started_at is None


@pytest.mark.touches("LW-18")
def test_a_thread_looks_at_the_lease_of_each_run_that_it_starts(runs: Runs) -> None:
    """The thread of the first run starts the second one, which has waited for a slot, and not the worker's loop."""
    started: list[str] = []
    ended = threading.Event()

    def first(ctx: hocket.Context) -> None:
        started.append("first")
        runs.now += LEASE_MS / 1000

    threads = HandlerThreads(1, lambda run: ended.set(), lambda: runs.now)
    second = runs.run(JobType("acme.second", function=lambda ctx: started.append("second")))
    threads.start(runs.run(JobType("acme.first", function=first)))
    threads.start(second)
    assert ended.wait(PATIENCE_S)
    threads.close()
    assert started == ["first"] and second.revoke()


def test_a_thread_is_started_when_no_other_is_free(runs: Runs) -> None:
    names: list[str] = []
    both, ended = threading.Barrier(2), threading.Semaphore(0)

    def meet(ctx: hocket.Context) -> None:
        names.append(threading.current_thread().name)
        both.wait(PATIENCE_S)

    threads = HandlerThreads(4, lambda run: ended.release(), lambda: runs.now)
    alone = JobType("acme.alone", function=lambda ctx: names.append(threading.current_thread().name))
    for _ in range(3):
        threads.start(runs.run(alone))
        assert ended.acquire(timeout=PATIENCE_S)
    assert names == ["hocket-handler-1"] * 3
    threads.start_all([runs.run(JobType(f"acme.meet{number}", function=meet)) for number in range(2)])
    assert ended.acquire(timeout=PATIENCE_S) and ended.acquire(timeout=PATIENCE_S)
    assert sorted(names[3:]) == ["hocket-handler-1", "hocket-handler-2"]
    threads.close()


def test_a_coroutine_that_waits_behind_a_cancelled_run_gets_its_loop(runs: Runs) -> None:
    """The thread of the first run skips the second one, and must not take the third for a plain function."""
    started: list[str] = []
    go_on, ended = threading.Event(), threading.Semaphore(0)

    async def third(ctx: hocket.Context) -> None:
        started.append("third")

    threads = HandlerThreads(1, lambda run: ended.release(), lambda: runs.now)
    threads.start(runs.run(JobType("acme.first", function=lambda ctx: go_on.wait(PATIENCE_S) and None)))
    second = runs.run(JobType("acme.second", function=lambda ctx: started.append("second")))
    threads.start(second)
    threads.start(runs.run(JobType("acme.third", function=third)))
    assert second.revoke()
    go_on.set()
    assert ended.acquire(timeout=PATIENCE_S) and ended.acquire(timeout=PATIENCE_S)
    threads.close()
    assert started == ["third"]


def test_the_loop_of_coroutines_is_closed_with_its_worker(runs: Runs) -> None:
    """One that is under way can still clean up."""
    begun, cleaned = threading.Event(), threading.Event()

    async def long(ctx: hocket.Context) -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    threads = HandlerThreads(1, lambda run: None, lambda: runs.now)
    threads.start(runs.run(JobType("acme.long", function=long)))
    assert begun.wait(PATIENCE_S)
    loop = threads.loop
    threads.close()
    threads.close()
    assert loop is not None and cleaned.wait(PATIENCE_S)
    wait_for(loop.is_closed, "the loop to be closed")


@pytest.mark.req("LW-18")
def test_a_thawed_worker_starts_nothing_whose_lease_has_ended(mesh: Mesh) -> None:
    mesh.node.submit_many([("hung.stamp", {})] * 150)
    worker = mesh.worker(**MODULES, concurrency=2, constants={"QUEUED_MAX_S": PATIENCE_S}).up()
    for stop in range(1, 6):
        mesh.wait_journal("start", 4 * stop)
        worker.suspend()
        deadline = time.monotonic() + 0.4
        wait_for(lambda deadline=deadline: time.monotonic() > deadline, "the leases to end")
        worker.signal(18)
    mesh.wait_done(150)
    late = [line for line in mesh.journal("start") if line["at"] > line["deadline"]]
    assert late == []


def test_a_plain_run_makes_nothing_that_it_does_not_use(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    def unwanted(*arguments: object) -> None:
        raise AssertionError("a plain run does not need this")

    for name in ("RunOutputs", "RunParts", "ulid_text"):
        monkeypatch.setattr(runner, name, unwanted)
    monkeypatch.setattr(OutputFiles, "file", unwanted)
    run = runs.run(JobType("acme.plain", function=lambda ctx: 7))
    assert run.begin(runs.now)
    run.execute()
    assert run.end(runs.now) and (run.result, run.error) == (b"7", None)
    (result,) = runs.runtime.log.run(lambda tx: settle(tx, [run]))
    assert isinstance(result, Job) and result.outcome is Outcome.SUCCEEDED


def test_outputs_that_come_after_the_end_of_a_run_are_refused(runs: Runs) -> None:
    """A handler that was given up goes on, and makes its first artifact when its run is on the log."""
    contexts: list[hocket.Context] = []
    run = runs.run(JobType("acme.late_output", function=lambda ctx: contexts.append(ctx)))
    assert run.begin(runs.now)
    run.execute()
    run.end(runs.now)
    runs.runtime.log.run(lambda tx: settle(tx, [run]))
    with pytest.raises(hocket.Usage, match="the run has ended"):
        contexts[0].artifact(b"too late", type="acme.note")


def test_what_a_run_prints_after_its_end_makes_no_file(runs: Runs) -> None:
    kept: list[contextvars.Context] = []
    run = runs.run(JobType("acme.printer", function=lambda ctx: kept.append(contextvars.copy_context())))
    assert run.begin(runs.now)
    with catching():
        run.execute()
        kept[0].run(print, "too late")
    assert runs.runtime.output.read(run.job_id, HANDLER, 0, 0, 100) is None


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (float("nan"), "the result has nan"),
        ({"a": {"b": [1, float("inf")]}}, r"the result has inf at a\.b\[1\]"),
        ((None, -float("inf")), r"the result has -inf at \[1\]"),
    ],
)
def test_a_number_that_json_lacks_is_an_error_that_says_where(value: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        encode_json(value, "the result")
    assert encode_json({"a": None, "b": "null"}, "the result") == b'{"a":null,"b":"null"}'


def test_a_payload_with_nan_is_refused(runs: Runs) -> None:
    with pytest.raises(hocket.Usage, match=r"the payload of acme\.x cannot be written as JSON: it has nan at loss"):
        draft("acme.x", {"loss": float("nan")}, {})
