"""Contested rows in the load of a simulation: agents of all nodes count up the same rows, each from the version that it
has read. A count that was stored is never lost.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hocket.errors import HocketError
from hocket.extensions.sim.lock_load import Note
from hocket.extensions.sim.node import SimNode, Up
from hocket.extensions.sim.trace import Violation
from hocket.families.rows.requests import StoredRow, find

TABLE, KEYS = "counters", ("a", "b")


class RowWish(NamedTuple):
    """A request to a node. `thinks_s` passes between the read and the write."""

    at: float
    node: int
    key: str
    thinks_s: float


def draw(chance: random.Random, nodes: int, seconds: float, count: int) -> list[RowWish]:
    """Half of the requests come together with another one."""
    wishes: list[RowWish] = []
    for _ in range(count):
        at = chance.uniform(0, seconds * 0.9)
        if wishes and chance.random() < 0.5:
            at = wishes[-1].at
        wishes.append(RowWish(at, chance.randrange(nodes), chance.choice(KEYS), chance.choice((0, 0.01, 1))))
    return sorted(wishes)


class RowLoad:
    def __init__(self, wishes: Sequence[RowWish], nodes: Sequence[SimNode], note: Note) -> None:
        self._wishes, self._nodes, self._note = wishes, nodes, note
        self.stored: Counter[str] = Counter()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        for number, wish in enumerate(self._wishes):
            await asyncio.sleep(begin + wish.at - loop.time())
            up = self._nodes[wish.node].up
            if up is not None:
                up.life.start(self._count(up, wish, number), "row")

    async def _count(self, up: Up, wish: RowWish, number: int) -> None:
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

    def look(self, node: SimNode) -> None:
        pass

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
