"""The times that the documents promise: the real node on virtual time, over a network that notes each request."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest

from hocket.bus.hints import Changes
from hocket.errors import Unreachable
from hocket.events import Event
from hocket.extensions.sim.loop import Life
from hocket.extensions.sim.loop import run as run_virtually
from hocket.extensions.sim.network import REFUSED_S, Lines, Network
from hocket.extensions.sim.node import Clocks, SimNode, Up
from hocket.families.locks.decisions import read_scope
from hocket.families.locks.facts import AcquireLocks
from hocket.families.locks.requests import WAIT_STEP_MS, WAIT_STEP_MS_MAX, LockHeld, wanted
from hocket.families.locks.rules import Scope
from hocket.kernel.keys import SigningKey
from hocket.kernel.mesh_rules import HOCKET
from hocket.kernel.ops import decode
from hocket.kernel.vocabulary import DesignateCoordinator
from hocket.mesh import wire
from hocket.mesh.sync import Exchanges
from hocket.mesh.wire import Reply, Request
from hocket.node.locks import lock_client
from hocket.work.handlers import Handlers

EVERYTHING = frozenset((wire.DELIVER, wire.EXCHANGE, wire.OPS, wire.HEALTH))


class Unwitnessed:
    def committed(self, node: int) -> None: ...
    def acknowledged(self, node: int, op_ids: Sequence[bytes]) -> None: ...
    def crashed(self, node: int) -> None: ...
    def emitted(self, node: int, event: Event) -> None: ...


class NotedLines(Lines):
    """Notes when each request to a path was sent. Some paths can be cut, and so can hints."""

    is_hinting = True
    cut: frozenset[str] = frozenset()

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.sent: list[tuple[float, str]] = []

    async def send(self, address: str, request: Request) -> Reply:
        self.sent.append((now(), request.path))
        if request.path in self.cut:
            raise Unreachable("the cable is cut")
        return await super().send(address, request)

    async def hints(self, address: str, headers: Mapping[str, str]) -> AsyncIterator[Changes]:
        if not self.is_hinting:
            raise Unreachable("no hints")
        async for each in super().hints(address, headers):
            yield each


class Two:
    """A coordinator and another node that have met. Each sends its requests by `lines`."""

    def __init__(self) -> None:
        chance, user = random.Random(13), SigningKey(bytes(32))
        self.nodes = [
            SimNode(number, user, Clocks(1.0, 0.0), random.Random(number), Unwitnessed()) for number in range(2)
        ]
        self.network = Network(chance, lambda number: up.life if (up := self.nodes[number].up) else None)
        self.lines: list[NotedLines] = [
            NotedLines(number, self.network, lambda there: self.nodes[there].up) for number in range(2)
        ]
        self._lives: list[Life] = []
        for node in self.nodes:
            node.install(HOCKET, [1 - node.number])
        first, second = (Up(node).log for node in self.nodes)
        first.run(lambda tx: tx.author(DesignateCoordinator(tx.node)))
        for log, other in ((first, second), (second, first)):
            with other.store.read() as session:
                sent = [other.signed(row.body) for row in session.entries_after(0, 100)]
            log.admit([(raw, decode(raw)) for raw in sent])

    def start(self, number: int) -> Up:
        node = self.nodes[number]
        node.up = Up(node)
        self._lives.append(node.up.life)
        node.up.start(Handlers(()), self.lines[number])
        return node.up

    async def meet(self) -> tuple[Up, Up]:
        """Both run and have exchanged."""
        both = self.start(0), self.start(1)
        await asyncio.sleep(5)
        return both

    async def end(self) -> None:
        for node in self.nodes:
            node.crash()
        for life in self._lives:
            await life.ended()


def now() -> float:
    return asyncio.get_running_loop().time()


def on_virtual_time(test: Callable[[Two], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    async def run() -> None:
        two = Two()
        try:
            await test(two)
        finally:
            await two.end()

    def wrapped() -> None:
        run_virtually(run())

    wrapped.__name__, wrapped.__doc__ = test.__name__, test.__doc__
    return wrapped


def has_message(node: SimNode) -> bool:
    with node.store.read() as session:
        return any(True for _ in session.each_message())


async def until(look: Callable[[], object], seconds: float) -> float:
    """When it is so, in seconds from now."""
    began = now()
    while not look():
        assert now() < began + seconds, "waited in vain"
        await asyncio.sleep(0.01)
    return now() - began


@pytest.mark.req("VX-09")
@on_virtual_time
async def test_a_message_is_pushed_three_times_half_a_second_and_a_second_apart(two: Two) -> None:
    sender, receiver = await two.meet()
    two.lines[0].cut = EVERYTHING
    tries: list[float] = []
    deliver = Exchanges.deliver

    async def noted(self: Exchanges, address: str) -> None:
        tries.append(now())
        await deliver(self, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Exchanges, "deliver", noted)
        sent_at = now()
        await sender.send(f"editor@{receiver.log.node:016x}", "hello", agent="writer")
        await asyncio.sleep(60)
    assert [at - sent_at for at in tries] == pytest.approx([0.0, 0.5, 1.5], abs=0.1)


@pytest.mark.req("VX-09")
@on_virtual_time
async def test_a_message_that_nobody_could_push_is_found_by_a_poll_within_a_minute(two: Two) -> None:
    sender, receiver = await two.meet()
    two.lines[0].cut = EVERYTHING
    two.lines[1].is_hinting = False
    two.nodes[1].crash()
    two.start(1)
    await asyncio.sleep(10)
    await sender.send(f"editor@{receiver.log.node:016x}", "hello", agent="writer")
    assert await until(lambda: has_message(two.nodes[1]), 60) > 2.5, "it was not pushed"


@pytest.mark.req("VX-15")
@on_virtual_time
async def test_a_peer_that_is_away_is_tried_after_twice_as_long_each_time_and_at_last_every_half_minute(
    two: Two,
) -> None:
    """Five failures, those of hints and heartbeats included, open the breaker; its probes are as far apart."""
    await two.meet()
    two.nodes[1].crash()
    began = now()
    await asyncio.sleep(600)
    tries = [at for at, path in two.lines[0].sent if at > began and path not in (wire.HINTS, wire.PRESENCE)]
    gaps = [later - earlier for earlier, later in pairwise(tries)]
    for number, gap in enumerate(gaps[:2]):
        assert 2.0**number <= gap <= 2.0 ** (number + 1) + 2 * REFUSED_S, gaps
        assert gap - 2.0**number > 2 * REFUSED_S, "there is no jitter"
    assert all(gap <= 30.0 + 2 * REFUSED_S for gap in gaps) and len(gaps) > 15, gaps


@pytest.mark.req("VX-05", "VX-04")
@on_virtual_time
async def test_a_long_running_process_sweeps_once_a_minute_and_fences_go_on_rising(two: Two) -> None:
    up = two.start(0)
    client = lock_client(up, up.lock_processes)

    def holds() -> int:
        with two.nodes[0].store.read() as session:
            state = read_scope(session, "")
        assert state is not None
        return len(state.holds)

    began = now()
    for _ in range(3):
        held = await client.acquire(wanted(["k"], "agent", 1_000), is_bound=False)
        assert holds() == 1
        await until(lambda: not holds(), 61)
    assert 180 <= now() - began < 183, "the sweep comes every 60 seconds, to a second"
    assert held.hold.fence == 3


def scope_at(node: SimNode) -> Scope:
    with node.store.read() as session:
        scope = read_scope(session, "")
    assert scope is not None
    return scope


@pytest.mark.req("VX-19")
@on_virtual_time
async def test_an_agent_that_waits_for_long_keeps_its_place_and_says_so_seldom(two: Two) -> None:
    here, there = await two.meet()
    holder = await here.lock("k", agent="holder", ttl="1h").__aenter__()
    first = asyncio.create_task(there.lock("k", agent="first", wait="10m").__aenter__())
    await until(lambda: scope_at(two.nodes[0]).waits, 10)
    second = asyncio.create_task(here.lock("k", agent="second", wait="10m").__aenter__())
    await until(lambda: len(scope_at(two.nodes[0]).waits) == 2, 10)
    await asyncio.sleep(5 * 60)
    waits, reading = scope_at(two.nodes[0]).waits, here.log.reading().wall
    assert [wait.agent for wait in waits] == ["first", "second"]
    assert all(0 < wait.until - reading <= WAIT_STEP_MS_MAX for wait in waits)
    with two.nodes[1].store.read() as session:
        bodies = [row.body for row in session.entries_after(0, 1_000_000)]
    asked = [op for op in map(decode, bodies) if isinstance(op.payload, AcquireLocks) and op.node_id == there.log.node]
    assert 1 < len(asked) < 20
    await lock_client(here, here.lock_processes).release("", None, "holder", holder.fence)
    assert (await asyncio.wait_for(first, 10)).fence == holder.fence + 1 and not second.done()
    second.cancel()


@pytest.mark.req("VX-19")
@on_virtual_time
async def test_a_waiter_that_is_gone_with_its_node_makes_no_deadlock(two: Two) -> None:
    here, there = await two.meet()
    await lock_client(there, there.lock_processes).acquire(wanted(["b"], "dead", 20_000), is_bound=False)
    async with here.lock("a", agent="alive"):
        there.life.start(there.lock("a", agent="dead", wait="1h").__aenter__(), "waiting")
        await until(lambda: scope_at(two.nodes[0]).waits, 10)
        two.nodes[1].crash()
        with pytest.raises(LockHeld, match="b is held by dead on"):
            await here.lock("b", agent="alive", wait="1s").__aenter__()
        async with here.lock("b", agent="alive", wait="1m") as held:
            assert held.fence == 3


async def deadlock_told_s(two: Two, waited_s: float) -> float:
    """After how long a deadlock is told if the other agent, on another node, has waited for so long."""
    here, there = await two.meet()
    async with here.lock("a", agent="one"), there.lock("b", agent="two"):
        waiting = asyncio.create_task(here.lock("b", agent="one", wait="1h").__aenter__())
        await asyncio.sleep(waited_s)
        began = now()
        with pytest.raises(LockHeld, match=r"deadlock: two on .* would wait for one on .*, which waits for two on"):
            await there.lock("a", agent="two", wait="1h").__aenter__()
        took_s = now() - began
    await asyncio.wait_for(waiting, 10)
    return took_s


@pytest.mark.req("VX-19", "VX-03")
@on_virtual_time
async def test_a_deadlock_between_nodes_is_told_when_the_other_agent_says_again_that_it_waits(two: Two) -> None:
    assert await deadlock_told_s(two, 1) < WAIT_STEP_MS / 1500


@pytest.mark.req("VX-19", "VX-03")
@on_virtual_time
async def test_a_deadlock_with_an_agent_that_has_waited_for_long_is_told_within_forty_seconds(two: Two) -> None:
    assert await deadlock_told_s(two, 180) < WAIT_STEP_MS_MAX / 1500 + 1
