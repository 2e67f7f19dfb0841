"""What every bus keeps to: a listener hears what matches its topics, as one merged change however late it looks."""

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hocket.bus.hints import ANYTHING, GIT, NOTHING, Bus, Changes, Pipes, about
from hocket.bus.listener import Listener
from hocket.bus.memory import MemoryBus
from hocket.kernel.vocabulary import JOB

pytestmark = pytest.mark.touches("LW-40")

PATIENCE_S = 60.0
RENDER = Changes(frozenset(("acme.render",)))
REPORT = Changes(frozenset(("acme.report",)))


@pytest.fixture(params=["pipes", "memory"])
def bus(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bus]:
    if request.param == "memory":
        yield MemoryBus()
        return
    made = Pipes(tmp_path)
    yield made
    made.close()
    assert list(tmp_path.iterdir()) == [], "a closed subscription leaves nothing behind"


def test_a_listener_hears_what_it_asked_for_and_nothing_else(bus: Bus) -> None:
    kinds, job = bus.subscribe(Changes(frozenset(("acme.",)))), bus.subscribe(about(JOB, b"x"))
    family, all_of_it = bus.subscribe(about(JOB)), bus.subscribe(ANYTHING)
    listeners = (kinds, job, family, all_of_it)

    def heard(changes: Changes) -> list[bool]:
        bus.publish(changes)
        return [bool(each.wait(0)) for each in listeners]

    assert heard(RENDER) == [True, False, False, True]
    assert heard(Changes(frozenset(("other.kind",)))) == [False, False, False, True]
    assert heard(about(JOB, b"x")) == [False, True, True, True]
    assert heard(about(JOB, b"y")) == [False, False, True, True]
    assert heard(about(JOB)) == [False, True, True, True]
    assert heard(ANYTHING) == [True] * 4
    assert heard(NOTHING) == [False] * 4
    for each in listeners:
        each.close()


def test_changes_are_merged_until_the_listener_looks(bus: Bus) -> None:
    listener = bus.subscribe(ANYTHING)
    bus.publish(RENDER)
    bus.publish(REPORT)
    bus.publish(about(JOB, b"x"))
    bus.publish(RENDER)
    assert listener.wait(0) == RENDER | REPORT | about(JOB, b"x")
    assert listener.wait(0) == NOTHING
    listener.close()


def test_a_listener_that_never_looks_costs_little_and_misses_nothing(bus: Bus) -> None:
    slow = bus.subscribe(ANYTHING)
    bus.publish(about(JOB, b"the first"))
    for number in range(20_000):
        bus.publish(about(JOB, number.to_bytes(16, "big")))
    bus.publish(REPORT)
    heard = NOTHING
    while came := slow.wait(0):
        heard |= came
    for wanted in (about(JOB, b"the first"), about(JOB, bytes(16)), about(JOB, (19_999).to_bytes(16, "big")), REPORT):
        assert heard.matches(wanted)
    bus.publish(RENDER)
    assert slow.wait(PATIENCE_S) == RENDER, "it is exact again"
    slow.close()


def test_a_waiter_is_woken_by_a_match_and_not_by_another_change(bus: Bus) -> None:
    listener = bus.subscribe(RENDER)
    heard: list[Changes] = []
    thread = threading.Thread(target=lambda: heard.append(listener.wait(PATIENCE_S)), daemon=True)
    thread.start()
    bus.publish(REPORT)
    bus.publish(RENDER)
    thread.join(PATIENCE_S)
    assert heard == [RENDER]
    assert listener.wait(0.01) == NOTHING
    listener.close()


def test_closing_ends_a_wait_and_what_comes_later_is_not_told(bus: Bus) -> None:
    listener = bus.subscribe(ANYTHING)
    heard: list[Changes] = []
    thread = threading.Thread(target=lambda: heard.append(listener.wait(None)), daemon=True)
    thread.start()
    listener.close()
    thread.join(PATIENCE_S)
    assert not thread.is_alive() and heard == [NOTHING]
    bus.publish(RENDER)
    assert listener.wait(None) == NOTHING
    listener.close()


def test_listeners_come_and_go(bus: Bus) -> None:
    """However soon after the last look of the publisher a listener comes, it is told."""
    for _ in range(20):
        bus.publish(RENDER)
        listener = bus.subscribe(ANYTHING)
        assert bus.is_heard()
        bus.publish(REPORT)
        assert listener.wait(PATIENCE_S) == REPORT
        listener.close()


def test_a_bus_says_when_nobody_listens(bus: Bus) -> None:
    listener = bus.subscribe(RENDER)
    bus.publish(REPORT)
    listener.close()
    deadline = time.monotonic() + PATIENCE_S
    while bus.is_heard():
        assert time.monotonic() < deadline
        bus.publish(REPORT)
        time.sleep(0.005)
    listener = bus.subscribe(RENDER)
    assert bus.is_heard()
    listener.close()


def test_a_coroutine_waits_until_there_is_more(bus: Bus) -> None:
    async def run() -> None:
        listener = Listener(bus.subscribe(ANYTHING))
        bus.publish(RENDER)
        assert await listener.wait(PATIENCE_S) == RENDER
        waiting = asyncio.create_task(listener.wait(PATIENCE_S))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not waiting.done()
        bus.publish(REPORT)
        assert await waiting == REPORT
        listener.close()

    asyncio.run(run())


def test_a_coroutine_is_told_whichever_thread_publishes(bus: Bus) -> None:
    async def run() -> None:
        listener = Listener(bus.subscribe(about(GIT)))
        bus.publish(about(GIT, b"a"))
        assert await listener.wait(PATIENCE_S) == about(GIT, b"a")
        await asyncio.get_running_loop().run_in_executor(None, bus.publish, about(GIT, b"b"))
        await asyncio.get_running_loop().run_in_executor(None, bus.publish, about(GIT, b"c"))
        heard = NOTHING
        while not heard.matches(about(GIT, b"c")):
            heard |= await listener.wait(PATIENCE_S)
        assert heard == about(GIT, b"b") | about(GIT, b"c")
        bus.publish(RENDER)
        assert await listener.wait(0.01) == NOTHING
        listener.close()
        bus.publish(about(GIT, b"d"))
        assert await listener.wait(0.01) == NOTHING

    asyncio.run(run(), debug=True)  # which refuses what another thread may not do


def test_a_coroutine_hears_what_came_before_it_was_attached(bus: Bus) -> None:
    async def run() -> None:
        subscription = bus.subscribe(ANYTHING)
        bus.publish(RENDER)
        listener = Listener(subscription)
        assert await listener.wait(PATIENCE_S) == RENDER
        listener.close()

    asyncio.run(run())


def test_a_listener_whose_loop_is_gone_harms_nobody(bus: Bus) -> None:
    async def attach() -> Listener:
        return Listener(bus.subscribe(ANYTHING))

    gone = asyncio.run(attach())
    other = bus.subscribe(ANYTHING)
    bus.publish(RENDER)
    assert other.wait(PATIENCE_S) == RENDER
    other.close()
    gone.close()


def test_many_publish_at_once(bus: Bus) -> None:
    listener, keys = bus.subscribe(ANYTHING), [bytes([n]) for n in range(8)]
    threads = [threading.Thread(target=lambda k=key: [bus.publish(about(JOB, k)) for _ in range(50)]) for key in keys]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    heard = NOTHING
    while came := listener.wait(0):
        heard |= came
    assert all(heard.matches(about(JOB, key)) for key in keys)
    listener.close()
