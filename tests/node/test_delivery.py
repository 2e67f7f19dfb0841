"""What connects a program that only submits: it costs nothing without a mesh, and no silent peer holds it up."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

import hocket
from hocket.errors import Usage
from hocket.families.liveness import ProcessTurn
from hocket.mesh import peers
from hocket.mesh.peer_exchange import Exchanged
from hocket.mesh.sync import Exchanges
from hocket.node import delivery
from hocket.node.handles import SyncHandle
from hocket.node.node import Node, SyncNode
from hocket.node.opening import delivery as delivery_of
from hocket.node.runtime import Runtime

THREAD = "hocket-delivery"


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[Runtime]:
    with Runtime.init(tmp_path / "home") as runtime:
        yield runtime


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that takes connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def befriend(runtime: Runtime, address: str) -> None:
    with runtime.store.write() as session:
        peers.add(session, address, 0)


def is_syncing() -> bool:
    return any(thread.name == THREAD for thread in threading.enumerate())


def test_a_node_without_peers_starts_nothing(runtime: Runtime) -> None:
    with hocket.open(runtime.home.path) as node:
        job = node.submit("acme.one")
        with pytest.raises(TimeoutError, match="no worker that this node knows of serves acme"):
            job.result(0.01)
        assert not is_syncing()

    async def async_way() -> None:
        async with hocket.open(runtime.home.path) as node:
            handle = await node.submit("acme.one")
            with pytest.raises(TimeoutError, match="no worker that this node knows of serves acme"):
                await handle.result(0.01)
            assert not is_syncing()

    asyncio.run(async_way())


def test_a_silent_peer_holds_a_program_up_for_a_bounded_time(
    runtime: Runtime, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "DELIVER_S", 0.3)
    befriend(runtime, silent)
    said: list[str] = []
    sending = delivery_of(runtime, said.append)
    sending.wrote()
    assert is_syncing()
    sending.close()
    assert said == [f"{silent} has not taken it within 0.3 seconds; {delivery.KEPT}"]
    assert not is_syncing()
    sending.close()
    assert len(said) == 1


@pytest.mark.touches("GR-12")
def test_where_no_node_decides_one_peer_that_answers_is_enough(
    runtime: Runtime, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One peer is silent and is blamed; another has the job, so that the program gets no warning."""
    monkeypatch.setattr(delivery, "DELIVER_S", 0.3)
    visited: list[str] = []

    async def visit(exchanges: Exchanges, address: str, **options: object) -> Exchanged:
        visited.append(address)
        if address == silent:
            await asyncio.Event().wait()
        return Exchanged(address, None, peers.OK, "")

    monkeypatch.setattr(Exchanges, "visit", visit)
    befriend(runtime, silent)
    befriend(runtime, "http://127.0.0.1:9")
    warnings: list[str] = []
    connection = delivery_of(runtime, warnings.append)
    connection.wrote()
    assert connection.send() == ""
    connection.close()
    assert {silent, "http://127.0.0.1:9"} <= set(visited) and warnings == []
    with runtime.store.read() as session:
        assert silent in peers.breakers(session)


def test_a_program_that_wrote_nothing_sends_nothing(runtime: Runtime, silent: str) -> None:
    befriend(runtime, silent)
    said: list[str] = []
    sending = delivery_of(runtime, said.append)
    sending.start()
    assert sending.send() == "" and said == []
    sending.close()
    assert said == [] and not is_syncing()


def test_where_another_process_syncs_the_program_leaves_it_to_that(runtime: Runtime, silent: str) -> None:
    befriend(runtime, silent)
    other = ProcessTurn.take(runtime.home.processes)
    assert other is not None and ProcessTurn.is_taken(runtime.home.processes)
    said: list[str] = []
    for state in (peers.OK, peers.UNREACHABLE):
        with runtime.store.write() as session:
            peers.change(session, silent, lambda peer, to=state: peer._replace(state=to, detail="it is down"))  # type: ignore[misc]
        sending = delivery_of(runtime, said.append)
        sending.wrote()
        sending.close()
    assert said == ["it is down; what was written waits here, and is sent when it answers"]
    other.close()
    assert not ProcessTurn.is_taken(runtime.home.processes)


def test_without_the_packages_for_it_the_program_is_told(
    runtime: Runtime, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    befriend(runtime, silent)

    def missing(node: Node) -> None:
        raise Usage("talking to other nodes needs aiohttp; install hocket[server]")

    monkeypatch.setattr(Node, "services", missing)
    said: list[str] = []
    sending = delivery_of(runtime, said.append)
    sending.wrote()
    sending.close()
    assert said == [f"talking to other nodes needs aiohttp; install hocket[server]; {delivery.KEPT}"]


WRITES: dict[str, Callable[[SyncNode, SyncHandle], object]] = {
    "submit": lambda node, _: node.submit("acme.two"),
    "submit with options": lambda node, _: node.submit(hocket.kind("acme.two", priority=2)),
    "submit_many": lambda node, _: node.submit_many([("acme.two", {})]),
    "chain": lambda node, _: node.chain("acme.two", "acme.three"),
    "then": lambda _, job: job.then("acme.two"),
    "cancel": lambda _, job: job.cancel(),
    "postpone": lambda _, job: job.postpone(delay="1h"),
    "cancel_many": lambda node, _: node.cancel_many(kind="acme.one"),
}


@pytest.mark.parametrize("name", WRITES)
def test_whatever_a_program_writes_is_sent(
    runtime: Runtime, silent: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(delivery, "DELIVER_S", 0.1)
    with Runtime.open(runtime.home.path) as before:
        job_id = SyncNode(before).submit("acme.one").job_id
    befriend(runtime, silent)
    said: list[str] = []
    opened = Runtime.open(runtime.home.path)
    node = SyncNode(opened, delivery_of(opened, said.append))
    WRITES[name](node, node.job(job_id))
    node.close()
    assert [each.partition(" ")[0] for each in said] == [silent]


@pytest.mark.parametrize("name", WRITES)
def test_whatever_an_async_program_writes_is_sent(
    runtime: Runtime, silent: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(delivery, "DELIVER_S", 0.1)
    with Runtime.open(runtime.home.path) as before:
        job_id = SyncNode(before).submit("acme.one").job_id
    befriend(runtime, silent)
    said: list[str] = []

    async def program() -> None:
        opened = Runtime.open(runtime.home.path)
        node = Node(opened)
        node.delivery = delivery_of(opened, said.append)
        await cast(Any, WRITES[name])(node, node.job(job_id))
        await node.close()

    asyncio.run(program())
    assert [each.partition(" ")[0] for each in said] == [silent]


def test_a_wait_for_several_jobs_says_what_the_first_open_one_waits_for(runtime: Runtime) -> None:
    with hocket.open(runtime.home.path) as node:
        ended, waits = node.submit("acme.ended"), node.submit("acme.waits")
        node.work([hocket.JobType("acme.ended", function=lambda ctx: 1)], until_idle=True)
        says = f"job {waits.job_id} has not ended within 0.01 seconds: no worker .* serves acme.waits"
        with pytest.raises(TimeoutError, match=says):
            node.gather(ended, waits, timeout=0.01)
    job_ids = ended.job_id, waits.job_id

    async def async_way() -> None:
        async with hocket.open(runtime.home.path) as node:
            with pytest.raises(TimeoutError, match=says):
                await node.gather(*map(node.job, job_ids), timeout=0.01)

    asyncio.run(async_way())
