"""The coordinator keeps work from a node that is drained or quarantined, even if that node has not heard of it."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from hocket.families.availability.facts import Availability
from hocket.families.availability.requests import set_availability
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.rules import Job, Outcome, State
from hocket.kernel.arbitration import Reason
from tests.work.arbiter.test_contract import LEASE_MS, Seat, Table, coordinating, held


def run(directory: Path, test: Callable[[Table, Seat, Seat], Awaitable[None]]) -> None:
    async def inside() -> None:
        async with coordinating(directory) as table:
            await table.look()
            await test(table, *table.seats)

    asyncio.run(inside())


def say(table: Table, seat: Seat, availability: Availability) -> None:
    """At the coordinator; the node hears of it with its next exchange."""
    assert table.log.run(lambda tx: set_availability(tx, seat.node.log.node, availability, ""))


@pytest.mark.touches("VX-11")
def test_a_draining_node_finishes_and_gets_nothing_new(tmp_path: Path) -> None:
    async def test(table: Table, one: Seat, two: Seat) -> None:
        first, second = await table.submit(2)
        job = await one.hold()
        other = second if job.id == first else first
        say(table, one, Availability.DRAINING)
        assert await one.claim() == [Reason.NOT_ACCEPTED]  # it had not heard: its offer was refused
        assert await one.claim() == []  # it knows now, and does not ask
        renewed = await one.ask(lambda tx: jobs.renew(tx, held(job), LEASE_MS))
        assert isinstance(renewed, Job)
        done = await one.ask(lambda tx: jobs.complete(tx, held(renewed), None, 1))
        assert isinstance(done, Job) and done.outcome is Outcome.SUCCEEDED
        await two.look()
        assert (await two.hold()).id == other

    run(tmp_path, test)


def test_a_node_that_resumes_gets_work_again(tmp_path: Path) -> None:
    async def test(table: Table, one: Seat, two: Seat) -> None:
        await table.submit()
        say(table, one, Availability.DRAINING)
        await one.look()
        assert await one.claim() == []
        say(table, one, Availability.ACTIVE)
        await one.look()
        assert (await one.hold()).claimer == one.node.log.node

    run(tmp_path, test)


def test_a_quarantined_node_can_only_give_back(tmp_path: Path) -> None:
    async def test(table: Table, one: Seat, two: Seat) -> None:
        (job_id,) = await table.submit()
        job = await one.hold()
        say(table, one, Availability.QUARANTINED)
        assert await one.ask(lambda tx: jobs.renew(tx, held(job), LEASE_MS)) is Reason.NOT_ACCEPTED
        assert await one.ask(lambda tx: jobs.renew(tx, held(job), LEASE_MS)) is Reason.NOT_AVAILABLE
        assert await one.ask(lambda tx: jobs.complete(tx, held(job), None, 1)) is Reason.NOT_ACCEPTED
        assert table.job(job_id).state is State.CLAIMED
        returned = await one.ask(lambda tx: jobs.hand_back(tx, held(job), ""))
        assert isinstance(returned, Job) and returned.state is State.PENDING
        await two.look()
        assert (await two.hold()).id == job_id

    run(tmp_path, test)
