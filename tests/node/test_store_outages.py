"""A worker whose database is away for a while: it keeps its jobs and delivers what they made, late if need be."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket.errors import StoreError
from hocket.events import Event
from hocket.events.jobs import LeaseLost, ResultDiscarded
from hocket.events.workers import BreakerOpened
from hocket.node.node import Node
from hocket.node.runtime import Runtime
from tests.postgres_relay import Relay
from tests.postgres_server import Server, server

PATIENCE_S = 120


@pytest.fixture
def relay() -> Iterator[Relay]:
    made = Relay()
    yield made
    made.close()


@pytest.fixture
def own_server() -> Iterator[Server]:
    made = Server()
    yield made
    made.remove()


def through(relay: Relay) -> str:
    """The address of a new database, by way of the relay."""
    name = server().new_database().partition("@/")[2].partition("?")[0]
    return f"postgresql://postgres@127.0.0.1:{relay.port}/{name}"


class Outage:
    """A node, and a job whose handler waits for `go_on`."""

    def __init__(self, home: Path, address: str, lease: str) -> None:
        self.told: list[Event] = []
        self.go_on = threading.Event()
        has_begun = self.has_begun = threading.Event()
        go_on = self.go_on

        @hocket.job("test.held", lease=lease)
        def held(ctx: Any) -> str:
            has_begun.set()
            assert go_on.wait(PATIENCE_S)
            return "made"

        self.handler, self.node = held, Node(Runtime.init(home, server=address))

    async def begin(self) -> Any:
        handle = await self.node.submit("test.held")
        await self.until(self.has_begun.is_set)
        return handle

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not is_so():
                await asyncio.sleep(0.01)

    async def fail(self, failures: int) -> None:
        for _ in range(failures):
            with pytest.raises(StoreError):
                await self.node.run(lambda tx: tx.now)

    def has_told(self, *kinds: type[Event]) -> bool:
        return any(isinstance(each, kinds) for each in self.told)

    def shown(self, handle: Any) -> dict[str, Any]:
        return self.node.runtime.show(handle.job_id)

    async def check(self, handle: Any) -> None:
        """The result counts, and it is that of the first claim."""
        assert await handle.result(PATIENCE_S) == "made"
        assert self.shown(handle)["fence"] == 1
        assert not self.has_told(LeaseLost, ResultDiscarded)


@pytest.mark.req("VX-16")
@pytest.mark.touches("LW-18")
def test_the_breakers_pause_ends_no_lease(tmp_path: Path, relay: Relay) -> None:
    """The pause of half a minute would be longer than this lease."""

    async def run() -> None:
        outage = Outage(tmp_path / "home", through(relay), "6s")
        async with outage.node.working([outage.handler], events=outage.told.append):
            handle = await outage.begin()
            before_ms = outage.shown(handle)["deadline_ms"]
            relay.cut()
            await outage.fail(5)
            await outage.until(lambda: outage.has_told(BreakerOpened))
            relay.mend()
            await outage.until(lambda: outage.has_told(LeaseLost) or outage.shown(handle)["deadline_ms"] > before_ms)
            outage.go_on.set()
            await outage.check(handle)
        await outage.node.close()

    asyncio.run(run())


@pytest.mark.req("VX-16")
@pytest.mark.touches("LW-18", "LW-37")
def test_a_result_that_is_made_while_the_server_is_down_counts_after_its_lease(
    tmp_path: Path, own_server: Server
) -> None:
    """The sweep of the same process could expire the lease before the worker delivers."""

    async def run() -> None:
        outage = Outage(tmp_path / "home", own_server.new_database(), "2s")
        async with outage.node.working([outage.handler], events=outage.told.append):
            handle = await outage.begin()
            deadline_ms = outage.shown(handle)["deadline_ms"]
            own_server.stop()
            outage.go_on.set()
            await outage.until(lambda: time.time() * 1000 > deadline_ms + 3_000)
            await asyncio.to_thread(own_server.start)
            await outage.check(handle)
        await outage.node.close()

    asyncio.run(run())


@pytest.mark.req("VX-16")
def test_a_restart_of_the_server_opens_no_breaker(tmp_path: Path, own_server: Server) -> None:
    runtime = Runtime.init(tmp_path / "home", server=own_server.new_database())
    assert runtime.store_breaker is not None
    own_server.stop()
    for _ in range(20):
        with pytest.raises(StoreError, match=r"cannot connect|broke off"), runtime.store.write() as session:
            session.set_meta("a", b"1")
    assert runtime.store_breaker.breaker.opened_ms is None
    own_server.start()
    with runtime.store.write() as session:
        session.set_meta("a", b"1")
    runtime.close()
