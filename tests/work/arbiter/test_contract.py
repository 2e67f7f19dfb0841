"""What every arbiter promises, asked of each of them: the store that several processes share, the coordinator that
other nodes reach over HTTP, and the servers on which nodes share a store. Two seats compete for the same jobs; each
asks as a worker does, and acts on the answer.
"""

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hocket.errors import Unreachable
from hocket.families.access import decided
from hocket.families.jobs import claiming, rescue, view
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.requests import Decision, Held, Offer, Result
from hocket.families.jobs.rules import Job, Outcome, State
from hocket.kernel.arbitration import Reason
from hocket.kernel.ids import ulid_text
from hocket.kernel.vocabulary import RouteKind
from hocket.log import Log, Transaction
from hocket.node.node import Node
from hocket.node.runtime import Runtime
from hocket.work.handlers import kind
from tests.libsql_server import new_server
from tests.mesh.world import Place, world
from tests.postgres_server import prepared, server

pytestmark = pytest.mark.touches("LW-39", "VX-14", "VX-18")

LEASE_MS = 60_000
ARBITERS = ("the shared store", "the coordinator over HTTP")
SERVERS = {
    "PostgreSQL": lambda: server().new_database(template=prepared()),
    "libSQL": lambda: new_server(has_store=True).address,
}


class Seat:
    """Somebody who wants work. `look` brings what others did."""

    def __init__(self, node: Node, number: int, place: Place | None = None, owner: str = "") -> None:
        self.node, self.number = node, number
        self._place, self._owner = place, owner

    async def look(self) -> None:
        if self._place is not None:
            await self._place.exchanges.visit(self._owner)

    async def ask(self, request: Callable[[Transaction], Result]) -> Decision:
        return (await decided(self.node, lambda tx: [request(tx)]))[0]

    async def claim(self, limit: int = 1) -> list[Decision]:
        offers: list[Offer] = []

        def request(tx: Transaction) -> list[Result]:
            claims = claiming.claim(tx, self.number, limit, lambda kind: LEASE_MS, offering=True)
            offers.extend(wanted.offer for wanted in claims.wanted)
            return [*(claim.job for claim in claims.taken), *offers]

        decisions = await decided(self.node, request)
        await self.node.run(lambda tx: [tx.session.drop_offer(offer.op_id) for offer in offers])
        return decisions

    async def hold(self) -> Job:
        (job,) = await self.claim()
        assert isinstance(job, Job)
        return job


class Table:
    """An arbiter and two seats. `log` is where it decides. All of them go by clocks that the test can move, so that no
    lease runs out before it is to.
    """

    claim = "first"

    def __init__(self, log: Log, seats: tuple[Seat, Seat], stop: Callable[[], object] | None = None) -> None:
        self.log, self.seats, self.stop = log, seats, stop
        self._later_ms = 0
        for each in {log, *(seat.node.log for seat in seats)}:
            self._govern(each)

    def _govern(self, log: Log) -> None:
        wall, physical = log.wall, log.physical
        log.wall = lambda floor: max(floor, wall(0) + self._later_ms)
        log.physical = lambda: physical() + self._later_ms

    async def submit(self, count: int = 1, **options: object) -> list[bytes]:
        drafts = [kind("test.kind", **{"claim": self.claim} | options).draft({}) for _ in range(count)]  # type: ignore[arg-type]
        made = self.log.run(lambda tx: jobs.submit(tx, drafts))
        await self.look()
        return [each.job_id for each in made]

    async def look(self) -> None:
        for seat in self.seats:
            await seat.look()

    def expire(self) -> None:
        """Moves the clocks past the end of a lease, and lets the arbiter end it."""
        assert self.log.run(lambda tx: rescue.expire(tx, 10)) == 0
        self._later_ms += LEASE_MS + 1
        assert self.log.run(lambda tx: rescue.expire(tx, 10)) == 1

    def job(self, job_id: bytes) -> Job:
        with self.log.store.read() as session:
            entry = session.job(job_id)
        assert entry is not None
        return entry.job


@asynccontextmanager
async def sharing(directory: Path) -> AsyncIterator[Table]:
    async with AsyncExitStack() as stack:
        Runtime.init(directory / "home").close()
        nodes = [Node(Runtime.open(directory / "home")) for _ in range(2)]
        for node in nodes:
            stack.push_async_callback(node.close)
        yield Table(nodes[0].log, (Seat(nodes[0], 1), Seat(nodes[1], 2)))


@asynccontextmanager
async def coordinating(directory: Path) -> AsyncIterator[Table]:
    async with world(directory, "owner", "one", "two") as (owner, *others):
        seats = []
        for number, place in enumerate(others):
            place.befriend(owner.address, owner.id)
            place.node.reach = place.exchanges.consult
            seats.append(Seat(place.node, number + 1, place, owner.address))
        yield Table(owner.log, (seats[0], seats[1]), owner.stop_serving)


