"""Locks: acquire and release as programs do it (`Node.lock`), beside raw compare-and-set on one SQLite row with equal
durability, and beside our own single submits. Two commits make an acquire and a release, so two submits are the
measure. In every row the sides take turns in short blocks, so that a machine that slows down slows all of them.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import apsw

import hocket
from bench import crew, meter, ours
from bench.mesh import _hocket, _serving
from bench.subject import Result
from hocket.bus.hints import about
from hocket.families.locks.facts import LOCK
from hocket.families.locks.requests import read_scope
from hocket.families.locks.rules import Scope
from hocket.node.node import Node

KEY = "file:bench"
BLOCKS = 10
HISTORY_STEP = 1_000


async def _rounds(node: Node, count: int, agent: str = "bench") -> float:
    start = time.perf_counter()
    for _ in range(count):
        async with node.lock(KEY, agent=agent):
            pass
    return time.perf_counter() - start


def alone(home: Path, count: int) -> Result:
    return asyncio.run(_alone(home, count))


async def _alone(home: Path, count: int) -> Result:
    block = max(1, count // BLOCKS)
    seconds = {"locks": 0.0, "submits": 0.0, "raw": 0.0}
    raw = _row(home)
    async with hocket.open(ours._home(home)) as node:
        await _rounds(node, 20)
        for _ in range(BLOCKS):
            seconds["locks"] += await _rounds(node, block)
            start = time.perf_counter()
            for number in range(block):
                await node.submit(ours.noop, n=number)
            seconds["submits"] += time.perf_counter() - start
            start = time.perf_counter()
            for _ in range(block):
                _take(raw)
                _give(raw)
            seconds["raw"] += time.perf_counter() - start
    rate = {name: BLOCKS * block / each for name, each in seconds.items()}
    submits = rate["submits"] / 2
    return {"rate": rate["locks"], "raw_rate": rate["raw"], "submit_rate": submits, "ratio": rate["locks"] / submits}


def _row(home: Path) -> apsw.Connection:
    connection = apsw.Connection(str(home / "raw.db"))
    connection.execute("pragma journal_mode = wal; pragma synchronous = full")
    connection.execute("create table if not exists lock (key text primary key, holder integer, fence integer)")
    connection.execute("insert or ignore into lock values ('k', null, 0)")
    return connection


def _change(connection: apsw.Connection, statement: str) -> bool:
    """One compare-and-set; False if the row was not as expected, or another process was writing."""
    try:
        connection.execute(statement, (os.getpid(),))
    except apsw.BusyError:
        return False
    return connection.changes() == 1


def _take(connection: apsw.Connection) -> None:
    while not _change(connection, "update lock set holder = ?, fence = fence + 1 where key = 'k' and holder is null"):
        time.sleep(random.uniform(0.0001, 0.002))


def _give(connection: apsw.Connection) -> None:
    while not _change(connection, "update lock set holder = null where key = 'k' and holder = ?"):
        time.sleep(random.uniform(0.0001, 0.002))


def contended(home: Path, processes: int, seconds: float) -> Result:
    """So many processes, each in a loop of acquire and release. `slowest` is the smallest share over the mean."""
    ours._home(home)
    found: dict[str, list[int]] = {}
    for way in ("locks", "raw"):
        _row(home).close()
        with crew.crew(home, [sys.executable, "-m", "bench.locks", way, str(seconds)], processes) as team:
            team.open_gate()
            for process in team.processes:
                process.wait()
            found[way] = [report["done"] for report in team.stop()]
    mean = sum(found["locks"]) / processes
    return {
        "rate": sum(found["locks"]) / seconds,
        "raw_rate": sum(found["raw"]) / seconds,
        "slowest": min(found["locks"]) / mean,
        "raw_slowest": min(found["raw"]) * processes / max(1, sum(found["raw"])),
    }


async def _contend(home: Path, seconds: float) -> None:
    async with hocket.open(ours._home(home)) as node:
        meter.wait_for_gate()
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at:
            async with node.lock(KEY, agent=f"process {os.getpid()}", wait="1m"):
                meter.hit()


def _contend_raw(home: Path, seconds: float) -> None:
    connection = _row(home)
    meter.wait_for_gate()
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        _take(connection)
        meter.hit()
        _give(connection)


def waiting(home: Path, samples: int) -> Result:
    """From just before the holder's release to the first line of the waiting agent's block, in another process; and the
    time from submit to start on the same machine, for comparison.
    """
    latencies = asyncio.run(_release_to_grant(home, samples))
    starts = ours.latency(home / "jobs", samples, polled=False)["latencies_ms"]
    ratio = sorted(latencies)[len(latencies) // 2] / sorted(starts)[len(starts) // 2]
    return {"latencies_ms": latencies, "start_ms": starts, "ratio": ratio}


async def _release_to_grant(home: Path, samples: int) -> list[float]:
    latencies, chance = [], random.Random(1)
    (home / "jobs").mkdir()
    async with hocket.open(ours._home(home)) as node:
        with crew.crew(home, [sys.executable, "-m", "bench.locks", "wait", str(samples)]) as team:
            starts = meter.Starts(home)
            team.open_gate()
            for number in range(samples):
                async with node.lock(KEY, agent="holder", wait="1m"):
                    await _until(node, lambda scope: bool(scope.waits))
                    await asyncio.sleep(chance.uniform(0.005, 0.030))
                    before = time.monotonic()
                elapsed_ms = (await asyncio.to_thread(starts.wait, number) - before) * 1000
                if number >= 5:
                    latencies.append(elapsed_ms)
    return latencies


async def _wait(home: Path, samples: int) -> None:
    async with hocket.open(ours._home(home)) as node:
        meter.wait_for_gate()
        for number in range(samples):
            await _until(node, lambda scope: any(hold.agent == "holder" for hold in scope.holds))
            async with node.lock(KEY, agent="waiter", wait="1m"):
                meter.started(number)


async def _until(node: Node, is_so: Callable[[Scope], bool]) -> None:
    async def look() -> tuple[bool, None]:
        scope = await node.peek(lambda session: read_scope(session, ""))
        return scope is not None and is_so(scope), None

    await node.until(look, 60, about(LOCK))


def history(home: Path, rounds: int) -> Result:
    """The first thousand rounds on a scope, and a thousand after so many."""
    return asyncio.run(_history(home, rounds))


async def _history(home: Path, rounds: int) -> Result:
    async with hocket.open(ours._home(home)) as node:
        await _rounds(node, 20)
        return await _compared(node, rounds)


async def _compared(node: Node, rounds: int) -> Result:
    first = await _rounds(node, HISTORY_STEP)
    await _rounds(node, max(0, rounds - 2 * HISTORY_STEP))
    last = await _rounds(node, HISTORY_STEP)
    return {"rate": HISTORY_STEP / first, "later_rate": HISTORY_STEP / last, "ratio": first / last}


def mesh_history(home: Path, rounds: int) -> Result:
    """The same on a node whose coordinator is another process."""
    return asyncio.run(_mesh_history(home, rounds))


async def _mesh_history(home: Path, rounds: int) -> Result:
    hub, leaf = ours._home(home), home / "leaf"
    with _serving(hub) as address:
        _hocket(leaf, "join", _hocket(hub, "invite", "leaf", "--may", "lock:acquire", "--address", address)["token"])
        async with hocket.open(leaf) as node:
            await _rounds(node, 20)
            return await _compared(node, rounds)


if __name__ == "__main__":
    meter.report_at_exit()
    way, amount = sys.argv[1], float(sys.argv[2])
    if way == "raw":
        _contend_raw(meter.home(), amount)
    else:
        asyncio.run(_contend(meter.home(), amount) if way == "locks" else _wait(meter.home(), int(amount)))
