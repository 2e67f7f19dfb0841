"""Group commit: many requests are one transaction, and a bad one among them harms no other."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from hocket.bus.hints import ANYTHING, LOG, Changes
from hocket.bus.memory import MemoryBus
from hocket.errors import Conflict, StoreError, Usage
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.requests import Draft, Submitted
from hocket.kernel.policy import Policy
from hocket.kernel.vocabulary import JOB, RouteKind
from hocket.log import Log, Transaction
from hocket.log.audit import verify
from hocket.log.committer import Committer
from hocket.node.process_loop import INLINE
from hocket.store import Session
from tests.log.roster.world import READER, introduction, job_id, new_log

pytestmark = pytest.mark.touches("VX-07")


class Counted:
    """A store that counts its write transactions."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.writes = 0
        self.read, self.close = store.read, store.close
        self.server_clock, self.check_rows = store.server_clock, store.check_rows

    @contextmanager
    def write(self, author: bytes | None = None, *, at_end: bool = False) -> Iterator[Session]:
        with self._store.write(author, at_end=at_end) as session:
            yield session
        self.writes += 1


@pytest.fixture
def log() -> Log:
    log = new_log()
    log.store = Counted(log.store)
    log.run(lambda tx: tx.author(introduction(READER).payload))
    return log


def writes(log: Log) -> int:
    return log.store.writes  # type: ignore[attr-defined, no-any-return]


def submit(tx: Transaction) -> list[Submitted]:
    return jobs.submit(tx, [Draft("k", b"{}", Policy(priority=1))])


def bad(tx: Transaction) -> None:
    """Writes a good deal before it finds out."""
    submit(tx)
    tx.author(RouteKind("k", 7))
    jobs.cancel(tx, job_id(404), "")


def kinds(log: Log) -> list[str]:
    with log.store.read() as session:
        return [entry.job.kind for entry in session.each_job()]


def test_many_requests_are_one_transaction(log: Log) -> None:
    before = writes(log)
    results = log.commit([submit] * 50)
    assert writes(log) == before + 1
    assert len({made.job_id for (made,) in results}) == 50 == len(kinds(log))
    assert verify(log.store, user=log.user).findings == []


def test_later_requests_see_what_earlier_ones_did(log: Log) -> None:
    unique = [Draft("k", b"{}", Policy(unique="one"))]
    (first,), (second,) = log.commit([lambda tx: jobs.submit(tx, unique)] * 2)
    assert (first.created, second.created) == (True, False)
    assert first.job_id == second.job_id


@pytest.mark.parametrize("place", [0, 2, 4])
def test_a_bad_request_gives_its_error_and_harms_no_other(log: Log, place: int) -> None:
    requests: list[Any] = [submit] * 4
    requests.insert(place, bad)
    results = log.commit(requests)
    assert isinstance(results[place], Usage)
    good = [result for result in results if not isinstance(result, Exception)]
    assert len(good) == 4
    with log.store.read() as session:
        assert {entry.job.id for entry in session.each_job()} == {made.job_id for (made,) in good}
        assert session.route("k", b"\xff" * 20) is None
        assert session.head().seq == 5
    assert verify(log.store, user=log.user).findings == []


def test_one_bad_request_alone_gives_its_error_and_run_raises_it(log: Log) -> None:
    (error,) = log.commit([bad])
    assert isinstance(error, Usage)
    with pytest.raises(Usage):
        log.run(bad)
    assert kinds(log) == []


def test_a_bug_in_a_request_is_its_own_result_and_leaves_nothing(log: Log) -> None:
    def bug(tx: Transaction) -> None:
        submit(tx)
        raise ZeroDivisionError

    good, error, also_good = log.commit([submit, bug, submit])
    assert isinstance(error, ZeroDivisionError)
    with log.store.read() as session:
        assert {entry.job.id for entry in session.each_job()} == {good[0].job_id, also_good[0].job_id}
    with pytest.raises(ZeroDivisionError):
        log.run(bug)
    assert len(kinds(log)) == 2
    assert verify(log.store, user=log.user).findings == []


def test_an_error_of_the_store_is_everybodys_and_nothing_is_kept(log: Log) -> None:
    def full(tx: Transaction) -> None:
        raise StoreError("no space left")

    with pytest.raises(StoreError):
        log.commit([submit, full, submit])
    assert kinds(log) == []
    log.commit([submit])
    assert kinds(log) == ["k"]


