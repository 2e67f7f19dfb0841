"""A hostile member: a node with a narrow grant that does whatever its key can sign. It reads everything, may schedule,
claim and complete jobs of one kind of its own, and tries the rest: it backdates and postdates ops, takes other ops'
ids, shows two histories to different nodes, floods its peers with ops that will be refused, replays theirs, claims and
cancels their jobs, and lies when asked. It sees every disk, which a real one could not.

On the bus its messages are believed until they contradict a rule. It claims and passes every job that it sees and runs
none, says that it has workers of the greatest weight or of another one each time, dates messages an hour off, repeats
what others have said, speaks in their name, and floods.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from random import Random

import msgspec
from msgspec.structs import replace

from hocket.bus.envelope import _CONTEXT, Envelope, _body, seal
from hocket.bus.messages import BoundedQueue, BusMessage, MemoryMessages, subject_name
from hocket.errors import HocketError
from hocket.extensions.sim.load import OPEN, SOLE
from hocket.extensions.sim.network import Lines, Network, SimMessageServer, address
from hocket.extensions.sim.node import SimNode, Up
from hocket.families.jobs.candidates import worker_id
from hocket.families.jobs.rendezvous import WEIGHT_MAX, WEIGHT_MIN
from hocket.families.kinds.facts import DefineKind
from hocket.kernel.clock import Hlc
from hocket.kernel.frontier import Frontier, frontier_text
from hocket.kernel.ids import content_hash, node_id, node_text, ulid_text
from hocket.kernel.keys import did_key
from hocket.kernel.ops import NO_ID, Op, bind, decode, encode, encode_sequence, link_to, sign
from hocket.kernel.policy import Policy, encode_policy
from hocket.kernel.ucan import ROOT, Capability, issue
from hocket.kernel.vocabulary import (
    AcceptWork,
    ApproveJob,
    CancelJob,
    ClaimWork,
    CompleteJob,
    CreateArtifact,
    DelegateUcan,
    DesignateCoordinator,
    ExpireWork,
    FailWork,
    Payload,
    PostponeJob,
    PostponeWork,
    RetryJob,
    RevokeUcan,
    RouteKind,
    ScheduleJob,
    Telemetry,
)
from hocket.log import Transaction
from hocket.mesh import wire
from hocket.mesh.bus_sharing import JOBS, PRESENCE
from hocket.mesh.client import Client
from hocket.mesh.gate import Gate
from hocket.mesh.gate_requests import Caller
from hocket.mesh.wire import Reply
from hocket.store import Stage
from hocket.work.handlers import Handlers
from hocket.work.presence import Serving, serving_text
from hocket.work.ranked_claims import CLAIMS, PASSES, ClaimSaid

ROGUE = "sim.rogue"
GRANTED = (
    Capability("Ops", "Read", {}),
    Capability("Artifact", "Write", {}),
    *(Capability("Job", action, {"kind_prefix": [ROGUE]}) for action in ("Schedule", "Claim", "Complete")),
)
# How long it waits between two misdeeds, and how many ops a flood has.
REST_S = (0.2, 3.0)
FLOOD_OPS = 40
# How many nodes one misdeed is for at most.
TOLD_MAX = 8
# How likely it is that it ever shows two histories. Once it is found out, no node listens to it any more.
FORKS = 0.5
# How likely an op is that lies before its author's last one, or beyond the allowed clock difference. The ops that
# follow it are admitted late, or never.
FAR_OFF = 0.03
# How long it waits between two misdeeds, how many messages a flood has, and how wrong its clock is in a lie about time.
BUS_REST_S = (0.05, 0.5)
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
            await asyncio.sleep(self._chance.uniform(*BUS_REST_S))
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


class HostileNode(SimNode):
    """`victims` are the honest nodes."""

    def __init__(self, *args: object, victims: Sequence[SimNode]) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.node = node_id(self.key.public)
        self.victims = victims
        self.said: list[tuple[bytes, Op]] = []
        self.is_two_faced = self.chance.random() < FORKS
        self._told: defaultdict[str, set[bytes]] = defaultdict(set)

    def _introduce(self, tx: Transaction) -> None:
        token = issue(self.user, self.key.public, GRANTED, tx.now // 1000, None)
        op = tx.author(DelegateUcan(content_hash(token), token))
        assert isinstance(op, Op)

    def start(self, handlers: Handlers, network: Network, messages: SimMessageServer, nodes: Sequence[SimNode]) -> None:
        """It runs no worker and syncs with no node."""
        self.remember()
        self.up = up = Up(self)
        up.gate = LyingGate(up, self)
        up.life.start(self._misbehave(up, Lines(self.number, network, lambda there: nodes[there].up)), "hostile")
        chance = Random(self.chance.getrandbits(64))
        bus = messages.open(self.number, chance.randbytes)
        up.hang_up = lambda: messages.close(bus)
        up.life.start(HostileMessages(self, bus, self.victims, chance).run(), "hostile messages")

    def remember(self) -> None:
        """Its history begins with its admission to the mesh."""
        with self.store.read() as session:
            self.said = self.sent(session.entries_after(0, 10))

    # Misdeeds.

    async def _misbehave(self, up: Up, lines: Lines) -> None:
        clients = [
            Client(up, self.key, lines, up.environment, address(victim.number), None, self.chance.randbytes)
            for victim in self.victims
        ]
        misdeeds = self._misdeeds()
        await self._begin()
        while True:
            await asyncio.sleep(self.chance.uniform(*REST_S))
            bodies = self.chance.choice(misdeeds)()
            some = self.chance.sample(clients, self.chance.randint(1, min(len(clients), TOLD_MAX)))
            for client in some:
                # Without the ops that they follow they would not be admitted; those of another branch are held back.
                told = [body for body in self._leading_to(bodies) if body not in self._told[client.address]]
                try:
                    await client.meet()
                    await client.push([*told, *bodies])
                    self._told[client.address].update(told, bodies)
                except HocketError:
                    pass  # refused, or lost by the network
            self._forget(bodies)

    async def _begin(self) -> None:
        """Waits for the time of its first misdeed."""

    def _misdeeds(self) -> list[Callable[[], list[bytes]]]:
        return [
            *[self._speak] * 4,
            *[self._own_job] * 2,
            *[self._squat] * 2,
            self._flood,
            self._replay,
            self._widen,
            *[self._fork] * self.is_two_faced,
        ]

    def _forget(self, bodies: Sequence[bytes]) -> None:
        """Ops that no node admitted must leave its history, or the following ops would not be admitted either."""
        for body in reversed(bodies):
            if self.said[-1][0] != body or any(self._has(victim, body) for victim in self.victims):
                return
            self.said.pop()

    @staticmethod
    def _has(victim: SimNode, body: bytes) -> bool:
        with victim.store.read() as session:
            return session.op(decode(body).id) is not None

    def _leading_to(self, bodies: Sequence[bytes]) -> list[bytes]:
        """Its own ops before the first of these, back to its admission to the mesh."""
        by_link = {link_to(op.id): (body, op) for body, op in self.said}
        found: list[bytes] = []
        link = decode(bodies[0]).link
        while (before := by_link.get(link or b"")) is not None:
            found.append(before[0])
            link = before[1].link
        return found[::-1]

    def _say(self, payload: Payload, wall: int, deps: tuple[bytes, ...] = (), after: bytes | None = None) -> bytes:
        last = self.said[-1][1]
        link = link_to(last.id if after is None else after)
        stamp = Hlc(wall, 0, self.node)
        op = sign(bind(Op(NO_ID, stamp, self.node, (*deps, link), payload))[0], self.key)
        self.said.append((encode(op), op))
        return self.said[-1][0]

    def _date(self) -> int:
        """Usually after its last op; and now, long ago, or ahead."""
        now, last = int(self.clocks.day() * 1000), self.said[-1][1].timestamp.wall
        wanted = self.chance.choice((now, now, now - 5_000, last + 1, now + 3_000))
        if self.chance.random() < FAR_OFF:
            return self.chance.choice((now + 60_000, max(0, last - 1_000)))
        return max(wanted, last + 1)

    def _ops(self) -> list[tuple[bytes, Op]]:
        victim = self.chance.choice(self.victims)
        with victim.store.read() as session:
            return victim.sent(session.last_ops(60))

    def _jobs(self) -> list[bytes]:
        return [op.payload.job_id for _, op in self._ops() if isinstance(op.payload, ScheduleJob)]

    def _about(self, job_id: bytes) -> list[Payload]:
        holder = self.chance.choice([self.node, *(node_id(victim.key.public) for victim in self.victims)])
        return [
            ClaimWork(job_id, self.node, 60_000),
            CompleteJob(job_id, (), (), Telemetry(1)),
            CancelJob(job_id, "no"),
            RetryJob(job_id, "again"),
            ExpireWork(job_id, holder, ""),
            FailWork(job_id, holder, "", "", False),
            PostponeWork(job_id, holder, 1_000, ""),
            PostponeJob(job_id, 2**53, ""),
            ApproveJob(job_id, "alice", ""),
        ]

    def _speak(self) -> list[bytes]:
        """An op that it may not write."""
        payloads: list[Payload] = [
            DesignateCoordinator(self.node),
            RouteKind(self.chance.choice((SOLE, OPEN)), self.node),
            ScheduleJob(NO_ID, SOLE, b"{}", b""),
            DefineKind(SOLE, b'{"concurrency":1}'),
        ]
        for _, op in self._ops():
            if isinstance(op.payload, ClaimWork | CompleteJob):
                payloads.append(AcceptWork(op.payload.job_id, op.id))
        jobs = self._jobs()
        if jobs:
            payloads += self._about(self.chance.choice(jobs))
        return [self._say(self.chance.choice(payloads), self._date())]

    def _own_job(self) -> list[bytes]:
        """What it may do: a job of its own kind, claimed and completed at once, honestly or not."""
        policy = encode_policy(Policy(open=self.chance.random() < 0.5))
        made = self._say(ScheduleJob(NO_ID, ROGUE, b"{}", policy), self._date())
        op = self.said[-1][1]
        wall = op.timestamp.wall
        claim = self._say(ClaimWork(op.id, self.node, 60_000), wall + 1)
        end = self._say(CompleteJob(op.id, (), (), Telemetry(1)), wall + 2, (self.said[-1][1].id,))
        return [made, claim, end][: self.chance.randint(1, 3)]

    def _squat(self) -> list[bytes]:
        """Ids of others: of an op, a job or an artifact; dated before the op that has it, if possible."""
        found: list[tuple[int, Payload]] = []
        others = [op for _, op in self._ops() if op.node_id != self.node]
        for op in others:
            if isinstance(op.payload, ScheduleJob):
                found.append((op.timestamp.wall, replace(op.payload, kind=ROGUE)))
            elif isinstance(op.payload, CreateArtifact):
                taken = replace(op.payload, content_inline=b"null", content_hash=content_hash(b"null"))
                found.append((op.timestamp.wall, taken))
        if found and self.chance.random() < 0.7:
            wall, payload = self.chance.choice(found)
            return [self._say(payload, max(wall - 1, self.said[-1][1].timestamp.wall + 1))]
        if not others:
            return self._speak()
        self._say(RouteKind(SOLE, self.node), self._date())
        _, mine = self.said.pop()
        return [encode(sign(replace(mine, id=self.chance.choice(others).id), self.key))]

    def _flood(self) -> list[bytes]:
        jobs = self._jobs() or [NO_ID]
        wall = self._date()
        return [self._say(self.chance.choice(self._about(jobs[-1])), wall + n) for n in range(FLOOD_OPS)]

    def _replay(self) -> list[bytes]:
        sent = [body for body, _ in self._ops()]
        self.chance.shuffle(sent)
        stolen = sign(self.chance.choice(self._ops())[1], self.key)
        return [*sent[:20], encode(stolen), sent[0][:-1] + bytes([sent[0][-1] ^ 1])]

    def _widen(self) -> list[bytes]:
        """More rights for itself, fewer for others."""
        token = issue(self.key, self.key.public, ROOT, 0, None, [content_hash(b"nothing")], "here")
        with self.victims[0].store.read() as session:
            cids = [each.cid for each in session.delegations()]
        payload = self.chance.choice((DelegateUcan(content_hash(token), token), RevokeUcan(self.chance.choice(cids))))
        return [self._say(payload, self._date())]

    def _fork(self) -> list[bytes]:
        """Another history from some earlier op on; the next node gets this one."""
        _, point = self.chance.choice(self.said)
        return [self._say(ScheduleJob(NO_ID, ROGUE, b"{}", b""), point.timestamp.wall + 1, after=point.id)]

    def lie(self, reply: Reply) -> Reply:
        """An answer that it will sign: correct, or with others' ops and a frontier far ahead."""
        if self.chance.random() < 0.3:
            return reply
        bodies = [body for body, _ in self._ops()]
        self.chance.shuffle(bodies)
        ahead: Frontier = {node: Hlc(2**47, 0, node) for node in self._authors()}
        frontier = frontier_text(ahead)
        body = encode_sequence(bodies[:10])
        if self.chance.random() < 0.3:
            body = body[: len(body) // 2]
        return reply._replace(
            headers={**reply.headers, wire.NEXT_FRONTIER: frontier, wire.FRONTIER: frontier}, body=body
        )

    def _authors(self) -> Iterator[int]:
        for victim in self.victims:
            yield node_id(victim.key.public)


class LyingGate(Gate):
    """The gate of a hostile node. Its lies are signed, as they must be to be believed."""

    def __init__(self, up: Up, node: HostileNode) -> None:
        super().__init__(up, node.key, up.environment)
        self._liar = node

    def _answer(self, caller: Caller, since: Frontier, limit: int) -> Reply:
        return self._liar.lie(super()._answer(caller, since, limit))
