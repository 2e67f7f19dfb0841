"""What a worker with a tempo tells others, heard on the bus of a real node."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
import pytest

import hocket
from hocket.errors import Usage
from hocket.events.jobs import JobHandedBack, LeaseLost, RunFinished
from hocket.extensions.tempo.heard_beats import LocalBeats
from hocket.extensions.tempo.messages import ClaimState, NodeLoad, StatusClaim
from hocket.extensions.tempo.policy import make_policy
from hocket.extensions.tempo.policy_file import tempo_policy
from hocket.extensions.tempo.status_claims import CHANGES_MAX, StatusClaims
from hocket.extensions.tempo.tempo_messages import TempoMessages, TempoQueue
from hocket.families.jobs.rules import Job
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import node_text, ulid_text
from hocket.kernel.policy import DEFAULT
from hocket.node.home import Home
from hocket.node.node import Node

PATIENCE_S = 60.0
HLC = Hlc(0, 0, 0)
POLICY = "cluster_id: choir\ninitial_bpm: 600\nbar_len_beats: 8\n"
go = threading.Event()
T = TypeVar("T", bound=msgspec.Struct)


@hocket.job("status.held")
def held(ctx: hocket.Context) -> None:
    ctx.progress(0.25)
    assert ctx.beat is not None
    go.wait(PATIENCE_S)


@hocket.job("status.waits", score={"phases": {"plan": 8}, "wait_budget": {"help": 2}})
async def waits(ctx: hocket.Context) -> Any:
    return await ctx.wait_for(asyncio.sleep(60), budget="help", fallback=ctx.phase)


@hocket.job("status.fails")
def fails(ctx: hocket.Context) -> None:
    raise hocket.Fatal("no")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    go.clear()
    hocket.init(tmp_path / "home")
    (tmp_path / "home" / "tempo.yaml").write_text(POLICY)
    return tmp_path / "home"


@asynccontextmanager
async def listening(home: Path, kind: type[T]) -> AsyncIterator[tuple[Node, TempoQueue[T]]]:
    async with asyncio.timeout(PATIENCE_S), hocket.open(home) as node:
        bus = await node.mesh_messages()
        assert bus is not None
        queue = await TempoMessages(bus, node.runtime.log.user).subscribe(
            kind, "choir" if kind is NodeLoad else "status"
        )
        async with node.working([held, waits, fails], concurrency=3, grace=0.1):
            yield node, queue
        queue.close()


async def states(queue: TempoQueue[StatusClaim], job_id: str, last: ClaimState) -> list[StatusClaim]:
    found: list[StatusClaim] = []
    while not found or found[-1].state is not last:
        heard = await queue.get(PATIENCE_S)
        assert heard is not None
        found += [heard.message] if heard.message.task_id == job_id else []
    return found


@pytest.mark.req("BB-02", "BB-06")
def test_a_worker_tells_on_change_and_on_each_beat(home: Path) -> None:
    async def main() -> None:
        async with listening(home, StatusClaim) as (node, queue):
            job_id = (await node.submit(held)).job_id
            told = []
            while len(told) < 4 or told[-1].progress != 0.25:
                told += await states(queue, job_id, ClaimState.EXECUTING)
            go.set()
            told += await states(queue, job_id, ClaimState.DONE)
            assert told[-1].progress == 1.0 and len({each.agent_id for each in told}) == 1
            assert told[0].agent_id.startswith(node_text(node.runtime.log.node))
            assert all(1 <= each.beat_index <= 8 for each in told)
            assert [each.hlc for each in told] == sorted(each.hlc for each in told)

    asyncio.run(main())


@pytest.mark.req("BB-02", "BB-07", "BB-23")
def test_waits_and_failures_are_told(home: Path) -> None:
    async def main() -> None:
        async with listening(home, StatusClaim) as (node, queue):
            waiting = await node.submit(waits)
            told = await states(queue, waiting.job_id, ClaimState.DONE)
            seen = [each.state for each in told]
            assert {each.wait_for for each in told if each.state is ClaimState.WAITING} == {("help",)}
            assert {each.wait_for for each in told if each.state is not ClaimState.WAITING} == {()}
            assert ClaimState.WAITING in seen and {*seen} <= {"planning", "waiting", "done"}
            assert await waiting.result() == "plan"
            failing = await node.submit(fails)
            await states(queue, failing.job_id, ClaimState.FAILED)

    asyncio.run(main())


@pytest.mark.req("BB-06", "BB-23")
def test_the_load_of_the_node_is_told_on_each_beat(home: Path) -> None:
    async def main() -> None:
        async with listening(home, NodeLoad) as (node, queue):
            for _ in range(5):
                await node.submit(held)
            while True:
                heard = await queue.get(PATIENCE_S)
                assert heard is not None and heard.message.slots == 3
                if heard.message.busy == 3 and heard.message.queue_depth:
                    assert heard.message.roles == {"status.held": heard.message.queue_depth}
                    break
            go.set()

    asyncio.run(main())


def test_without_a_policy_nothing_is_told(home: Path) -> None:
    (home / "tempo.yaml").unlink()

    async def main() -> None:
        async with listening(home, StatusClaim) as (node, queue):
            with pytest.raises(hocket.JobFailed):
                await (await node.submit(held)).result()  # it asserts that there is a beat
            assert not node.runtime.pacers
            assert await queue.get(0.2) is None

    asyncio.run(main())


def test_a_bad_policy_is_refused_with_its_line(home: Path) -> None:
    (home / "tempo.yaml").write_text("cluster_id: choir\ninitial_bpm: 0\n")
    with pytest.raises(Usage, match=r"bad tempo policy .*line 2: initial_bpm: 0 is not allowed"):
        tempo_policy(Home(home))
    with pytest.raises(Usage, match="no tempo policy at"):
        tempo_policy(Home(home), home / "nowhere.yaml")


@pytest.mark.req("BB-06")
def test_the_claims_of_a_beat_go_in_one_message(home: Path) -> None:
    async def main() -> None:
        async with listening(home, StatusClaim) as (node, queue):
            for _ in range(3):
                await node.submit(held)
            tasks: dict[Hlc, set[str]] = {}
            while max(map(len, tasks.values()), default=0) < 3:
                heard = await queue.get(PATIENCE_S)
                assert heard is not None
                tasks.setdefault(heard.at, set()).add(heard.message.task_id)
            go.set()

    asyncio.run(main())


class Published:
    """Takes the place of the bus."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[StatusClaim] = asyncio.Queue()

    async def publish_all(self, messages: Sequence[StatusClaim], lane: str) -> None:
        for each in messages:
            self.queue.put_nowait(each)


