"""The load on simulated nodes: jobs of both kinds, short ones and ones that outlast their lease, some that fail before
they succeed, some that come after others, some that are cancelled or retried; half of them go by rank. Each request
goes to one of the nodes, whether or not that node can answer.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from hocket.errors import HocketError
from hocket.extensions.sim.node import SimNode
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.drafts import encode_payload
from hocket.families.jobs.requests import Draft
from hocket.kernel.ids import parse_ulid, ulid_text
from hocket.kernel.policy import Policy
from hocket.log import Transaction
from hocket.work.context import Context
from hocket.work.handlers import Handlers, JobType

SOLE, OPEN = "sim.sole", "sim.open"
LEASE_MS = (600, 3_000)
RETRIES = 20
BACKOFF_MS = 200
# Half of the jobs go by rank: those with an odd lease.
CLAIM_TIMEOUT_MS = 500
SHORT_MS = 200
# How many of the requests come at the same moment as another one, at the same node.
TOGETHER = 0.25
# Some machines are faster than others.
PACE = (0.4, 1.6)


@dataclass
class SimRun:
    """One run of a handler, in true time."""

    job_id: bytes
    kind: str
    fence: int
    node: int
    start: float
    end: float | None = None


@dataclass
class Journal:
    """What the handlers and the clients of a run did."""

    runs: list[SimRun] = field(default_factory=list)
    submitted: dict[bytes, str] = field(default_factory=dict)

    def takeovers(self) -> tuple[int, int]:
        """How many runs follow a run of the same job at another node, and how many of them begin before its end."""
        last: dict[bytes, SimRun] = {}
        found = overlapping = 0
        for run in self.runs:
            before = last.get(run.job_id)
            if before is not None and before.node != run.node:
                found += 1
                overlapping += before.end is None or before.end > run.start
            last[run.job_id] = run
        return found, overlapping


class Wish(NamedTuple):
    """A client's request to a node at a time."""

    at: float
    node: int
    what: str
    kind: str
    payload: dict[str, object]
    lease_ms: int
    after: bool


def draw(chance: random.Random, nodes: int, seconds: float, count: int) -> list[Wish]:
    wishes: list[Wish] = []
    for _ in range(count):
        lease = chance.randint(*LEASE_MS)
        ms = chance.choice((20, 300, 1_500, lease * 2)) * chance.uniform(0.2, 1.5)
        fails = chance.choice((0, 0, 0, 1, 2))
        kind = chance.choice((SOLE, SOLE, OPEN))
        at = chance.uniform(0, seconds * 0.9)
        node = chance.randrange(nodes)
        if wishes and chance.random() < TOGETHER:
            at, node = wishes[-1].at, wishes[-1].node
        payload: dict[str, object] = {"ms": int(ms), "fails": fails}
        wishes.append(Wish(at, node, "submit", kind, payload, lease, chance.random() < 0.1))
    for what, share in (("cancel", 0.1), ("retry", 0.1)):
        for _ in range(round(count * share)):
            wishes.append(Wish(chance.uniform(0, seconds), chance.randrange(nodes), what, "", {}, 0, False))
    return sorted(wishes, key=lambda wish: wish.at)


def ranked(wishes: list[Wish]) -> list[Wish]:
    """Turns the submits into jobs of one kind, at their times: short, without failures, and by rank."""
    return [
        wish._replace(kind=SOLE, payload={"ms": SHORT_MS, "fails": 0}, lease_ms=wish.lease_ms | 1, after=False)
        for wish in wishes
        if wish.what == "submit"
    ]


def paces(chance: random.Random, nodes: int) -> list[float]:
    return [chance.uniform(*PACE) for _ in range(nodes)]


def handlers(node: int, pace: float, journal: Journal, note: Callable[[str, bytes, str], None]) -> Handlers:
    """The handlers of one node, which takes `pace` times as long as it should. They record in the journal what they
    do.
    """
    now = asyncio.get_running_loop().time

    async def work(ctx: Context, ms: int, fails: int) -> dict[str, int]:
        job_id = parse_ulid(ctx.job_id)
        held = SimRun(job_id, ctx.kind, ctx.fence, node, now())
        journal.runs.append(held)
        note("begins", job_id, f"fence {ctx.fence}")
        try:
            await asyncio.sleep(ms / 1000 * pace)
            if ctx.attempt <= fails:
                raise ValueError(f"attempt {ctx.attempt}")
            return {"node": node, "fence": ctx.fence}
        finally:
            held.end = now()
            note("ends", job_id, f"fence {ctx.fence}{', stopped' if ctx.cancelled else ''}")

    return Handlers(JobType(kind, function=work, lease_ms=LEASE_MS[1]) for kind in (SOLE, OPEN))


class Clients:
    """Makes the requests, each in the life of its node."""

    def __init__(
        self,
        chance: random.Random,
        nodes: list[SimNode],
        journal: Journal,
        note: Callable[[int, str, bytes, str], None],
    ) -> None:
        self._chance = chance
        self._nodes = nodes
        self._journal = journal
        self._note = note

    async def run(self, wishes: list[Wish]) -> None:
        loop = asyncio.get_running_loop()
        start = loop.time()
        for wish in wishes:
            await asyncio.sleep(start + wish.at - loop.time())
            up = self._nodes[wish.node].up
            if up is not None:
                up.life.start(self._fulfil(wish), "client")

    async def _fulfil(self, wish: Wish) -> None:
        known = list(self._journal.submitted)
        chosen = self._chance.choice(known) if known else None
        try:
            if wish.what == "submit":
                await self._submit(wish, chosen if wish.after else None)
            elif chosen is not None:
                up = self._nodes[wish.node].up
                assert up is not None
                act = jobs.cancel if wish.what == "cancel" else jobs.retry
                await up.run(lambda tx: act(tx, chosen, "a client's wish"))
                self._note(wish.node, wish.what, chosen, "")
        except HocketError as error:
            self._note(wish.node, f"refuses to {wish.what}", chosen or b"", str(error))

    async def _submit(self, wish: Wish, after: bytes | None) -> None:
        up = self._nodes[wish.node].up
        assert up is not None
        policy = Policy(
            lease_ms=wish.lease_ms,
            retries=RETRIES,
            backoff_ms=BACKOFF_MS,
            backoff_max_ms=BACKOFF_MS * 10,
            after=() if after is None else (ulid_text(after),),
            open=wish.kind == OPEN,
            claim="rendezvous" if wish.lease_ms % 2 else "first",
            claim_timeout_ms=CLAIM_TIMEOUT_MS,
        )
        draft = Draft(wish.kind, encode_payload(wish.kind, wish.payload), policy)

        def request(tx: Transaction) -> bytes:
            return jobs.submit(tx, [draft])[0].job_id

        job_id = await up.run(request)
        self._journal.submitted[job_id] = wish.kind
        self._note(wish.node, "submits", job_id, f"{wish.kind} {wish.payload} lease {wish.lease_ms}")
