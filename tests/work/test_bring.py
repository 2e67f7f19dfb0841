"""Requests that are brought to a worker: in one transaction with its claims, before what they submit begins; and jobs
that come while it commits.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket.errors import Usage
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.requests import Draft
from hocket.kernel.policy import DEFAULT
from hocket.log import Committed, Transaction
from hocket.node.node import Node
from hocket.node.runtime import Runtime
from hocket.work.batch import BatchResult
from hocket.work.environment import WorkerOptions
from hocket.work.handlers import Handlers
from hocket.work.worker import Worker

pytestmark = pytest.mark.touches("LW-05")

PATIENCE_S = 60.0


class Scene:
    """A worker with one slot, whose handler waits to be let go."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.working: asyncio.Task[None]
        self.begun, self.go_on = threading.Event(), threading.Event()
        job = hocket.job("b.wait")(self.handle)
        self.worker = Worker(node, node.environment, WorkerOptions(Handlers([job]), concurrency=1))

    def handle(self, ctx: hocket.Context) -> None:
        self.begun.set()
        assert self.go_on.wait(PATIENCE_S)

    def submit(self, tx: Transaction) -> bytes:
        return jobs.submit(tx, [Draft("b.wait", b"{}", DEFAULT)])[0].job_id

    async def bring(self) -> bytes:
        return await self.worker.bring(self.submit)

    async def is_there(self, job_id: bytes) -> bool:
        return await self.node.read(lambda session: session.job(job_id)) is not None

    async def until_begun(self) -> None:
        assert await asyncio.to_thread(self.begun.wait, PATIENCE_S)


@asynccontextmanager
async def scene(home: Path) -> AsyncIterator[Scene]:
    Runtime.init(home).close()
    node = Node(Runtime.open(home))
    made = Scene(node)
    made.working = asyncio.create_task(made.worker.run())
    while not made.worker._number:
        await asyncio.sleep(0.001)
    try:
        yield made
    finally:
        made.go_on.set()
        made.worker.stop()
        await asyncio.wait_for(made.working, PATIENCE_S)
        await node.close()


def play(coroutine: object) -> None:
    asyncio.run(coroutine)  # type: ignore[arg-type]


def test_a_job_is_submitted_and_claimed_in_one_transaction(tmp_path: Path) -> None:
    async def act() -> None:
        async with scene(tmp_path / "home") as here:
            commits: list[int] = []
            log = here.node.runtime.log
            really = log.commit_unconfirmed

            def counted(requests: Sequence[Any], **more: Any) -> Committed:
                commits.append(len(requests))
                return really(requests, **more)

            log.commit_unconfirmed = counted  # type: ignore[method-assign]
            job_id = await here.bring()
            assert not here.begun.is_set(), "who brought it goes on before it begins"
            entry = await here.node.peek(lambda session: session.job(job_id))
            assert entry is not None and entry.job.fence == 1, "it is claimed already"
            assert 2 in commits
            await here.until_begun()

    play(act())


def test_a_request_that_is_refused_is_its_own_affair(tmp_path: Path) -> None:
    def refuse(tx: Transaction) -> None:
        jobs.submit(tx, [Draft("b.wait", b"{}", DEFAULT)])
        raise Usage("no")

    async def act() -> None:
        async with scene(tmp_path / "home") as here:
            refused, kept = await asyncio.gather(here.worker.bring(refuse), here.bring(), return_exceptions=True)
            assert isinstance(refused, Usage) and isinstance(kept, bytes)
            await here.until_begun()
            counts = await here.node.read(lambda session: session.counts())
            assert sum(counts.values()) == 1, "what the refused one had submitted is not there"

    play(act())


def test_a_worker_without_a_free_slot_and_one_that_has_ended_let_requests_through(tmp_path: Path) -> None:
    async def act() -> None:
        async with scene(tmp_path / "home") as here:
            await here.bring()
            await here.until_begun()
            for _ in range(50):
                await here.bring()
            here.go_on.set()
            here.worker.stop()
            assert await here.is_there(await here.bring())
            await asyncio.wait_for(here.working, PATIENCE_S)
            assert await here.is_there(await here.bring())

    play(act())


def test_a_job_that_comes_while_a_turn_commits_is_not_overlooked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BatchResult, "patience", lambda *_: 10 * PATIENCE_S)

    async def act() -> None:
        async with scene(tmp_path / "home") as here:
            really, came = here.node.run, []

            async def run(request: Callable[[Transaction], object], *, beside: bool = False) -> object:
                """The job comes after the turn's transaction has looked, and before the worker has its result."""
                found = await really(request, beside=beside)
                if beside and not came:
                    came.append(await really(here.submit))
                    await asyncio.wait_for(here.worker._wake.wait(), PATIENCE_S)
                return found

            monkeypatch.setattr(here.node, "run", run)
            here.worker._look_again()
            await here.until_begun()

    play(act())
