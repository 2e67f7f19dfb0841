"""The feed of events of one process: what each listener gets, in which order, and what a slow one costs."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket.node import event_feed, log_events
from hocket.node.event_feed import EventBatch
from hocket.node.log_events import EventFilter, EventNeed, LogEvent
from hocket.node.node import Node
from hocket.node.runtime import Runtime

PATIENCE_S = 60.0


def anything(need: EventNeed) -> bool:
    return True


async def taken(batches: AsyncGenerator[EventBatch, None], count: int) -> list[LogEvent]:
    found: list[LogEvent] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < count:
            found += (await anext(batches)).items
    return found


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))

    return run


@pytest.fixture
def home(tmp_path: Path) -> Path:
    Runtime.init(tmp_path / "home", name="box").close()
    return tmp_path / "home"


async def submit(node: Node, kind: str, count: int) -> list[str]:
    return [each.job_id for each in await node.submit_many((kind, {"at": at}) for at in range(count))]


@on_a_loop
async def test_a_slow_listener_waits_for_nobody_and_misses_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_feed, "PENDING_MAX", 8)
    monkeypatch.setattr(log_events, "STEP", 5)
    async with hocket.open(home) as node:
        wanted = EventFilter(types=("job.submitted",))
        async with aclosing(node.event_batches(wanted, anything, None)) as slow:
            assert (await anext(slow)).items == []
            expected = await submit(node, "test.a", 100)
            async with aclosing(node.event_batches(wanted, anything, 0)) as quick:
                assert [each.subject for each in await taken(quick, 100)] == expected
            # While the slow one looks at nothing, no more waits for it than this.
            (listener,) = node.event_feed._listeners
            assert len(listener.pending) <= 8
            found = await taken(slow, 60)
            expected += await submit(node, "test.a", 20)
            found += await taken(slow, 120 - len(found))
            assert [each.subject for each in found] == expected


@on_a_loop
async def test_a_listener_hears_other_processes_and_the_watch_ends_with_the_last(
    home: Path,
) -> None:
    async with hocket.open(home) as node:
        other = await hocket.open(home)
        batches = [node.event_batches(EventFilter(kind="test."), anything, None) for _ in range(50)]
        for each in batches:
            await anext(each)
        (job_id,) = await submit(other, "test.a", 1)
        for each in batches:
            assert [event.subject for event in await taken(each, 1)] == [job_id]
        watching = node.event_feed._watching
        assert watching is not None and not watching.done()
        for each in batches:
            await each.aclose()
        assert watching.done() and not node.event_feed._listeners
        await other.close()


@on_a_loop
async def test_a_sign_of_life_takes_the_place_on(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_feed, "KEEP_ALIVE_S", 0.2)
    async with hocket.open(home) as node:
        async with aclosing(node.event_batches(EventFilter(kind="other."), anything, None)) as batches:
            first = await anext(batches)
            await submit(node, "test.a", 3)
            async with asyncio.timeout(PATIENCE_S):
                while (batch := await anext(batches)).seq < first.seq + 3:
                    assert batch.items == []


@on_a_loop
async def test_python_iterates_over_events(home: Path) -> None:
    async with hocket.open(home) as node:
        expected = await submit(node, "test.a", 3)
        found = []
        async with (
            aclosing(hocket.admin(node).events(type="job.submitted", after=0)) as events,
            asyncio.timeout(PATIENCE_S),
        ):
            async for event in events:
                found.append(event.subject)
                if len(found) == 3:
                    break
    assert found == expected
    sync = hocket.open_sync(home)
    events_of_sync = hocket.admin(sync).events(job=expected[1], after=0)
    assert next(events_of_sync).type == "job.submitted"
    sync.job(expected[1]).cancel("no")
    assert next(events_of_sync).type == "job.cancelled"
    sync.close()