@asynccontextmanager
async def on_a_server(address: str, directory: Path) -> AsyncIterator[Table]:
    """Two nodes, each with a home and a key of its own."""
    founder = Runtime.init(directory / "founder", server=address, name="founder")
    second = Runtime.init(directory / "second", directory / "founder" / "user.key", server=address, name="second")
    async with AsyncExitStack() as stack:
        nodes = [Node(runtime) for runtime in (founder, second)]
        for node in nodes:
            stack.push_async_callback(node.close)
        yield Table(nodes[0].log, (Seat(nodes[0], 1), Seat(nodes[1], 2)))


@pytest.fixture(params=[*ARBITERS, *(f"{each}, ranked jobs" for each in ARBITERS), *SERVERS])
def table(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], object]:
    """With ranked jobs, the seats are workers that do not keep to the ranking: it decides who tries, and nothing
    else.
    """
    if request.param in SERVERS:
        return functools.partial(on_a_server, SERVERS[request.param]())
    if request.param.endswith("ranked jobs"):
        monkeypatch.setattr(Table, "claim", "rendezvous")
    return sharing if request.param.startswith(ARBITERS[0]) else coordinating


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(**given: Any) -> None:
        asyncio.run(test(**given))

    return run


def held(job: Job) -> Held:
    assert job.claim_op is not None
    return Held(job.id, job.claim_op)


def complete(job: Job) -> Callable[[Transaction], Result]:
    return lambda tx: jobs.complete(tx, held(job), None, 1)


def shown(at: Table, job: Job) -> tuple[str | None, str | None]:
    """The error and the traceback that a person is shown."""
    with at.log.store.read() as session:
        told = view.full(session, view.find(session, ulid_text(job.id)))
    return told["error"], told["traceback"]


@pytest.mark.req("LW-39")
@on_a_loop
async def test_of_two_who_want_the_same_job_one_gets_it(table, tmp_path):
    async with table(tmp_path) as at:
        wanted = await at.submit(20)
        first, second = await asyncio.gather(*(seat.claim(20) for seat in at.seats))
        got = [job for job in (*first, *second) if isinstance(job, Job)]
        assert sorted(job.id for job in got) == sorted(wanted)
        assert all(isinstance(each, Job | Reason) for each in (*first, *second))
        assert {job.fence for job in got} == {1}
        for job_id in wanted:
            holder = next(job for job in got if job.id == job_id)
            assert at.job(job_id).claim_op == holder.claim_op


@on_a_loop
async def test_a_renewal_keeps_the_fence_and_moves_the_deadline(table, tmp_path):
    async with table(tmp_path) as at:
        await at.submit()
        job = await at.seats[0].hold()
        again = await at.seats[0].ask(lambda tx: jobs.renew(tx, held(job), LEASE_MS * 2))
        assert isinstance(again, Job)
        assert (again.fence, again.claim_op) == (job.fence, job.claim_op)
        assert again.deadline > job.deadline
        assert at.job(job.id).deadline == again.deadline


@pytest.mark.req("LW-39")
@on_a_loop
async def test_a_completion_counts_once_and_for_good(table, tmp_path):
    async with table(tmp_path) as at:
        await at.submit()
        job = await at.seats[0].hold()
        done = await at.seats[0].ask(complete(job))
        assert isinstance(done, Job) and done.outcome is Outcome.SUCCEEDED
        assert isinstance(await at.seats[0].ask(complete(job)), Reason)
        assert at.job(job.id).outcome is Outcome.SUCCEEDED
        await at.look()
        assert await at.seats[1].claim() == []


@pytest.mark.req("LW-39")
@on_a_loop
async def test_an_expired_holder_is_displaced_and_its_late_end_refused(table, tmp_path):
    async with table(tmp_path) as at:
        await at.submit()
        slow = await at.seats[0].hold()
        at.expire()
        await at.look()
        quick = await at.seats[1].hold()
        assert quick.id == slow.id and quick.fence == slow.fence + 1
        assert isinstance(await at.seats[0].ask(complete(slow)), Reason)
        assert isinstance(await at.seats[0].ask(lambda tx: jobs.renew(tx, held(slow), LEASE_MS)), Reason)
        assert at.job(quick.id).claim_op == quick.claim_op
        assert isinstance(await at.seats[1].ask(complete(quick)), Job)


@pytest.mark.req("LW-39")
@on_a_loop
async def test_the_late_end_of_one_who_was_cut_off_is_refused_everywhere(tmp_path):
    """It was written before the lease ran out, by a node that could not reach the arbiter; the arbiter has meanwhile
    given the job to another. Only a coordinator can be out of reach.
    """
    async with coordinating(tmp_path) as at:
        await at.submit()
        slow = await at.seats[0].hold()
        offered = await at.seats[0].node.run(complete(slow))
        assert isinstance(offered, Offer)
        at.expire()
        await at.seats[1].look()
        quick = await at.seats[1].hold()
        assert await at.seats[0].node.consult([offered]) == [Reason.NOT_ACCEPTED]
        await at.look()
        for log in (at.log, *(seat.node.log for seat in at.seats)):
            with log.store.read() as session:
                entry = session.job(quick.id)
                assert entry is not None and entry.job.claim_op == quick.claim_op
                assert entry.job.state is State.CLAIMED and entry.job.fence == 2


