"""Group commit: many requests are one transaction, and a bad one among them harms no other."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
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


@pytest.mark.parametrize("turns", [0, 1])
def test_a_program_that_cancels_all_its_tasks_goes_on(log: Log, turns: int) -> None:
    """The committer's own task was among them, before its first turn or during a commit; nobody may wait for it."""

    async def program() -> list[Submitted]:
        with ThreadPoolExecutor(1) as executor:
            committer = Committer(log, executor)
            waiting = asyncio.create_task(committer.run(submit))
            await asyncio.sleep(0)
            for _ in range(turns):
                await asyncio.sleep(0)
            for task in asyncio.all_tasks() - {asyncio.current_task(), waiting}:
                task.cancel()
            async with asyncio.timeout(30):
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                again = await committer.run(submit)
                await committer.close()
            return again

    assert asyncio.run(program())[0].created


def test_requests_one_after_the_other_all_come_through(log: Log) -> None:
    async def program() -> int:
        with ThreadPoolExecutor(1) as executor:
            committer = Committer(log, executor)
            async with asyncio.timeout(30):
                made = [await committer.run(submit) for _ in range(20)]
                await committer.close()
            return len(made)

    assert asyncio.run(program()) == 20
