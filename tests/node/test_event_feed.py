"""The feed of events of one process: what each listener gets, in which order, and what a slow one costs."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket.node import event_feed, log_events
from hocket.node.log_events import EventFilter, EventNeed, LogEvent
from hocket.node.node import Node
from hocket.node.runtime import Runtime

PATIENCE_S = 60.0


def anything(need: EventNeed) -> bool:
    return True


async def taken(events: AsyncIterator[LogEvent], count: int) -> list[LogEvent]:
    async with asyncio.timeout(PATIENCE_S):
        return [await anext(events) for _ in range(count)]


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
        slow = await node.event_feed.listen(wanted, anything)
        expected = await submit(node, "test.a", 100)
        async with aclosing(await node.event_feed.listen(wanted, anything, 0)) as quick:
            assert [each.subject for each in await taken(quick, 100)] == expected
            # While nobody takes what the slow one has, no more waits for it than this.
            assert len(slow.pending) == 8
            before = int(slow.place)
            assert [each.seq > before for each in slow.pending] == [True] * 8
        found = await taken(slow, 60)
        assert int(slow.place) <= found[-1].seq if slow.pending else True
        expected += await submit(node, "test.a", 20)
        found += await taken(slow, 60)
        assert [each.subject for each in found] == expected
        await slow.aclose()


@on_a_loop
async def test_listeners_hear_other_processes_and_the_watch_ends_with_the_last(home: Path) -> None:
    async with hocket.open(home) as node, hocket.open(home) as other:
        listeners = [await node.event_feed.listen(EventFilter(kind="test."), anything) for _ in range(50)]
        (job_id,) = await submit(other, "test.a", 1)
        for each in listeners:
            assert [event.subject for event in await taken(each, 1)] == [job_id]
        watching = node.event_feed._watching
        assert watching is not None and not watching.done()
        for each in listeners:
            await each.aclose()
        assert watching.done() and not node.event_feed._listeners


@on_a_loop
async def test_the_place_goes_on_with_events_that_a_listener_does_not_get(home: Path) -> None:
    async with hocket.open(home) as node:
        listener = await node.event_feed.listen(EventFilter(kind="other."), anything)
        before = int(listener.place)
        await submit(node, "test.a", 3)
        async with asyncio.timeout(PATIENCE_S):
            while int(listener.place) < before + 3:
                await asyncio.sleep(0.01)
        (job_id,) = await submit(node, "other.b", 1)
        async with aclosing(await node.event_feed.listen(EventFilter(), anything, int(listener.place))) as resumed:
            assert [each.subject for each in await taken(resumed, 1)] == [job_id]
        await listener.aclose()


@on_a_loop
async def test_python_iterates_over_events(home: Path) -> None:
    async with hocket.open(home) as node:
        expected = await submit(node, "test.a", 3)
        events = hocket.admin(node).events(type="job.submitted", after=0)
        assert [each.subject for each in await taken(events, 3)] == expected
        await events.aclose()  # type: ignore[attr-defined]
    sync = hocket.open_sync(home)
    events_of_job = hocket.admin(sync).events(job=expected[1], after=0)
    assert next(events_of_job).type == "job.submitted"
    sync.job(expected[1]).cancel("no")
    assert next(events_of_job).type == "job.cancelled"
    events_of_job.close()  # type: ignore[attr-defined]
    with pytest.raises(log_events.PlaceGone, match="this log ends at"):
        next(hocket.admin(sync).events(after=4711))
    sync.close()


@on_a_loop
async def test_a_handler_follows_events(home: Path) -> None:
    async with hocket.open(home) as node:

        @hocket.job("test.watch")
        async def watch(ctx: hocket.Context) -> str:
            async for event in hocket.admin(ctx.node).events(type="job.claimed", after=0):
                return str(event.kind)
            return "nothing"

        async with node.working([watch]):
            async with asyncio.timeout(PATIENCE_S):
                assert await (await node.submit(watch)).result() == "test.watch"
