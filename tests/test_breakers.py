"""A circuit breaker that many threads and tasks share: exactly one of them probes, and every state is an event."""

import asyncio
import threading
import time
from collections import Counter

import pytest

from hocket.breakers import CircuitBreaker
from hocket.errors import CircuitOpen, Unreachable
from hocket.events import Event
from hocket.events.workers import BreakerClosed, BreakerOpened, BreakerProbing

THREADS = 16


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def opened(clock: Clock, told: list[Event]) -> CircuitBreaker:
    breaker = CircuitBreaker("the server", clock, told.append)
    for _ in range(5):
        with pytest.raises(Unreachable, match="no answer"), breaker.guard(Unreachable):
            raise Unreachable("no answer")
    return breaker


@pytest.mark.req("VX-16")
def test_each_state_is_an_event_and_a_sentence():
    clock, told = Clock(), list[Event]()
    breaker = opened(clock, told)
    assert told == [BreakerOpened("the server", 5, "no answer", 30.0)]
    clock.now = 12.0
    with pytest.raises(CircuitOpen, match=r"the server has failed 5 times.* no answer; the next try is in 18 seconds"):
        breaker.admit()
    clock.now = 30.0
    with breaker.guard(Unreachable):
        with pytest.raises(CircuitOpen, match="it is being tried again now"):
            breaker.admit()
    assert told[1:] == [BreakerProbing("the server"), BreakerClosed("the server")]
    assert str(told[0]) == "the server failed 5 times (no answer); the next try is in 30 seconds"


@pytest.mark.req("VX-16")
def test_of_many_threads_exactly_one_probes_and_the_others_are_answered_at_once():
    clock = Clock()
    breaker = opened(clock, [])
    clock.now = 30.0
    results: Counter[str] = Counter()
    begin, others = threading.Barrier(THREADS), threading.Barrier(2)

    def call() -> None:
        begin.wait()
        try:
            with breaker.guard(Unreachable):
                results["probe"] += 1
                others.wait(60)  # until every other thread has its answer
        except CircuitOpen:
            results["refused"] += 1

    threads = [threading.Thread(target=call) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 60
    while results["refused"] < THREADS - 1 and time.monotonic() < deadline:
        time.sleep(0.001)
    others.wait(60)
    for thread in threads:
        thread.join()
    assert results == {"probe": 1, "refused": THREADS - 1}
    breaker.admit()


@pytest.mark.req("VX-16")
def test_of_many_tasks_exactly_one_probes_and_one_that_is_cancelled_leaves_its_place():
    clock = Clock()
    breaker = opened(clock, [])
    clock.now = 30.0
    probes: list[int] = []

    async def call(number: int) -> None:
        with breaker.guard(Unreachable):
            probes.append(number)
            await asyncio.Event().wait()

    async def run() -> None:
        tasks = [asyncio.create_task(call(number)) for number in range(THREADS)]
        async with asyncio.timeout(60):
            while sum(task.done() for task in tasks) < THREADS - 1:
                await asyncio.sleep(0)
        assert len(probes) == 1
        assert sum(isinstance(task.exception(), CircuitOpen) for task in tasks if task.done()) == THREADS - 1
        (probe,) = (task for task in tasks if not task.done())
        probe.cancel()
        await asyncio.wait([probe])
        breaker.succeeded(breaker.admit())
        breaker.admit()

    asyncio.run(run())


def test_an_error_that_says_nothing_about_the_server_is_no_failure():
    breaker = CircuitBreaker("the server", Clock())
    for _ in range(20):
        with pytest.raises(KeyError), breaker.guard(Unreachable):
            raise KeyError
    breaker.admit()
