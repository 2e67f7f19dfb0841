"""The breaker of a peer: real nodes and servers, a clock that the test moves."""

import asyncio
import time
from pathlib import Path

import pytest

from hocket.errors import CircuitOpen, Unreachable
from hocket.events import Event
from hocket.events.workers import BreakerClosed, BreakerOpened, BreakerProbing
from hocket.kernel.retrying import BreakerState
from hocket.mesh import peers, wire
from hocket.mesh.peers import find
from hocket.mesh.sync import Exchanges, GuardedTransport
from hocket.mesh.wire import Reply, Request
from hocket.node.runtime import Runtime
from tests.mesh.world import Place, run, until

HEALTH = Request("GET", wire.HEALTH)


class Watched:
    """The real transport of a node, which counts its requests; the clock of that node; and its events."""

    def __init__(self, place: Place) -> None:
        self.sent = 0
        self.ahead_s = 0.0
        self.told: list[Event] = []
        self._inner = place.transport
        self.gate = asyncio.Event()
        self.gate.set()
        environment = place.node.environment
        environment.physical_ms = lambda: int((time.time() + self.ahead_s) * 1000)  # type: ignore[method-assign]
        place.exchanges = Exchanges(place.node, place.key, self, environment, emit=self.told.append)  # type: ignore[arg-type]
        self.transport: GuardedTransport = place.exchanges.transport

    async def send(self, address: str, request: Request) -> Reply:
        self.sent += 1
        await self.gate.wait()
        return await self._inner.send(address, request)


async def fail(place: Place, address: str, times: int) -> None:
    for _ in range(times):
        assert (await place.exchanges.visit(address)).state == peers.UNREACHABLE


@pytest.mark.req("VX-16")
def test_a_peer_that_does_not_answer_is_asked_five_times_and_then_by_one_probe(tmp_path: Path):
    async def test(a: Place, b: Place) -> None:
        watched = Watched(b)
        address, port = a.address, int(a.address.rpartition(":")[2])
        b.befriend(address)
        await a.stop_serving()
        await fail(b, address, 5)
        assert watched.sent == 5
        refused = await b.exchanges.visit(address)
        assert watched.sent == 5, "an open breaker asks nobody"
        assert refused.state == peers.UNREACHABLE and 29 < refused.retry_s <= 30
        assert f"peer {address} has failed 5 times" in refused.detail and "Connection refused" in refused.detail
        await a.serve(port=port)
        assert (await b.exchanges.visit(address)).state == peers.UNREACHABLE, "it does not look before its time"

        watched.ahead_s = 30.0
        watched.gate.clear()
        asked = [asyncio.create_task(watched.transport.send(address, HEALTH)) for _ in range(20)]
        await until(lambda: sum(task.done() for task in asked) == 19, "19 refusals")
        refusals = [task for task in asked if task.done()]
        assert watched.sent == 6 and all(isinstance(task.exception(), CircuitOpen) for task in refusals)
        watched.gate.set()
        (probe,) = (task for task in asked if task not in refusals)
        assert (await probe).status == 200
        assert (await b.exchanges.visit(address)).state == peers.OK
        kinds = [
            type(each) for each in watched.told if isinstance(each, BreakerOpened | BreakerProbing | BreakerClosed)
        ]
        assert kinds == [BreakerOpened, BreakerProbing, BreakerClosed]

    run(tmp_path, test)


@pytest.mark.req("VX-16")
def test_the_processes_of_a_node_share_one_breaker(tmp_path: Path):
    """A command that starts while a peer is away does not wait for it, and only one process probes."""

    async def test(a: Place, b: Place) -> None:
        first = Watched(b)
        address = a.address
        b.befriend(address)
        await a.stop_serving()
        await fail(b, address, 5)
        other = Place(await asyncio.to_thread(Runtime.open, b.runtime.home.path))
        second = Watched(other)
        assert "has failed 5 times" in (await other.exchanges.visit(address)).detail
        assert second.sent == 0
        first.ahead_s = second.ahead_s = 31.0
        first.gate.clear()
        probe = asyncio.create_task(first.transport.send(address, HEALTH))
        await until(lambda: first.sent == 6, "the probe")
        with pytest.raises(CircuitOpen, match="it is being tried again now"):
            await second.transport.send(address, HEALTH)
        probe.cancel()
        await asyncio.wait([probe])
        with pytest.raises(Unreachable, match="cannot be reached"):
            await second.transport.send(address, HEALTH)
        assert second.sent == 1, "the probe that was cancelled has left its place"
        await other.close()

    run(tmp_path, test)


def test_an_operator_who_syncs_or_resumes_a_peer_does_not_wait(tmp_path: Path):
    async def test(a: Place, b: Place) -> None:
        Watched(b)
        address, port = a.address, int(a.address.rpartition(":")[2])
        b.befriend(address)
        await a.stop_serving()
        await fail(b, address, 5)
        await a.serve(port=port)
        await b.exchanges.transport.hasten(address)
        assert (await b.exchanges.visit(address)).state == peers.OK
        await a.stop_serving()
        await fail(b, address, 5)
        await a.serve(port=port)
        with b.runtime.store.write() as session:
            peers.resume(session, address)
        assert (await b.exchanges.visit(address)).state == peers.OK
        with b.runtime.store.write() as session:
            assert peers.breaker(session, address).state is BreakerState.CLOSED
            peers.remove(session, address)
            assert address not in peers.breakers(session) and find(session, address) is None

    run(tmp_path, test)


@pytest.mark.parametrize(("status", "is_failure"), [(500, True), (502, True), (504, True), (503, False), (403, False)])
def test_which_answers_are_failures(tmp_path: Path, status: int, is_failure: bool):
    class Answering:
        async def send(self, address: str, request: Request) -> Reply:
            return Reply(status)

    async def test(a: Place) -> None:
        transport = GuardedTransport(Answering(), a.node, a.node.environment, lambda event: None)  # type: ignore[arg-type]
        for _ in range(5):
            assert (await transport.send("http://peer", HEALTH)).status == status
        if is_failure:
            with pytest.raises(CircuitOpen, match=f"answered with status {status}"):
                await transport.send("http://peer", HEALTH)
        else:
            await transport.send("http://peer", HEALTH)

    run(tmp_path, test, "a")
