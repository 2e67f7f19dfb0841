"""What runs beside the requests goes on: the visits to the peers, the loop around them, the watch for hints. Each is
broken once by an error that nobody foresaw.
"""

import asyncio
from pathlib import Path

import pytest

from hocket.kernel.retrying import RetryPolicy
from hocket.mesh.peer_exchange import Exchanged
from hocket.work import environment
from tests.mesh.world import Place, run, until


@pytest.fixture(autouse=True)
def short_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "TASK_RETRIES", RetryPolicy(0.01))


def test_a_peer_whose_exchange_fails_is_tried_again_and_the_others_go_on(tmp_path: Path):
    async def test(a: Place, b: Place, c: Place) -> None:
        real = b.exchanges.visit
        is_bad = True

        async def visit(address: str, *, unless_idle: bool = False) -> Exchanged:
            if address == a.address and is_bad:
                raise RuntimeError("nobody foresaw this")
            return await real(address, unless_idle=unless_idle)

        b.exchanges.visit = visit  # type: ignore[method-assign]
        b.befriend(a.address)
        b.befriend(c.address)
        c.submit(1)
        loop = b.keep_in_touch()
        await until(lambda: c.ids() <= b.ids(), "the exchange with the good peer")
        await until(lambda: any("nobody foresaw this" in notice for notice in b.notices), "the notice")
        assert loop.is_on
        is_bad = False
        a.submit(1)
        await until(lambda: a.ids() <= b.ids(), "the exchange with the other one")

    run(tmp_path, test, "a", "b", "c")


def test_the_loop_that_fails_is_told_and_goes_on(tmp_path: Path):
    async def test(a: Place, b: Place) -> None:
        b.befriend(a.address)
        loop = b.services.loop()
        real, failed = loop._round, 0

        async def once() -> None:
            nonlocal failed
            failed += 1
            if failed == 1:
                raise ValueError("a list of peers that cannot be read")
            await real()

        loop._round = once  # type: ignore[method-assign]
        running = asyncio.create_task(loop.run())
        a.submit(2)
        await until(lambda: a.ids() <= b.ids(), "the exchange")
        assert any("the exchange with the peers failed" in notice for notice in b.notices)
        running.cancel()
        await asyncio.wait([running])
        assert not loop.is_on

    run(tmp_path, test)


@pytest.mark.req("LW-40")
def test_a_listener_for_hints_that_fails_listens_again(tmp_path: Path):
    async def test(a: Place, b: Place) -> None:
        real, failed = b.exchanges.hint_headers, 0

        async def once(address: str) -> dict[str, str]:
            nonlocal failed
            failed += 1
            if failed == 1:
                raise KeyError("a header")
            return await real(address)

        b.exchanges.hint_headers = once  # type: ignore[method-assign]
        b.befriend(a.address)
        b.keep_in_touch()
        await until(lambda: a.gate._hint_streams._listeners, "the second try")
        assert any("hints" in notice and "KeyError" in notice for notice in b.notices)

    run(tmp_path, test)


@pytest.mark.req("LW-40")
def test_the_watch_for_hints_goes_on_after_an_error(tmp_path: Path):
    async def test(a: Place, b: Place) -> None:
        await b.exchanges.exchange(a.address)
        hint_streams = a.gate._hint_streams
        real, failed = hint_streams._with_news, 0

        def once(listeners):  # type: ignore[no-untyped-def]
            nonlocal failed
            failed += 1
            if failed == 1:
                raise ZeroDivisionError
            return real(listeners)

        hint_streams._with_news = once  # type: ignore[method-assign]
        hints = b.transport.hints(a.address, b.headers(a.id))
        await anext(hints)
        await until(lambda: failed, "the error")
        a.submit(1)
        async with asyncio.timeout(20):
            await anext(hints)
        assert any("the watch for hints failed" in notice for notice in a.notices)
        await hints.aclose()  # type: ignore[attr-defined]

    run(tmp_path, test)
