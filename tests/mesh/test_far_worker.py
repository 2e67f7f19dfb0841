"""A worker on another node, over a line with a delay: it offers its claims and its ends many at a time, and the answers
bring the decisions and the next jobs. Requests and transactions are counted, because times say nothing on a busy
machine.
"""

import asyncio
import json
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import count as count_from
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import hocket
from hocket.bus.hints import LOG, about
from hocket.families.jobs import claiming
from hocket.families.jobs.requests import Claim, Held, complete
from hocket.families.jobs.rules import Job, Outcome
from hocket.kernel.bundles import Bundle, facts_of
from hocket.kernel.ops import Op, read_sequence
from hocket.kernel.ucan import Capability
from hocket.kernel.vocabulary import JOB, AcceptWork, ClaimWork, number_of
from hocket.mesh import wire
from hocket.mesh.outgoing import readable, reader
from hocket.mesh.wire import Reply, Request
from hocket.node.runtime import Runtime
from hocket.store import Session, Stage
from hocket.work.pending_decisions import decisions
from hocket.work.worker import Worker
from tests.cli.conftest import Program
from tests.mesh.test_commands import program as program
from tests.mesh.test_commands import serving
from tests.mesh.world import PATIENCE_S, Place, enrolled, run, until, world
from tests.work.mesh import wait_for

KIND = "test.far"
JOBS, TAKEN, HELD_UP_AT = 96, 3, 40
# What a worker needs for jobs of its kind and no others.
ITS_KIND = (
    *(Capability("Job", action, {"kind_prefix": [KIND]}) for action in ("Claim", "Complete", "Read")),
    *(Capability(resource, "Read", {}) for resource in ("Registration", "Mesh")),
)
EXCHANGES = (("POST", wire.EXCHANGE), ("GET", wire.OPS), ("POST", wire.OPS))
HELD_UP = f"""
import os
import time
from pathlib import Path

import hocket


@hocket.job("{KIND}", lease="2s")
def far(n, go_on, journal):
    with open(journal, "a") as file:
        file.write(f"{{n}}\\n")
    while n == {HELD_UP_AT} and not Path(go_on).exists():
        time.sleep(0.01)
"""


