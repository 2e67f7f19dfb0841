"""What every arbiter promises, whatever it decides about: the store that several processes share, the coordinator that
other nodes reach over HTTP, and a git repository, on this disk or behind an address. `test_contract` asks the first two
about all that the log can do besides.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from hocket.errors import Conflict, HocketError
from hocket.extensions.git import holding
from hocket.extensions.git.holding import ClaimWatch
from hocket.extensions.git.holding import HeldClaim as GitHeld
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.rules import Job, Outcome
from tests.extensions.git.hands import CONTENTS, NOW_MS, proof, seen, submitted, worker
from tests.extensions.git.places import place
from tests.work.arbiter.test_contract import LEASE_MS, Table, complete, coordinating, held, on_a_loop, sharing

pytestmark = pytest.mark.touches("LW-39", "GT-04", "GT-05", "GT-06", "GT-11")


class Court(Protocol):
    """An arbiter with two seats, 0 and 1, and jobs by their numbers. A hold is the arbiter's own affair; it has a
    fence. What is refused is None or False.
    """

    async def submit(self, count: int) -> None: ...
    async def claim(self, seat: int, limit: int = 1) -> Sequence[Any]: ...
    async def renew(self, seat: int, hold: Any) -> Any | None: ...
    async def complete(self, seat: int, hold: Any) -> bool: ...
    async def cancel(self, seat: int, hold: Any) -> bool: ...
    async def take_over(self, seat: int, hold: Any) -> Any | None:
        """Claims the job for this seat, as soon as the hold's lease is over."""

    def fence(self, hold: Any) -> int: ...
    def state(self, hold: Any) -> str: ...


class OnTheLog:
    def __init__(self, table: Table) -> None:
        self._table = table

    async def submit(self, count: int) -> None:
        await self._table.submit(count)

    async def claim(self, seat: int, limit: int = 1) -> Sequence[Job]:
        await self._table.seats[seat].look()
        return [each for each in await self._table.seats[seat].claim(limit) if isinstance(each, Job)]

    async def renew(self, seat: int, hold: Job) -> Job | None:
        renewed = await self._table.seats[seat].ask(lambda tx: jobs.renew(tx, held(hold), LEASE_MS))
        return renewed if isinstance(renewed, Job) else None

    async def complete(self, seat: int, hold: Job) -> bool:
        return isinstance(await self._table.seats[seat].ask(complete(hold)), Job)

    async def cancel(self, seat: int, hold: Job) -> bool:
        await self._table.look()
        try:
            return isinstance(await self._table.seats[seat].ask(lambda tx: jobs.cancel(tx, hold.id, "off")), Job)
        except Conflict:
            return False

    async def take_over(self, seat: int, hold: Job) -> Job | None:
        self._table.expire()
        return next(iter(await self.claim(seat)), None)

    def fence(self, hold: Job) -> int:
        return hold.fence

    def state(self, hold: Job) -> str:
        job = self._table.job(hold.id)
        names = {Outcome.SUCCEEDED: "succeeded", Outcome.CANCELLED: "aborted"}
        return "held" if job.outcome is None else names[job.outcome]


class InGit:
    def __init__(self, planes: Sequence[Any]) -> None:
        self._planes = planes
        self._workers = [worker("one", "process-1"), worker("two", "process-2")]
        self._jobs: list[bytes] = []

    async def submit(self, count: int) -> None:
        first = len(self._jobs)
        self._jobs += [submitted(self._planes[0], first + each).refs.content_id for each in range(count)]

    async def claim(self, seat: int, limit: int = 1) -> Sequence[GitHeld]:
        def work() -> list[GitHeld]:
            plane = self._planes[seat]
            open_ones = [job for each in self._jobs if (job := seen(plane, each)).state == "pending"][:limit]
            return holding.claim_each(plane, open_ones, self._workers[seat], NOW_MS)

        return await asyncio.to_thread(work)

    async def renew(self, seat: int, hold: GitHeld) -> GitHeld | None:
        return holding.renew(self._planes[seat], hold, self._workers[seat], NOW_MS)

    async def complete(self, seat: int, hold: GitHeld) -> bool:
        by, number = self._workers[seat], self._jobs.index(hold.refs.content_id)
        return holding.finish(self._planes[seat], hold, by, proof(hold, by, number), CONTENTS, NOW_MS) is not None

    async def cancel(self, seat: int, hold: GitHeld) -> bool:
        try:
            holding.abort(self._planes[seat], hold.refs.content_id, self._workers[seat], NOW_MS)
        except Conflict:
            return False
        return True

    async def take_over(self, seat: int, hold: GitHeld) -> GitHeld | None:
        plane, clock = self._planes[seat], [0.0]
        watch = ClaimWatch(self._workers[seat].key.public, lambda name: True, lambda: clock[0])
        job = seen(plane, hold.refs.content_id)
        assert watch.open([job]) == [], "not before it has seen a whole lease pass"
        clock[0] += hold.claim.lease_s * 2
        return holding.claim(plane, watch.open([job])[0], self._workers[seat], NOW_MS)

    def fence(self, hold: GitHeld) -> int:
        return hold.claim.fence

    def state(self, hold: GitHeld) -> str:
        state = seen(self._planes[0], hold.refs.content_id).state
        return "held" if state in ("claimed", "running") else state


