"""What idle nodes cost: real nodes on the simulator's virtual time, around one that serves them. Each has the row of a
worker and syncs as its process does; the workers themselves do not run. Nothing is submitted: only heartbeats and
the exchanges of an idle mesh go over the wire. Counted are the SQL statements and commits of the server and of one of
the others, and the bytes of requests and answers as HTTP writes them.
"""

from __future__ import annotations

import asyncio
import functools
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench.subject import Result
from hocket.extensions.sim import loop
from hocket.extensions.sim.environment import Clocks
from hocket.extensions.sim.lines import Lines
from hocket.extensions.sim.network import Network
from hocket.extensions.sim.node import SimNode, Up
from hocket.extensions.sim.world import BEGIN_S, RULES
from hocket.kernel import ops
from hocket.kernel.keys import SigningKey, verify
from hocket.kernel.vocabulary import DesignateCoordinator
from hocket.mesh import presence, wire
from hocket.mesh.loop import SyncLoop
from hocket.mesh.sync import Exchanges
from hocket.mesh.wire import Reply, Request
from hocket.work.presence import Serving, serving_text

# The nodes start within this time, and after it once more have all heard of each other.
WARM_UP_S = 12.0
VERIFIED = 20_000


class _Quiet:
    """Watches the nodes and says nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


class _Count:
    """Statements and commits by node, and bytes by path. `part` says who is running: only one thing runs at a time."""

    def __init__(self) -> None:
        self.statements: Counter[tuple[int, str]] = Counter()
        self.commits: Counter[tuple[int, str]] = Counter()
        self.bytes: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()
        self.part = ""

    def watch(self, node: SimNode) -> None:
        def traced(cursor: object, sql: str, bindings: object) -> bool:
            self.statements[node.number, self.part] += 1
            self.commits[node.number, self.part] += sql == "COMMIT"
            return True

        node.store.store._writer.exec_trace = traced  # type: ignore[attr-defined]

    def clear(self) -> None:
        for each in (self.statements, self.commits, self.bytes, self.requests):
            each.clear()

    def serve(self, answer: Callable[[Request], Any]) -> Callable[[Request], Any]:
        async def answered(request: Request) -> Reply:
            reply: Reply = await answer(request)
            head = f"{request.method} {request.path}?{request.query} HTTP/1.1\r\n"
            self.bytes[request.path] += len(head) + _size(request.headers, request.body)
            self.bytes[request.path] += len("HTTP/1.1 200 OK\r\n") + _size(reply.headers, reply.body)
            self.requests[request.path] += 1
            return reply

        return answered

    def during(self, part: str, work: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(work)
        def worked(*arguments: Any, **named: Any) -> Any:
            before, self.part = self.part, part
            try:
                return work(*arguments, **named)
            finally:
                self.part = before

        return worked


def _size(headers: Mapping[str, str], body: bytes) -> int:
    return sum(len(name) + len(value) + 4 for name, value in headers.items()) + 2 + len(body)


def heartbeats(home: Path, nodes: int, seconds: float) -> Result:
    """`seconds` are of virtual time. `home` is not used: a simulated node's store is in memory."""
    vars(ops)["verify"] = functools.lru_cache(maxsize=VERIFIED)(verify)
    count = _Count()
    board, sharing = presence.PresenceBoard, presence.PresenceSharing
    changed = {
        (board, "answer"): count.during("heartbeats", board.answer),
        (sharing, "_own"): count.during("heartbeats", sharing._own),
        (presence, "keep"): count.during("heartbeats", presence.keep),
    }
    before = {(owner, name): getattr(owner, name) for owner, name in changed}
    for (owner, name), work in changed.items():
        setattr(owner, name, work)
    try:
        began = time.perf_counter()
        result = loop.run(_idle(nodes, seconds, count))
        return result | {"seconds": time.perf_counter() - began}
    finally:
        for (owner, name), work in before.items():
            setattr(owner, name, work)
        vars(ops)["verify"] = verify


async def _idle(nodes: int, seconds: float, count: _Count) -> Result:
    chance = random.Random(1)
    user, witness = SigningKey(chance.randbytes(32)), _Quiet()
    mesh = [
        SimNode(number, user, Clocks(1.0, 0.0), random.Random(chance.getrandbits(64)), witness)  # type: ignore[arg-type]
        for number in range(nodes)
    ]
    network = Network(chance, lambda number: None if (up := mesh[number].up) is None else up.life)
    for node in mesh:
        node.install(RULES, [0] if node.number else [])
    hub = Up(mesh[0]).log
    hub.run(lambda tx: tx.author(DesignateCoordinator(tx.node)))
    for node in mesh[1:]:
        with node.store.read() as session:
            hub.admit(node.sent(session.entries_after(0, 1_000)))
    for node in mesh[1:]:
        node.store.copy(mesh[0].store, hub.signed)
        node.befriend([0])
    here = asyncio.get_running_loop()
    assert isinstance(here, loop.VirtualLoop)
    here.now = BEGIN_S
    for node in mesh:
        _start(node, network, mesh, count)
        await asyncio.sleep(WARM_UP_S / nodes)
    for node in (mesh[0], mesh[1]):
        count.watch(node)
    await asyncio.sleep(WARM_UP_S)
    count.clear()
    await asyncio.sleep(seconds)
    with mesh[1].store.read() as session:
        known = len(session.presence())
    if known != nodes - 1:
        raise RuntimeError(f"a node knows {known} others of {nodes - 1}")
    total = {path: sum(counter.values()) for path, counter in (("requests", count.requests), ("bytes", count.bytes))}
    result = {
        "server_statements": _all(count.statements, 0) / seconds,
        "server_heartbeat_statements": count.statements[0, "heartbeats"] / seconds,
        "server_heartbeat_commits": count.commits[0, "heartbeats"] / seconds,
        "node_statements": _all(count.statements, 1) / seconds,
        "node_heartbeat_statements": count.statements[1, "heartbeats"] / seconds,
        "node_heartbeat_commits": count.commits[1, "heartbeats"] / seconds,
        "heartbeats": count.requests[wire.PRESENCE] / seconds,
        "heartbeat_bytes": count.bytes[wire.PRESENCE] / seconds,
        "requests": total["requests"] / seconds,
        "bytes": total["bytes"] / seconds,
    }
    lives = [node.up.life for node in mesh if node.up is not None]
    for life in lives:
        life.end()
    for life in lives:
        await life.ended()
    return result


def _all(counter: Counter[tuple[int, str]], node: int) -> int:
    return sum(number for (of, _), number in counter.items() if of == node)


class _Alone:
    """The right to sync: a simulated node is one process."""

    def close(self) -> None:
        pass


def _start(node: SimNode, network: Network, mesh: list[SimNode], count: _Count) -> None:
    node.up = up = Up(node)
    up.gate.answer = count.serve(up.gate.answer)  # type: ignore[method-assign]
    sign = up.environment.liveness.announce(f"worker-{node.number}")
    sign.serves = serving_text([Serving(("bench.render", "bench.train"), labels=("gpu=a100", "model=llama-3-8b"))])
    up.log.run(sign.beat)
    lines = Lines(node.number, network, lambda there: mesh[there].up)
    exchanges = Exchanges(up, node.key, lines, up.environment, randomness=node.chance.randbytes)
    up.life.start(up.gate.open(), "gate")
    up.life.start(SyncLoop(up, exchanges, up.environment, _Alone).run(), "sync")
