"""The grid: jobs that go by rank, over a real NATS server on loopback, beside taskiq on NATS and plain consumers of a
JetStream work queue. A job counts as done when the arbiter has its completion on the disk. For taskiq that is when its
result is stored in NATS, for a plain consumer when it has acknowledged.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import hocket
from bench import meter
from bench.fleet import (
    EPOCH_S,
    Fleet,
    finished,
    grid_job,
    grid_stamp,
    many_nodes,
    one_node,
    wait_until_finished,
)
from bench.subject import Result
from hocket.bus.messages import MessageQueue, subject_pattern
from hocket.mesh.bus_sharing import JOBS
from hocket.work.ranked_claims import CLAIMS, read_claims_said

BATCH = 500
WARM_UP = 5
# While duplicates are counted, so many jobs wait or run at once.
OPEN_MAX = 200
# A third of the workers is killed and replaced this often.
CHURN_S = 10.0
CHURNS_MIN = 3


def throughput(home: Path, count: int, workers: int, settled_s: float = EPOCH_S) -> Result:
    """From the first submit to the last job done, with workers that wait for it. The peers have a NATS server of their
    own each, and as many jobs in flight as their submitters can have.
    """
    from bench.peers import jetstream, taskiq

    nodes: Callable[[Path], AbstractContextManager[Fleet]] = lambda at: many_nodes(at, workers, workers, settled_s)  # noqa: E731
    sides: dict[str, Callable[[Path], Result]] = {
        "": lambda at: _ours(at, count, lambda at: one_node(at, workers, settled_s)),
        "nodes_": lambda at: _ours(at, count, nodes),
        "taskiq_": lambda at: {"rate": taskiq.rate(at, count, workers)},
        "taskiq_synced_": lambda at: {"rate": taskiq.rate(at, count, workers, synced=True)},
        "jetstream_": lambda at: {"rate": jetstream.rate(at, count, workers)},
    }
    found: Result = {}
    for side, measure in sides.items():
        at = home / (side or "node_").rstrip("_")
        at.mkdir()
        found |= {side + name: value for name, value in measure(at).items()}
    for ours in ("", "nodes_"):
        found[f"{ours}ratio"] = found[f"{ours}rate"] / found["taskiq_rate"]
        found[f"{ours}synced_ratio"] = found[f"{ours}rate"] / found["taskiq_synced_rate"]
    return found


def _ours(home: Path, count: int, fleet: Callable[[Path], AbstractContextManager[Fleet]]) -> Result:
    with fleet(home) as at, hocket.open(home / "node") as node:
        start = time.monotonic()
        for first in range(0, count, BATCH):
            node.submit_many([(grid_job, {"n": n}) for n in range(first, min(first + BATCH, count))])
        wait_until_finished(node, count)
        seconds = at.stop() - start
        return {"rate": count / seconds, **_repeats(at, count)}


def _repeats(fleet: Fleet, count: int) -> Result:
    """Per 10,000 jobs: the starts of jobs that had started before, and those of them under the same fence."""
    starts = fleet.starts()
    jobs = {n for n, _ in starts}
    if len(jobs) != count:
        raise RuntimeError(f"{len(jobs)} jobs started of {count}")
    return {
        "repeated": (starts.total() - count) * 10_000 / count,
        "same_fence": (starts.total() - len(starts)) * 10_000 / count,
    }


def duplicates(home: Path, count: int, nodes: int, churning: bool, settled_s: float = EPOCH_S) -> Result:
    """Jobs for nodes with a worker each, some at a time. `churning`: while workers are killed and replaced, with more
    jobs than `count` if these are done too soon.
    """
    chance, killed, churns = random.Random(1), 0, 0
    with many_nodes(home, nodes, nodes, settled_s) as fleet, hocket.open(home / "node") as node:
        start, churn_at = time.monotonic(), time.monotonic() + CHURN_S
        submitted = 0
        while (done := finished(node)) < count:
            if churning and churns < CHURNS_MIN:
                count = max(count, done + OPEN_MAX)
            room = min(OPEN_MAX - (submitted - done), count - submitted)
            if room > 0:
                node.submit_many([(grid_job, {"n": n}) for n in range(submitted, submitted + room)])
                submitted += room
            if churning and time.monotonic() >= churn_at:
                churn_at, churns = time.monotonic() + CHURN_S, churns + 1
                for number in chance.sample(range(len(fleet)), -(-len(fleet) // 3)):
                    fleet.replace(number)
                    killed += 1
            time.sleep(0.05)
        seconds = time.monotonic() - start
        return {"seconds": seconds, "count": count, "rate": count / seconds, "killed": killed, **_repeats(fleet, count)}


def announcements(home: Path, nodes: int, processes: int, samples: int, settled_s: float = EPOCH_S) -> Result:
    """One job at a time for so many nodes with a worker each. `claims_ms` is from the job's announcement on the bus to
    the claim that the winner tells, both as another process of the coordinator's node hears them; `starts_ms` is from
    the return of the submit to the first line of the handler.
    """
    with many_nodes(home, nodes, processes, settled_s) as fleet:
        os.environ["HOCKET_BUS"] = fleet.bus
        return asyncio.run(_announcements(home, samples))


async def _announcements(home: Path, samples: int) -> Result:
    chance, claims_ms, starts_ms = random.Random(1), [], []
    announced: dict[str, float] = {}
    claimed: dict[str, float] = {}
    starts = meter.Starts(home)
    async with hocket.open(home / "node") as node:
        bus = await node.message_bus()
        jobs, claims = [
            await bus.subscribe(subject_pattern(node.log.user, topic, grid_stamp.kind)) for topic in (JOBS, CLAIMS)
        ]
        listening = [
            asyncio.create_task(_hear_jobs(jobs, announced)),
            asyncio.create_task(_hear_claims(claims, claimed)),
        ]
        for number in range(samples + WARM_UP):
            await asyncio.sleep(chance.uniform(0.1, 0.2))
            handle = await node.submit(grid_stamp, n=number)
            committed = time.monotonic()
            started = await asyncio.to_thread(starts.wait, number)
            async with asyncio.timeout(60):
                while handle.job_id not in announced or handle.job_id not in claimed:
                    await asyncio.sleep(0.001)
            if number >= WARM_UP:
                claims_ms.append((claimed[handle.job_id] - announced[handle.job_id]) * 1000)
                starts_ms.append((started - committed) * 1000)
        for task in listening:
            task.cancel()
        await asyncio.wait(listening)
    return {"claims_ms": claims_ms, "starts_ms": starts_ms}


async def _hear_jobs(queue: MessageQueue, at: dict[str, float]) -> None:
    while True:
        if (message := await queue.get(60)) is not None:
            at.setdefault(message.data.decode(), time.monotonic())


async def _hear_claims(queue: MessageQueue, at: dict[str, float]) -> None:
    while True:
        message = await queue.get(60)
        if message is not None and message.at is not None:
            for _, said in read_claims_said(message.data, message.at.node):
                at.setdefault(said.job_id, time.monotonic())
