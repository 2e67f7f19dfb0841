"""Presence and announcements over the bus, between real nodes. HTTP carries the ops."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hocket.bus.envelope import read_envelope
from hocket.bus.messages import MemoryMessages, MemoryServer, subject_name
from hocket.families.jobs import claiming
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.candidates import worker_id
from hocket.kernel.ids import ulid_text
from hocket.log import Transaction
from hocket.mesh.bus_sharing import JOBS, BusSharing
from hocket.mesh.presence import keep
from hocket.node.message_bus import NodeMessages
from hocket.store import WorkerRow
from hocket.work.handlers import kind
from hocket.work.presence import AgentSaid, NodePresence, NodeSaid, Serving, read_presence, serving_text
from tests.mesh.world import Place, until, world

KIND = "acme.render"


async def opened(place: Place, server: MemoryServer) -> NodeMessages:
    return await NodeMessages.open(place.node, MemoryMessages(server), place.key, place.node.environment)


@asynccontextmanager
async def sharing(directory: Path) -> AsyncIterator[tuple[Place, Place, list[tuple[int, int]], MemoryServer]]:
    """Two nodes that know each other's keys and share over the bus; and what woke each."""
    async with world(directory, "a", "b") as (a, b):
        b.befriend(a.address, a.id)
        await b.exchanges.visit(a.address)
        server, woken, tasks, buses = MemoryServer(), list[tuple[int, int]](), [], []
        for place in (a, b):
            messages = await opened(place, server)
            buses.append(messages)
            part = BusSharing(
                place.node, place.node.environment, messages, lambda by, place=place: woken.append((place.id, by))
            )
            tasks.append(asyncio.create_task(part.run()))
        try:
            yield a, b, woken, server
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for each in buses:
                await each.close()


def put_worker(place: Place, name: str) -> int:
    told = serving_text([Serving((KIND,), id=worker_id(place.id, name), weight=2.0)])
    node, here = place.id.to_bytes(8, "big"), place.node.environment.liveness.place
    return place.log.run(
        lambda tx: tx.session.put_worker(WorkerRow(0, name, 1, tx.now, node, tx.now, here._replace(locks="x"), told))
    )


def presence(place: Place, of: Place) -> NodePresence | None:
    with place.log.store.read() as session:
        found = [read_presence(each) for each in session.presence()]
    return next((each for each in found if each.node == of.id), None)


def names(place: Place, of: Place) -> list[str]:
    found = presence(place, of)
    return [] if found is None else [each.id.partition("/")[2] for each in found.workers]


@pytest.mark.req("GR-06")
def test_workers_that_come_and_go_are_known_on_the_other_node_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with sharing(tmp_path) as (a, b, _, _server):
            number = put_worker(b, "w1")
            await until(lambda: names(a, b) == ["w1"])
            found = presence(a, b)
            assert found is not None and found.workers[0].weight == 2.0
            put_worker(b, "w2")
            await until(lambda: names(a, b) == ["w1", "w2"])
            b.log.run(lambda tx: tx.session.drop_worker(number))
            await until(lambda: names(a, b) == ["w2"])

    asyncio.run(test())


def test_a_node_that_ends_says_that_its_worker_is_gone(tmp_path: Path) -> None:
    async def test() -> None:
        async with world(tmp_path, "a", "b") as (a, b):
            b.befriend(a.address, a.id)
            await b.exchanges.visit(a.address)
            server = MemoryServer()
            hearing, telling = await opened(a, server), await opened(b, server)
            parts = [
                BusSharing(place.node, place.node.environment, bus, lambda node: None)
                for place, bus in ((a, hearing), (b, telling))
            ]
            tasks = [asyncio.create_task(part.run()) for part in parts]
            number = put_worker(b, "w1")
            await until(lambda: names(a, b) == ["w1"])
            b.log.run(lambda tx: tx.session.drop_worker(number))
            tasks[1].cancel()
            await until(lambda: presence(a, b) is not None and names(a, b) == [])
            tasks[0].cancel()
            await asyncio.wait(tasks)
            await hearing.close()
            await telling.close()

    asyncio.run(test())


def test_presence_over_the_bus_leaves_what_came_over_http(tmp_path: Path) -> None:
    async def test() -> None:
        async with sharing(tmp_path) as (a, b, _, _server):
            agents = (AgentSaid("editor"),)
            keep(a.log, [NodePresence(b.id, NodeSaid((), agents), a.log.physical(), (1,))])
            put_worker(b, "w1")
            await until(lambda: names(a, b) == ["w1"])
            found = presence(a, b)
            assert found is not None and found.said.agents == agents

    asyncio.run(test())


def test_a_ready_job_is_announced_by_the_node_that_submits_it_and_wakes_the_other(tmp_path: Path) -> None:
    async def test() -> None:
        async with sharing(tmp_path) as (a, b, woken, server):
            heard = await (await opened(a, server)).subscribe(subject_name(a.log.user, JOBS, KIND))
            draft = kind(KIND, claim="rendezvous").draft({})
            made = await b.node.run(lambda tx: jobs.submit(tx, [draft]))
            message = await heard.get(20)
            assert message is not None and message.at is not None
            assert message.data.decode() == ulid_text(made[0].job_id) and message.at.node == b.id
            await until(lambda: (a.id, b.id) in woken)
            assert all(at != by for at, by in woken)

    asyncio.run(test())


