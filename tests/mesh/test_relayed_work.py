"""Work between two machines without NATS, with the real commands: their own connections carry what workers tell each
other and the parts of results.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

import pytest

import hocket
from hocket.bus.messages import MessageQueue, subject_name, subject_pattern
from hocket.families.jobs.parts import Part
from hocket.node.node import Node
from hocket.work.ranked_claims import CLAIMS, PASSES, read_claims_said
from tests.cli.conftest import Program

pytestmark = pytest.mark.touches("GR-05")

PATIENCE_S = 60.0
SHORT_S = 0.2
KIND = "test.words"
TASKS = f"""
import time
from pathlib import Path

import hocket


@hocket.job("{KIND}", claim="rendezvous")
def words(ctx, go_on):
    yield "to "
    while not Path(go_on).exists():
        time.sleep(0.01)
    yield "be"
"""


@contextmanager
def machines(directory: Path, worker: str = "work") -> Iterator[tuple[Program, Program]]:
    """A coordinator that serves, and a node that works for it, one job at a time, or that serves, too."""
    (directory / "tasks.py").write_text(TASKS)
    a, b = Program(directory / "a"), Program(directory / "b")
    a("init", code=0)
    b("init", "--user-key", a.home / "user.key", code=0)
    server = a.start("serve", "--port", "0", "--json")
    try:
        assert server.stdout is not None
        b("peers", "add", json.loads(server.stdout.readline())["address"], code=0)
        b.start(*(["work", "tasks.py", "--concurrency", "1"] if worker == "work" else ["serve", "--port", "0"]))
        yield a, b
    finally:
        for each in (*a.started, *b.started):
            each.terminate()
            each.communicate()


@asynccontextmanager
async def opened(a: Program) -> AsyncIterator[Node]:
    async with asyncio.timeout(PATIENCE_S), hocket.open(a.home) as node:
        yield node


async def connected(here: Node, there: Node) -> None:
    """Waits until messages pass between the two, both ways: those before are lost."""
    buses = [await each.message_bus() for each in (here, there)]
    for sender, receiver, author in ((*buses, here), (*reversed(buses), there)):
        with closing(await receiver.subscribe(subject_pattern(here.log.user, "test"))) as queue:
            message = None
            while message is None or message.at is None or message.at.node != author.log.node:
                await sender.publish(subject_name(here.log.user, "test", "k"), b"hello")
                message = await queue.get(SHORT_S)


async def heard(queue: MessageQueue, job_id: str) -> int:
    """The node that says something about the job, when it has."""
    while True:
        message = await queue.get(PATIENCE_S)
        assert message is not None and message.at is not None
        if job_id in {said.job_id for _, said in read_claims_said(message.data, message.at.node)}:
            return message.at.node


def test_parts_of_a_result_come_while_the_handler_of_another_machine_runs(tmp_path: Path) -> None:
    async def test(a: Program) -> None:
        async with opened(a) as node:
            handle = await node.submit(hocket.kind(KIND, claim="rendezvous"), go_on=str(tmp_path / "go"))
            stream = handle.stream()
            first = await anext(stream)
            assert first.value == "to "
            assert (await handle.status())["state"] == "running"
            (tmp_path / "go").touch()
            assert [each async for each in stream] == [Part("be", 1, first.fence)]

    with machines(tmp_path) as (a, _):
        asyncio.run(test(a))


@pytest.mark.touches("GR-02", "GR-07")
def test_claims_and_passes_of_a_worker_are_heard_on_another_machine(tmp_path: Path) -> None:
    async def test(a: Program, b: Program) -> None:
        async with opened(a) as node, hocket.open(b.home) as there:
            await connected(node, there)
            bus = await node.message_bus()
            claims, passes = [
                await bus.subscribe(subject_pattern(node.log.user, each, KIND)) for each in (CLAIMS, PASSES)
            ]
            job = hocket.kind(KIND, claim="rendezvous")
            first = await node.submit(job, go_on=str(tmp_path / "go"))
            assert await heard(claims, first.job_id) == there.log.node
            second = await node.submit(job, go_on=str(tmp_path / "go"))
            assert await heard(passes, second.job_id) == there.log.node
            (tmp_path / "go").touch()
            assert [await each.result(PATIENCE_S) for each in (first, second)] == ["to be", "to be"]

    with machines(tmp_path) as (a, b):
        asyncio.run(test(a, b))


@pytest.mark.req("GR-02")
def test_claims_of_a_coordinator_without_peers_are_heard_on_the_machines_that_connect_to_it(tmp_path: Path) -> None:
    """Its worker has nobody to sync with; its server carries what the worker says."""

    async def test(a: Program, b: Program) -> None:
        async with opened(a) as node, hocket.open(b.home) as there:
            await connected(node, there)
            bus = await there.message_bus()
            claims = await bus.subscribe(subject_pattern(node.log.user, CLAIMS, KIND))
            a.start("work", "tasks.py", "--concurrency", "1")
            handle = await node.submit(hocket.kind(KIND, claim="rendezvous"), go_on=str(tmp_path / "go"))
            assert await heard(claims, handle.job_id) == node.log.node
            (tmp_path / "go").touch()
            assert await handle.result(PATIENCE_S) == "to be"

    with machines(tmp_path, worker="serve") as (a, b):
        asyncio.run(test(a, b))
