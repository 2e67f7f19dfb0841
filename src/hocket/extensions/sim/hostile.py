"""A hostile member: a node with a narrow grant that does whatever its key can sign. It reads everything, may schedule,
claim and complete jobs of one kind of its own, and tries the rest: it backdates and postdates ops, takes other ops'
ids, shows two histories to different nodes, floods its peers with ops that will be refused, replays theirs, claims and
cancels their jobs, and lies when asked. It sees every disk, which a real one could not. What it says on the bus is in
`hostile_messages`.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from random import Random

from msgspec.structs import replace

from hocket.errors import HocketError
from hocket.extensions.sim.hostile_messages import HostileMessages
from hocket.extensions.sim.lines import Lines, address
from hocket.extensions.sim.load import OPEN, SOLE
from hocket.extensions.sim.messages import SimMessageServer
from hocket.extensions.sim.network import Network
from hocket.extensions.sim.node import SimNode, Up
from hocket.families.kinds.facts import DefineKind
from hocket.kernel.clock import Hlc
from hocket.kernel.frontier import Frontier, frontier_text
from hocket.kernel.ids import content_hash, node_id
from hocket.kernel.ops import NO_ID, Op, bind, decode, encode, encode_sequence, link_to, sign
from hocket.kernel.policy import Policy, encode_policy
from hocket.kernel.ucan import ROOT, Capability, issue
from hocket.kernel.vocabulary import (
    AcceptWork,
    CancelJob,
    ClaimWork,
    CompleteJob,
    CreateArtifact,
    DelegateUcan,
    DesignateCoordinator,
    ExpireWork,
    FailWork,
    Payload,
    PostponeWork,
    RetryJob,
    RevokeUcan,
    RouteKind,
    ScheduleJob,
    Telemetry,
)
from hocket.log import Transaction
from hocket.mesh import wire
from hocket.mesh.client import Client
from hocket.mesh.gate import Gate
from hocket.mesh.gate_requests import Caller
from hocket.mesh.wire import Reply
from hocket.work.handlers import Handlers

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
        misdeeds: list[Callable[[], list[bytes]]] = [
            *[self._speak] * 4,
            *[self._own_job] * 2,
            *[self._squat] * 2,
            self._flood,
            self._replay,
            self._widen,
            *[self._fork] * self.is_two_faced,
        ]
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
