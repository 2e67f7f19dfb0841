"""The leader's lock, over every arbiter that a mesh can have: one holder, and fences that rise."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

import hocket
from hocket.bus.nats_messages import NatsMessages
from hocket.bus.nats_register import NOTHING, NatsRegister
from hocket.coordination.locks import LockHeld, LockLost
from hocket.errors import Unreachable
from hocket.node.locks import lock_client
from hocket.rhythm.leader_lock import INCIDENT, SCOPE, ArbiterLock, LeaderLock, is_incident
from hocket.rhythm.nats_leader import NatsLeaderLock
from tests.bus.nats_server import NatsServer, connected

PATIENCE_S = 30.0
TTL_MS = 300
Locks = Callable[[str], LeaderLock]


@asynccontextmanager
async def store_locks(directory: Path) -> AsyncIterator[Locks]:
    hocket.init(directory / "home")
    async with hocket.open(directory / "home") as node:
        yield lambda name: ArbiterLock(node, lock_client(node, node.lock_processes), "one", name)


@asynccontextmanager
async def nats_locks(directory: Path) -> AsyncIterator[Locks]:
    with NatsServer(directory) as server:
        messages = NatsMessages([server.url], root="hocket.m")
        await connected(messages)
        loop = asyncio.get_running_loop()
        yield lambda name: NatsLeaderLock(NatsRegister(messages, "m", "one"), name, loop.time)
        await messages.close()


async def acquired(lock: LeaderLock, above: int = 0) -> int:
    """Asks until the lock is free."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await lock.acquire(TTL_MS, above)
            except LockHeld:
                await asyncio.sleep(0.01)


@pytest.mark.req("BB-03")
@pytest.mark.parametrize("kind", [store_locks, nats_locks])
def test_one_pulse_holds_the_lock_and_fences_rise(
    kind: Callable[[Path], AbstractAsyncContextManager[Locks]], tmp_path: Path
) -> None:
    async def test() -> None:
        async with kind(tmp_path) as locks:
            one, two = locks("one"), locks("two")
            first = await one.acquire(TTL_MS, 0)
            with pytest.raises(LockHeld):
                await two.acquire(TTL_MS, 0)
            await one.renew(first, TTL_MS)
            second = await acquired(two)
            assert second > first
            with pytest.raises(LockLost):
                await one.renew(first, TTL_MS)
            await two.renew(second, TTL_MS)
            await two.release(second)
            third = await acquired(one)
            assert third > second

    asyncio.run(test())


@pytest.mark.parametrize("kind", [store_locks, nats_locks])
def test_of_many_that_ask_at_once_one_gets_it(
    kind: Callable[[Path], AbstractAsyncContextManager[Locks]], tmp_path: Path
) -> None:
    async def test() -> None:
        async with kind(tmp_path) as locks:
            asked = (locks(str(number)).acquire(60_000, 0) for number in range(8))
            answers = await asyncio.gather(*asked, return_exceptions=True)
            assert sum(isinstance(each, int) for each in answers) == 1
            assert sum(isinstance(each, LockHeld) for each in answers) == 7

    asyncio.run(test())


def test_a_refused_request_leaves_nothing_on_the_log(tmp_path: Path) -> None:
    hocket.init(tmp_path / "home")

    async def test() -> None:
        async with hocket.open(tmp_path / "home") as node:

            def locks(name: str) -> ArbiterLock:
                return ArbiterLock(node, lock_client(node, node.lock_processes), "one", name)

            await locks("one").acquire(60_000, 0)
            before = await node.peek(lambda session: session.head().seq)
            for _ in range(3):
                with pytest.raises(LockHeld):
                    await locks("two").acquire(60_000, 0)
            assert await node.peek(lambda session: session.head().seq) == before

    asyncio.run(test())


def test_a_server_that_lost_its_data_gives_no_fence_again(tmp_path: Path) -> None:
    async def test() -> None:
        with NatsServer(tmp_path) as server:
            messages = NatsMessages([server.url], root="hocket.m")
            await connected(messages)
            lock = NatsLeaderLock(NatsRegister(messages, "m", "one"), "one", asyncio.get_running_loop().time)
            fence = await lock.acquire(TTL_MS, 0)
            for _ in range(3):
                await lock.renew(fence, TTL_MS)
            server.kill()
            server.lose_data()
            await connected(messages, False)
            with pytest.raises(Unreachable):
                await lock.acquire(TTL_MS, fence)
            server.start()
            await connected(messages)
            register = NatsRegister(messages, "m", "one")
            assert await register.read() == NOTHING
            assert await acquired(lock, fence) > fence
            await messages.close()

    asyncio.run(test())


def test_a_register_without_jetstream_is_unreachable(tmp_path: Path) -> None:
    async def test() -> None:
        with NatsServer(tmp_path, jetstream=False) as server:
            messages = NatsMessages([server.url], root="hocket.m")
            await connected(messages)
            with pytest.raises(Unreachable, match="keeps no register"):
                await NatsRegister(messages, "m", "one").read()
            await messages.close()

    asyncio.run(test())


def test_a_foreign_value_in_the_register_is_replaced(tmp_path: Path) -> None:
    async def test() -> None:
        async with nats_locks(tmp_path) as locks:
            lock = locks("one")
            assert isinstance(lock, NatsLeaderLock)
            register = lock._register
            assert await register.swap(0, b"\xff{") == 1
            assert await register.swap(0, b"late") is None
            assert await acquired(lock) == 2

    asyncio.run(test())


@pytest.mark.req("BB-11")
def test_the_lock_of_an_incident_is_seen_while_it_is_held(tmp_path: Path) -> None:
    hocket.init(tmp_path / "home")

    async def test() -> None:
        async with hocket.open(tmp_path / "home") as node:
            look: Callable[[], Awaitable[bool]] = lambda: node.peek(  # noqa: E731
                lambda session: is_incident(session, node.environment.physical_ms())
            )
            assert not await look()
            async with node.lock(INCIDENT, agent="ops", scope=SCOPE, ttl="1m"):
                assert await look()
            assert not await look()

    asyncio.run(test())
