"""A worker whose arbiter is another node: the real worker and two real logs on virtual time, and between them a line
that can be cut, slow or one-sided. What the arbiter decides is its own affair; what is tested is what the worker makes
of it.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from hocket.errors import Unreachable
from hocket.events import sentences
from hocket.extensions.sim.loop import run as run_virtually
from hocket.extensions.sim.node import Clocks, SimEnvironment, SimHost
from hocket.families.jobs import claiming, rescue
from hocket.families.jobs import claiming as accepting
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.requests import Decision, Draft, Held, Offer
from hocket.families.jobs.rules import Job, Outcome, State
from hocket.kernel.arbitration import Reason
from hocket.kernel.ids import content_hash, ulid_text
from hocket.kernel.keys import SigningKey, did_key
from hocket.kernel.ops import decode
from hocket.kernel.policy import Policy
from hocket.kernel.retrying import ARBITER_RETRIES
from hocket.kernel.ucan import ROOT, issue
from hocket.kernel.vocabulary import JOB, DelegateUcan, DesignateCoordinator, Subject
from hocket.log import Log, Transaction
from hocket.log.machine_clock import SteadyWall
from hocket.store import MEMORY, Place, Session
from hocket.store import open as open_store
from hocket.work.context import Context
from hocket.work.environment import WorkerOptions
from hocket.work.handlers import Handlers, JobType
from hocket.work.held_jobs import QUEUED_MAX_S
from hocket.work.pending_decisions import decisions
from hocket.work.run_outputs import RunServices
from hocket.work.worker import Worker

pytestmark = pytest.mark.touches("LW-39")

USER = SigningKey(bytes(31) + b"u")


class Home:
    """A node's log in memory."""

    def __init__(self, number: int, clocks: Clocks) -> None:
        self.chance = random.Random(number)
        self.key = SigningKey(self.chance.randbytes(32))
        self.environment = SimEnvironment(clocks, self.chance, SimHost(Place()))
        self.store = open_store(MEMORY)
        self.log = Log(
            self.store,
            self.key,
            did_key(USER.public),
            wall=SteadyWall(clocks.day, clocks.monotonic),
            physical=self.environment.physical_ms,
            randomness=self.chance.randbytes,
            bus=self.environment.bus,
        )
        self.log.run(self._introduce)

    def _introduce(self, tx: Transaction) -> None:
        token = issue(USER, self.key.public, ROOT, tx.now // 1000, None)
        tx.author(DelegateUcan(content_hash(token), token))

    def bodies(self) -> list[bytes]:
        with self.store.read() as session:
            return [self.log.signed(row.body) for row in session.entries_after(0, 10_000)]

    def take(self, bodies: list[bytes]) -> None:
        self.log.admit([(body, decode(body)) for body in bodies], decide=accepting.accept)

    def job(self, job_id: bytes) -> Job:
        with self.store.read() as session:
            entry = session.job(job_id)
        assert entry is not None
        return entry.job

    def ops(self, job_id: bytes) -> list[tuple[str, int]]:
        """The types of the ops on a job, each with its reason."""
        with self.store.read() as session:
            return [
                (type(decode(row.body).payload).__name__, row.reason) for row in session.ops_about(Subject(JOB, job_id))
            ]

    def submit(self, kind: str, **policy: Any) -> bytes:
        return self.log.run(lambda tx: jobs.submit(tx, [Draft(kind, b"{}", Policy(**policy))]))[0].job_id


class Line:
    """The worker's way to its log and to the arbiter. `is_cut`: it cannot be asked; `is_deaf`: it hears what is
    offered, but its answer does not come; `delay_s`: how long it takes.
    """

    def __init__(self, here: Home, there: Home) -> None:
        self._here, self._there = here, there
        self.is_cut = self.is_deaf = False
        self.delay_s = 0.01
        self.asked: list[tuple[float, int]] = []

    @property
    def log(self) -> Log:
        return self._here.log

    def kit(self, kind: str) -> RunServices:
        return RunServices(
            None, self._here.log.reading, self._here.log.new_id, self._here.environment.monotonic, lambda: False
        )  # type: ignore[arg-type]

    def holding(self, shortest_lease_s: Callable[[], float]) -> AbstractContextManager[None]:
        return nullcontext()

    async def run(self, request: Callable[[Transaction], Any], *, beside: bool = False) -> Any:
        await asyncio.sleep(0)
        return self._here.log.run(request)

    async def peek(self, query: Callable[[Session], Any]) -> Any:
        await asyncio.sleep(0)
        with self._here.store.read() as session:
            return query(session)

    async def consult(self, offers: Sequence[Offer], *, is_urgent: bool = False) -> list[Decision]:
        self.asked.append((now(), len(offers)))
        if self.is_cut:
            raise Unreachable("the line is cut")
        await asyncio.sleep(self.delay_s)
        self._there.take(self._here.bodies())
        if self.is_deaf:
            raise Unreachable("no answer came")
        self._here.take(self._there.bodies())
        return await self.peek(lambda session: decisions(session, offers))


class Mesh:
    """An arbiter, a worker's node, and a worker there. `done` are its runs and what became of them."""

    def __init__(self, types: Sequence[JobType], **options: Any) -> None:
        self.arbiter, self.home = Home(1, Clocks(1.0, 0.0)), Home(2, Clocks(1.0, 0.0))
        self.arbiter.log.run(lambda tx: tx.author(DesignateCoordinator(tx.node)))
        self.home.take(self.arbiter.bodies())
        self.line = Line(self.home, self.arbiter)
        self.said: list[str] = []
        self.done: list[tuple[bytes, Decision]] = []
        self.worker = Worker(
            self.line,
            self.home.environment,
            WorkerOptions(
                Handlers(types),
                emit=sentences(self.said.append),
                finished=lambda run, outcome: self.done.append((run.job.id, outcome)),
                **options,
            ),
        )
        self.running = asyncio.create_task(self.worker.run())

    async def stop(self) -> None:
        self.worker.stop()
        await self.running

    def exchange(self) -> None:
        """What the nodes' own exchange does now and then."""
        self.arbiter.take(self.home.bodies())
        self.home.take(self.arbiter.bodies())


def now() -> float:
    return asyncio.get_running_loop().time()


async def until(look: Callable[[], Any], patience: float = 120.0) -> Any:
    deadline = now() + patience
    while not (seen := look()):
        assert now() < deadline, "waited in vain"
        await asyncio.sleep(0.01)
    return seen


class Work:
    """Handlers that say when they began and ended."""

    def __init__(self, seconds: float = 0.5, kind: str = "w.job", lease_ms: int = 3_000) -> None:
        self.began: list[float] = []
        self.ended: list[float] = []
        self.stopped: list[float] = []
        self.fences: list[int] = []

        async def work(ctx: Context) -> str:
            self.began.append(now())
            self.fences.append(ctx.fence)
            try:
                await asyncio.sleep(seconds)
            except asyncio.CancelledError:
                self.stopped.append(now())
                raise
            self.ended.append(now())
            return f"fence {ctx.fence}"

        self.type = JobType(kind, function=work, lease_ms=lease_ms)


def virtually(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def wrapped() -> None:
        run_virtually(test())

    wrapped.__name__, wrapped.__doc__ = test.__name__, test.__doc__
    return wrapped


# Accepted.


@pytest.mark.req("LW-39")
@virtually
async def test_a_job_begins_when_its_claim_is_accepted_and_ends_when_its_end_is() -> None:
    work = Work()
    mesh = Mesh([work.type])
    job_id = mesh.home.submit("w.job")
    await until(lambda: mesh.done)
    assert mesh.arbiter.job(job_id).outcome is mesh.home.job(job_id).outcome is Outcome.SUCCEEDED
    assert mesh.arbiter.job(job_id) == mesh.home.job(job_id)
    kinds = [kind for kind, reason in mesh.home.ops(job_id) if reason == 0]
    assert kinds == ["ScheduleJob", "AcceptWork", "AcceptWork"]
    (done,) = mesh.done
    assert isinstance(done[1], Job)
    await mesh.stop()
    assert mesh.worker.succeeded == 1
    with mesh.home.store.read() as session:
        assert session.offered_jobs() == set(), "nothing is left on the list of offers"


@pytest.mark.req("LW-39")
@virtually
async def test_nothing_begins_before_the_answer_and_the_lease_counts_from_before_the_offer() -> None:
    work = Work(seconds=60, lease_ms=2_000)
    mesh = Mesh([work.type])
    mesh.line.delay_s = 1.0
    mesh.home.submit("w.job")
    await until(lambda: mesh.line.asked)
    offered = mesh.line.asked[0][0]
    await until(lambda: work.began)
    assert work.began[0] >= offered + 1.0
    mesh.line.is_cut = True
    await until(lambda: work.stopped)
    assert offered + 1.9 < work.stopped[0] <= offered + 2.0
    assert any("lease ran out" in text for text in mesh.said)
    await mesh.stop()


@virtually
async def test_an_answer_that_comes_after_the_lease_starts_nothing_and_goes_back() -> None:
    work = Work(lease_ms=1_000)
    mesh = Mesh([work.type])
    mesh.line.delay_s = 1.5
    job_id = mesh.arbiter.submit("w.job", lease_ms=1_000)
    mesh.home.take(mesh.arbiter.bodies())
    # The arbiter takes the offer in at once; only the answer is slow.
    consult = mesh.line.consult

    async def slow(offers: Sequence[Offer], is_urgent: bool) -> list[Decision]:
        mesh.arbiter.take(mesh.home.bodies())
        return await consult(offers)

    mesh.worker._pending_decisions._consult = slow
    await until(lambda: "YieldWork" in [kind for kind, _ in mesh.home.ops(job_id)])
    assert not work.began
    await mesh.stop()


# Refused.


@virtually
async def test_a_second_claim_is_no_renewal_of_one_that_its_author_does_not_know_of() -> None:
    """A worker's claim was accepted, but the answer did not come before it died; its successor claims the job too."""
    arbiter, home = Home(1, Clocks(1.0, 0.0)), Home(2, Clocks(1.0, 0.0))
    arbiter.log.run(lambda tx: tx.author(DesignateCoordinator(tx.node)))
    home.take(arbiter.bodies())
    job_id = home.submit("w.job")
    claims = home.log.run(lambda tx: claiming.claim(tx, 1, 1, lambda kind: 60_000, offering=True))
    arbiter.take(home.bodies())
    first = arbiter.job(job_id)
    assert first.state is State.CLAIMED
    home.log.run(lambda tx: rescue.reclaim(tx, {1}))
    again = home.log.run(lambda tx: claiming.claim(tx, 2, 1, lambda kind: 60_000, offering=True))
    assert claims.wanted and again.wanted
    arbiter.take(home.bodies())
    home.take(arbiter.bodies())
    assert arbiter.job(job_id).claim_op == home.job(job_id).claim_op == first.claim_op
    with home.store.read() as session:
        # The arbiter takes it for a renewal, as software that knows claims by their node writes them; but this claim
        # does not hold the job.
        assert decisions(session, [again.wanted[0].offer]) == [Reason.STALE_CLAIM]


@virtually
async def test_a_claim_that_is_not_accepted_starts_nothing_and_is_not_repeated_at_once() -> None:
    work = Work()
    mesh = Mesh([work.type])
    job_id = mesh.arbiter.submit("w.job", concurrency=1)
    other = mesh.arbiter.submit("w.job", concurrency=1)
    held = mesh.arbiter.log.run(lambda tx: claiming.claim(tx, 0, 1, lambda kind: 60_000)).taken[0].job
    assert held.id == job_id
    # The worker's node hears of the jobs, but not yet of the claim that takes up the only place.
    mesh.home.take([body for body in mesh.arbiter.bodies() if "ClaimWork" not in type(decode(body).payload).__name__])
    began = now()
    await asyncio.sleep(10)
    assert not work.began
    offers = [each for each in mesh.line.asked if each[0] >= began]
    assert 1 <= len(offers) <= 12, "a refused claim rests"
    assert mesh.home.job(other).state is State.PENDING
    await mesh.stop()


@pytest.mark.req("LW-39")
@virtually
async def test_a_holder_whose_renewal_is_refused_is_stopped() -> None:
    work = Work(seconds=60, lease_ms=3_000)
    mesh = Mesh([work.type])
    job_id = mesh.home.submit("w.job")
    await until(lambda: work.began)
    mesh.arbiter.log.run(lambda tx: jobs.cancel(tx, job_id, "enough"))
    await until(lambda: work.stopped)
    assert work.stopped[0] - work.began[0] < 1.5, "at the first renewal"
    await mesh.stop()
    assert mesh.home.job(job_id).outcome is Outcome.CANCELLED


@pytest.mark.req("LW-39")
@virtually
async def test_a_holder_that_hears_of_another_holder_is_stopped() -> None:
    work = Work(seconds=60, lease_ms=60_000)
    mesh = Mesh([work.type])
    job_id = mesh.home.submit("w.job")
    await until(lambda: work.began)
    await asyncio.sleep(1)
    mesh.arbiter.log.run(lambda tx: jobs.cancel(tx, job_id, "enough"))
    mesh.exchange()
    await until(lambda: work.stopped, 5)
    await mesh.stop()


# The arbiter is away.


@pytest.mark.req("LW-39")
@virtually
async def test_without_the_arbiter_nothing_of_its_jobs_begins_and_open_jobs_go_on() -> None:
    work, free = Work(), Work(kind="w.open")
    mesh = Mesh([work.type, free.type])
    mesh.line.is_cut = True
    job_id = mesh.home.submit("w.job")
    await asyncio.sleep(5)
    for _ in range(5):
        mesh.home.submit("w.open", open=True)
    await until(lambda: len(free.ended) == 5)
    await asyncio.sleep(30)
    assert not work.began
    gaps = [later[0] - earlier[0] for earlier, later in zip(mesh.line.asked, mesh.line.asked[1:], strict=False)]
    assert all(gap >= ARBITER_RETRIES.base_s for gap in gaps)
    assert max(gaps) <= ARBITER_RETRIES.cap_s + 2.5
    assert gaps[0] < 1 < gaps[-1], "the pauses grow"
    assert sum("no decision from the coordinator" in text for text in mesh.said) == 1
    claims = [kind for kind, _ in mesh.home.ops(job_id) if kind == "ClaimWork"]
    assert len(claims) == 1, "the one that was dropped has yet to be decided"
    mesh.line.is_cut = False
    await until(lambda: work.ended)
    assert any("decides again" in text for text in mesh.said)
    await mesh.stop()


@virtually
async def test_what_is_held_goes_on_without_the_arbiter_until_the_lease_is_over() -> None:
    work = Work(seconds=60, lease_ms=6_000)
    mesh = Mesh([work.type])
    mesh.home.submit("w.job")
    await until(lambda: work.began)
    offered = mesh.line.asked[0][0]
    mesh.line.is_cut = True
    await until(lambda: work.stopped)
    assert offered + 5.8 < work.stopped[0] < offered + 6.0
    await mesh.stop()


@virtually
async def test_a_renewal_is_put_again_until_the_arbiter_is_back() -> None:
    work = Work(seconds=12, lease_ms=6_000)
    mesh = Mesh([work.type])
    job_id = mesh.home.submit("w.job")
    await until(lambda: work.began)
    mesh.line.is_cut = True
    await asyncio.sleep(4)
    mesh.line.is_cut = False
    await until(lambda: mesh.done)
    assert not work.stopped
    assert mesh.home.job(job_id).outcome is Outcome.SUCCEEDED
    assert mesh.home.job(job_id).fence == 1
    await mesh.stop()


@virtually
async def test_an_end_stays_offered_until_it_is_decided() -> None:
    work = Work(seconds=1, lease_ms=60_000)
    mesh = Mesh([work.type])
    job_id = mesh.home.submit("w.job")
    await until(lambda: work.began)
    mesh.line.is_cut = True
    await until(lambda: work.ended)
    await asyncio.sleep(20)
    assert not mesh.done
    assert mesh.home.ops(job_id)[-1] == ("CompleteJob", Reason.OFFERED)
    mesh.line.is_cut = False
    await until(lambda: mesh.done)
    assert mesh.worker.succeeded == 1
    assert mesh.arbiter.job(job_id).outcome is Outcome.SUCCEEDED
    assert len(work.began) == 1
    await mesh.stop()


@pytest.mark.req("LW-39")
@virtually
async def test_an_end_that_comes_after_the_lease_was_given_to_another_is_refused() -> None:
    work = Work(seconds=1, lease_ms=2_000)
    mesh = Mesh([work.type])
    job_id = mesh.home.submit("w.job")
    await until(lambda: work.began)
    mesh.line.is_cut = True
    await until(lambda: work.ended)
    await asyncio.sleep(5)
    mesh.arbiter.log.run(lambda tx: rescue.expire(tx, 10))
    (other,) = mesh.arbiter.log.run(lambda tx: claiming.claim(tx, 0, 1, lambda kind: 60_000)).taken
    mesh.line.is_cut = False
    await until(lambda: mesh.done)
    assert isinstance(mesh.done[0][1], Reason)
    assert any("result discarded" in text for text in mesh.said)
    assert other.job.claim_op is not None
    held = Held(job_id, other.job.claim_op)
    mesh.arbiter.log.run(lambda tx: jobs.complete(tx, held, b'"other"', 1))
    mesh.exchange()
    assert mesh.home.job(job_id) == mesh.arbiter.job(job_id)
    assert mesh.home.job(job_id).fence == 2
    await mesh.stop()


async def _dropped_and_yet_accepted(is_busy: bool) -> None:
    """The arbiter's answer was lost, or late: to hand the job back would cost another claim."""
    work, other = Work(seconds=0.5, lease_ms=60_000), Work(seconds=20, kind="w.open", lease_ms=60_000)
    mesh = Mesh([work.type, other.type])
    mesh.line.is_deaf = True
    job_id = mesh.home.submit("w.job")
    await until(lambda: mesh.arbiter.ops(job_id)[-1:] == [("AcceptWork", 0)] if mesh.line.asked else None)
    for _ in range(mesh.worker._runner.slots if is_busy else 0):
        mesh.home.submit("w.open", open=True)
    await asyncio.sleep(3)
    assert not work.began
    mesh.line.is_deaf = False
    await until(lambda: work.ended)
    assert work.fences == [2 if is_busy else 1]
    kinds = [kind for kind, _ in mesh.home.ops(job_id)]
    assert kinds[:3] == ["ScheduleJob", "ClaimWork", "AcceptWork"]
    assert ("YieldWork" in kinds) is is_busy
    await mesh.stop()


@virtually
async def test_a_claim_that_was_dropped_and_yet_accepted_begins_if_a_slot_is_free() -> None:
    await _dropped_and_yet_accepted(is_busy=False)


@virtually
async def test_a_claim_that_was_dropped_and_yet_accepted_goes_back_if_no_slot_is_free() -> None:
    await _dropped_and_yet_accepted(is_busy=True)


@virtually
async def test_a_claim_that_is_decided_after_its_lease_goes_back() -> None:
    work = Work(seconds=0.1, lease_ms=2_000)
    mesh = Mesh([work.type])
    mesh.line.is_deaf = True
    job_id = mesh.home.submit("w.job")
    await until(lambda: mesh.arbiter.ops(job_id)[-1:] == [("AcceptWork", 0)] if mesh.line.asked else None)
    await asyncio.sleep(3)
    mesh.line.is_deaf = False
    await until(lambda: work.ended)
    assert work.fences == [2]
    await mesh.stop()


@virtually
async def test_the_loop_never_waits_for_the_network() -> None:
    """While one question is under way for long, jobs that need no arbiter run as ever."""
    work, free = Work(lease_ms=60_000), Work(seconds=0.1, kind="w.open")
    mesh = Mesh([work.type, free.type])
    mesh.line.delay_s = 4.5
    mesh.home.submit("w.job")
    await until(lambda: mesh.line.asked)
    for number in range(5):
        mesh.home.submit("w.open", open=True)
        await until(lambda number=number: len(free.ended) > number, 2)
    assert len(mesh.line.asked) == 1, "one question at a time"
    assert not work.began
    await until(lambda: work.ended)
    await mesh.stop()


# Ending.


@virtually
async def test_at_the_end_what_is_undecided_is_decided_within_the_grace() -> None:
    work = Work(seconds=1, lease_ms=60_000)
    mesh = Mesh([work.type], grace=10.0)
    mesh.home.submit("w.job")
    await until(lambda: work.began)
    mesh.line.is_cut = True
    await until(lambda: work.ended)
    mesh.worker.stop()
    await asyncio.sleep(2)
    assert not mesh.running.done()
    mesh.line.is_cut = False
    await mesh.running
    assert mesh.worker.succeeded == 1


@virtually
async def test_after_the_grace_what_is_undecided_is_left_offered() -> None:
    work = Work(seconds=60, lease_ms=60_000)
    mesh = Mesh([work.type], grace=3.0)
    job_id = mesh.home.submit("w.job")
    await until(lambda: work.began)
    mesh.line.is_cut = True
    before = now()
    await mesh.stop()
    assert 3 <= now() - before < 6
    assert mesh.home.ops(job_id)[-1] == ("YieldWork", Reason.OFFERED)
    mesh.exchange()
    assert mesh.home.job(job_id).state is mesh.arbiter.job(job_id).state is State.PENDING


@virtually
async def test_a_claim_that_is_accepted_while_the_worker_stops_goes_back() -> None:
    work = Work(lease_ms=60_000)
    mesh = Mesh([work.type])
    mesh.line.delay_s = 1.0
    job_id = mesh.home.submit("w.job")
    await until(lambda: mesh.line.asked)
    await mesh.stop()
    assert not work.began
    mesh.exchange()
    assert mesh.arbiter.job(job_id).state is State.PENDING
    assert mesh.arbiter.job(job_id).fence == 1


@virtually
async def test_until_idle_waits_for_what_is_undecided() -> None:
    work = Work(seconds=1, lease_ms=60_000)
    mesh = Mesh([work.type], until_idle=True)
    job_id = mesh.home.submit("w.job")
    await until(lambda: work.began)
    mesh.line.is_cut = True
    await until(lambda: work.ended)
    await asyncio.sleep(10)
    assert not mesh.running.done()
    mesh.line.is_cut = False
    await mesh.running
    assert mesh.worker.succeeded == 1, ulid_text(job_id)


@virtually
async def test_whoever_claims_looks_past_jobs_whose_claims_wait_for_the_arbiter() -> None:
    mesh = Mesh([])
    ids = [mesh.home.submit("a") for _ in range(5)]
    claims = [
        mesh.home.log.run(lambda tx: claiming.claim(tx, 1, 2, {"a": 60_000}.get, offering=True)).wanted
        for _ in range(3)
    ]
    assert [[each.offer.job_id for each in some] for some in claims] == [ids[:2], ids[2:4], ids[4:]]
    await mesh.stop()


# Claiming ahead.


@pytest.mark.req("LW-18")
@virtually
async def test_a_slow_arbiter_makes_no_worker_return_what_it_has_claimed_ahead() -> None:
    """A job that was claimed ahead waits for a slot from the arbiter's answer on, however late that comes."""
    work = Work(seconds=0.005, lease_ms=60_000)
    mesh = Mesh([work.type])
    mesh.line.delay_s = 1.5 * QUEUED_MAX_S
    job_ids = [mesh.home.submit("w.job") for _ in range(40)]
    await until(lambda: len(work.ended) == len(job_ids))
    await mesh.stop()
    returned = [job_id for job_id in job_ids if "YieldWork" in [kind for kind, _ in mesh.home.ops(job_id)]]
    assert (len(returned), set(work.fences)) == (0, {1})


@pytest.mark.req("LW-18", "LW-41")
@virtually
async def test_a_worker_that_can_start_nothing_claims_ever_more_rarely_and_harms_no_job() -> None:
    work = Work(lease_ms=600_000)
    mesh = Mesh([work.type], concurrency=1)
    start = mesh.worker._runner.start_all
    mesh.worker._runner.start_all = lambda runs, are_quick=False: None  # type: ignore[method-assign]
    job_id = mesh.home.submit("w.job")
    await asyncio.sleep(300)
    claims = sum(kind == "ClaimWork" for kind, _ in mesh.home.ops(job_id))
    job = mesh.home.job(job_id)
    assert (job.outcome, job.returns) == (None, 0)
    assert 3 < claims < 15
    mesh.worker._runner.start_all = start  # type: ignore[method-assign]
    await until(lambda: work.ended)
    await mesh.stop()
