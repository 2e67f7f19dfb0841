"""Events in Python's `logging`: which logger, which level, which sentence; and a line for each step of a job's life, by
real workers.
"""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

import pytest

import hocket
import hocket.testing
from hocket.errors import StoreError
from hocket.events import Event, ignore, listens, sentences
from hocket.events.event_logging import log_event, logged
from hocket.events.jobs import JobClaimed, JobRescued, RunFailed, RunFinished, RunStarted
from hocket.events.nodes import PeerChanged
from hocket.events.troubles import Troubles
from hocket.events.workers import StoreUnavailable, WorkerStarted
from hocket.families.jobs import claiming
from hocket.families.jobs import requests as jobs
from hocket.kernel.ids import parse_ulid
from hocket.log import Transaction
from hocket.node.runtime import Runtime
from hocket.store import Place, Session, WorkerRow
from hocket.work import held_jobs, run_outcomes
from hocket.work.maintenance import Sweep, SweepLoop


def lines(caplog: pytest.LogCaptureFixture, job_id: str) -> list[tuple[str, str]]:
    """Level and sentence of each record about a job, without its id."""
    found = [each for each in caplog.records if each.name == "hocket.jobs" and job_id in each.getMessage()]
    return [(each.levelname, each.getMessage().removeprefix(f"job {job_id}: ")) for each in found]


@hocket.job("logged.good")
def good(ctx: hocket.Context) -> None:
    pass


@hocket.job("logged.bad", retries=1, backoff="10ms")
def bad(ctx: hocket.Context) -> None:
    raise ValueError("no such frame:\n  frame 7\n  is missing")


class _Refused:
    """Stands for an event that nobody hears."""

    routine, logger, level = True, "hocket.jobs", logging.INFO

    def __init__(self, *arguments: object) -> None:
        raise AssertionError("nobody hears this event")


@pytest.mark.parametrize("is_heard", [False, True])
def test_no_event_is_made_for_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_heard: bool) -> None:
    heard: list[Event] = []
    hocket.init(tmp_path / "home")
    if not is_heard:
        for module, names in ((held_jobs, ("JobClaimed", "RunStarted")), (run_outcomes, ("RunFinished",))):
            for name in names:
                monkeypatch.setattr(module, name, _Refused)
    with hocket.open(tmp_path / "home") as node:
        handles = [node.submit(good) for _ in range(3)]
        hearing = {"events": heard.append} if is_heard else {"notice": lambda sentence: None}
        worker = node.work([good], until_idle=True, **hearing)
    assert worker.succeeded == len(handles)
    counts = {each: sum(type(event) is each for event in heard) for each in (JobClaimed, RunStarted, RunFinished)}
    assert set(counts.values()) == ({3} if is_heard else {0})


