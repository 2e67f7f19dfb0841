"""Members that may write little and cost much. One waits for locks with many keys behind a lock of its own, takes as
many locks as it can, and receives its own messages under many names. It sends without a rest, and does not wait when it
is told to. The other may only read, and dates its refused ops ahead. They must not cost the others more than their
share.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from hocket.errors import HocketError
from hocket.extensions.sim.hostile import HostileNode, LyingGate
from hocket.extensions.sim.lines import Lines, address
from hocket.extensions.sim.messages import SimMessageServer
from hocket.extensions.sim.network import Network
from hocket.extensions.sim.node import SimNode, Up
from hocket.families.inbox.facts import ClaimMessage, SendMessage
from hocket.families.locks.facts import AcquireLocks, LockMode
from hocket.kernel.ids import content_hash
from hocket.kernel.ops import NO_ID, Op
from hocket.kernel.ucan import Capability, issue
from hocket.kernel.vocabulary import DelegateUcan, DesignateCoordinator
from hocket.log import Transaction
from hocket.mesh.client import Client
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