@asynccontextmanager
async def in_git(directory: Path, kind: str) -> AsyncIterator[Court]:
    with place(kind, directory) as there:
        yield InGit([there.open(), there.open()])


@asynccontextmanager
async def on_the_log(directory: Path, made: Any) -> AsyncIterator[Court]:
    async with made(directory) as table:
        yield OnTheLog(table)


ARBITERS: dict[str, Callable[[Path], Any]] = {
    "the shared store": lambda directory: on_the_log(directory, sharing),
    "the coordinator over HTTP": lambda directory: on_the_log(directory, coordinating),
    "a git repository": lambda directory: in_git(directory, "bare"),
    "a git remote over HTTP": lambda directory: in_git(directory, "http"),
}


@pytest.fixture(params=ARBITERS)
def court(request: pytest.FixtureRequest) -> Callable[[Path], Any]:
    return ARBITERS[request.param]


@pytest.mark.req("LW-39", "GT-04", "GT-05", "GT-06")
@on_a_loop
async def test_of_two_who_want_the_same_jobs_one_gets_each(court, tmp_path):
    async with court(tmp_path) as at:
        await at.submit(6)
        first, second = await asyncio.gather(at.claim(0, 6), at.claim(1, 6))
        assert len(first) + len(second) == 6
        assert {at.fence(hold) for hold in (*first, *second)} == {1}
        assert await at.claim(0, 6) == [] and await at.claim(1, 6) == []


@on_a_loop
async def test_a_renewal_keeps_the_fence(court, tmp_path):
    async with court(tmp_path) as at:
        await at.submit(1)
        (hold,) = await at.claim(0)
        renewed = await at.renew(0, hold)
        assert renewed is not None and at.fence(renewed) == at.fence(hold) == 1
        assert await at.claim(1) == []


@pytest.mark.req("LW-39")
@on_a_loop
async def test_a_completion_counts_once_and_for_good(court, tmp_path):
    async with court(tmp_path) as at:
        await at.submit(1)
        (hold,) = await at.claim(0)
        assert await at.complete(0, hold)
        assert not await at.complete(0, hold)
        assert at.state(hold) == "succeeded"
        assert not await at.cancel(1, hold)
        assert await at.claim(1) == [] and at.state(hold) == "succeeded"


@pytest.mark.req("LW-39", "GT-11")
@on_a_loop
async def test_who_is_displaced_ends_nothing(court, tmp_path):
    async with court(tmp_path) as at:
        await at.submit(1)
        (slow,) = await at.claim(0)
        quick = await at.take_over(1, slow)
        assert quick is not None and at.fence(quick) == at.fence(slow) + 1
        assert not await at.complete(0, slow)
        assert await at.renew(0, slow) is None
        assert at.state(quick) == "held"
        assert await at.complete(1, quick) and at.state(quick) == "succeeded"


@on_a_loop
async def test_a_cancelled_job_has_no_holder_any_more(court, tmp_path):
    async with court(tmp_path) as at:
        await at.submit(1)
        (hold,) = await at.claim(0)
        assert await at.cancel(1, hold) and at.state(hold) == "aborted"
        assert not await at.complete(0, hold)
        assert await at.renew(0, hold) is None
        assert at.state(hold) == "aborted" and await at.claim(1) == []


@pytest.mark.req("LW-39")
@on_a_loop
async def test_who_cannot_reach_it_is_told_so_and_holds_nothing(tmp_path):
    """The coordinator's half of this is in `test_contract`; a store that is not there is nobody's."""
    async with in_git(tmp_path, "http") as at:
        await at.submit(1)
    with pytest.raises(HocketError):
        await at.claim(0)
