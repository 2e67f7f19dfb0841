"""Small requests of honest agents, again and again: each takes a lock that no other agent wants, sends and receives a
message, writes a row, and takes over the lock of a dead holder; one agent keeps the lead of a tempo, which is a lock.
No member delays one of them by more than its share.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from hocket.errors import HocketError
from hocket.extensions.sim.lock_load import Note
from hocket.extensions.sim.node import SimNode, Up
from hocket.extensions.sim.trace import Violation
from hocket.families.locks.requests import wanted
from hocket.node.locks import lock_client

# When the agents begin, after the nodes have met; how often each asks; and how long a request may take at worst.
BEGIN_S = 2.0
REST_S = 1.0
LIMIT_S = 4.0
# A request that failed is made again after this long, as an agent would do.
AGAIN_S = 0.1
# How long a dead holder's lock lasts, and that of the lead.
DEAD_MS = 1_000
LEAD_MS = 6_000
RULE = "no member delays an honest request by more than its share"


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
            await asyncio.sleep(REST_S)

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
            await asyncio.sleep(REST_S)

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