def test_jobs_come_by_the_bus_without_the_hints_of_http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_hints(*_: Any) -> AsyncIterator[Any]:
        await asyncio.Event().wait()
        yield

    async def test() -> None:
        async with world(tmp_path, "a", "b") as (a, b):
            b.befriend(a.address, a.id)
            server = MemoryServer()
            monkeypatch.setattr(b.transport, "hints", no_hints)
            await b.exchanges.visit(a.address)
            for place in (a, b):
                place.services.messages = await opened(place, server)
                place.keep_in_touch()
            await until(lambda: len(server._queues) >= 4)
            for number in range(3):
                (made,) = await a.node.run(lambda tx: jobs.submit(tx, [kind(KIND).draft({})]))
                await until(lambda made=made: made.job_id in b.ids(), f"job {number}")
            assert a.services.messages is not None and b.services.messages is not None

    asyncio.run(test())


@pytest.mark.req("GR-05")
def test_a_result_is_published_and_a_node_that_waits_for_it_is_woken(tmp_path: Path) -> None:
    """The subject and the text are what another program would subscribe to and read."""

    async def test() -> None:
        async with sharing(tmp_path) as (a, b, woken, server):
            queue = await MemoryMessages(server).subscribe(f"hocket.{a.log.user.replace(':', '%3A')}.results.>")
            job = (await b.node.submit(KIND)).job_id
            await b.exchanges.visit(a.address)
            number = put_worker(a, "w1")
            (claimed,) = (await a.node.run(lambda tx: claiming.claim(tx, number, 1, lambda kind: 60_000))).taken
            del woken[:]
            assert claimed.job.claim_op is not None
            held = jobs.Held(claimed.job.id, claimed.job.claim_op)
            await a.node.run(lambda tx: jobs.complete(tx, held, b'"done"', 1))
            message = await queue.get(60.0)
            assert message is not None and message.subject.endswith(".results.acme.render")
            await until(lambda: (b.id, a.id) in woken)
            await b.exchanges.visit(a.address)
            assert b.runtime.show(job)["result"] == "done"

    asyncio.run(test())


def test_the_result_of_a_job_that_the_node_ran_itself_does_not_wake_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with world(tmp_path, "a", "b") as (a, b):
            a.submit(2, KIND)
            b.befriend(a.address, a.id)
            await b.exchanges.visit(a.address)
            b.log.run(lambda tx: claiming.claim(tx, 1, 1, lambda kind: 60_000, offering=True))
            await b.exchanges.visit(a.address)
            part = BusSharing(b.node, b.node.environment, MemoryMessages(MemoryServer()), lambda by: None)  # type: ignore[arg-type]
            with b.runtime.read() as session:
                ready = [entry.job.id for entry, _ in session.ready(KIND, 9)]
                running = [entry.job.id for entry in session.claimed()]
                assert len(ready) == len(running) == 1
                assert part._awaits(session, ready) and part._awaits(session, ready + running)
                assert not part._awaits(session, running) and not part._awaits(session, [])

    asyncio.run(test())


@pytest.mark.req("GR-11")
def test_every_end_is_published_also_if_many_jobs_end_at_once(tmp_path: Path) -> None:
    """A hint about many jobs does not name them."""

    async def test() -> None:
        async with sharing(tmp_path) as (a, b, woken, server):
            queue = await MemoryMessages(server).subscribe(f"hocket.{a.log.user.replace(':', '%3A')}.results.>")
            made = await b.node.run(lambda tx: jobs.submit(tx, [kind(KIND).draft({}) for _ in range(100)]))
            await b.exchanges.visit(a.address)
            number = put_worker(a, "w1")
            taken = (await a.node.run(lambda tx: claiming.claim(tx, number, 100, lambda kind: 60_000))).taken
            held = [jobs.Held(each.job.id, each.job.claim_op) for each in taken]
            cancelled, failed = held.pop(), held.pop()
            del woken[:]

            def end_all(tx: Transaction) -> None:
                for each in held:
                    jobs.complete(tx, each, b'"done"', 1)
                jobs.fail(tx, failed, "it broke", "", retry=False)
                jobs.cancel(tx, cancelled.job_id, "no longer wanted")

            await a.node.run(end_all)
            told: list[str] = []
            while len(told) < len(made):
                message = await queue.get(60.0)
                assert message is not None and message.subject.endswith(f".results.{KIND}"), len(told)
                envelope = read_envelope(message.data)
                assert envelope is not None
                told += envelope.data.decode().split("\n")
            outcomes = {each.job_id: "succeeded" for each in held}
            outcomes |= {failed.job_id: "failed", cancelled.job_id: "cancelled"}
            assert sorted(told) == sorted(f"{ulid_text(job_id)} {outcome}" for job_id, outcome in outcomes.items())
            await until(lambda: (b.id, a.id) in woken)

    asyncio.run(test())
