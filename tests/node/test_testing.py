"""The node in memory that users test their job code with."""

import asyncio
import os
import threading
import time
from pathlib import Path

import pytest

import hocket
import hocket.testing
from hocket.families.jobs import cron
from hocket.kernel.retrying import backoff_ms

seen: list[object] = []


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    seen.clear()


@hocket.job("t.echo")
def echo(ctx: hocket.Context, word: str) -> str:
    seen.append((word, threading.get_ident()))
    return word


@hocket.job("t.aecho")
async def aecho(ctx: hocket.Context, word: str) -> str:
    await asyncio.sleep(0)
    seen.append((word, threading.get_ident()))
    return word


@hocket.job("t.flaky", retries=3, backoff="1h", backoff_max="1d")
def flaky(ctx: hocket.Context, failures: int) -> int:
    seen.append(ctx.fence)
    if ctx.fence <= failures:
        raise ValueError(f"attempt {ctx.fence}")
    return ctx.fence


@hocket.job("t.exit")
def leave(ctx: hocket.Context) -> None:
    raise SystemExit(3)


def test_a_job_runs_in_the_calling_thread_and_gives_its_result():
    with hocket.testing.node() as node:
        handle = node.submit(echo, word="a")
        assert handle.status()["state"] == "pending"
        ran = node.drain()
        assert [(each.job_id, each.kind, each.fence, each.error) for each in ran] == [
            (handle.job_id, "t.echo", 1, None)
        ]
        assert handle.result() == "a"
        assert seen == [("a", threading.get_ident())]
        assert node.drain() == []


def test_the_same_with_async():
    async def main() -> None:
        async with hocket.testing.node() as node:
            handles = [await node.submit(job, word="a") for job in (echo, aecho)]
            assert [each.kind for each in await node.drain()] == ["t.echo", "t.aecho"]
            assert [await handle.result() for handle in handles] == ["a", "a"]
            assert seen == [("a", threading.get_ident())] * 2

    asyncio.run(main())


def test_async_handlers_run_in_a_sync_test_too():
    with hocket.testing.node() as node:
        assert node.submit(aecho, word="b").result() == "b"


@pytest.mark.req("LW-41")
def test_retries_come_by_moving_the_clock_and_nothing_waits():
    with hocket.testing.node() as node:
        handle = node.submit(flaky, failures=3)
        began, start = time.monotonic(), node.clock.now
        assert [each.error for each in node.drain()] == [*(f"ValueError: attempt {n}" for n in (1, 2, 3)), None]
        moved_s = node.clock.now - start
        assert handle.result() == 4
        rests = flaky.policy.backoff_ms, flaky.policy.backoff_max_ms
        assert sum(backoff_ms(n, *rests, 0) for n in (1, 2, 3)) <= moved_s * 1000
        assert moved_s * 1000 <= sum(backoff_ms(n, *rests, 65535) for n in (1, 2, 3)) + 10
        assert time.monotonic() - began < moved_s / 100


def test_a_job_that_fails_for_good_tells_why():
    with hocket.testing.node() as node:
        handle = node.submit(flaky.using(retries=0), failures=9)
        with pytest.raises(hocket.JobFailed, match="attempt 1") as caught:
            handle.result()
        assert "raise ValueError" in (caught.value.traceback or "")
        handle.retry()
        assert [each.fence for each in node.drain()] == [2]


def test_every_way_out_of_a_handler_is_an_outcome():
    with hocket.testing.node() as node:
        handle = node.submit(leave)
        assert node.drain()[0].error == "the handler called sys.exit(3)"
        with pytest.raises(hocket.JobFailed):
            handle.result()


def test_what_is_not_due_runs_at_its_time():
    with hocket.testing.node() as node:
        due = node.clock.now + 3600
        node.submit(echo.using(not_before=int(due * 1000)), word="later")
        node.submit(echo, word="now")
        assert len(node.drain()) == 2
        assert [word for word, _ in seen] == ["now", "later"]
        assert due <= node.clock.now < due + 1


def test_priorities_and_dependencies_are_kept():
    with hocket.testing.node() as node:
        first = node.submit(echo, word="first")
        node.submit(echo.using(after=first), word="second")
        node.submit(echo.using(priority=9), word="urgent")
        node.drain()
        assert [word for word, _ in seen] == ["urgent", "first", "second"]


def test_cron_ticks_come_with_the_clock():
    with hocket.testing.node(at=1_750_000_000.0) as node:
        plan = cron.check(cron.NewSchedule("hourly", "0 * * * *", "UTC", echo.draft({"word": "tick"})))
        node.runtime.log.run(lambda tx: cron.add(tx, plan))
        assert node.drain() == []
        node.clock.advance(3 * 3600)
        assert len(node.drain()) == 1
        node.clock.advance(3600)
        assert len(node.drain()) == 1


def test_only_the_given_types_run():
    with hocket.testing.node() as node:
        left, done = node.submit(echo, word="left"), node.submit(aecho, word="done")
        assert [each.kind for each in node.drain([aecho])] == ["t.aecho"]
        assert done.result() == "done"
        assert left.status()["state"] == "pending"


def test_waiting_for_what_cannot_come_says_so_at_once():
    with hocket.testing.node() as node:
        with pytest.raises(TimeoutError, match="no job is left that can run"):
            node.submit("t.unknown").result()

    async def main() -> None:
        async with hocket.testing.node() as node:
            with pytest.raises(TimeoutError, match="no job is left that can run"):
                await (await node.submit("t.unknown")).result()

    asyncio.run(main())


def test_code_that_submits_and_waits_needs_no_drain():
    async def main() -> None:
        async with hocket.testing.node() as node:

            async def whole(word: str) -> str:
                return await (await node.submit(aecho, word=word)).result()

            assert await asyncio.gather(*(whole(str(n)) for n in range(20))) == [str(n) for n in range(20)]

    asyncio.run(main())


def test_a_job_may_wait_for_another():
    with hocket.testing.node() as node:

        @hocket.job("t.parent")
        def parent(ctx: hocket.Context) -> str:
            return "parent of " + str(node.submit(echo, word="child").result())

        assert node.submit(parent).result() == "parent of child"


def test_endless_work_is_stopped():
    with hocket.testing.node() as node:

        @hocket.job("t.endless")
        def endless(ctx: hocket.Context) -> None:
            node.submit(endless)

        node.submit(endless)
        with pytest.raises(hocket.Conflict, match="25 runs without an end"):
            node.drain(limit=25)


def test_one_seed_gives_one_log_and_another_seed_another():
    def head(seed: int) -> bytes:
        with hocket.testing.node(seed) as node:
            node.submit_many([(echo, {"word": str(n)}) for n in range(5)] + [(flaky, {"failures": 2})])
            node.drain()
            assert node.runtime.verify().findings == []
            assert node.runtime.rebuild().unchanged
            return node.runtime.verify().head[1]

    assert head(1) == head(1) != head(2)


def test_nothing_is_left_behind_and_no_thread_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOCKET_HOME", str(tmp_path / "home" / "hocket"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    threads = threading.active_count()
    with hocket.testing.node() as node:
        node.submit(echo, word="a")
        node.drain()
        assert threading.active_count() <= threads
    assert os.listdir(tmp_path) == []
