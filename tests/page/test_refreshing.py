"""Open pages hear of changes over one listener, and their loads together take a small share of a processor."""

import asyncio
import time
from itertools import pairwise
from typing import Any

import pytest

from hocket.extensions.sim.loop import run as run_virtually
from hocket.page import refreshing
from hocket.page.refreshing import CHANGES_S_MAX, SHARE, Refreshing

PATIENCE_S = 60


class Listener:
    def __init__(self) -> None:
        self.news: asyncio.Queue[bool] = asyncio.Queue()
        self.is_closed = False

    async def wait(self, timeout: float) -> bool:
        return await self.news.get()

    def close(self) -> None:
        self.is_closed = True


class Log:
    """A node whose log changes when the test says so."""

    def __init__(self) -> None:
        self.listeners: list[Listener] = []

    def listen(self, topics: Any) -> Listener:
        self.listeners.append(Listener())
        return self.listeners[-1]


async def nothing() -> None: ...


def test_many_open_pages_need_one_listener_and_none_needs_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(refreshing, "CHANGES_S", 0.0)
    log = Log()

    async def scenario() -> None:
        pages = Refreshing(log)  # type: ignore[arg-type]
        opened = [pages.changes(nothing) for _ in range(20)]
        hearing = [asyncio.ensure_future(anext(each)) for each in opened]
        async with asyncio.timeout(PATIENCE_S):
            while not log.listeners:
                await asyncio.sleep(0)
            log.listeners[0].news.put_nowait(True)
            assert await asyncio.gather(*hearing) == ["changed"] * 20
        for each in opened:
            await each.aclose()  # type: ignore[attr-defined]
        assert len(log.listeners) == 1 and log.listeners[0].is_closed

    asyncio.run(scenario())


def test_what_a_page_shows_besides_the_log_is_news_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(refreshing, "CHANGES_S", 0.0)
    shown = [(1,), (1,), (2,)]

    async def news() -> tuple[int, ...] | None:
        return shown.pop(0) if shown else None

    async def scenario() -> str:
        async with asyncio.timeout(PATIENCE_S):
            return await anext(Refreshing(Log()).changes(news))  # type: ignore[arg-type]

    assert asyncio.run(scenario()) == "changed" and shown == []


def test_what_views_cost_is_paid_off_before_pages_load_again(monkeypatch: pytest.MonkeyPatch):
    spent, now = [0.0], [100.0]
    monkeypatch.setattr(time, "thread_time", lambda: spent[0])
    pages = Refreshing(Log(), lambda: now[0])  # type: ignore[arg-type]

    def view(cost_s: float) -> None:
        with pages.spending():
            spent[0] += cost_s

    view(0.06)
    view(0.03)
    assert pages.rest_s == pytest.approx(0.09 / SHARE)
    now[0] += 1
    assert pages.rest_s == pytest.approx(0.09 / SHARE - 1)
    view(1_000)
    assert pages.rest_s == pytest.approx(CHANGES_S_MAX)
    now[0] += CHANGES_S_MAX + 1
    assert pages.rest_s == 0


def test_open_pages_load_themselves_one_after_the_other(monkeypatch: pytest.MonkeyPatch):
    spent = [0.0]
    monkeypatch.setattr(time, "thread_time", lambda: spent[0])
    log, cost_s, loads = Log(), 0.03, []

    async def scenario() -> None:
        now = asyncio.get_running_loop().time
        pages = Refreshing(log, now)  # type: ignore[arg-type]

        def view() -> None:
            with pages.spending():
                spent[0] += cost_s

        async def tab() -> None:
            async for _ in pages.changes(nothing):
                loads.append(now())
                view()

        for _ in range(20):
            view()  # each tab was opened once
        tabs = [asyncio.ensure_future(tab()) for _ in range(20)]
        began = now()
        while now() - began < 200:
            await asyncio.sleep(0.5)
            for each in log.listeners:
                each.news.put_nowait(True)
        for each in tabs:
            each.cancel()
        await asyncio.gather(*tabs, return_exceptions=True)

    run_virtually(scenario())
    assert cost_s * len(loads) <= SHARE * 200 + cost_s * 2
    assert len(loads) > 100, "the share is used"
    gaps = [after - before for before, after in pairwise(loads)]
    assert min(gaps[:20]) > 0.5 * cost_s / SHARE, "they do not load at once"
    # Costly views get their turn in time, nevertheless.
    loads.clear()
    cost_s = 1.0
    run_virtually(scenario())
    assert len(loads) >= 20 * int(200 / CHANGES_S_MAX) - 20
