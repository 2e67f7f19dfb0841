"""Members that may write little and cost much. One waits for locks with many keys behind a lock of its own, takes as
many locks as it can, and receives its own messages under many names. It sends without a rest, and does not wait when it
is told to. The other may only read, and dates its refused ops ahead. They must not cost the others more than their
share.

`LivenessLoad` shows that: small requests of honest agents, again and again. Each agent takes a lock that no other
wants, sends and receives a message, writes a row, and takes over the lock of a dead holder; one agent keeps the lead of
a tempo, which is a lock. No member delays one of them by more than its share.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from hocket.errors import HocketError
from hocket.extensions.sim.checks import Violation
from hocket.extensions.sim.coordination_load import Note
from hocket.extensions.sim.hostile import HostileNode, LyingGate
from hocket.extensions.sim.network import Lines, Network, SimMessageServer, address
from hocket.extensions.sim.node import SimNode, Up
from hocket.families.inbox.facts import ClaimMessage, SendMessage
from hocket.families.locks.facts import AcquireLocks, LockMode
from hocket.families.locks.requests import wanted
from hocket.kernel.ids import content_hash
from hocket.kernel.ops import NO_ID, Op
from hocket.kernel.ucan import Capability, issue
from hocket.kernel.vocabulary import DelegateUcan, DesignateCoordinator
from hocket.log import Transaction
from hocket.mesh.client import Client
from hocket.node.locks import lock_client
from hocket.work.handlers import Handlers

PREFIX = "costly/"
READS = (Capability("Ops", "Read", {}),)
ASKS = (
    *READS,
    Capability("Lock", "Acquire", {"key_prefix": [PREFIX]}),
    Capability("Inbox", "Write", {"key_prefix": [PREFIX]}),
    Capability("Inbox", "Claim", {"key_prefix": [PREFIX]}),
)
# How many ops it sends at once, how many keys each asks for, and how long it waits between two batches.
BATCH_OPS = 150
KEYS = 2
REST_S = 0.05
HOLD_MS = 60_000
WAIT_MS = 3_000
# How far ahead the other one dates its ops, just within the rules of simulated nodes, and how often.
AHEAD_MS = 9_000
AHEAD_REST_S = 1.0
# When the agents begin, after the nodes have met; how often each asks; and how long a request may take at worst.
BEGIN_S = 2.0
ASK_REST_S = 1.0
LIMIT_S = 4.0
# A request that failed is made again after this long, as an agent would do.
AGAIN_S = 0.1
# How long a dead holder's lock lasts, and that of the lead.
DEAD_MS = 1_000
LEAD_MS = 6_000
RULE = "no member delays an honest request by more than its share"


class CostlyNode(HostileNode):
    """It talks to the arbiter only, which decides about the locks, messages and rows of all nodes."""

    grants: tuple[Capability, ...] = ASKS
    _known = 0

    def _introduce(self, tx: Transaction) -> None:
        token = issue(self.user, self.key.public, self.grants, tx.now // 1000, None)
        op = tx.author(DelegateUcan(content_hash(token), token))
        assert isinstance(op, Op)

    def start(self, handlers: Handlers, network: Network, messages: SimMessageServer, nodes: Sequence[SimNode]) -> None:
        self.remember()
        self.up = up = Up(self)
        up.gate = LyingGate(up, self)
        lines = Lines(self.number, network, lambda there: nodes[there].up)
        arbiter = address(self.victims[0].number)
        client = Client(up, self.key, lines, up.environment, arbiter, None, self.chance.randbytes)
        up.life.start(self._burden(client), "costly")

    async def _burden(self, client: Client) -> None:
        burdens: list[Callable[[], None]] = [self._waits, self._waits, self._receives]
        self._holds()
        while True:
            await asyncio.sleep(REST_S)
            if not self._unsent():
                self.chance.choice(burdens)()
            await self._push(client)

    def _unsent(self) -> list[bytes]:
        """The ops that the arbiter does not have. It must send them again, or it would show two histories."""
        while self._known < len(self.said) and self._has(self.victims[0], self.said[self._known][0]):
            self._known += 1
        return [body for body, _ in self.said[self._known :]]

    async def _push(self, client: Client) -> None:
        with suppress(HocketError):
            await client.meet()
            await client.push(self._unsent())

    def _date(self) -> int:
        return max(int(self.clocks.day() * 1000), self.said[-1][1].timestamp.wall + 1)

    def _keys(self, name: str) -> tuple[str, ...]:
        return tuple(f"{PREFIX}{name}/{number}/*" for number in range(KEYS))

    def _asks(self, name: str, wait_ms: int) -> None:
        payload = AcquireLocks("", self._keys(name), "costly", LockMode.EXCLUSIVE, HOLD_MS, wait_ms)
        self._say(payload, self._date())

    def _waits(self) -> None:
        """All for the same keys, so that only the first gets them and the others wait."""
        for _ in range(BATCH_OPS):
            self._asks("same", WAIT_MS)

    def _holds(self) -> None:
        for _ in range(BATCH_OPS):
            self._asks(f"{self.chance.getrandbits(32):08x}", 0)

    def _receives(self) -> None:
        """A message to a group, received under many names."""
        message = SendMessage(NO_ID, PREFIX, "costly", "note", None, None, 0, HOLD_MS, 5, b"{}")
        self._say(message, self._date())
        message_id = self.said[-1][1].id
        for number in range(BATCH_OPS):
            self._say(ClaimMessage(message_id, f"{PREFIX}{number}", HOLD_MS), self._date())


class AheadNode(CostlyNode):
    """It may only read, so none of its ops counts. Each is dated as far ahead as the rules allow."""

    grants = READS

    async def _burden(self, client: Client) -> None:
        while True:
            await asyncio.sleep(AHEAD_REST_S)
            wall = max(self._date(), int(self.clocks.day() * 1000) + AHEAD_MS)
            self._say(DesignateCoordinator(self.node), wall)
            await self._push(client)


@dataclass
class LivenessRun:
    """A request in true time. `allowed_s` is how long it may take."""

    what: str
    node: int
    asked: float
    allowed_s: float
    end: float | None = None


class LivenessLoad:
    def __init__(self, nodes: Sequence[SimNode], seconds: float, note: Note) -> None:
        self._nodes, self._seconds, self._note = nodes, seconds, note
        self.runs: list[LivenessRun] = []
        self._lost: list[str] = []
        self._ends = 0.0

    async def run(self) -> None:
        self._ends = asyncio.get_running_loop().time() + self._seconds
        await asyncio.sleep(BEGIN_S)
        for node in self._nodes:
            if node.up is not None:
                node.up.life.start(self._ask(node.up, node.number), "liveness")
                node.up.life.start(self._take_over(node.up, node.number), "takeover")
        lead = self._nodes[-1]
        if lead.up is not None:
            lead.up.life.start(self._lead(lead.up, lead.number), "lead")

    def _is_over(self) -> bool:
        return asyncio.get_running_loop().time() >= self._ends

    async def _ask(self, up: Up, node: int) -> None:
        agent = f"honest-{node}"
        rows, count = up.rows("liveness", agent=agent), 0

        async def lock() -> None:
            async with up.lock(f"honest/{node}", agent=agent, ttl="5s", wait="0s"):
                pass

        async def mail() -> None:
            await up.send(agent, "a text", agent=agent)
            for message in await up.inbox(agent).claim(lease="5s"):
                await message.ack()

        async def row() -> None:
            known = await rows.get(f"row-{node}")
            await rows.put(f"row-{node}", {"count": count}, None if known is None else known.version)

        while not self._is_over():
            for what, act in (("a lock", lock), ("a message", mail), ("a row", row)):
                await self._timed(what, node, act)
            count += 1
            await asyncio.sleep(ASK_REST_S)

    async def _take_over(self, up: Up, node: int) -> None:
        key, number = f"honest/dead-{node}", 0

        async def die() -> None:
            client = lock_client(up, up.lock_processes)
            await client.acquire(wanted([key], f"dead-{number}", DEAD_MS), is_bound=False)

        async def take() -> None:
            async with up.lock(key, agent=f"heir-{number}", ttl="5s", wait="60s"):
                pass

        while not self._is_over():
            await self._timed("a lock", node, die)
            await self._timed("the lock of a dead holder", node, take, DEAD_MS / 1000)
            number += 1
            await asyncio.sleep(ASK_REST_S)

    async def _lead(self, up: Up, node: int) -> None:
        """As a pulse does: it leads as long as it holds a lock."""
        while not self._is_over():
            with suppress(HocketError):
                async with up.lock("tempo/lead", agent="pulse", ttl=f"{LEAD_MS}ms", wait="0s") as held:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(
                            held.lost.wait(), max(0.0, self._ends - asyncio.get_running_loop().time())
                        )
                        self._lost.append(f"node {node} has lost the lead of the tempo")
            await asyncio.sleep(AGAIN_S)

    async def _timed(self, what: str, node: int, act: Callable[[], Awaitable[None]], besides_s: float = 0.0) -> None:
        now = asyncio.get_running_loop().time
        run = LivenessRun(what, node, now(), LIMIT_S + besides_s)
        self.runs.append(run)
        while not self._is_over():
            try:
                await act()
                run.end = now()
                return
            except HocketError as error:
                self._note(node, f"waits for {what}", b"", str(error))
                await asyncio.sleep(AGAIN_S)

    def look(self, node: SimNode) -> None:
        pass

    def at_the_end(self) -> Iterator[Violation]:
        for run in self.runs:
            took_s = (self._ends if run.end is None else run.end) - run.asked
            if took_s > run.allowed_s:
                yield Violation(RULE, None, f"at {run.asked:.1f}, {run.what} took node {run.node} {took_s:.1f} s")
                break
        for sentence in self._lost:
            yield Violation(RULE, None, sentence)