def test_an_emitter_says_which_events_reach_anyone(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[Event] = []
    quiet = logged(sentences(lambda sentence: None))
    assert not listens(ignore, RunFinished) and listens(heard.append, RunFinished)
    caplog.set_level(logging.WARNING, "hocket")
    assert not listens(quiet, RunFinished) and listens(quiet, RunFailed)
    assert listens(logged(heard.append), RunFinished)
    caplog.set_level(logging.INFO, "hocket")
    assert listens(quiet, RunFinished)


def test_a_line_for_each_start_end_failure_and_retry(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "hocket")
    hocket.init(tmp_path / "home")
    with hocket.open(tmp_path / "home") as node:
        one, other = node.submit(good).job_id, node.submit(bad).job_id
        node.work([good, bad], until_idle=True)
    assert lines(caplog, one) == [("INFO", "logged.good started"), ("INFO", "logged.good succeeded")]
    failed = "logged.bad failed: ValueError: no such frame:"
    retried = [line for line in lines(caplog, other) if line[1].startswith("try 2 in ")]
    again = next(text for _, text in lines(caplog, other) if "tried again" in text)
    assert again.startswith(f"{failed}; it is tried again in ")
    assert [line for line in lines(caplog, other) if line not in retried] == [
        ("INFO", "logged.bad started"),
        ("WARNING", again),
        ("INFO", "logged.bad started"),
        ("ERROR", failed),
    ]
    assert [level for level, _ in retried] == ["INFO"]


def test_a_claim_is_only_for_debugging(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "hocket")
    hocket.init(tmp_path / "home")
    with hocket.open(tmp_path / "home") as node:
        one = node.submit(good).job_id
        node.work([good], until_idle=True)
    assert lines(caplog, one)[0] == ("DEBUG", "claimed")


@hocket.job("logged.long")
def long(ctx: hocket.Context) -> None:
    while not ctx.cancelled:
        time.sleep(0.01)


def test_a_line_for_a_lost_lease(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "hocket")
    hocket.init(tmp_path / "home")
    with hocket.open(tmp_path / "home") as node:
        one = node.submit(long).job_id

        def cancel() -> None:
            with Runtime.open(tmp_path / "home") as runtime:
                while not any("started" in text for _, text in lines(caplog, one)):
                    time.sleep(0.01)
                runtime.log.run(lambda tx: jobs.cancel(tx, parse_ulid(one), "not needed"))

        thread = threading.Thread(target=cancel)
        thread.start()
        node.work([long], until_idle=True)
        thread.join()
    warned = [text for level, text in lines(caplog, one) if level == "WARNING"]
    assert warned and warned[0].startswith("handler stopped: ")


DYING = """
import sys
import hocket

@hocket.job("logged.dying")
def dying(ctx):
    print("began", flush=True)
    import time
    time.sleep(600)

with hocket.open(sys.argv[1]) as node:
    node.work([dying])
"""


@hocket.job("logged.dying")
def survivor(ctx: hocket.Context) -> None:
    pass


def test_a_line_for_a_rescue(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "hocket")
    hocket.init(tmp_path / "home")
    with hocket.open(tmp_path / "home") as node:
        one = node.submit("logged.dying").job_id
        dying = subprocess.Popen(
            [sys.executable, "-c", DYING, str(tmp_path / "home")], stdout=subprocess.PIPE, text=True
        )
        assert dying.stdout is not None and dying.stdout.readline() == "began\n"
        os.kill(dying.pid, signal.SIGKILL)
        dying.communicate()
        node.work([survivor], until_idle=True)
    assert lines(caplog, one) == [
        ("WARNING", "rescued: its worker process died"),
        ("INFO", "logged.dying started"),
        ("INFO", "logged.dying succeeded"),
    ]


def test_an_event_for_each_lease_that_ran_out() -> None:
    told: list[Event] = []
    with hocket.testing.node() as node:
        one = node.submit(good).job_id
        log = node.runtime.log
        row = WorkerRow(0, "w", 1, 1, log.node.to_bytes(8, "big"), 1, Place())
        number = log.run(lambda tx: tx.session.put_worker(row))
        log.run(lambda tx: claiming.claim(tx, number, 1, lambda kind: 1_000))
        sweep = Sweep(Troubles(told.append, time.monotonic), told.append)
        sweep.report(log.run(lambda tx: sweep(tx, set())))
        assert told == []
        node.clock.advance(2)
        sweep.report(log.run(lambda tx: sweep(tx, set())))
    assert told == [JobRescued(one, "logged.good", 1, "its lease ran out")]


@pytest.mark.req("LW-37")
def test_a_job_is_told_to_be_rescued_when_that_is_durable() -> None:
    """The first commit of the sweep fails."""
    told: list[Event] = []

    class Access:
        is_away = True

        def __init__(self, runtime: Runtime) -> None:
            self.log, self._runtime = runtime.log, runtime

        async def peek(self, query: Callable[[Session], Any]) -> Any:
            with self._runtime.store.read() as session:
                return query(session)

        async def run(self, request: Callable[[Transaction], Any]) -> Any:
            def failing(tx: Transaction) -> None:
                request(tx)
                raise StoreError("the disk is full")

            return self.log.run(failing if self.is_away else request)

    with hocket.testing.node() as node:
        one = node.submit(good).job_id
        log = node.runtime.log
        row = WorkerRow(0, "w", 1, 1, log.node.to_bytes(8, "big"), 1, Place())
        number = log.run(lambda tx: tx.session.put_worker(row))
        log.run(lambda tx: claiming.claim(tx, number, 1, lambda kind: 1_000))
        access, environment = Access(node.runtime), Environment(node.clock)
        loop = SweepLoop(access, environment, told.append)  # type: ignore[arg-type]
        node.clock.advance(2)
        asyncio.run(loop.look())
        assert [type(each) for each in told] == [StoreUnavailable]
        access.is_away, environment.now = False, 60.0
        asyncio.run(loop.look())
    assert told[1:] == [JobRescued(one, "logged.good", 1, "its lease ran out")]


class Environment:
    """As much of one as a sweep needs."""

    now = 0.0

    def __init__(self, clock: Any) -> None:
        self.physical_ms = lambda: round(clock.now * 1000)
        self.liveness = Nobody()

    def monotonic(self) -> float:
        return self.now


class Nobody:
    """No worker of the node has died."""

    def dead(self, workers: Collection[WorkerRow]) -> set[int]:
        return set()

    def forget(self, numbers: Iterable[int]) -> None:
        pass


def test_levels_and_loggers(caplog: pytest.LogCaptureFixture) -> None:
    assert PeerChanged("http://a:1", "ok", "").own_level == logging.INFO
    assert PeerChanged("http://a:1", "unreachable", "").own_level == logging.WARNING
    assert RunFailed("J", "k", 1, "no").own_level == logging.ERROR
    assert RunFailed("J", "k", 1, "no", is_final=False).own_level == logging.WARNING
    caplog.set_level(logging.INFO, "hocket")
    event = WorkerStarted(1, ("a.b",))
    log_event(event)
    (record,) = caplog.records
    assert (record.name, record.levelname, record.getMessage()) == ("hocket.node", "INFO", str(event))
    assert record.hocket_event is event  # type: ignore[attr-defined]


def test_an_event_below_the_level_costs_no_sentence() -> None:
    class Silent(WorkerStarted, frozen=True, tag="Silent"):
        def __str__(self) -> str:
            raise AssertionError("nobody reads it")

    told: list[Event] = []
    logging.getLogger("hocket.node").setLevel(logging.CRITICAL)
    try:
        logged(told.append)(Silent(1, ()))
    finally:
        logging.getLogger("hocket.node").setLevel(logging.NOTSET)
    assert len(told) == 1


def test_the_tree_has_a_null_handler_and_nothing_else() -> None:
    assert [type(each) for each in logging.getLogger("hocket").handlers] == [logging.NullHandler]
