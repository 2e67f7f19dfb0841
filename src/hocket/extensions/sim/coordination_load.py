"""Locks, messages and contested rows in the load of a simulation. Agents of all nodes ask for shared and exclusive
locks on few keys, wait for them, hold them for shorter or longer than their time, and crash with them. They send
messages, and several consumers claim each. They count up the same rows, each from the version that it has read. The
checks compare what the agents believed with what is allowed, in true time, and what the replicas show: no two hold a
lock or a message at once, and no count that was stored is lost.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations
from typing import Generic, NamedTuple, TypeVar

from hocket.errors import HocketError
from hocket.extensions.sim.checks import Violation
from hocket.extensions.sim.node import SimNode, Up
from hocket.families.inbox.rules import DeliveryState
from hocket.families.locks.facts import LOCK
from hocket.families.locks.index import overlap
from hocket.families.locks.rules import LOCKS, Scope, conflict
from hocket.families.rows.requests import StoredRow, find
from hocket.kernel.ids import parse_ulid, ulid_text
from hocket.kernel.vocabulary import Subject
from hocket.testing.linearizability import Acquire, Call, falling_fences

LOCK_KEYS = (("file:a",), ("file:b",), ("file:a", "file:b"), ("file:**",))
AGENTS = ("editor", "tester")
TTL_MS = (500, 3_000)
WAIT_MS = (0, 500, 5_000)
Note = Callable[[int, str, bytes, str], None]
Found = Callable[[Violation], None]
AGENT = "editor"
LEASE_MS = (400, 2_000)
TABLE, ROW_KEYS = "counters", ("a", "b")


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


class MessageWish(NamedTuple):
    """A request to a node: to send a message, or to claim one and to work on it for `work_s`."""

    at: float
    node: int
    what: str
    lease_ms: int
    work_s: float


@dataclass
class MessageRun:
    """One consumer's hold on a message, in true time. `end` is when its lease was over by its own count, or when it
    began to acknowledge or to return the message; `told` is when it was told that this counts.
    """

    message_id: bytes
    node: int
    start: float
    end: float
    asked: float | None = None
    told: float | None = None


class RowWish(NamedTuple):
    """A request to a node. `thinks_s` passes between the read and the write."""

    at: float
    node: int
    key: str
    thinks_s: float


def draw_locks(chance: random.Random, nodes: int, seconds: float, count: int) -> list[LockWish]:
    """Half of the requests come shortly after another one, so that they contend."""
    wishes: list[LockWish] = []
    for _ in range(count):
        at = chance.uniform(0, seconds * 0.9)
        if wishes and chance.random() < 0.5:
            at = wishes[-1].at + chance.uniform(0, 1)
        ttl_ms = chance.randint(*TTL_MS)
        hold_s = ttl_ms / 1000 * chance.choice((0.1, 0.8, 3)) * chance.uniform(0.2, 1)
        keys, wait_ms = chance.choice(LOCK_KEYS), chance.choice(WAIT_MS)
        node, agent = chance.randrange(nodes), chance.choice(AGENTS)
        wishes.append(LockWish(at, node, agent, keys, chance.random() < 0.3, ttl_ms, wait_ms, hold_s))
    return sorted(wishes)


def draw_messages(chance: random.Random, nodes: int, seconds: float, count: int) -> list[MessageWish]:
    """Each message is asked for several times."""
    wishes = []
    for _ in range(count):
        sent = chance.uniform(0, seconds * 0.8)
        wishes.append(MessageWish(sent, chance.randrange(nodes), "send", 0, 0))
        for _ in range(4):
            lease_ms = chance.randint(*LEASE_MS)
            work_s = lease_ms / 1000 * chance.choice((0.1, 0.9, 2)) * chance.uniform(0.2, 1)
            what = chance.choice(("acknowledge", "acknowledge", "return", "forget"))
            at = sent + chance.uniform(0, seconds * 0.2)
            wishes.append(MessageWish(at, chance.randrange(nodes), what, lease_ms, work_s))
    return sorted(wishes)


def draw_rows(chance: random.Random, nodes: int, seconds: float, count: int) -> list[RowWish]:
    """Half of the requests come together with another one."""
    wishes: list[RowWish] = []
    for _ in range(count):
        at = chance.uniform(0, seconds * 0.9)
        if wishes and chance.random() < 0.5:
            at = wishes[-1].at
        wishes.append(RowWish(at, chance.randrange(nodes), chance.choice(ROW_KEYS), chance.choice((0, 0.01, 1))))
    return sorted(wishes)


W = TypeVar("W", LockWish, MessageWish, RowWish)


class WishLoad(Generic[W]):
    """Makes requests at their times, each in the life of its node."""

    name: str

    def __init__(self, wishes: Sequence[W], nodes: Sequence[SimNode], note: Note) -> None:
        self._wishes: Sequence[W] = wishes
        self._nodes, self._note = nodes, note

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        for number, wish in enumerate(self._wishes):
            await asyncio.sleep(begin + wish.at - loop.time())
            up = self._nodes[wish.node].up
            if up is not None:
                up.life.start(self._fulfil(up, wish, number), self.name)

    async def _fulfil(self, up: Up, wish: W, number: int) -> None:
        raise NotImplementedError

    def look(self, node: SimNode) -> None:
        """Watches a replica that has changed during the run."""


class LockLoad(WishLoad[LockWish]):
    """Makes the requests, each in the life of its node, and watches the replicas during the run: no replica shows two
    holders at once, and all show the same one for a fence.
    """

    name = "lock"

    def __init__(self, wishes: Sequence[LockWish], nodes: Sequence[SimNode], note: Note, found: Found) -> None:
        super().__init__(wishes, nodes, note)
        self._found = found
        self._holders: dict[int, bytes] = {}
        self.runs: list[LockRun] = []

    async def _fulfil(self, up: Up, wish: LockWish, number: int) -> None:
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


class MessageLoad(WishLoad[MessageWish]):
    name = "message"

    def __init__(self, wishes: Sequence[MessageWish], nodes: Sequence[SimNode], note: Note) -> None:
        super().__init__(wishes, nodes, note)
        self.runs: list[MessageRun] = []
        self.acknowledged: dict[bytes, MessageRun] = {}

    async def _fulfil(self, up: Up, wish: MessageWish, number: int) -> None:
        try:
            if wish.what == "send":
                message_id = parse_ulid(await up.send(AGENT, "a text", agent="sender"))
                self._note(wish.node, "sends", message_id, "")
            else:
                await self._consume(up, wish)
        except HocketError as error:
            self._note(wish.node, f"refuses to {wish.what}", b"", str(error))

    async def _consume(self, up: Up, wish: MessageWish) -> None:
        now = asyncio.get_running_loop().time
        asked = now()
        for message in await up.inbox(AGENT).claim(lease=f"{wish.lease_ms}ms"):
            message_id = parse_ulid(message.id)
            run = MessageRun(message_id, wish.node, now(), asked + wish.lease_ms / 1000)
            self.runs.append(run)
            self._note(wish.node, "receives", message_id, "")
            await asyncio.sleep(wish.work_s)
            if wish.what == "forget":
                return
            run.asked, run.end = now(), min(run.end, now())
            await (message.ack() if wish.what == "acknowledge" else message.nack())
            run.told = now()
            self._note(wish.node, wish.what, message_id, "")
            if wish.what == "acknowledge":
                self.acknowledged[message_id] = run

    def at_the_end(self) -> Iterator[Violation]:
        """What a consumer does after its lease is over by its own count is not held against anybody: another one may
        have the message by then. What it is told must hold.
        """
        for one, other in combinations(sorted(self.runs, key=lambda run: run.start), 2):
            if one.message_id != other.message_id:
                continue
            name = ulid_text(one.message_id)
            if one.end > other.start:
                sentence = f"message {name} is at nodes {one.node} and {other.node} at {other.start:.3f}"
                yield Violation("no two consumers of a message at once", one.message_id, sentence)
            if one.told is not None and one.asked is not None and one.asked > other.start:
                sentence = f"message {name}: node {one.node} ends what node {other.node} holds since {other.start:.3f}"
                yield Violation("only the lease holder ends a delivery", one.message_id, sentence)
        for message_id, run in self.acknowledged.items():
            for node in self._nodes:
                with node.store.read() as session:
                    message = session.message(message_id)
                if message is None or message.deliveries[0].state is not DeliveryState.ACKNOWLEDGED:
                    sentence = f"node {node.number} does not show that node {run.node} acknowledged it"
                    yield Violation("acknowledged is final", message_id, sentence)


class RowLoad(WishLoad[RowWish]):
    name = "row"

    def __init__(self, wishes: Sequence[RowWish], nodes: Sequence[SimNode], note: Note) -> None:
        super().__init__(wishes, nodes, note)
        self.stored: Counter[str] = Counter()

    async def _fulfil(self, up: Up, wish: RowWish, number: int) -> None:
        """The second member makes each value another, so that no two writes agree by chance."""
        rows = up.rows(TABLE, agent="counter")
        try:
            row = await rows.get(wish.key)
            count, version = (0, None) if row is None else (row.value["count"], row.version)
            await asyncio.sleep(wish.thinks_s)
            await rows.put(wish.key, {"count": count + 1, "by": number}, version)
        except HocketError as error:
            self._note(wish.node, "refuses to count", b"", str(error))
            return
        self.stored[wish.key] += 1
        self._note(wish.node, "counts", b"", f"{wish.key} to {count + 1}")

    def at_the_end(self) -> Iterator[Violation]:
        """More than was told can be stored: an answer may have been lost."""
        for key, stored in self.stored.items():
            rows = [self._row(node, key) for node in self._nodes]
            for node, row in zip(self._nodes, rows, strict=True):
                shown = 0 if row is None else row.value["count"]
                if shown < stored:
                    sentence = f"node {node.number} shows {key} at {shown}, and {stored} were stored"
                    yield Violation("no update of a row is lost", None, sentence)
                if row != rows[0]:
                    yield Violation("replicas agree", None, f"nodes 0 and {node.number} show different rows {key}")

    def _row(self, node: SimNode, key: str) -> StoredRow | None:
        with node.store.read() as session:
            return find(session, TABLE, key)