def test_a_refused_author_writes_nothing_and_spends_no_time(log: Log) -> None:
    (made,) = log.run(submit)
    with log.store.read() as session:
        before = session.head()
    with pytest.raises(Conflict):
        log.run(lambda tx: jobs.retry(tx, made.job_id, ""))
    with log.store.read() as session:
        assert session.head() == before


def test_whoever_waits_is_told_after_the_commit_and_once() -> None:
    told: list[tuple[Changes, int]] = []
    log = new_log()

    class Watched(MemoryBus):
        def publish(self, changes: Changes) -> None:
            with log.store.read() as session:
                told.append((changes, session.head().seq))

    log._bus = Watched()
    log.commit([submit])
    log._bus.subscribe(ANYTHING)
    made = log.commit([submit] * 3)
    last = log.append_plain("k", b"{}")
    log.run(lambda tx: tx.now)
    ids = [each.job_id for (each,) in made]
    grown = (LOG, b"")
    assert told == [
        (Changes(frozenset(("k",)), frozenset((grown, *((JOB, job_id) for job_id in ids)))), 4),
        (Changes(frozenset(("k",)), frozenset((grown, (JOB, last)))), 5),
    ], "and nothing where nobody listens, or nothing has changed"


class Held:
    """A request that is inside its transaction until the test lets it end."""

    def __init__(self) -> None:
        self._began, self._may_end = threading.Event(), threading.Event()

    def __call__(self, tx: Transaction) -> list[Submitted]:
        self._began.set()
        assert self._may_end.wait(30)
        return submit(tx)

    async def began(self) -> None:
        assert await asyncio.to_thread(self._began.wait, 30)

    def end(self) -> None:
        self._may_end.set()


@asynccontextmanager
async def committing(log: Log) -> AsyncIterator[Committer]:
    with ThreadPoolExecutor(1) as executor:
        committer = Committer(log, executor)
        async with asyncio.timeout(60):
            yield committer
            await committer.close()


