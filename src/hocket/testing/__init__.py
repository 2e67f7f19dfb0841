"""For tests of your own job code: a node in memory with real keys, a real log and real SQLite, but with a clock that
you move, and without threads, processes or waiting. `drain` runs every job that can run, in the calling thread, and
moves the clock forward to whatever is due next: a retry, a `not_before`, a turn under a rate limit.

    with hocket.testing.node() as node:
        handle = node.submit(render, frame=7)
        node.drain()
        assert handle.result() == "frame 7"

The same with `async with` and `await`. The same seed gives the same results, down to the bytes of the log.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from hocket.bus.hints import ANYTHING, Changes
from hocket.node.node import DirectNode, Node, SyncNode
from hocket.node.process_loop import INLINE
from hocket.testing.bench import RUNS_MAX, Bench, Clock, Ran, Types

__all__ = ["Clock", "MemoryNode", "MemorySyncNode", "Ran", "node"]

T = TypeVar("T")

START = 1_750_000_000.0
STUCK = "no job is left that can run, but the awaited event has not happened; check that no handler is missing"


class MemorySyncNode(SyncNode):
    """A `SyncNode` whose jobs run when `drain` is called, or when the caller waits for one."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench, target=_MemoryDirectNode(bench, self.drain))
        self._bench = bench
        self.clock: Clock = bench.clock

    def drain(self, types: Types = None, limit: int = RUNS_MAX) -> list[Ran]:
        """Runs every job that one of the types (default: all registered ones) can run, one after the other."""
        ran: list[Ran] = []
        for run in self._bench.runs(types, limit, ran):
            _run_to_its_end(run.execute_async()) if run.job_type.is_async else run.execute()
        return ran


class _MemoryDirectNode(DirectNode):
    def __init__(self, bench: Bench, drain: Callable[[], object]) -> None:
        super().__init__(bench)
        self._drain = drain

    async def until(
        self, look: Callable[[], Awaitable[tuple[bool, T]]], timeout: float | None, topics: Changes = ANYTHING
    ) -> T:
        for wait in (self._drain, None):
            found, value = await look()
            if found:
                return value
            if wait is not None:
                wait()
        raise TimeoutError(STUCK)


def _run_to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Runs a coroutine, also inside a plain handler that itself runs on an event loop: then on a thread meanwhile."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(work)
    else:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, work).result()


class MemoryNode(Node):
    """A `Node` whose jobs run when `drain` is awaited, or when the caller waits for one."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench, INLINE)
        self._bench = bench
        self.clock: Clock = bench.clock
        self._running: set[asyncio.Task[None]] = set()

    async def drain(self, types: Types = None, limit: int = RUNS_MAX) -> list[Ran]:
        """Runs every job that one of the types (default: all registered ones) can run, one after the other."""
        ran: list[Ran] = []
        for run in self._bench.runs(types, limit, ran):
            if run.job_type.is_async:
                task = asyncio.create_task(run.execute_async())
                self._running.add(task)
                task.add_done_callback(self._running.discard)
                await asyncio.wait([task])
            else:
                run.execute()
        return ran

    async def until(
        self, look: Callable[[], Awaitable[tuple[bool, T]]], timeout: float | None, topics: Changes = ANYTHING
    ) -> T:
        async with asyncio.timeout(timeout):
            while True:
                found, value = await look()
                if found:
                    return value
                if not await self.drain():
                    if not self._running:
                        raise TimeoutError(STUCK)
                    await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
                    await asyncio.sleep(0)


class _NodeBench(Bench):
    def handler_node(self, is_async: bool) -> MemoryNode | MemorySyncNode:
        return MemoryNode(self) if is_async else MemorySyncNode(self)


class MemoryOpening:
    """The result of `node`: enter it with `async with` or with `with`."""

    def __init__(self, seed: int, at: float) -> None:
        self._seed, self._at = seed, at
        self._bench: Bench | None = None
        self._node: MemoryNode | None = None

    def __enter__(self) -> MemorySyncNode:
        self._bench = _NodeBench(self._seed, self._at)
        return MemorySyncNode(self._bench)

    def __exit__(self, *_: object) -> None:
        if self._bench is not None:
            self._bench.close()

    async def __aenter__(self) -> MemoryNode:
        self._node = MemoryNode(_NodeBench(self._seed, self._at))
        return self._node

    async def __aexit__(self, *_: object) -> None:
        if self._node is not None:
            await self._node.close()


def node(seed: int = 0, at: float = START) -> MemoryOpening:
    """A new node in memory, whose clock starts at `at`."""
    return MemoryOpening(seed, at)
