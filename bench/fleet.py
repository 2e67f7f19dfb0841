"""A grid for the benchmarks: worker processes on one node, or on many nodes around a coordinator that serves them, and
a real NATS server between them, all on this machine. Each node has a home, a key and a store of its own; what goes
between nodes goes over HTTP and NATS on loopback. Signatures and `synchronous=FULL` are on.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import hocket
from bench import meter
from hocket.families.jobs.candidates import EPOCH_MS
from hocket.mesh import peers
from hocket.node.node import Node
from hocket.node.runtime import Runtime
from hocket.store import Session
from hocket.store.job_rows import Stage
from hocket.work.presence import read_presence
from hocket.work.worker import Worker
from tests.bus.nats_server import NatsServer

PATIENCE_S = 120.0
DRAINED_S = 600.0
EPOCH_S = EPOCH_MS / 1000
_START = struct.Struct("<qq")
_workers: list[Worker] = []


@hocket.job("bench.grid", claim="rendezvous", lease="10s")
def grid_job(ctx: hocket.Context, n: int) -> None:
    """The note that it has started survives the worker, should that be killed."""
    os.write(_starts(), _START.pack(n, ctx.fence))


@hocket.job("bench.grid.stamp", claim="rendezvous")
def grid_stamp(ctx: hocket.Context, n: int) -> None:
    meter.started(n)


@hocket.job("bench.plain", lease="10s")
def plain_job(ctx: hocket.Context, n: int) -> None:
    os.write(_starts(), _START.pack(n, ctx.fence))


def _starts(opened: list[int] = []) -> int:  # noqa: B006
    if not opened:
        opened.append(os.open(meter.home() / f"starts-{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    return opened[0]


class Fleet:
    """One process for each group of homes, with a worker for each home of the group. `home` is where they report."""

    def __init__(self, home: Path, bus: str, groups: list[list[Path]]) -> None:
        self._home, self.bus, self._groups = home, bus, groups
        self._homes = Counter(each for group in groups for each in group)
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, settled_s: float) -> None:
        """Starts all workers. They know each other for so long when this returns."""
        self._processes = [self._spawn(group, len(self._homes) - 1) for group in self._groups]
        deadline = time.monotonic() + PATIENCE_S
        while len(list(self._home.glob("ready-*"))) < len(self._processes):
            if time.monotonic() > deadline or any(process.poll() is not None for process in self._processes):
                raise RuntimeError("a worker did not become ready")
            time.sleep(0.05)
        time.sleep(settled_s)

    def _spawn(self, homes: list[Path], nodes: int) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", "bench.fleet", str(self._homes[homes[0]]), str(nodes), *map(str, homes)]
        environment = os.environ | {"BENCH_HOME": str(self._home), "HOCKET_BUS": self.bus}
        return subprocess.Popen(words, env=environment)

    def __len__(self) -> int:
        return len(self._groups)

    def replace(self, number: int) -> None:
        """Kills a process and starts another one in its place."""
        self._processes[number].kill()
        self._processes[number].wait()
        self._processes[number] = self._spawn(self._groups[number], 0)

    def stop(self) -> float:
        """Stops all, and says when the last job was done."""
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            process.wait(timeout=60)
        return max(json.loads(path.read_text())["last"] for path in self._home.glob("report-*.json"))

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def starts(self) -> Counter[tuple[int, int]]:
        """How often each job was started under each fence."""
        found = [path.read_bytes() for path in self._home.glob("starts-*")]
        return Counter((n, fence) for each in found for n, fence in _START.iter_unpack(each))


@contextmanager
def one_node(home: Path, workers: int, settled_s: float = EPOCH_S) -> Iterator[Fleet]:
    """So many workers of the node in `home / "node"`, in a process each."""
    node = home / "node"
    Runtime.init(node).close()
    with NatsServer(home) as server:
        yield from _running(Fleet(home, server.url, [[node]] * workers), settled_s)


@contextmanager
def many_nodes(home: Path, nodes: int, processes: int, settled_s: float = EPOCH_S) -> Iterator[Fleet]:
    """So many nodes with a worker each, in so many processes. The node in `home / "node"` coordinates."""
    node = home / "node"
    Runtime.init(node).close()
    with NatsServer(home) as server, _serving(node, server.url) as address:
        homes = [home / f"n{number}" for number in range(nodes)]
        for each in homes:
            with Runtime.init(each, node / "user.key") as runtime, runtime.store.write() as session:
                peers.add(session, address, int(time.time() * 1000))
        yield from _running(Fleet(home, server.url, [homes[first::processes] for first in range(processes)]), settled_s)


def _running(fleet: Fleet, settled_s: float) -> Iterator[Fleet]:
    try:
        fleet.start(settled_s)
        yield fleet
    finally:
        fleet.kill()


@contextmanager
def _serving(home: Path, bus: str) -> Iterator[str]:
    """`hocket mesh serve` on a home, in a process of its own; gives its address."""
    words = [sys.executable, "-m", "hocket.cli", "--home", str(home), "serve", "--port", "0", "--bus", bus, "--json"]
    with subprocess.Popen([*words, "-qq"], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield json.loads(server.stdout.readline())["address"]
        finally:
            server.kill()


def finished(node: hocket.SyncNode) -> int:
    """How many jobs have ended on this node's log."""
    with node.runtime.store.read() as session:
        return sum(count for (stage, _), count in session.counts().items() if stage is Stage.DONE)


def wait_until_finished(node: hocket.SyncNode, count: int) -> None:
    deadline = time.monotonic() + DRAINED_S
    while (found := finished(node)) < count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{found} jobs done of {count}")
        time.sleep(0.1)


async def work(homes: list[Path], workers: int, nodes: int) -> None:
    """A worker for each home until SIGTERM. The process is ready when each node knows so many workers of its own and so
    many other nodes.
    """
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(hocket.open(home)) for home in homes]
        async with asyncio.TaskGroup() as tasks:
            for node in opened:
                tasks.create_task(_work(node))
            for node in opened:
                await _acquainted(node, workers, nodes)
            (meter.home() / f"ready-{os.getpid()}").touch()


async def _work(node: Node) -> None:
    await node.work(
        [grid_job, grid_stamp, plain_job],
        signals=False,
        started=_workers.append,
        finished=lambda run, outcome: meter.hit(),
    )


async def _acquainted(node: Node, workers: int, nodes: int) -> None:
    def knows_all(session: Session) -> bool:
        others = sum(bool(each.workers) for each in map(read_presence, session.presence()))
        return len(session.workers()) >= workers and others >= nodes

    async with asyncio.timeout(PATIENCE_S):
        while not await node.peek(knows_all):
            await asyncio.sleep(0.1)


def main() -> None:
    meter.report_at_exit()
    signal.signal(signal.SIGTERM, lambda *_: [worker.stop() for worker in _workers])
    asyncio.run(work([Path(each) for each in sys.argv[3:]], int(sys.argv[1]), int(sys.argv[2])))


if __name__ == "__main__":
    main()
