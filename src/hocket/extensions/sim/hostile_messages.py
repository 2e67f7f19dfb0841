"""What a hostile member says on the bus. It is a member, so its messages are believed until they contradict a rule. It
claims and passes every job that it sees and runs none, says that it has workers of the greatest weight or of another
one each time, dates messages an hour off, repeats what others have said, speaks in their name, and floods.
"""

import asyncio
from collections.abc import Callable, Sequence
from random import Random

import msgspec

from hocket.bus.messages import BoundedQueue, BusMessage, MemoryMessages, subject_name
from hocket.extensions.sim.load import OPEN, SOLE
from hocket.extensions.sim.node import SimNode
from hocket.families.jobs.candidates import worker_id
from hocket.families.jobs.rendezvous import WEIGHT_MAX, WEIGHT_MIN
from hocket.kernel.clock import Hlc
from hocket.kernel.envelope import _CONTEXT, Envelope, _body, seal
from hocket.kernel.ids import node_id, node_text, ulid_text
from hocket.kernel.keys import did_key
from hocket.mesh.bus_sharing import JOBS, PRESENCE
from hocket.store import Stage
from hocket.work.presence import Serving, serving_text
from hocket.work.ranked_claims import CLAIMS, PASSES, ClaimSaid

# How long it waits between two misdeeds, how many messages a flood has, and how wrong its clock is in a lie about time.
REST_S = (0.05, 0.5)
FLOOD = 40
HOUR_MS = 3_600_000
WORKERS = 3
# Messages of others that it remembers.
HEARD_MAX = 100


class HostileMessages:
    """`bus` is its connection, on which it can send anything. It reads the jobs from the disks of its `victims`."""

    def __init__(self, node: SimNode, bus: MemoryMessages, victims: Sequence[SimNode], chance: Random) -> None:
        self._key, self._clocks, self._bus, self._victims, self._chance = node.key, node.clocks, bus, victims, chance
        self._cluster = did_key(node.user.public)
        self._node = node_id(node.key.public)
        self._process = chance.randbytes(8)
        self._count = 0
        self._heard: list[BusMessage] = []

    async def run(self) -> None:
        queue = await self._bus.subscribe(">")
        misdeeds: list[Callable[[], list[BusMessage]]] = [
            *[self._claim_everything] * 4,
            *[self._change_weight] * 2,
            self._lie_about_time,
            self._replay,
            self._spoof,
            self._talk_nonsense,
            self._flood,
        ]
        while True:
            await asyncio.sleep(self._chance.uniform(*REST_S))
            await self._listen(queue)
            for message in self._chance.choice(misdeeds)():
                await self._bus.publish(message.subject, message.data)

    async def _listen(self, queue: BoundedQueue) -> None:
        while (message := await queue.get(0)) is not None:
            self._heard.append(message)
        del self._heard[:-HEARD_MAX]

    # Misdeeds.

    def _claim_everything(self) -> list[BusMessage]:
        topic = self._chance.choice((CLAIMS, CLAIMS, CLAIMS, PASSES))
        return [self._sealed(topic, kind, self._said(job_id, fence)) for kind, job_id, fence in self._ready()]

    def _change_weight(self) -> list[BusMessage]:
        weight = self._chance.choice((WEIGHT_MIN, 1.0, WEIGHT_MAX, WEIGHT_MAX, 0.0, -1.0, 1e9))
        workers = [Serving((SOLE, OPEN), id=self._worker(number), weight=weight) for number in range(WORKERS)]
        return [self._sealed(PRESENCE, node_text(self._node), serving_text(workers).encode())]

    def _lie_about_time(self) -> list[BusMessage]:
        off_ms = self._chance.choice((-HOUR_MS, HOUR_MS))
        return [
            self._sealed(CLAIMS, kind, self._said(job_id, fence), off_ms=off_ms)
            for kind, job_id, fence in self._ready() or [(SOLE, bytes(16), 0)]
        ]

    def _replay(self) -> list[BusMessage]:
        """Repeats messages, some on another subject."""
        again = self._heard[-20:]
        moved = [each._replace(subject=subject_name(self._cluster, CLAIMS, SOLE)) for each in again[-3:]]
        return again + moved

    def _spoof(self) -> list[BusMessage]:
        """Messages in the name of another node: signed with its own key, and without a signature; and its own about
        another node's worker.
        """
        victim = node_id(self._chance.choice(self._victims).key.public)
        made: list[BusMessage] = []
        for kind, job_id, fence in self._ready() or [(SOLE, bytes(16), 0)]:
            data = self._said(job_id, fence, worker_id(victim, "worker"))
            subject = subject_name(self._cluster, CLAIMS, kind)
            body = _body(Envelope(self._cluster, self._stamp(0, victim), self._process, subject, data))
            forged = [body + self._key.sign(_CONTEXT + body), body]
            made += [*(BusMessage(subject, each) for each in forged), self._sealed(CLAIMS, kind, data)]
        return made

    def _talk_nonsense(self) -> list[BusMessage]:
        foreign = subject_name(self._cluster, CLAIMS, OPEN)
        return [
            BusMessage(foreign, self._chance.randbytes(80)),
            BusMessage(foreign, seal(self._envelope(foreign, b"{}", cluster="did:key:other"), self._key)),
            self._sealed(CLAIMS, SOLE, b'{"job_id": 7}'),
            self._sealed(PRESENCE, node_text(self._node), b"[[[["),
            self._sealed(JOBS, SOLE, b"no id"),
        ]

    def _flood(self) -> list[BusMessage]:
        jobs = self._ready() or [(SOLE, self._chance.randbytes(16), 0)]
        made = []
        for _ in range(FLOOD):
            kind, job_id, fence = self._chance.choice(jobs)
            topic = self._chance.choice((CLAIMS, PASSES, JOBS))
            made.append(self._sealed(topic, kind, self._said(job_id, fence + self._chance.randint(0, 2))))
        return made

    # Making messages.

    def _ready(self) -> list[tuple[str, bytes, int]]:
        """The ready jobs on the disk of some node."""
        with self._chance.choice(self._victims).store.read() as session:
            found = [entry for entry in session.each_job() if entry.stage is not Stage.DONE]
        return [(each.job.kind, each.job.id, each.job.fence) for each in found if each.job.kind in (SOLE, OPEN)]

    def _worker(self, number: int) -> str:
        return worker_id(self._node, f"worker-{number}")

    def _said(self, job_id: bytes, fence: int, worker: str = "") -> bytes:
        name = worker or self._worker(self._chance.randrange(WORKERS))
        return msgspec.json.encode([ClaimSaid(ulid_text(job_id), name, fence)])

    def _sealed(self, topic: str, kind: str, data: bytes, off_ms: int = 0) -> BusMessage:
        subject = subject_name(self._cluster, topic, kind)
        return BusMessage(subject, seal(self._envelope(subject, data, off_ms), self._key))

    def _envelope(self, subject: str, data: bytes, off_ms: int = 0, cluster: str = "") -> Envelope:
        return Envelope(cluster or self._cluster, self._stamp(off_ms, self._node), self._process, subject, data)

    def _stamp(self, off_ms: int, node: int) -> Hlc:
        self._count += 1
        return Hlc(int(self._clocks.day() * 1000) + off_ms, self._count, node)
