"""Locks in the load of a simulation: agents of all nodes ask for shared and exclusive locks on few keys, wait for them,
hold them for shorter or longer than their time, and crash with them. The checks compare what the holders believed with
what is allowed, in true time, and what the replicas show.
"""

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from hocket.errors import HocketError
from hocket.extensions.sim.node import SimNode, Up
from hocket.extensions.sim.trace import Violation
from hocket.families.locks.facts import LOCK
from hocket.families.locks.index import overlap
from hocket.families.locks.rules import LOCKS, Scope, conflict
from hocket.kernel.vocabulary import Subject
from hocket.testing.linearizability import Acquire, Call, falling_fences

KEYS = (("file:a",), ("file:b",), ("file:a", "file:b"), ("file:**",))
AGENTS = ("editor", "tester")
TTL_MS = (500, 3_000)
WAIT_MS = (0, 500, 5_000)

Note = Callable[[int, str, bytes, str], None]
Found = Callable[[Violation], None]


class LockWish(NamedTuple):
    """A request of an agent to a node. `hold_s` is for how long it wants to work under the lock."""

    at: float
    node: int
    agent: str
    keys: tuple[str, ...]
    is_shared: bool
    ttl_ms: int
    wait_ms: int
    hold_s: float


@dataclass
class LockRun:
    """The time during which a client believed that it held a lock, in true time. `asked` is when it asked."""

    node: int
    agent: str
    keys: tuple[str, ...]
    is_shared: bool
    fence: int
    asked: float
    start: float
    end: float | None = None


def draw(chance: random.Random, nodes: int, seconds: float, count: int) -> list[LockWish]:
    """Half of the requests come shortly after another one, so that they contend."""
    wishes: list[LockWish] = []
    for _ in range(count):
        at = chance.uniform(0, seconds * 0.9)
        if wishes and chance.random() < 0.5:
            at = wishes[-1].at + chance.uniform(0, 1)
        ttl_ms = chance.randint(*TTL_MS)
        hold_s = ttl_ms / 1000 * chance.choice((0.1, 0.8, 3)) * chance.uniform(0.2, 1)
        keys, wait_ms = chance.choice(KEYS), chance.choice(WAIT_MS)
        node, agent = chance.randrange(nodes), chance.choice(AGENTS)
        wishes.append(LockWish(at, node, agent, keys, chance.random() < 0.3, ttl_ms, wait_ms, hold_s))
    return sorted(wishes)


class LockLoad:
    """Makes the requests, each in the life of its node, and watches the replicas during the run: no replica shows two
    holders at once, and all show the same one for a fence.
    """

    def __init__(self, wishes: Sequence[LockWish], nodes: Sequence[SimNode], note: Note, found: Found) -> None:
        self._wishes, self._nodes, self._note, self._found = wishes, nodes, note, found
        self._holders: dict[int, bytes] = {}
        self.runs: list[LockRun] = []

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        for wish in self._wishes:
            await asyncio.sleep(begin + wish.at - loop.time())
            up = self._nodes[wish.node].up
            if up is not None:
                up.life.start(self._hold(up, wish), "lock")

    async def _hold(self, up: Up, wish: LockWish) -> None:
        now = asyncio.get_running_loop().time
        asked, ttl, wait = now(), f"{wish.ttl_ms}ms", f"{wish.wait_ms}ms"
        try:
            async with up.lock(*wish.keys, agent=wish.agent, ttl=ttl, wait=wait, shared=wish.is_shared) as held:
                run = LockRun(wish.node, wish.agent, wish.keys, wish.is_shared, held.fence, asked, now())
                self.runs.append(run)
                self._note(wish.node, "locks", b"", f"{wish.keys} fence {held.fence}")
                try:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(held.lost.wait(), wish.hold_s)
                finally:
                    run.end = now()
                    self._note(wish.node, "unlocks", b"", f"{wish.keys} fence {held.fence}")
        except HocketError as error:
            self._note(wish.node, "gets no lock", b"", str(error))

    def look(self, node: SimNode) -> None:
        scope = lock_scope(node)
        for one, other in combinations(() if scope is None else scope.holds, 2):
            if conflict(one, other):
                sentence = f"node {node.number} shows {one.agent} and {other.agent} as holders of {one.keys}"
                self._found(Violation("one holder of a lock", other.op, sentence))
        for hold in () if scope is None else scope.holds:
            if self._holders.setdefault(hold.fence, hold.op) != hold.op:
                sentence = f"node {node.number} shows a second hold under fence {hold.fence}"
                self._found(Violation("one lock per fence", hold.op, sentence))

    def at_the_end(self) -> Iterator[Violation]:
        yield from held_twice(self.runs)
        grants = [
            Call(Acquire(number, run.agent, frozenset(run.keys)), run.fence, run.asked, run.start)
            for number, run in enumerate(self.runs)
        ]
        for earlier, later in falling_fences(grants):
            sentence = f"fence {later.result} was given after fence {earlier.result}"
            yield Violation("fences of locks rise", None, sentence)
        scopes = [lock_scope(node) for node in self._nodes]
        shown = [scope and (scope.fence, scope.holds, scope.waits) for scope in scopes]
        for node, here in zip(self._nodes, shown, strict=True):
            if here != shown[0]:
                yield Violation("replicas agree", None, f"nodes 0 and {node.number} show different locks")


def lock_scope(node: SimNode) -> Scope | None:
    with node.store.read() as session:
        state = session.subject_state(Subject(LOCK, b""))
    return None if state is None else LOCKS.decode(state)


def held_twice(runs: Sequence[LockRun]) -> Iterator[Violation]:
    for one, other in combinations(sorted(runs, key=lambda run: run.start), 2):
        if (one.is_shared and other.is_shared) or not (one.end is None or one.end > other.start):
            continue
        if any(overlap(left, right) for left in one.keys for right in other.keys):
            sentence = (
                f"{other.agent} at node {other.node} holds {other.keys} (fence {other.fence}) from {other.start:.3f} on"
                f" while {one.agent} at node {one.node} holds {one.keys} (fence {one.fence}) from {one.start:.3f}"
                f" to {one.end}"
            )
            yield Violation("no two holders of a lock at once", None, sentence)
