"""What comes while the claims of workers over HTTP are being looked at: hints, and the end of a claim's time."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket.bus.hints import about
from hocket.node.node import Node
from hocket.node.runtime import Runtime
from hocket.work.remote.remote_claims import ClaimAsked, RemoteClaims
from hocket.work.remote.remote_holds import REMOTE, RemoteName
from tests.waiting import PATIENCE_S

KIND = "remote.step"
LEASE_MS = 600_000


class Looks(RemoteClaims):
    """The looks of a node, with something that happens between a look's claims and its answers."""

    def __init__(self, claims: RemoteClaims, between: Callable[[Any], None]) -> None:
        self.__dict__.update(claims.__dict__)
        self._between = between

    def __call__(self, *arguments: Any) -> Any:
        turn = super().__call__(*arguments)
        self._between(turn)
        return turn


def asked(claim_id: str) -> ClaimAsked:
    return ClaimAsked(RemoteName("ci", "w1"), claim_id, (KIND,), 1, LEASE_MS)


def in_a_node(home: Path, body: Callable[[Node], Any]) -> None:
    Runtime.init(home).close()

    async def run() -> None:
        async with asyncio.timeout(PATIENCE_S), hocket.open(home) as node:
            await body(node)

    asyncio.run(run())


@pytest.mark.parametrize("late", ["a hint", "the end of its time"])
def test_what_comes_during_a_look_takes_no_job_back(tmp_path: Path, late: str):
    async def body(node: Node) -> None:
        desk, loop = node.remote_workers, asyncio.get_running_loop()

        def come() -> None:
            if late == "a hint":
                desk._hinted(about(REMOTE))
            else:
                (ask,) = (ask for asks in desk._queues.values() for ask in asks)
                desk._expire(ask)

        def between(turn: Any) -> None:
            if any(claimed.given for claimed in turn.claimed.values()):
                loop.call_soon_threadsafe(come)
                asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result()

        desk._claims = Looks(desk._claims, between)
        waiting = asyncio.create_task(desk.claim(asked("a"), PATIENCE_S))
        while not any(ask.was_looked_at for asks in desk._queues.values() for ask in asks):
            await asyncio.sleep(0.01)
        handle = await node.submit(KIND)
        (given,) = (await waiting).jobs
        assert (await desk.claim(asked("b"), 0.1)).jobs == ()
        job = await hocket.admin(node).job(handle.job_id)
        assert (job.state, job.fence, job.returns) == ("running", given.job.fence, 0)

    in_a_node(tmp_path / "home", body)


def test_a_claim_whose_time_ends_in_its_first_look_is_answered(tmp_path: Path):
    async def body(node: Node) -> None:
        desk, loop = node.remote_workers, asyncio.get_running_loop()

        def between(turn: Any) -> None:
            for ask in [ask for asks in desk._queues.values() for ask in asks]:
                if not ask.was_looked_at:
                    loop.call_soon_threadsafe(desk._expire, ask)
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result()

        desk._claims = Looks(desk._claims, between)
        assert (await desk.claim(asked("a"), 10 * PATIENCE_S)).jobs == ()

    in_a_node(tmp_path / "home", body)


def test_while_no_claim_waits_nothing_is_done(tmp_path: Path):
    async def body(node: Node) -> None:
        desk, rounds = node.remote_workers, 0

        def monotonic() -> float:
            nonlocal rounds
            rounds += 1
            return node.environment.monotonic()

        assert (await desk.claim(asked("a"), 0)).jobs == ()
        desk._monotonic, desk._next_look = monotonic, 0.0
        desk._wake.set()
        for _ in range(200):
            await asyncio.sleep(0)
        assert 1 <= rounds < 10

    in_a_node(tmp_path / "home", body)


def test_workers_that_wait_keep_their_rows_alive(tmp_path: Path):
    async def body(node: Node) -> None:
        desk, store = node.remote_workers, node.runtime.store
        claims = [
            asyncio.create_task(desk.claim(asked("a")._replace(worker=RemoteName("ci", name)), PATIENCE_S))
            for name in ("w1", "w2")
        ]
        while not all(ask.was_looked_at for asks in desk._queues.values() for ask in asks) or not desk._queues:
            await asyncio.sleep(0.01)
        with store.write() as session:
            before = session.workers()
            session.drop_worker(before[1].number)
        await desk._beat(0.0)
        with store.read() as session:
            after = session.workers()
        assert [each.name for each in after] == [each.name for each in before]
        assert after[0].beat > before[0].beat and after[0].serves == before[0].serves
        for each in claims:
            each.cancel()

    in_a_node(tmp_path / "home", body)


def looks_of(node: Node) -> list[int]:
    """Counts the claims that each look of the node takes up."""
    counted: list[int] = []
    desk = node.remote_workers
    claims = desk._claims

    class Counting(RemoteClaims):
        def __init__(self) -> None:
            self.__dict__.update(claims.__dict__)

        def __call__(self, tx: Any, new: Any, queues: Any) -> Any:
            counted.append(len(new))
            return super().__call__(tx, new, queues)

    desk._claims = Counting()
    return counted


def test_a_worker_that_asks_again_after_nothing_costs_no_look_while_others_wait(tmp_path: Path):
    async def body(node: Node) -> None:
        desk, counted = node.remote_workers, looks_of(node)
        other = asked("o")._replace(worker=RemoteName("ci", "w2"))
        waiting = asyncio.create_task(desk.claim(other, PATIENCE_S))
        assert (await desk.claim(asked("a"), 0.05)).jobs == ()
        before = sum(counted)
        for claim_id in ("a", "b", "c"):
            assert (await desk.claim(asked(claim_id), 0.05)).jobs == ()
        assert sum(counted) == before
        waiting.cancel()

    in_a_node(tmp_path / "home", body)


def test_a_repeated_claim_gets_its_holds_again_however_much_has_come_between(tmp_path: Path):
    async def body(node: Node) -> None:
        desk = node.remote_workers
        await node.submit(KIND)
        (given,) = (await desk.claim(asked("a"), PATIENCE_S)).jobs
        other = asked("o")._replace(worker=RemoteName("ci", "w2"))
        waiting = asyncio.create_task(desk.claim(other, 10 * PATIENCE_S))
        assert (await desk.claim(asked("b"), 0.05)).jobs == ()
        (again,) = (await desk.claim(asked("a"), PATIENCE_S)).jobs
        assert (again.job.id, again.job.fence) == (given.job.id, given.job.fence)
        waiting.cancel()

    in_a_node(tmp_path / "home", body)


def test_a_drain_between_two_claims_is_told_at_once(tmp_path: Path):
    async def body(node: Node) -> None:
        desk = node.remote_workers
        other = asked("o")._replace(worker=RemoteName("ci", "w2"))
        waiting = asyncio.create_task(desk.claim(other, 10 * PATIENCE_S))
        assert (await desk.claim(asked("a"), 0.05)).jobs == ()
        await hocket.admin(node).drain_worker("ci", "w1")
        assert (await desk.claim(asked("b"), 10 * PATIENCE_S)).is_draining
        waiting.cancel()

    in_a_node(tmp_path / "home", body)
