"""Workers inside programs that do other things as well, and nodes outside `with` blocks."""

import asyncio
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket.errors import StoreError
from hocket.node.runtime import Runtime
from hocket.work.worker import Worker

PATIENCE_S = 60.0


@pytest.fixture
def home(tmp_path: Path) -> Path:
    hocket.init(tmp_path / "home")
    return tmp_path / "home"


class Gates:
    """Handlers that begin, and go on when they are let through."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.go = threading.Event()
        self.plain = hocket.JobType("embedded.plain", function=self._plain, lease_ms=3_600_000)
        self.coroutine = hocket.JobType("embedded.coroutine", function=self._coroutine, lease_ms=3_600_000)
        self.types = [self.plain, self.coroutine]

    def _plain(self, ctx: hocket.Context) -> str:
        self.begun.release()
        deadline = time.monotonic() + PATIENCE_S
        while not self.go.wait(0.01):  # an exception can come in here
            assert time.monotonic() < deadline
        return "plain"

    async def _coroutine(self, ctx: hocket.Context) -> str:
        self.begun.release()
        async with asyncio.timeout(PATIENCE_S):
            while not self.go.is_set():
                await asyncio.sleep(0.01)
        return "coroutine"

    async def both_run(self) -> None:
        for _ in self.types:
            assert await asyncio.to_thread(self.begun.acquire, True, PATIENCE_S)


@pytest.fixture
def gates() -> Gates:
    return Gates()


def states(home: Path) -> list[tuple[str, str]]:
    with Runtime.open(home) as runtime, runtime.read() as session:
        return sorted((entry.job.kind, entry.job.state.name) for entry in session.each_job())


PENDING = [("embedded.coroutine", "PENDING"), ("embedded.plain", "PENDING")]
COMPLETED = [("embedded.coroutine", "COMPLETED"), ("embedded.plain", "COMPLETED")]


@pytest.mark.touches("LW-06")
@pytest.mark.parametrize("how", ["work", "working"])
def test_a_cancelled_worker_hands_its_jobs_back(home: Path, gates: Gates, how: str) -> None:
    """Their leases last an hour."""
    told: list[dict[str, Any]] = []

    async def main() -> None:
        async with hocket.open(home) as node:
            handles = [await node.submit(each) for each in gates.types]

            async def working() -> None:
                async with node.working(gates.types):
                    await asyncio.Event().wait()

            task = asyncio.create_task(working() if how == "working" else node.work(gates.types, signals=False))
            await gates.both_run()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            told.extend([await handle.status() for handle in handles])

    asyncio.run(main())
    gates.go.set()
    assert states(home) == PENDING
    for job in told:
        assert job["ops"][-1]["type"] == "YieldWork" and job["ops"][-1]["detail"] == "the worker stopped it"


def test_a_program_that_ends_while_its_worker_runs_leaves_the_jobs_to_the_next(home: Path, gates: Gates) -> None:
    async def main() -> None:
        node = await hocket.open(home)
        for each in gates.types:
            await node.submit(each)
        task = asyncio.create_task(node.work(gates.types, signals=False))
        await gates.both_run()
        assert not task.done()

    asyncio.run(main())
    gates.go.set()
    with hocket.open(home) as node:
        assert node.work(gates.types, until_idle=True).succeeded == 2


def test_a_worker_that_is_cancelled_twice_does_not_wait(home: Path, gates: Gates) -> None:
    async def main() -> None:
        async with hocket.open(home) as node:
            await node.submit(gates.plain)
            blocked, go = threading.Event(), threading.Event()
            task = asyncio.create_task(node.work(gates.types, signals=False))
            assert await asyncio.to_thread(gates.begun.acquire, True, PATIENCE_S)

            def block(tx: object) -> None:
                blocked.set()
                assert go.wait(PATIENCE_S)

            other = asyncio.create_task(node.run(block))
            assert await asyncio.to_thread(blocked.wait, PATIENCE_S)
            task.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.sleep(0)
            go.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            await other

    asyncio.run(main())
    gates.go.set()


def test_at_the_end_of_the_block_running_jobs_finish(home: Path, gates: Gates) -> None:
    async def main() -> Worker:
        async with hocket.open(home) as node:
            async with node.working(gates.types, grace=PATIENCE_S) as worker:
                for each in gates.types:
                    await node.submit(each)
                await gates.both_run()
                asyncio.get_running_loop().call_later(0.05, gates.go.set)
            return worker

    worker = asyncio.run(main())
    assert (worker.succeeded, worker.handed_back) == (2, 0)
    assert states(home) == COMPLETED


def test_after_the_grace_they_are_handed_back(home: Path, gates: Gates) -> None:
    async def main() -> Worker:
        async with hocket.open(home) as node, node.working(gates.types, grace=0.05) as worker:
            for each in gates.types:
                await node.submit(each)
            await gates.both_run()
        return worker

    worker = asyncio.run(main())
    gates.go.set()
    assert (worker.succeeded, worker.handed_back) == (0, 2)
    assert states(home) == PENDING


def test_a_worker_on_a_thread(home: Path, gates: Gates) -> None:
    with hocket.open(home) as node:
        gates.go.set()
        with node.working(gates.types) as worker:
            handles = [node.submit(each) for each in gates.types]
            assert node.gather(*handles, timeout=PATIENCE_S) == ["plain", "coroutine"]
        assert worker.succeeded == 2
        assert not [thread for thread in threading.enumerate() if thread.name == "hocket-worker"]


def test_a_worker_may_be_stopped_from_anywhere(home: Path, gates: Gates) -> None:
    stops: list[Worker] = []
    with hocket.open(home) as node:
        handle = node.submit(gates.plain)

        def stop() -> None:
            assert gates.begun.acquire(timeout=PATIENCE_S)
            stops[0].stop()
            stops[0].stop()

        thread = threading.Thread(target=stop)
        thread.start()
        worker = node.work(gates.types, started=stops.append, grace=PATIENCE_S)
        thread.join(PATIENCE_S)
        gates.go.set()
        assert stops == [worker] and worker.handed_back == 1
        assert handle.status()["state"] == "pending"


@pytest.mark.parametrize("signals", [True, False])
def test_the_signals_may_stay_the_programs(home: Path, gates: Gates, signals: bool) -> None:
    mine = lambda *_: None  # noqa: E731
    before = {number: signal.signal(number, mine) for number in (signal.SIGINT, signal.SIGTERM)}
    seen: list[bool] = []

    def look(worker: Worker) -> None:
        seen.append(all(signal.getsignal(number) is mine for number in before))

    try:
        with hocket.open(home) as node:
            node.work(gates.types, until_idle=True, signals=signals, started=look)
        assert seen == [not signals]
        assert all(signal.getsignal(number) is mine for number in before)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_worker_that_cannot_start_says_so(home: Path) -> None:
    with hocket.open(home) as node:
        with pytest.raises(TypeError, match="no_such_option"), node.working([], no_such_option=1):
            raise AssertionError("the block ran")

    async def main() -> None:
        async with hocket.open(home) as node:
            with pytest.raises(TypeError, match="no_such_option"):
                async with node.working([], no_such_option=1):
                    raise AssertionError("the block ran")

    asyncio.run(main())


def test_an_error_of_the_worker_comes_out_of_the_block(
    home: Path, gates: Gates, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(self: Worker) -> None:
        raise StoreError("the disk is gone")

    monkeypatch.setattr(Worker, "run", broken)
    with hocket.open(home) as node:
        with pytest.raises(StoreError, match="the disk is gone"), node.working(gates.types):
            pass

    async def main() -> None:
        async with hocket.open(home) as node:
            with pytest.raises(StoreError, match="the disk is gone"):
                async with node.working(gates.types):
                    await asyncio.sleep(0)

    asyncio.run(main())


def test_a_node_without_a_block(home: Path) -> None:
    async def main() -> str:
        node = await hocket.open(home)
        try:
            return (await node.submit("embedded.later")).job_id
        finally:
            await node.close()

    job_id = asyncio.run(main())
    node = hocket.open_sync(home)
    assert node.job(job_id).status()["state"] == "pending"
    node.close()
    assert list((home / "processes").iterdir()) == []
