"""The bus over a cluster of three NATS servers with JetStream, while they die, lose their quorum, and come back without
their data: messages go on where a server is left, the register waits with a sentence and goes on, and nothing that the
cluster keeps is lost with one server.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from nats.js.errors import Error as JetStreamError

from hocket.bus.nats_messages import NatsMessages
from hocket.bus.nats_register import NOTHING, NatsRegister
from hocket.errors import Unreachable
from tests.bus.nats_server import NatsServer, connected, three_servers

PATIENCE_S = 120.0
# Messages to be told about the loss of a server soon.
PING_S = 0.25


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[NatsServer]]:
    with three_servers(tmp_path) as made:
        yield made


@asynccontextmanager
async def buses(
    servers: list[NatsServer], count: int = 2, patience_s: float = PATIENCE_S
) -> AsyncIterator[list[NatsMessages]]:
    made = [NatsMessages([each.url for each in servers], ping_s=PING_S) for _ in range(count)]
    try:
        async with asyncio.timeout(patience_s):
            for each in made:
                await keeping(each)
            yield made
    finally:
        for each in made:
            await each.close()


async def keeping(bus: NatsMessages, wanted: bool = True) -> None:
    """Waits until it is connected, and the cluster keeps announcements, or does not."""
    await connected(bus)
    while not bus.state.is_connected or bus.state.keeps is not wanted:
        await bus.changed.wait()


async def heard(sender: NatsMessages, receiver: NatsMessages) -> None:
    """Waits until a message gets through."""
    queue = await receiver.subscribe("t.k")
    while await queue.get(0.1) is None:
        await sender.publish("t.k", b"again")
    queue.close()


async def announced(bus: NatsMessages, text: bytes) -> None:
    """Announces until the stream has it: right after the loss of a server it may have no leader."""
    client = bus.client
    while True:
        try:
            assert client is not None
            await client.jetstream(timeout=1.0).publish("kept.jobs.k", text)
            return
        except (AssertionError, JetStreamError, OSError, TimeoutError):
            await asyncio.sleep(0.1)
            client = bus.client


async def past(bus: NatsMessages, wanted: bytes) -> None:
    """Waits until a subscriber that comes now gets this announcement."""
    while True:
        queue = await bus.subscribe("jobs.>", since_s=600)
        while (message := await queue.get(0.2)) is not None:
            if message.data == wanted:
                queue.close()
                return
        queue.close()


async def swapped(register: NatsRegister, data: bytes) -> int:
    """Replaces the value, and asks again as long as the cluster does not answer."""
    while True:
        try:
            entry = await register.read()
            if entry.data == data:
                return entry.revision
            revision = await register.swap(entry.revision, data)
        except Unreachable as error:
            assert str(error).startswith("the bus nats://")
        else:
            if revision is not None:
                assert revision > entry.revision
                return revision
        await asyncio.sleep(0.05)


async def leader(bus: NatsMessages, servers: list[NatsServer]) -> NatsServer:
    """The server that leads the stream of announcements."""
    while True:
        try:
            assert bus.client is not None
            info = await bus.client.jsm(timeout=1.0).stream_info(bus._stream)
            assert info.cluster is not None and info.cluster.leader is not None
            return next(each for each in servers if each.name == info.cluster.leader)
        except (AssertionError, JetStreamError, OSError, TimeoutError):
            await asyncio.sleep(0.1)


@pytest.mark.req("GR-05")
def test_three_servers_keep_what_is_kept_and_one_of_them_may_die_or_lose_its_data(servers: list[NatsServer]) -> None:
    async def test() -> None:
        async with buses(servers) as [here, there]:
            register = NatsRegister(there, "mesh", "one")
            await swapped(register, b"first")
            await announced(here, b"first")
            dead = await leader(here, servers)
            dead.kill()
            await heard(here, there)
            await past(there, b"first")
            revision = await swapped(register, b"second")
            assert (await read(register)).data == b"second" and (await read(register)).revision == revision
            # Without what it had, it gets it back from the others; then another one may die.
            dead.lose_data()
            dead.start()
            await caught_up(here, 3)
            other = await leader(here, servers)
            other.kill()
            await heard(here, there)
            await past(there, b"first")
            assert (await read(register)).data == b"second"
            await swapped(register, b"third")

    asyncio.run(test())


@pytest.mark.req("GR-05")
def test_without_a_quorum_messages_go_on_and_the_rest_waits_with_a_sentence(servers: list[NatsServer]) -> None:
    async def test() -> None:
        async with buses(servers) as [here, there]:
            register = NatsRegister(here, "mesh", "one")
            revision = await swapped(register, b"first")
            await announced(here, b"first")
            for each in servers[1:]:
                each.kill()
            await heard(here, there)
            with pytest.raises(Unreachable, match="keeps no register"):
                while True:  # the last server may not know yet that it is alone
                    await register.swap(revision, b"lost")
                    await asyncio.sleep(0.1)
            late = NatsMessages([servers[0].url], ping_s=PING_S)
            await keeping(late, False)
            assert "it keeps no announcements: " in late.state.detail
            await heard(here, late)
            servers[1].start()
            await keeping(late)
            assert late.state.detail == ""
            await past(late, b"first")
            await swapped(register, b"second")
            await late.close()

    asyncio.run(test())


async def read(register: NatsRegister) -> object:
    while True:
        try:
            return await register.read()
        except Unreachable:
            await asyncio.sleep(0.05)


async def caught_up(bus: NatsMessages, count: int) -> None:
    """Waits until so many servers have all that is kept."""
    while True:
        try:
            assert bus.client is not None
            streams = await bus.client.jsm(timeout=1.0).streams_info()
            clusters = [each.cluster for each in streams]
            assert clusters and all(
                each is not None
                and each.leader is not None
                and sum(bool(peer.current) and not peer.offline for peer in each.replicas or []) == count - 1
                for each in clusters
            )
            return
        except (AssertionError, JetStreamError, OSError, TimeoutError):
            await asyncio.sleep(0.1)


@pytest.mark.slow
@pytest.mark.req("GR-05")
@pytest.mark.parametrize("rounds", [2, pytest.param(20, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])])
def test_failovers_under_load(servers: list[NatsServer], rounds: int) -> None:
    """Two writers replace one value, each on top of what it has read, while servers die. No change that was confirmed
    is lost, and no two changes replace the same revision.
    """

    async def test() -> None:
        replaced: dict[int, int] = {}
        last = 0
        writing = True

        async def write(bus: NatsMessages, name: str) -> None:
            nonlocal last
            register = NatsRegister(bus, "mesh", "one")
            for number in itertools.count():
                if not writing:
                    return
                try:
                    entry = await register.read()
                    assert entry.revision >= known, f"the cluster went back from {known} to {entry.revision}"
                    made = await register.swap(entry.revision, f"{name} {number}".encode())
                except Unreachable:
                    await asyncio.sleep(0.05)
                    continue
                if made is not None:
                    assert made not in replaced and entry.revision not in replaced.values()
                    replaced[made] = entry.revision
                    last = max(last, made)
                await asyncio.sleep(0.01)

        known = 0
        async with buses(servers, 3, 60 + 70 * rounds) as [left, right, reader]:
            await swapped(NatsRegister(reader, "mesh", "one"), b"first")
            tasks = [asyncio.create_task(write(left, "left")), asyncio.create_task(write(right, "right"))]
            for number in range(rounds):
                await announced(reader, b"%d" % number)
                victim = await leader(reader, servers)
                victim.kill()
                if number % 3 == 1:
                    victim.lose_data()
                elif number % 3 == 2:
                    second = next(each for each in servers if each is not victim)
                    second.kill()  # the quorum is lost
                    await asyncio.sleep(1.0)
                    second.start()
                before = last
                while last <= before and not any(task.done() for task in tasks):
                    await asyncio.sleep(0.05)
                await heard(left, right)
                await past(reader, b"%d" % number)
                victim.start()
                await caught_up(reader, 3)
                known = last
            writing = False
            await asyncio.gather(*tasks)
            print(f"{rounds} failovers, {len(replaced)} changes, the last of revision {last}")
            entry = await NatsRegister(reader, "mesh", "one").read()
            assert entry != NOTHING and entry.revision >= last

    asyncio.run(test())
