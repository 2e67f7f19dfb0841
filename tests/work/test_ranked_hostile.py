"""A hostile member with its own connection to a real NATS server, among honest workers of ranked jobs: they complete
every job, once, and share the jobs as before.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from hocket.bus.envelope import PROCESS_BYTES, Drop, Envelope, seal
from hocket.bus.messages import cluster_root, subject_name
from hocket.bus.nats_messages import NatsMessages
from hocket.families.jobs import claiming
from hocket.families.jobs.candidates import worker_id
from hocket.families.jobs.rendezvous import WEIGHT_MAX, WEIGHT_MIN
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import node_text
from hocket.log import Transaction
from hocket.mesh.bus_sharing import JOBS, PRESENCE
from hocket.node.message_bus import NodeMessages
from hocket.node.runtime import Runtime
from hocket.store import WorkerRow
from hocket.work.presence import Serving, serving_text
from hocket.work.ranked_claims import CLAIMS, PASSES, ClaimSaid
from tests.bus.nats_server import connected
from tests.mesh.world import Guest, Place
from tests.work.fleet import KIND, SLOW_MS, Fleet, fleet, places

pytestmark = pytest.mark.slow

COUNT = 40
HELD = 3
MADE_UP = 61
LEASE_MS = 2_000
HOUR_MS = 3_600_000
GARBAGE = (b"", b"\xff" * 300, b"{}", b"[" * 5_000)


class Hostile:
    """A member that says whatever does harm: in its own name, in that of others, and in nobody's."""

    def __init__(self, at: Fleet, place: Place, raw: NatsMessages) -> None:
        self._at, self._place, self._raw = at, place, raw
        self._mesh = place.log.user
        self._stranger = Guest(9)
        self._count = itertools.count()
        self.node, self.worker = node_text(place.id), worker_id(place.id, "evil")
        self.has_held = asyncio.Event()

    def _subject(self, topic: str) -> str:
        return subject_name(self._mesh, topic, self.node if topic == PRESENCE else KIND)

    async def _send(self, topic: str, data: bytes, *, late_ms: int = 0, stranger: bool = False) -> None:
        key, node = (self._stranger.key, self._stranger.id) if stranger else (self._place.key, self._place.id)
        at = Hlc(self._place.log.physical() + late_ms, next(self._count) % 60_000, node)
        subject = self._subject(topic)
        await self._raw.publish(subject, seal(Envelope(self._mesh, at, bytes(PROCESS_BYTES), subject, data), key))

    async def lie(self, jobs: list[str]) -> None:
        """Claims and passes in its own name and in that of others, dated wrongly, from outside, and damaged."""
        others = [each.worker for each in self._at.explained(jobs[0]).ranking]
        for job in jobs:
            for worker in (self.worker, *others):
                for topic, fence in ((CLAIMS, 0), (PASSES, 0), (CLAIMS, 1)):
                    said = msgspec.json.encode([ClaimSaid(job, worker, fence)])
                    await self._send(topic, said)
                    await self._send(topic, said, late_ms=HOUR_MS)
                    await self._send(topic, said, late_ms=-HOUR_MS)
                    await self._send(topic, said, stranger=True)
        for topic in (CLAIMS, PASSES, JOBS, PRESENCE):
            for data in GARBAGE:
                await self._raw.publish(self._subject(topic), data)
                await self._send(topic, data)
                await self._send(topic, data, late_ms=HOUR_MS)
                await self._send(topic, data, stranger=True)
            subject = self._subject(topic)
            at = Hlc(self._place.log.physical(), 0, self._place.id)
            sealed = seal(Envelope(self._mesh, at, bytes(PROCESS_BYTES), subject, b"?"), self._place.key)
            await self._raw.publish(subject, sealed[:-1] + bytes([sealed[-1] ^ 1]))

    async def replay(self) -> None:
        """Sends again what anybody sends, as it is and on another subject."""
        queue = await self._raw.subscribe(f"{cluster_root(self._mesh)}.>")
        seen: set[bytes] = set()
        while True:
            message = await queue.get(60)
            if message is not None and message.data not in seen:
                seen.add(message.data)
                await self._raw.publish(message.subject, message.data)
                await self._raw.publish(self._subject(JOBS), message.data)

    async def change(self) -> None:
        """Is 64 workers: the heaviest, told twice, one of another weight each second, one of another name, and many
        that do nothing.
        """
        for number in itertools.count():
            weights = {"evil": WEIGHT_MAX, "fickle": (WEIGHT_MIN, WEIGHT_MAX)[number % 2], f"new-{number}": WEIGHT_MAX}
            weights |= {f"made-up-{each}": WEIGHT_MAX for each in range(MADE_UP)}
            told = [
                Serving((KIND,), id=worker_id(self._place.id, name), weight=weight) for name, weight in weights.items()
            ]
            await self._send(PRESENCE, serving_text([told[0], *told]).encode())
            await asyncio.sleep(1)

    async def claim_again(self, jobs: list[str]) -> None:
        """Claims every job in words, ten times a second."""
        while True:
            await self._send(CLAIMS, msgspec.json.encode([ClaimSaid(job, self.worker, 0) for job in jobs]))
            await asyncio.sleep(0.1)

    async def flood(self) -> None:
        while True:
            for topic in (CLAIMS, JOBS):
                await self._send(topic, b"x" * 1_000)
            await asyncio.sleep(0.01)

    async def hold(self) -> None:
        """Claims jobs of the arbiter, and never runs them."""
        node, here = self._place.id.to_bytes(8, "big"), self._place.node.environment.liveness.place
        told = serving_text([Serving((KIND,), id=self.worker, weight=WEIGHT_MAX)])
        number = self._place.log.run(
            lambda tx: tx.session.put_worker(
                WorkerRow(0, "evil", 1, tx.now, node, tx.now, here._replace(locks="x"), told)
            )
        )

        def claim(tx: Transaction) -> claiming.Claims:
            return claiming.claim(tx, number, HELD, lambda kind: LEASE_MS, offering=True)

        while not (await self._place.node.run(claim)).wanted:
            await asyncio.sleep(0.01)
        self.has_held.set()


