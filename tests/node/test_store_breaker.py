"""The breaker of a process's store: its events reach the process's own listener, and other processes see it."""

import asyncio
import math
import time
from pathlib import Path

import pytest

from hocket.errors import StoreCircuitOpen, StoreError
from hocket.events import Event
from hocket.events.workers import BreakerClosed, BreakerOpened, BreakerProbing
from hocket.node import runtime as runtime_module
from hocket.node.node import Node
from hocket.node.running import StoreBreaker, store_troubles
from hocket.node.runtime import Runtime


@pytest.mark.req("VX-16")
def test_a_process_tells_and_notes_that_its_store_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    home, told = tmp_path / "home", list[Event]()
    ahead = 0.0
    made = lambda directory: StoreBreaker(directory, lambda: time.monotonic() + ahead)  # noqa: E731
    monkeypatch.setattr(runtime_module, "StoreBreaker", made)

    async def run() -> None:
        nonlocal ahead
        runtime = Runtime.init(home)
        node = Node(runtime)
        writer = runtime.store._store._writer  # type: ignore[attr-defined]
        assert runtime.store_breaker is not None
        loop = asyncio.get_running_loop()
        with runtime.store_breaker.told(loop, told.append):
            writer.execute("PRAGMA max_page_count=1")
            while not told:  # a small write of another thread may fit, and begins the count anew
                with pytest.raises(StoreError, match="no space left"):
                    await node.submit("a.kind", text="x" * 100_000)
                await asyncio.sleep(0.001)
            (noted,) = store_troubles(runtime.home.processes)
            assert (noted.state, noted.failures) == ("open", 5) and "no space left" in noted.error
            assert 0 <= noted.next_ms - noted.since_ms <= 30_001
            writer.execute("PRAGMA max_page_count=1000000")
            with pytest.raises(StoreError, match="the next try is in 30 seconds"):
                await node.submit("a.kind")
            ahead = 31.0
            await node.submit("a.kind")
            while len(told) < 3:
                await asyncio.sleep(0.001)
        assert store_troubles(runtime.home.processes) == []
        await node.close()

    asyncio.run(asyncio.wait_for(run(), 60))
    assert [type(each) for each in told] == [BreakerOpened, BreakerProbing, BreakerClosed]
    assert list((home / "processes").glob("breaker-*")) == []


@pytest.mark.req("VX-16")
def test_the_pause_is_far_shorter_than_the_shortest_lease(tmp_path: Path):
    now = 0.0
    breaker = StoreBreaker(tmp_path, lambda: now)
    leases = [20.0, 600.0]

    def fail() -> None:
        with pytest.raises(StoreError), breaker.guard(StoreError):
            raise StoreError("no answer")

    with breaker.holding(lambda: min(leases)), breaker.holding(lambda: math.inf):
        for _ in range(5):
            fail()
        now = 1.99
        with pytest.raises(StoreCircuitOpen, match="the next try is in 0 seconds"):
            breaker.admit()
        now = 2.0
        fail()
        leases.remove(20.0)
        now = 6.9
        with pytest.raises(StoreCircuitOpen):
            breaker.admit()
        now = 7.0
        fail()
    now = 36.9
    with pytest.raises(StoreCircuitOpen):
        breaker.admit()
    now = 37.0
    breaker.succeeded(breaker.admit())
    breaker.close()
