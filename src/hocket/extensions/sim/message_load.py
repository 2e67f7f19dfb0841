"""Messages in the load of a simulation: agents of all nodes send to an agent that has consumers on every node, who
claim messages, work on them for shorter or longer than their lease, acknowledge or return them, or crash with them. The
checks compare what the consumers were told, in true time.
"""

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from hocket.errors import HocketError
from hocket.extensions.sim.lock_load import Note
from hocket.extensions.sim.node import SimNode, Up
from hocket.extensions.sim.trace import Violation
from hocket.families.inbox.rules import DeliveryState
from hocket.kernel.ids import parse_ulid, ulid_text

AGENT = "editor"
LEASE_MS = (400, 2_000)


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


def draw(chance: random.Random, nodes: int, seconds: float, count: int) -> list[MessageWish]:
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


class MessageLoad:
    def __init__(self, wishes: Sequence[MessageWish], nodes: Sequence[SimNode], note: Note) -> None:
        self._wishes, self._nodes, self._note = wishes, nodes, note
        self.runs: list[MessageRun] = []
        self.acknowledged: dict[bytes, MessageRun] = {}

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        for wish in self._wishes:
            await asyncio.sleep(begin + wish.at - loop.time())
            up = self._nodes[wish.node].up
            if up is not None:
                up.life.start(self._fulfil(up, wish), "message")

    async def _fulfil(self, up: Up, wish: MessageWish) -> None:
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

    def look(self, node: SimNode) -> None:
        pass

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