class Line:
    """A relay to a server that hands everything on after a delay, in both directions."""

    def __init__(self, target: str, delay_s: float) -> None:
        self._target, self._delay_s = urlsplit(target), delay_s
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(self._target.hostname, self._target.port)
        for source, sink in ((reader, back), (there, writer)):
            task = asyncio.create_task(self._carry(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        with suppress(ConnectionError):
            while data := await source.read(64 * 1024):
                loop.call_later(self._delay_s, sink.write, data)
        loop.call_later(self._delay_s, sink.close)


class Counts:
    """The exchanges that a coordinator answers, and the transactions of its log, from now on."""

    def __init__(self, coordinator: Place) -> None:
        self.requests: Counter[str] = Counter()
        self.transactions = 0
        for method, path in EXCHANGES:
            _before(coordinator, method, path, partial(self._count, path))
        run = coordinator.log.run

        def counting(*arguments: Any, **options: Any) -> Any:
            self.transactions += 1
            return run(*arguments, **options)

        coordinator.log.run = counting  # type: ignore[method-assign]

    async def _count(self, path: str, request: Request) -> None:
        self.requests[path] += 1


def _before(place: Place, method: str, path: str, hear: Callable[[Request], Awaitable[None]]) -> None:
    """Calls `hear` with each request of a path before it is answered."""
    handler = place.gate._routes[method, path]

    async def answer(request: Request) -> Reply:
        request = await request.whole(wire.BODY_BYTES_MAX)
        await hear(request)
        return await handler(request)

    place.gate._routes[method, path] = answer


@asynccontextmanager
async def far_worker(directory: Path, coordinator: Place, delay_s: float = 0.0) -> AsyncIterator[Place]:
    async with Line(coordinator.address, delay_s).open() as address:
        b = Place(await asyncio.to_thread(Runtime.init, directory, coordinator.runtime.home.path / "user.key"))
        try:
            b.befriend(address)
            yield b
        finally:
            await b.close()


def succeeded(place: Place) -> int:
    with place.runtime.read() as session:
        return session.counts().get((Stage.DONE, Outcome.SUCCEEDED), 0)


async def drain(b: Place, count: int) -> list[int]:
    """Runs a worker until so many jobs have ended. Gives what it ran."""
    ran: list[int] = []

    @hocket.job(KIND)
    def far(n: int, text: str) -> None:
        ran.append(n)

    workers: list[Worker] = []
    ended = count_from(1)

    def finished(run: object, outcome: object) -> None:
        if next(ended) == count:
            workers[0].stop()

    async with asyncio.timeout(PATIENCE_S):
        await b.node.work([far], signals=False, started=workers.append, finished=finished)
    return ran


@pytest.mark.req("LW-39")
@pytest.mark.parametrize("delay_ms", [1, 20, 100])
def test_many_jobs_cost_a_few_round_trips_however_long_the_line(tmp_path: Path, delay_ms: int) -> None:
    async def test() -> None:
        async with world(tmp_path, "a") as [a], far_worker(tmp_path / "b", a, delay_ms / 1000) as b:
            a.submit(JOBS, KIND)
            counts = Counts(a)
            assert sorted(await drain(b, JOBS)) == list(range(JOBS))
            await until(lambda: succeeded(a) == JOBS)
            turns = JOBS // 32
            assert counts.requests[wire.EXCHANGE] <= 5 * turns, counts.requests
            assert counts.requests.total() <= 8 * turns, counts.requests
            assert counts.transactions <= 6 * turns

    asyncio.run(test())


@pytest.mark.req("LW-39")
def test_claims_that_another_node_was_faster_with_are_refused_one_by_one(tmp_path: Path) -> None:
    async def test() -> None:
        async with world(tmp_path, "a") as [a], far_worker(tmp_path / "b", a) as b:
            a.submit(JOBS, KIND)
            taken: list[Claim] = []
            offered: set[bytes] = set()

            async def be_faster(request: Request) -> None:
                ops = [op for _, op in read_sequence(request.body) if isinstance(op, Op)]
                facts = [fact.op for op in ops if isinstance(op.payload, Bundle) for fact in facts_of(op)]
                claimed = {op.payload.job_id for op in ops + facts if isinstance(op.payload, ClaimWork)}
                if claimed and not offered:
                    offered.update(claimed)
                    request_claim = partial(claiming.claim, worker=1, limit=TAKEN, lease_of=lambda kind: 60_000)
                    taken.extend((await asyncio.to_thread(a.log.run, request_claim)).taken)

            _before(a, "POST", wire.EXCHANGE, be_faster)
            ran = await drain(b, JOBS - TAKEN)
            assert len(offered) > TAKEN and {claim.job.id for claim in taken} < offered
            assert len(ran) == JOBS - TAKEN == len(set(ran))
            for claim in taken:
                assert claim.job.claim_op is not None
                held = Held(claim.job.id, claim.job.claim_op)
                assert isinstance(a.log.run(partial(complete, held=held, result=None, duration_ms=1)), Job)
            assert succeeded(a) == JOBS

    asyncio.run(test())


@pytest.mark.req("LW-39")
def test_no_hint_follows_an_answer_that_has_brought_the_same(tmp_path: Path) -> None:
    async def test(a: Place, b: Place) -> None:
        a.submit(1, KIND)
        b.befriend(a.address)
        await b.exchanges.visit(a.address)
        hints = a.transport.hints(a.address, b.headers(a.id))
        await anext(hints)  # the connection is up
        news, page, looked_at = a.gate._hint_streams._with_news, a.gate._pages.answer, [0]

        def looking(*listeners: Any) -> Any:
            found = news(*listeners)
            looked_at.append(a.count())
            return found

        def late(*arguments: Any) -> Reply:
            """The acceptance is on the log, and the streams have noticed, before the answer is made."""
            wait_for(lambda: looked_at[-1] == a.count(), "a look at the log")
            return page(*arguments)

        a.gate._hint_streams._with_news = looking  # type: ignore[method-assign, assignment]
        a.gate._pages.answer = late  # type: ignore[method-assign, assignment]
        offers = b.log.run(lambda tx: claiming.claim(tx, 1, 1, lambda kind: 60_000, offering=True)).wanted
        assert len(offers) == 1
        done = await b.exchanges.visit(a.address)
        assert done.pulled == 1
        a.submit(1, "test.other")
        with a.runtime.read() as session:
            (other,) = [entry.job.id for entry, _ in session.ready("test.other", 9)]
        async with asyncio.timeout(PATIENCE_S):
            assert (await anext(hints)) == about(LOG) | about(JOB, other)

    run(tmp_path, test)


class CountedCalls:
    """A session that counts what is asked of it."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        self.calls[name] += 1
        return getattr(self._session, name)


def test_the_queries_for_a_turn_do_not_grow_with_its_jobs(tmp_path: Path) -> None:
    async def test() -> None:
        async with world(tmp_path, "a") as [a]:
            b = await enrolled(tmp_path / "b", a, ITS_KIND)
            try:
                a.submit(JOBS, KIND)
                await b.exchanges.visit(a.address)
                claims = b.log.run(lambda tx: claiming.claim(tx, 1, JOBS, lambda kind: 60_000, offering=True))
                offers = [each.offer for each in claims.wanted]
                done = await b.exchanges.visit(a.address)
                assert len(offers) == JOBS and done.pulled == JOBS
                with b.runtime.store.read() as session:
                    counted = CountedCalls(session)
                    found = decisions(counted, offers)  # type: ignore[arg-type]
                    assert all(isinstance(each, Job) for each in found)
                    assert counted.calls.total() == 3
                with a.runtime.store.read() as session:
                    counted = CountedCalls(session)
                    accepted = session.ops_about_jobs([offer.job_id for offer in offers], number_of(AcceptWork))
                    names = readable(counted, reader(a.log, b.id), accepted)  # type: ignore[arg-type]
                    assert names and counted.calls == {"jobs_by_id": 1}
            finally:
                await b.close()

    asyncio.run(test())


def test_a_worker_that_is_killed_in_the_middle_of_a_turn_loses_nothing(
    program: Callable[[str], Program], tmp_path: Path
) -> None:
    (tmp_path / "tasks.py").write_text(HELD_UP)
    a, b = program("a"), program("b")
    address, _ = serving(a)
    b("peers", "add", address, code=0)
    for n in range(JOBS):
        a.submit(KIND, json.dumps({"n": n, "go_on": str(tmp_path / "go"), "journal": str(tmp_path / "journal")}))
    journal = tmp_path / "journal"
    ran = lambda: [int(n) for n in journal.read_text().split()] if journal.exists() else []  # noqa: E731
    worker = b.start("work", "tasks.py", "--concurrency", "1")
    wait_for(lambda: HELD_UP_AT in ran(), "the job in the middle")
    worker.send_signal(signal.SIGKILL)
    worker.communicate()
    assert len(ran()) < JOBS
    (tmp_path / "go").touch()
    b.start("work", "tasks.py", "--concurrency", "1")

    def states() -> Counter[str]:
        return Counter(job["state"] for job in a("jobs", "--limit", JOBS, "--json", code=0).json)

    wait_for(lambda: states() == {"succeeded": JOBS}, "all jobs to succeed")
    assert set(ran()) == set(range(JOBS))