async def gone(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert all(task.cancelled() for task in tasks)


@pytest.mark.parametrize("turns", [0, 1])
def test_a_program_that_cancels_all_other_tasks_still_gets_its_answer(log: Log, turns: int) -> None:
    """A commit has no task that could be among them, before its first turn or during it."""

    async def program() -> list[Submitted]:
        async with committing(log) as committer:
            waiting = asyncio.create_task(committer.run(submit))
            for _ in range(1 + turns):
                await asyncio.sleep(0)
            assert asyncio.all_tasks() == {asyncio.current_task(), waiting}
            return await waiting

    assert asyncio.run(program())[0].created


def test_an_answer_takes_no_task_and_three_turns_of_the_loop(log: Log) -> None:
    async def program() -> tuple[int, int]:
        loop, turns, tasks = asyncio.get_running_loop(), 0, 0
        committer = Committer(log, INLINE)

        def turn() -> None:
            nonlocal turns
            turns += 1
            loop.call_soon(turn)

        def counted(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
            nonlocal tasks
            tasks += 1
            return asyncio.Task(work, loop=loop, **options)

        loop.set_task_factory(counted)
        loop.call_soon(turn)
        await committer.run(submit)
        return turns, tasks

    assert asyncio.run(program()) == (3, 0)


def test_the_requests_of_one_turn_share_a_commit_and_those_that_come_meanwhile_the_next(log: Log) -> None:
    async def program() -> tuple[int, int]:
        async with committing(log) as committer:
            before, held = writes(log), Held()
            await asyncio.gather(*(committer.run(submit) for _ in range(20)))
            of_one_turn = writes(log) - before
            first = asyncio.create_task(committer.run(held))
            await held.began()
            others = [asyncio.create_task(committer.run(submit)) for _ in range(20)]
            await asyncio.sleep(0)
            held.end()
            await asyncio.gather(first, *others)
            return of_one_turn, writes(log) - before

    assert asyncio.run(program()) == (1, 3)
    assert len(kinds(log)) == 41


def test_a_waiter_that_is_cancelled_takes_no_answer_from_another(log: Log) -> None:
    """Its request is written all the same, during the commit and before."""

    async def program() -> list[list[Submitted]]:
        async with committing(log) as committer:
            held = Held()
            first = asyncio.create_task(committer.run(held))
            await held.began()
            second, third = (asyncio.create_task(committer.run(submit)) for _ in range(2))
            await asyncio.sleep(0)
            await gone(first, second)
            held.end()
            return [await third, await committer.run(submit)]

    made = {each.job_id for (each,) in asyncio.run(program())}
    assert len(made) == 2
    assert len(kinds(log)) == 4


def test_an_error_of_the_store_is_every_waiters_and_the_next_commit_is_made(log: Log) -> None:
    def full(tx: Transaction) -> None:
        raise StoreError("no space left")

    async def program() -> list[Any]:
        async with committing(log) as committer:
            asked: list[Any] = [submit, full, submit]
            answers = await asyncio.gather(*map(committer.run, asked), return_exceptions=True)
            return [*answers, *await committer.run(submit)]

    *failed, made = asyncio.run(program())
    assert [str(error) for error in failed] == ["no space left"] * 3
    assert made.created
    assert kinds(log) == ["k"]


def test_a_bug_in_one_request_is_the_error_of_its_own_waiter(log: Log) -> None:
    def bug(tx: Transaction) -> None:
        raise ZeroDivisionError

    async def program() -> list[Any]:
        async with committing(log) as committer:
            with pytest.raises(ZeroDivisionError):
                await committer.run(submit, alone=lambda: 1 // 0)
            asked: list[Any] = [submit, bug, submit]
            return await asyncio.gather(*map(committer.run, asked), return_exceptions=True)

    (first,), error, (last,) = asyncio.run(program())
    assert isinstance(error, ZeroDivisionError)
    assert first.created and last.created
    assert len(kinds(log)) == 2


def test_closing_waits_for_every_request_also_of_cancelled_waiters(log: Log) -> None:
    async def program() -> None:
        async with committing(log) as committer:
            held = Held()
            first = asyncio.create_task(committer.run(held))
            await held.began()
            second = asyncio.create_task(committer.run(submit))
            await asyncio.sleep(0)
            await gone(first, second)
            closing = asyncio.create_task(committer.close())
            await asyncio.sleep(0)
            assert not closing.done()
            held.end()
            await closing
            assert len(kinds(log)) == 2

    asyncio.run(program())


def test_an_executor_that_is_shut_down_is_the_error_of_every_waiter(log: Log) -> None:
    async def program() -> list[Any]:
        executor = ThreadPoolExecutor(1)
        executor.shutdown()
        committer = Committer(log, executor)
        asked = [committer.run(submit) for _ in range(2)]
        async with asyncio.timeout(30):
            answers = await asyncio.gather(*asked, return_exceptions=True)
            await committer.close()
        return answers

    assert [type(error) for error in asyncio.run(program())] == [RuntimeError] * 2
    assert kinds(log) == []


def test_commits_that_an_executor_drops_cancel_their_waiters(log: Log) -> None:
    """The executor is busy with something else, and ends without beginning the commit."""

    async def program() -> None:
        executor, busy = ThreadPoolExecutor(1), threading.Event()
        executor.submit(busy.wait, 30)
        committer = Committer(log, executor)
        waiting = asyncio.create_task(committer.run(submit))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        executor.shutdown(wait=False, cancel_futures=True)
        await asyncio.wait([waiting], timeout=30)
        busy.set()
        assert waiting.cancelled()
        async with asyncio.timeout(30):
            await committer.close()

    asyncio.run(program())


def test_a_program_that_ends_during_a_commit_leaves_nothing_for_the_next_to_wait_for(log: Log) -> None:
    """`asyncio.run` cancels the waiters and closes the loop, which gets no answer."""
    held = Held()

    async def first(committer: Committer) -> None:
        waiting = [asyncio.create_task(committer.run(held))]
        await held.began()
        waiting.append(asyncio.create_task(committer.run(submit)))
        await asyncio.sleep(0)

    async def second(committer: Committer) -> list[Submitted]:
        async with asyncio.timeout(30):
            await committer.close()
            made = await committer.run(submit)
            await committer.close()
        return made

    with ThreadPoolExecutor(1) as executor:
        committer = Committer(log, executor)
        asyncio.run(first(committer))
        held.end()
        assert asyncio.run(second(committer))[0].created
    assert len(kinds(log)) == 2


def test_requests_one_after_the_other_all_come_through(log: Log) -> None:
    async def program() -> int:
        with ThreadPoolExecutor(1) as executor:
            committer = Committer(log, executor)
            async with asyncio.timeout(30):
                made = [await committer.run(submit) for _ in range(20)]
                await committer.close()
            return len(made)

    assert asyncio.run(program()) == 20
