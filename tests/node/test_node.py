"""A node as programs use it, async and synchronous: submitting, following, waiting, and what goes wrong."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket.node.runtime import Runtime
from hocket.store import Stage
from hocket.work.handlers import Handlers

PATIENCE_S = 60.0


@hocket.job("n.add", retries=0)
def add(ctx: hocket.Context, a: int, b: int) -> int:
    return a + b


@hocket.job("n.aadd")
async def aadd(ctx: hocket.Context, a: int, b: int) -> int:
    await asyncio.sleep(0)
    return a + b


@hocket.job("n.fail")
def fail(ctx: hocket.Context) -> None:
    raise LookupError("nothing there")


HANDLERS = Handlers([add, aadd, fail])
DRAIN = {"until_idle": True}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    Runtime.init(tmp_path / "home").close()
    return tmp_path / "home"


@asynccontextmanager
async def working(node: hocket.Node) -> AsyncIterator[None]:
    """A worker in the same event loop, for as long as the block lasts."""
    task = asyncio.create_task(node.work(HANDLERS))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@contextmanager
def counted_writes(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """One entry for each write transaction."""
    writes: list[int] = []
    write = runtime.store.write

    def counting(author: bytes | None = None, *, at_end: bool = False) -> Any:
        writes.append(1)
        return write(author, at_end=at_end)

    with monkeypatch.context() as patch:
        patch.setattr(runtime.store, "write", counting)
        yield writes


def head(runtime: Runtime) -> int:
    return runtime.verify().ops


def test_async_from_submit_to_result(home: Path) -> None:
    async def main() -> None:
        async with hocket.open(home) as node:
            handles = [await node.submit(add, a=1, b=2), await node.submit("n.aadd", a=3, b=4)]
            assert (await handles[0].status())["state"] == "pending"
            async with working(node):
                assert [await handle.result(PATIENCE_S) for handle in handles] == [3, 7]
            shown = await handles[0].status()
            assert (shown["outcome"], shown["result"], shown["payload"]) == ("succeeded", 3, {"a": 1, "b": 2})
            assert await node.job(handles[0].job_id).result() == 3

    asyncio.run(main())


def test_async_submit_of_a_command(home: Path) -> None:
    async def scenario() -> str:
        async with hocket.open(home) as node:
            handle = await node.submit(hocket.command("true"))
            await node.work([], allow_any=True, until_idle=True)
            await handle.result()
            return (await handle.status())["state"]

    assert asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S)) == "succeeded"


def test_sync_from_submit_to_result(home: Path) -> None:
    with hocket.open(str(home)) as node:
        handle = node.submit(add, a=1, b=2)
        worker = node.work(HANDLERS, **DRAIN)
        assert handle.result() == 3
        assert (worker.succeeded, worker.failed, worker.handed_back) == (1, 0, 0)
        assert node.job(handle.job_id).status()["fence"] == 1


def test_a_result_is_waited_for_while_another_thread_works(home: Path) -> None:
    with hocket.open(home) as node, hocket.open(home) as other:
        handle = node.submit(add, a=1, b=2)
        events = handle.events()
        assert next(events)["type"] == "ScheduleJob"
        thread = threading.Thread(target=other.work, args=(HANDLERS,), kwargs=DRAIN)
        thread.start()
        assert handle.result(PATIENCE_S) == 3
        assert [line["type"] for line in events][-1] == "CompleteJob"
        thread.join(PATIENCE_S)


def test_the_home_comes_from_the_environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_HOME", str(home))
    with hocket.open() as node:
        assert node.submit(add, a=1, b=2).created


def test_a_home_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(hocket.Usage, match="create it with"), hocket.open(tmp_path / "nowhere"):
        pass

    async def main() -> None:
        async with hocket.open(tmp_path / "nowhere"):
            pass

    with pytest.raises(hocket.Usage, match="create it with"):
        asyncio.run(main())


# All or nothing.


@pytest.mark.parametrize(
    "wrong",
    [
        ("n.add", {"a": object()}),
        (hocket.kind("n.add", after="00000000000000000000000001"), {}),
        ("n.add", {"a": "x" * (1024 * 1024)}),
        ("bad kind", {}),
    ],
    ids=["payload", "after", "size", "kind"],
)
def test_submit_many_is_all_or_nothing(home: Path, wrong: tuple[Any, dict[str, Any]]) -> None:
    with hocket.open(home) as node:
        before = head(node.runtime)
        with pytest.raises(hocket.Usage):
            node.submit_many([(add, {"a": 1, "b": 1}), wrong, (add, {"a": 2, "b": 2})])
        assert head(node.runtime) == before

        async def main() -> None:
            async with hocket.open(home) as other:
                with pytest.raises(hocket.Usage):
                    await other.submit_many([(add, {"a": 1, "b": 1}), wrong])

        asyncio.run(main())
        assert head(node.runtime) == before


def test_one_wrong_submit_does_not_touch_those_that_are_committed_with_it(home: Path) -> None:
    async def main() -> list[Any]:
        async with hocket.open(home) as node:
            wrong = hocket.kind("n.add", after="00000000000000000000000001")
            jobs = [add if n % 10 else wrong for n in range(50)]
            return await asyncio.gather(*(node.submit(job, a=1, b=1) for job in jobs), return_exceptions=True)

    results = asyncio.run(main())
    assert [isinstance(each, hocket.Usage) for each in results] == [n % 10 == 0 for n in range(50)]
    with Runtime.open(home) as runtime:
        assert head(runtime) == 2 + 45


def test_not_even_a_request_that_breaks_touches_those_that_are_committed_with_it(home: Path) -> None:
    async def main() -> list[Any]:
        async with hocket.open(home) as node:
            handle = await node.submit(add, a=1, b=1)
            asks = [handle.cancel("\udcff"), *(node.submit(add, a=1, b=1) for _ in range(10))]
            return await asyncio.gather(*asks, return_exceptions=True)

    broken, *whole = asyncio.run(main())
    assert isinstance(broken, ValueError)
    assert all(isinstance(each, hocket.Handle) for each in whole)


def test_a_store_that_refuses_tells_everybody_after_one_try(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> list[Any]:
        async with hocket.open(home) as node:
            with node.runtime.store.write() as session:
                session.put_head(session.head()._replace(rebuilding=bytes(20)))
            with counted_writes(node.runtime, monkeypatch) as writes:
                jobs = (node.submit(add.using(priority=1), a=1, b=1) for _ in range(50))
                told = await asyncio.gather(*jobs, return_exceptions=True)
                assert len(writes) <= 5
            return told

    assert {type(each) for each in asyncio.run(main())} == {hocket.StoreError}


def test_many_submits_at_once_share_commits(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with hocket.open(home) as node:
            with counted_writes(node.runtime, monkeypatch) as writes:
                handles = await asyncio.gather(*(node.submit(add, a=n, b=n) for n in range(300)))
                assert len(writes) <= 30
            assert len({handle.job_id for handle in handles}) == 300

    asyncio.run(main())
    with Runtime.open(home) as runtime:
        assert head(runtime) == 2 + 300
        assert runtime.verify().findings == []


def test_a_submitter_that_gives_up_does_not_disturb_the_others(home: Path) -> None:
    async def main() -> None:
        async with hocket.open(home) as node:
            tasks = [asyncio.create_task(node.submit(add, a=n, b=n)) for n in range(40)]
            await asyncio.sleep(0)
            for task in tasks[::4]:
                task.cancel()
            done = await asyncio.gather(*tasks, return_exceptions=True)
            assert sum(isinstance(each, hocket.Handle) for each in done) >= 30
            assert (await node.submit(add, a=1, b=1)).created

    asyncio.run(main())


@pytest.mark.req("LW-22")
def test_many_threads_share_one_node(home: Path) -> None:
    with hocket.open(home) as node:
        ids: list[str] = []
        errors: list[BaseException] = []

        def submit(number: int) -> None:
            try:
                for n in range(20):
                    ids.append(node.submit(add, a=number, b=n).job_id)
                    node.job(ids[-1]).status()
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=submit, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        waiting = threading.Thread(target=node.work, args=(HANDLERS,), kwargs=DRAIN)
        waiting.start()
        for thread in [*threads, waiting]:
            thread.join(PATIENCE_S)
        assert not errors
        assert len(set(ids)) == 160
        node.work(HANDLERS, **DRAIN)
        assert {node.job(each).result(PATIENCE_S) is not None for each in ids} == {True}
        assert node.runtime.verify().findings == []
        assert node.runtime.rebuild().unchanged


# Following.


def test_events_come_as_they_happen_and_end_with_the_job(home: Path) -> None:
    async def main() -> None:
        async with hocket.open(home) as node:
            handle = await node.submit(add, a=1, b=2)
            events = handle.events()
            first = await anext(events)
            assert (first["type"], first["detail"], first["counts"]) == ("ScheduleJob", "n.add", True)
            later = asyncio.create_task(anext(events))
            await asyncio.sleep(0)
            assert not later.done()
            async with working(node):
                assert (await later)["type"] == "ClaimWork"
                rest = [line["type"] async for line in events]
            assert rest[-1] == "CompleteJob"
            assert [line["type"] async for line in handle.events()] == ["ScheduleJob", "ClaimWork", *rest]

    asyncio.run(main())


def test_many_wait_for_one_and_one_for_many(home: Path) -> None:
    async def main() -> None:
        async with hocket.open(home) as node:
            handles = await node.submit_many([(add, {"a": n, "b": 0}) for n in range(30)])
            waiting = [asyncio.create_task(handle.result(PATIENCE_S)) for handle in [*handles, *[handles[0]] * 20]]
            async with working(node):
                assert await asyncio.gather(*waiting) == [*range(30), *[0] * 20]

    asyncio.run(main())


def test_waiting_ends_at_the_timeout(home: Path) -> None:
    with hocket.open(home) as node:
        handle = node.submit(add, a=1, b=2)
        with pytest.raises(TimeoutError):
            handle.result(0.05)
        with pytest.raises(TimeoutError):
            handle.result(0)

    async def main() -> None:
        async with hocket.open(home) as node:
            with pytest.raises(TimeoutError):
                await node.job(handle.job_id).result(0.05)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await node.job(handle.job_id).result()

    asyncio.run(main())


def test_a_failure_carries_its_error_and_its_traceback(home: Path) -> None:
    with hocket.open(home) as node:
        handle = node.submit(fail)
        node.work(HANDLERS, **DRAIN)
        with pytest.raises(hocket.JobFailed, match="LookupError: nothing there") as caught:
            handle.result()
        assert caught.value.job_id == handle.job_id
        assert 'raise LookupError("nothing there")' in (caught.value.traceback or "")
        handle.retry()
        assert handle.status()["state"] == "pending"


def test_cancel_and_retry(home: Path) -> None:
    async def main() -> None:
        async with hocket.open(home) as node:
            handle = await node.submit(add, a=1, b=2)
            await handle.cancel("not now")
            with pytest.raises(hocket.JobCancelled, match="not now"):
                await handle.result()
            with pytest.raises(hocket.Conflict):
                await handle.cancel()
            await handle.retry()
            async with working(node):
                assert await handle.result(PATIENCE_S) == 3
            with pytest.raises(hocket.Conflict):
                await handle.retry()

    asyncio.run(main())


UNKNOWN = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


def test_nobody_waits_for_a_job_that_is_not_there(home: Path) -> None:
    with hocket.open(home) as node:
        handle = node.job(UNKNOWN)
        for ask in (handle.result, handle.status, handle.cancel, handle.retry, lambda: next(handle.events())):
            with pytest.raises(hocket.Usage, match=UNKNOWN):
                ask()
        with pytest.raises(hocket.Usage, match="is not a job id"):
            node.job("nonsense")

    async def main() -> None:
        async with hocket.open(home) as node:
            other = node.job(UNKNOWN)
            for ask in (other.result, other.status, other.cancel, other.retry, lambda: anext(other.events())):
                with pytest.raises(hocket.Usage, match=UNKNOWN):
                    await ask()
            with pytest.raises(hocket.Usage, match="is not a job id"):
                node.job("nonsense")

    asyncio.run(main())


@pytest.mark.req("LW-41")
def test_a_unique_key_gives_the_handle_of_the_job_that_is_there(home: Path) -> None:
    async def main() -> None:
        async with hocket.open(home) as node:
            once = add.using(unique="k")
            handles = await asyncio.gather(*(node.submit(once, a=1, b=2) for _ in range(10)))
            assert sum(handle.created for handle in handles) == 1
            assert len({handle.job_id for handle in handles}) == 1

    asyncio.run(main())


def test_nothing_of_a_closed_node_is_left(home: Path) -> None:
    before = set(threading.enumerate())

    async def main() -> None:
        async with hocket.open(home) as node:
            handle = await node.submit(add, a=1, b=2)
            async with working(node):
                await handle.result(PATIENCE_S)

    asyncio.run(main())
    assert list((home / "processes").iterdir()) == []
    with hocket.open(home) as node:
        node.submit(add, a=1, b=2)
        node.work(HANDLERS, **DRAIN)
    assert list((home / "processes").iterdir()) == []
    started = set(threading.enumerate()) - before
    for thread in started:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in started)


def test_a_query_waits_for_no_other_query_and_for_no_commit(home: Path) -> None:
    """The others end only after it has been answered."""

    async def main() -> None:
        async with hocket.open(home) as node:
            answered = threading.Event()
            begun = [threading.Event() for _ in range(4)]

            def hold(event: threading.Event) -> None:
                event.set()
                assert answered.wait(60)

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(node.run(lambda tx: hold(begun[0])))
                for event in begun[1:]:
                    tasks.create_task(node.peek(lambda session, event=event: hold(event)))
                await asyncio.to_thread(lambda: [event.wait(60) for event in begun])
                assert await asyncio.wait_for(node.peek(lambda session: session.head().seq), 60) > 0
                answered.set()

    asyncio.run(main())


def test_a_single_async_submit_takes_the_short_way_and_many_share_one_commit(tmp_path: Path) -> None:
    """The short way leaves the folding to the next one who looks at the roster."""

    async def act() -> None:
        hocket.init(tmp_path / "home")
        async with hocket.open(tmp_path / "home") as node:
            await node.submit("a")
            assert await node.peek(lambda session: session.head().unsettled) == 1
            before = await node.read(lambda session: session.head().seq)
            await asyncio.gather(*(node.submit("a") for _ in range(50)))
            counts = await node.read(lambda session: session.counts())
            assert await node.peek(lambda session: session.head().seq) == before + 50
            assert counts == {(Stage.READY, None): 51}

    asyncio.run(act())