@on_a_loop
async def test_what_is_handed_back_can_be_had_by_another(table, tmp_path):
    async with table(tmp_path) as at:
        await at.submit()
        job = await at.seats[0].hold()
        back = await at.seats[0].ask(lambda tx: jobs.hand_back(tx, held(job), "no time"))
        assert isinstance(back, Job) and back.state is State.PENDING
        await at.look()
        assert (await at.seats[1].hold()).fence == 2


@on_a_loop
async def test_a_failure_comes_back_to_be_tried_again(table, tmp_path):
    async with table(tmp_path) as at:
        await at.submit(retries=1, backoff="0ms")
        job = await at.seats[0].hold()
        failed = await at.seats[0].ask(lambda tx: jobs.fail(tx, held(job), "E", "", True))
        assert isinstance(failed, Job) and (failed.state, failed.failures) == (State.PENDING, 1)
        await at.look()
        second = await at.seats[1].hold()
        dead = await at.seats[1].ask(lambda tx: jobs.fail(tx, held(second), "no disk", "where", True))
        assert isinstance(dead, Job) and dead.outcome is Outcome.FAILED
        assert shown(at, job) == ("no disk", "where")


@on_a_loop
async def test_a_cancelled_job_has_no_holder_any_more(table, tmp_path):
    async with table(tmp_path) as at:
        await at.submit()
        job = await at.seats[0].hold()
        await at.look()
        off = await at.seats[1].ask(lambda tx: jobs.cancel(tx, job.id, "not needed"))
        assert isinstance(off, Job) and off.outcome is Outcome.CANCELLED
        assert shown(at, job) == ("not needed", None)
        await at.look()
        assert isinstance(await at.seats[0].ask(complete(job)), Reason)


@on_a_loop
async def test_limits_hold_for_all_together(table, tmp_path):
    async with table(tmp_path) as at:
        await at.submit(6, concurrency=2)
        first, second = await asyncio.gather(*(seat.claim(6) for seat in at.seats))
        assert sum(isinstance(each, Job) for each in (*first, *second)) == 2


@on_a_loop
async def test_a_route_is_kept_to(table, tmp_path):
    async with table(tmp_path) as at:
        await at.submit()
        nowhere = 12345
        at.log.run(lambda tx: tx.author(RouteKind("test.kind", nowhere)))
        # Whether or not the one who asks has heard of the route.
        for _ in range(2):
            assert not any(isinstance(each, Job) for each in await at.seats[1].claim())
            await at.look()


@on_a_loop
async def test_asking_twice_decides_once(tmp_path):
    async with coordinating(tmp_path) as at:
        await at.submit()
        seat = at.seats[0]
        offers: list[Offer] = []

        def request(tx: Transaction) -> None:
            claims = claiming.claim(tx, 1, 1, lambda kind: LEASE_MS, offering=True)
            offers.extend(wanted.offer for wanted in claims.wanted)

        await seat.node.run(request)
        first = await seat.node.consult(offers)
        assert first == await seat.node.consult(offers)
        assert isinstance(first[0], Job) and first[0].fence == 1


@pytest.mark.req("LW-39")
@on_a_loop
async def test_who_cannot_reach_the_arbiter_is_told_so_and_holds_nothing(tmp_path):
    async with coordinating(tmp_path) as at:
        (job_id,) = await at.submit()
        assert at.stop is not None
        await at.stop()  # type: ignore[misc]
        with pytest.raises(Unreachable):
            await at.seats[0].claim()
        assert at.job(job_id).state is State.PENDING
        with at.seats[0].node.log.store.read() as session:
            entry = session.job(job_id)
            assert entry is not None and entry.job.state is State.PENDING


@on_a_loop
async def test_without_being_asked_to_offer_a_worker_leaves_such_jobs_alone(tmp_path):
    async with coordinating(tmp_path) as at:
        await at.submit()
        seat = at.seats[0]
        claims = await seat.node.run(lambda tx: claiming.claim(tx, 1, 1, lambda kind: LEASE_MS))
        assert claims.taken == [] and claims.wanted == []


@pytest.mark.req("LW-39")
@on_a_loop
async def test_open_jobs_are_claimed_without_the_arbiter(tmp_path):
    async with coordinating(tmp_path) as at:
        await at.submit(open=True)
        assert at.stop is not None
        await at.stop()  # type: ignore[misc]
        job = await at.seats[0].hold()
        assert job.state is State.CLAIMED