@asynccontextmanager
async def hostile(at: Fleet) -> AsyncIterator[Hostile]:
    key = at.owner.runtime.home.path / "user.key"
    place = Place(await asyncio.to_thread(Runtime.init, at.directory / "evil", key))
    raw = NatsMessages([at.server.url])
    try:
        place.befriend(at.owner.address, at.owner.id)
        await place.exchanges.visit(at.owner.address)
        place.keep_in_touch()
        await connected(raw)
        made = Hostile(at, place, raw)
        tasks = [asyncio.create_task(each) for each in (made.replay(), made.change(), made.flood(), made.hold())]
        yield made
        for task in tasks:
            assert not task.done() or task.exception() is None
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
    finally:
        await raw.close()
        await place.close()


@pytest.mark.req("GR-08", "GR-10")
@pytest.mark.touches("GR-07", "GR-09", "LW-49")
def test_a_hostile_member_stops_no_job_and_takes_no_share_of_the_honest(tmp_path: Path) -> None:
    async def test() -> None:
        async with fleet(tmp_path, 2) as at, hostile(at) as evil:
            await at.candidates(*at.homes, evil.node)
            # They are claimed in words before anybody may claim them.
            made = await at.submit(COUNT, lease=f"{LEASE_MS}ms", not_before="+1s")
            ranked = [places(at.explained(each)) for each in made]
            assert sum(each[0] == evil.node for each in ranked) >= 0.9 * COUNT, "it does not stand in the way"
            await evil.lie(made)
            again = asyncio.create_task(evil.claim_again(made))
            told = await at.finished(made)
            again.cancel()
            assert evil.has_held.is_set()
            # One timeout for each node before the last honest one, however many workers it has, and one for all that
            # was said.
            turns = 1 + len(at.homes)
            for each in told:
                (wait_ms,) = [one.after_ms for one in each.tried if one.result.startswith("accepted")][-1:]
                assert wait_ms <= turns * each.claim_timeout_ms + LEASE_MS + SLOW_MS, each
            assert {at.completions(each) for each in made} == {1}
            # How they share the jobs depends on which of them a busy machine lets run: one that is late loses its turn.
            assert {each.holder for each in told} == at.homes.keys()
            bus = at.owner.services.messages
            assert isinstance(bus, NodeMessages)
            refused = {Drop.MALFORMED, Drop.UNSIGNED, Drop.FOREIGN, Drop.STALE, Drop.UNKNOWN, Drop.REPLAYED}
            # A flooded queue loses messages, so it says everything again until each sort was refused.
            async with asyncio.timeout(120):
                while not refused <= bus.counts.keys():
                    await evil.lie(made[:1])
                    await asyncio.sleep(0.1)

    asyncio.run(test())
