"""The leader's lock, over every arbiter that a mesh can have: one holder, and fences that rise."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import msgspec
import pytest

import hocket
from hocket.bus.envelope import PROCESS_BYTES, Envelope, seal
from hocket.bus.messages import subject_name
from hocket.bus.nats_messages import NatsMessages
from hocket.bus.nats_register import NOTHING, NatsRegister
from hocket.bus.signed import SignedMessages
from hocket.errors import NotAuthorised, Unreachable
from hocket.events import Event
from hocket.extensions.tempo.events import RegisterReplaced
from hocket.extensions.tempo.leader_lock import (
    INCIDENT,
    SCOPE,
    ArbiterLock,
    LeaderEntry,
    LeaderLock,
    LeaderRegister,
    NatsLeaderLock,
    is_incident,
)
from hocket.families.locks.requests import LockHeld, LockLost
from hocket.kernel.clock import Hlc
from hocket.node.locks import lock_client
from tests.bus.nats_server import NatsServer, connected
from tests.mesh.world import Guest

PATIENCE_S = 60.0
TTL_MS = 300
Locks = Callable[[str], LeaderLock]
MEMBER, OTHER, READER, STRANGER = Guest(1), Guest(2), Guest(3), Guest(4)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@asynccontextmanager
async def store_locks(directory: Path) -> AsyncIterator[Locks]:
    hocket.init(directory / "home")
    async with hocket.open(directory / "home") as node:
        yield lambda name: ArbiterLock(node, lock_client(node, node.lock_processes), "one", name)


class OnNats:
    """Locks of two nodes over one server, the register itself, and what they told."""

    def __init__(self, messages: NatsMessages) -> None:
        self.raw = NatsRegister(messages, "m", "one")
        self.told: list[Event] = []
        self._messages = messages
        self.leaders = {MEMBER.id, OTHER.id}
        self._keys = {each.id: each.key.public for each in (MEMBER, OTHER, READER)}

    def register(self, guest: Guest) -> LeaderRegister:
        bus = SignedMessages(self._messages, guest.key, "m", self._keys.get, now_ms)
        return LeaderRegister(self.raw, bus, self.leaders.__contains__, now_ms)

    def __call__(self, name: str, guest: Guest | None = None) -> NatsLeaderLock:
        guest = guest or (MEMBER if name == "one" else OTHER)
        return NatsLeaderLock(self.register(guest), name, asyncio.get_running_loop().time, self.told.append)

    async def write(self, data: bytes) -> None:
        """As anyone who reaches the server can."""
        assert await self.raw.swap((await self.raw.read()).revision, data) is not None


@asynccontextmanager
async def nats_locks(directory: Path) -> AsyncIterator[OnNats]:
    with NatsServer(directory) as server:
        messages = NatsMessages([server.url], root="hocket.m")
        await connected(messages)
        yield OnNats(messages)
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
            lock = OnNats(messages)("one")
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


@pytest.mark.req("LW-48")
@pytest.mark.touches("BB-03")
def test_one_write_of_a_stranger_does_not_depose_the_leader(tmp_path: Path) -> None:
    """Garbage, an entry without a signature, one of a node that is no member, one of a member that may not lead, an
    entry for another register and an old one of the leader itself.
    """

    async def test() -> None:
        async with nats_locks(tmp_path) as locks:
            lock = locks("one")
            fence = await lock.acquire(TTL_MS, 0)
            old = (await locks.raw.read()).data
            await lock.renew(fence, TTL_MS)
            entry = LeaderEntry("evil", fence + 1)
            for data in (
                b"\xff{",
                msgspec.json.encode(entry),
                signed(STRANGER, entry),
                signed(READER, entry),
                signed(OTHER, entry, subject="register.m.two"),
                signed(OTHER, entry, cluster="another"),
                signed(OTHER, LeaderEntry("evil", 2**53 - 1)),
                signed(OTHER, LeaderEntry("evil", fence - 1)),
                old,
            ):
                await locks.write(data)
                await lock.renew(fence, TTL_MS)
                assert await locks.register(MEMBER).lead() == (fence, MEMBER.id)
            assert [type(each) for each in locks.told] == [RegisterReplaced] * 7
            # An entry of a member that may lead counts.
            await locks.write(signed(OTHER, entry))
            with pytest.raises(LockLost):
                await lock.renew(fence, TTL_MS)

    asyncio.run(test())


def signed(guest: Guest, entry: LeaderEntry, *, subject: str = "", cluster: str = "m") -> bytes:
    """An entry as a program of this node can write it."""
    subject = subject or f"register.{subject_name('m', 'register', 'one')}"
    at = Hlc(now_ms(), 0, guest.id)
    return seal(Envelope(cluster, at, bytes(PROCESS_BYTES), subject, msgspec.json.encode(entry)), guest.key)


@pytest.mark.req("LW-48")
def test_a_pulse_takes_the_register_from_a_value_that_does_not_count_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with nats_locks(tmp_path) as locks:
            assert await locks.raw.swap(0, b"\xff{") == 1
            assert await locks.raw.swap(0, b"late") is None
            before = now_ms()
            assert before < await locks("one").acquire(60_000, 0) <= now_ms() + 1
            await locks.write(signed(STRANGER, LeaderEntry("evil", 2**53 - 1)))
            assert before < await locks("two").acquire(60_000, 0) <= now_ms() + 1
            assert locks.told == [RegisterReplaced("one")] * 2

    asyncio.run(test())


def test_a_member_that_may_not_lead_is_told_which_grant_it_lacks(tmp_path: Path) -> None:
    async def test() -> None:
        async with nats_locks(tmp_path) as locks:
            with pytest.raises(NotAuthorised, match="--may lock:acquire:pulse:one"):
                await locks("reader", READER).acquire(TTL_MS, 0)

    asyncio.run(test())


def test_a_leader_whose_write_went_through_unheard_goes_on(tmp_path: Path) -> None:
    async def test() -> None:
        async with nats_locks(tmp_path) as locks:
            lock = locks("one")
            fence = await lock.acquire(TTL_MS, 0)
            await locks.write(signed(MEMBER, LeaderEntry("one", fence)))
            await lock.renew(fence, TTL_MS)
            assert locks.told == []

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
