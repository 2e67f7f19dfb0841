"""One thing that fails ends nothing else. What is wrong with a schedule, a job, an artifact or a held op is told, and
workers and maintenance go on with the rest. Faults that the code itself rules out are planted.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import hocket
import hocket.testing
from hocket.errors import Conflict, StoreError
from hocket.events import sentences, troubles
from hocket.events.jobs import JobSkipped
from hocket.events.troubles import Troubles
from hocket.families import artifacts
from hocket.families.jobs import claiming, cron
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.requests import Decision, Offer
from hocket.kernel.arbitration import Reason
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import content_hash, make_ulid, parse_ulid
from hocket.kernel.ops import Op, encode, sign
from hocket.kernel.policy import Policy, encode_policy
from hocket.kernel.retrying import RetryPolicy
from hocket.kernel.vocabulary import ScheduleJob, SetSchedule
from hocket.log import Transaction
from hocket.node.node import Node
from hocket.node.runtime import Runtime
from hocket.store import Schedule, Session
from hocket.work import environment, maintenance
from hocket.work.handlers import Handlers, JobType
from hocket.work.maintenance import Maintenance, Sweep
from hocket.work.pending_decisions import PendingDecisions
from hocket.work.run_outputs import contain
from tests.mesh.world import until
from tests.work.test_pending_decisions import StubEnvironment

LeaseOf = Callable[[str], int | None]


def done(ctx: hocket.Context, **payload: Any) -> None:
    pass


HANDLERS = Handlers(
    [JobType("c.job", function=done), JobType("c.other", function=done), JobType("c.bad", function=done)]
)


def schedules(node: hocket.testing.MemorySyncNode, *names: str) -> None:
    for name in names:
        plan = cron.check(cron.NewSchedule(name, "* * * * *", "UTC", hocket.kind("c.job").draft({})))
        node.runtime.log.run(lambda tx, plan=plan: cron.add(tx, plan))
    node.clock.advance(120)


def works(node: hocket.testing.MemorySyncNode, handlers: Handlers = HANDLERS) -> tuple[Any, list[str]]:
    notices: list[str] = []
    worker = node.work(handlers, until_idle=True, notice=notices.append)
    return worker, notices


# Schedules.


@pytest.mark.parametrize("how", ["failed", "cancelled"])
def test_a_schedule_after_a_job_that_failed_or_was_cancelled_ends_no_worker(how: str) -> None:
    """A tick that came after a cancelled job was a Conflict, and the worker that met it ended, as did the next one."""
    with hocket.testing.node() as node:
        log = node.runtime.log
        first = node.submit("c.job").job_id
        job_id = parse_ulid(first)
        policy = encode_policy(Policy(after=(first,)))
        log.run(lambda tx: tx.author(SetSchedule("bad", "* * * * *", "UTC", "c.job", b"{}", policy)))
        if how == "cancelled":
            log.run(lambda tx: jobs.cancel(tx, job_id, ""))
        else:
            (claim,) = log.run(lambda tx: claiming.claim(tx, 1, 1, lambda kind: 1_000)).taken
            held = jobs.Held(job_id, claim.job.claim_op or b"")
            log.run(lambda tx: jobs.fail(tx, held, "no", "", retry=False))
        schedules(node, "good")
        worker, _ = works(node)
        assert worker.succeeded == 1


@pytest.mark.parametrize(
    "cron_and_zone",
    [("9" * 200 + " * * * *", "UTC"), ("* * * * *", "/etc/passwd"), ("* * * * *", "../UTC"), ("* * * * *", "\0")],
)
def test_a_schedule_that_cannot_be_read_ends_no_worker(cron_and_zone: tuple[str, str]) -> None:
    with hocket.testing.node() as node:
        node.runtime.log.run(lambda tx: tx.author(SetSchedule("bad", *cron_and_zone, "c.job", b"{}", b"")))
        schedules(node, "good")
        worker, _ = works(node)
        assert worker.succeeded == 1


@pytest.mark.parametrize("error", [Conflict("planted"), RuntimeError("planted")], ids=["ours", "any"])
def test_a_schedule_whose_tick_fails_holds_up_no_other_and_is_told_once(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    real = cron.make_tick

    def make_tick(tx: Transaction, schedule: Schedule, failed: cron.Failed) -> bool:
        if schedule.name == "bad":
            raise error
        return real(tx, schedule, failed)

    monkeypatch.setattr(cron, "make_tick", make_tick)
    with hocket.testing.node() as node:
        schedules(node, "alpha", "bad", "omega")
        worker, notices = works(node)
        assert worker.succeeded == 2
        told = [text for text in notices if "'bad'" in text]
        assert len(told) == 1 and "planted" in told[0]


def test_a_tick_that_the_log_refuses_is_told_once_and_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    notices: list[str] = []
    emit = sentences(notices.append)
    sweep = Sweep(Troubles(emit, lambda: now), emit)
    monkeypatch.setattr(cron, "tick_id", lambda op, tick: make_ulid(tick, b"not the id"))
    with hocket.testing.node() as node:
        schedules(node, "bad")

        def is_due() -> bool:
            with node.runtime.read() as session:
                return sweep.is_due(session, round(node.clock.now * 1000))

        assert is_due()
        node.runtime.log.run(lambda tx: sweep(tx, set()))
        assert not is_due(), "a refused tick is not tried in every round"
        now += troubles.REST_S
        assert is_due()
        node.runtime.log.run(lambda tx: sweep(tx, set()))
    assert notices == ["schedule 'bad' submits no job: it is not a tick of the schedule that it names"]


# Jobs.


def test_a_job_whose_end_cannot_be_written_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    real = jobs.complete_all

    def complete_all(tx: Transaction, ends: Sequence[jobs.Completion]) -> list[jobs.Result]:
        entries = [tx.projection.jobs.entry(end.held.job_id) for end in ends]
        if any(entry is not None and entry.job.kind == "c.bad" for entry in entries):
            raise RuntimeError("planted")
        return real(tx, ends)

    monkeypatch.setattr(jobs, "complete_all", complete_all)
    with hocket.testing.node() as node:
        handles = node.submit_many([("c.job", {}), ("c.bad", {}), ("c.other", {})])
        worker, notices = works(node)
        outcomes = [handle.status()["outcome"] for handle in handles]
        assert outcomes == ["succeeded", "failed", "succeeded"]
        assert (worker.succeeded, worker.failed) == (2, 1)
        assert any("planted" in text for text in notices)


def test_a_job_that_a_worker_cannot_decide_about_is_left_alone() -> None:
    def wants(session: Session, schedule: bytes) -> bool:
        if b"poison" in schedule:
            raise RecursionError("planted")
        return True

    picky = Handlers([JobType("c.job", function=done, wants=wants)])
    with hocket.testing.node() as node:
        node.submit_many([("c.job", {"n": 1}), ("c.job", {"poison": 1}), ("c.job", {"n": 2})])
        worker, notices = works(node, picky)
        assert worker.succeeded == 2
        assert [text for text in notices if "RecursionError" in text]


def test_a_kind_that_cannot_be_claimed_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    real = claiming.claim

    def claim(
        tx: Transaction, worker: int, limit: int, lease_of: Callable[[str], int | None], *rest: Any
    ) -> claiming.Claims:
        if lease_of("c.bad") is not None:
            raise RuntimeError("planted")
        return real(tx, worker, limit, lease_of, *rest)

    with hocket.testing.node() as node:
        node.submit_many([("c.bad", {}), ("c.job", {}), ("c.other", {})])
        notices: list[str] = []
        monkeypatch.setattr(claiming, "claim", claim)

        async def run() -> None:
            here = Node(node.runtime)
            try:
                async with asyncio.timeout(20):
                    working = asyncio.ensure_future(here.work(HANDLERS, notice=notices.append))
                    while len([row for row in outcomes(node) if row == 0]) < 2:
                        assert not working.done()
                        await asyncio.sleep(0.01)
                    working.cancel()
                    await asyncio.wait([working])
            finally:
                await here.finish()

        asyncio.run(run())
        assert any("claiming c.bad jobs failed" in text for text in notices)


def outcomes(node: hocket.testing.MemorySyncNode) -> list[int | None]:
    with node.runtime.read() as session:
        return [entry.job.outcome for entry in session.each_job()]


def test_a_job_that_cannot_be_started_is_handed_back(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    real = Node.kit

    def kit(node: Node, kind: str) -> Any:
        if kind == "c.bad" and not tried:
            tried.append(kind)
            raise RuntimeError("planted")
        return real(node, kind)

    monkeypatch.setattr(Node, "kit", kit)
    with hocket.testing.node() as node:
        node.submit_many([("c.bad", {}), ("c.job", {})])
        worker, notices = works(node)
        assert worker.succeeded == 2 and tried
        assert any("starting job" in text for text in notices)


def test_a_worker_outlives_whoever_listens_to_it() -> None:
    with hocket.testing.node() as node:
        node.submit_many([("c.job", {}), ("c.job", {})])

        def finished(run: Any, outcome: Any) -> None:
            raise RuntimeError("planted")

        worker = node.work(HANDLERS, until_idle=True, finished=finished)
        assert worker.succeeded == 2


def test_an_arbiter_that_cannot_be_asked_is_asked_again() -> None:
    async def run() -> None:
        asked: list[int] = []
        heard: list[Decision] = []
        notices: list[str] = []

        async def consult(offers: Sequence[Offer], is_urgent: bool) -> list[Decision]:
            asked.append(len(offers))
            if len(asked) == 1:
                raise RuntimeError("planted")
            return [Reason.NOT_ACCEPTED] * len(offers)

        pending_decisions = PendingDecisions(consult, StubEnvironment(), lambda: None, sentences(notices.append))  # type: ignore[arg-type]
        pending_decisions.add(Offer(b"o" * 16, b"j" * 16), lambda decision, dropped: heard.append(decision))
        async with asyncio.timeout(20):
            while not heard:
                pending_decisions.ask(time.monotonic())
                pending_decisions.settle()
                await asyncio.sleep(0.001)
        assert asked == [1, 1] and any("planted" in text for text in notices)

    asyncio.run(run())


# Maintenance.


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "ROUND_S", 0.02)
    monkeypatch.setattr(environment, "TASK_RETRIES", RetryPolicy(0.01))


def kept_up(home: Path, test: Callable[[Node], Awaitable[None]]) -> list[str]:
    notices: list[str] = []

    async def run() -> None:
        node = Node(Runtime.init(home))
        try:
            async with node.kept_up(sentences(notices.append)):
                await test(node)
        finally:
            await node.close()

    asyncio.run(run())
    return notices


async def evicts(node: Node) -> None:
    """Waits until an artifact whose time is over is evicted."""
    content = contain(node.blobs, b"gone soon")
    made = await node.run(lambda tx: artifacts.put(tx, node.blobs, "note", content, 1))

    async def is_evicted() -> bool:
        return await node.peek(lambda session: session.is_evicted(made))

    await until(is_evicted)


@pytest.mark.usefixtures("often")
def test_a_part_of_the_upkeep_that_fails_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(node: Node) -> None:
        def release(decide: object) -> None:
            raise RuntimeError("planted")

        monkeypatch.setattr(node.log, "release", release)
        await evicts(node)

    notices = kept_up(tmp_path / "home", test)
    assert len(notices) == 1 and "planted" in notices[0]


@pytest.mark.usefixtures("often")
def test_upkeep_that_ends_by_an_error_is_told_and_begun_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, begun = Maintenance.run, []

    async def run(self: Maintenance) -> None:
        begun.append(1)
        if len(begun) == 1:
            raise RuntimeError("planted")
        await real(self)

    monkeypatch.setattr(Maintenance, "run", run)

    notices = kept_up(tmp_path / "home", evicts)
    assert len(begun) == 2 and len(notices) == 1 and "planted" in notices[0]


@pytest.mark.usefixtures("often")
def test_a_held_op_that_cannot_be_read_keeps_no_other_out(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        log, key = node.log, node.runtime.home.node_key()
        stamp = Hlc(log.physical(), 5, log.node)
        identity = make_ulid(stamp.wall, b"0123456789")
        op = sign(Op(identity, stamp, log.node, (), ScheduleJob(identity, "acme.x", b"", b"")), key)
        damaged = bytes(16) + b"\xff" * 40

        def hold(tx: Transaction) -> None:
            tx.session.hold(damaged[:16], stamp.wall - 1, damaged)
            tx.session.hold(op.id, stamp.wall, encode(op))

        await node.run(hold)
        await until(lambda: node.peek(lambda session: session.held() == (0, None)))

    assert kept_up(tmp_path / "home", test) == []


def test_a_blob_that_cannot_be_deleted_keeps_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Runtime.init(tmp_path / "home") as runtime:
        blobs = runtime.blobs
        data = [bytes([number]) * 100_000 for number in range(3)]
        made = [
            runtime.log.run(lambda tx, each=each: artifacts.put(tx, blobs, "note", contain(blobs, each), None))
            for each in data
        ]
        for artifact_id in made:
            with runtime.read() as session:
                found = session.artifact(artifact_id)
            assert found is not None
            runtime.log.run(lambda tx, found=found: artifacts.evict(tx, found))
        real, bad = blobs.remove, content_hash(data[1])

        def remove(hash: bytes) -> int:
            if hash == bad:
                raise PermissionError("planted")
            return real(hash)

        monkeypatch.setattr(blobs, "remove", remove)
        notices: list[str] = []
        cleared = artifacts.clear(runtime.store, blobs, troubles=Troubles(sentences(notices.append), time.monotonic))
        assert cleared.blobs == 2 and blobs.has(bad)
        assert len(notices) == 1 and "planted" in notices[0]


# What is told.


def test_a_trouble_is_told_again_only_after_a_while() -> None:
    now = 0.0
    notices: list[str] = []
    known = Troubles(sentences(notices.append), lambda: now)
    for now in (0.0, 1.0, troubles.TOLD_AGAIN_S - 1, troubles.TOLD_AGAIN_S):
        known.tell("x", JobSkipped("x", f"at {now:.0f}"))
    known.tell("y", JobSkipped("y", "once"))
    assert [text.split(": ")[1] for text in notices] == ["at 0", f"at {troubles.TOLD_AGAIN_S:.0f}", "once"]
    assert known.is_resting("x") and not known.is_resting("z")
    now += troubles.REST_S
    assert not known.is_resting("x")


def test_an_error_of_the_store_is_everybodys() -> None:
    known = Troubles(lambda text: None, lambda: 0.0)
    with pytest.raises(StoreError), known.contained("x", "x"):
        raise StoreError("full")


def test_what_is_remembered_of_troubles_is_bounded() -> None:
    known = Troubles(lambda text: None, lambda: 0.0)
    for number in range(troubles.REMEMBERED_MAX + 10):
        known.tell(number, "")
    assert not known.is_resting(0) and known.is_resting(troubles.REMEMBERED_MAX)
    assert len(known._told) == len(known._failed) == troubles.REMEMBERED_MAX