@pytest.mark.req("BB-06")
def test_every_change_is_told_without_a_beat_and_a_lost_run_no_more() -> None:
    async def main() -> None:
        beats = LocalBeats(make_policy("choir", 1), lambda: 0)  # its next beat never comes
        claims, bus = StatusClaims(beats, "a", 1, lambda: HLC, lambda: asyncio.sleep(0, {})), Published()
        emit = claims.listening(lambda event: None)
        task = asyncio.create_task(claims.send(cast(TempoMessages, bus)))
        await asyncio.sleep(0)
        jobs = [Job(n.to_bytes(16, "big"), "k", b"", HLC, DEFAULT, HLC) for n in range(3)]
        for job in jobs:
            await asyncio.to_thread(claims.keeper(job).begin)
            told = await asyncio.wait_for(bus.queue.get(), PATIENCE_S)
            assert (told.task_id, told.state) == (ulid_text(job.id), ClaimState.EXECUTING)
        first, second, third = (ulid_text(job.id) for job in jobs)
        emit(LeaseLost(first, "too late"))
        emit(JobHandedBack(second, "k", 1))
        emit(RunFinished(third, "k", 1))
        told = await asyncio.wait_for(bus.queue.get(), PATIENCE_S)
        assert (told.task_id, told.state, told.progress) == (third, ClaimState.DONE, 1.0)
        assert claims._due(is_beat=True) == {} and bus.queue.empty()
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(main())


def test_a_storm_of_ends_is_bounded() -> None:
    async def main() -> None:
        beats = LocalBeats(make_policy("choir", 1), lambda: 0)
        claims = StatusClaims(beats, "a", 1, lambda: HLC, lambda: asyncio.sleep(0, {}))
        emit = claims.listening(lambda event: None)
        for n in range(2 * CHANGES_MAX):
            job = Job(n.to_bytes(16, "big"), "storm", b"", HLC, DEFAULT, HLC)
            claims.keeper(job).begin()
            if n >= CHANGES_MAX // 2:
                emit(RunFinished(ulid_text(job.id), "storm", 1))
        told = claims._due(is_beat=False)["storm"]
        assert [each.state for each in told] == [ClaimState.DONE] * CHANGES_MAX
        assert not claims._ended, "more than a beat tells are not kept"
        assert claims._due(is_beat=False) == {}
        assert [each.state for each in claims._due(is_beat=True)["storm"]] == [ClaimState.EXECUTING] * (
            CHANGES_MAX // 2
        )

    asyncio.run(main())
