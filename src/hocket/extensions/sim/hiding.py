"""A hostile member that has something to hide in a mesh whose log is pruned. It moves horizons and sets rules of its
own, dates ops to just before the horizon, signs checkpoints of entries that it has not written, speaks in the names of
others about theirs, and cosigns roots that nobody has. Those that ask it for ops get a snapshot: a damaged one,
one of other chunks, one that stops in the middle, an old one, or one with a horizon or witnesses of its own.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from hocket.errors import HocketError
from hocket.extensions.sim.hostile import REST_S, ROGUE, HostileNode, LyingGate
from hocket.extensions.sim.network import Lines, Network, SimMessageServer, address
from hocket.extensions.sim.node import SimNode, Up
from hocket.families.retention.facts import KEEP_MS_MIN, AuthorHead, MoveHorizon, Retained, SetRetention
from hocket.kernel.checkpoints.notes import (
    Checkpoint,
    NoteSignature,
    SignedNote,
    cosignature,
    origin_of,
    read_note,
    signature,
)
from hocket.kernel.frontier import Frontier
from hocket.kernel.ids import node_id
from hocket.kernel.keys import SigningKey, did_key
from hocket.kernel.ops import NO_ID, decode
from hocket.kernel.snapshots.chunks import decode_manifest, encode_manifest
from hocket.kernel.vocabulary import RevokeUcan, ScheduleJob
from hocket.log.checkpoints.horizon_notes import horizon_checkpoint
from hocket.mesh.client import Client
from hocket.mesh.gate_requests import Caller
from hocket.mesh.snapshots.serving import AskedChunk, ServedSnapshots, read_snapshot_query
from hocket.mesh.wire import Reply, Request
from hocket.store.checkpoint_rows import CheckpointState
from hocket.work.handlers import Handlers

# How likely it is that it says nothing before the log has a horizon.
PATIENT = 0.5
# How likely it sends a caller to its snapshot.
SENT_AWAY = 0.3
SILENT_S = 3_600.0
DAMAGES = ("silent", "missing", "cut", "changed", "other", "old", "forged", "strangers", "honest")


class HidingNode(HostileNode):
    """`folder` is one in which it keeps the snapshots that it changes."""

    def __init__(self, *args: object, victims: Sequence[SimNode], folder: Path) -> None:
        super().__init__(*args, victims=victims)
        self._stolen = folder
        self.is_patient = self.chance.random() < PATIENT
        self.lied_to: set[int] = set()
        """The nodes that have taken a checkpoint from it with which their entries do not agree."""
        self._old: dict[AskedChunk | None, Reply] = {}

    def start(self, handlers: Handlers, network: Network, messages: SimMessageServer, nodes: Sequence[SimNode]) -> None:
        super().start(handlers, network, messages, nodes)
        assert self.up is not None
        self.up.gate = HidingGate(self.up, self)
        lines = Lines(self.number, network, lambda there: nodes[there].up)
        self.up.life.start(self._share_notes(self.up, lines), "hostile notes")

    # Ops.

    async def _begin(self) -> None:
        while self.is_patient and self._horizon() is None:
            await asyncio.sleep(self.chance.uniform(*REST_S))

    def _misdeeds(self) -> list[Callable[[], list[bytes]]]:
        return [*super()._misdeeds(), *[self._date_back] * 4, *[self._move_horizon] * 2, self._set_rule, self._unrevoke]

    def _horizon(self) -> MoveHorizon | None:
        """The last one that some victim follows."""
        with self.chance.choice(self.victims).store.read() as session:
            row = session.horizon()
            stored = None if row is None else session.op(row.op)
        payload = None if stored is None else decode(stored.body).payload
        return payload if isinstance(payload, MoveHorizon) else None

    def _date_back(self) -> list[bytes]:
        """Ops around the horizon, if that is not too early for its own history."""
        horizon, last = self._horizon(), self.said[-1][1].timestamp.wall
        border = self._now() - KEEP_MS_MIN if horizon is None else horizon.at_ms
        walls = [wall for wall in (border - 1, border, border + 1) if wall > last]
        return [self._say(ScheduleJob(NO_ID, ROGUE, b"{}", b""), wall) for wall in walls] or self._own_job()

    def _now(self) -> int:
        return int(self.clocks.day() * 1000)

    def _move_horizon(self) -> list[bytes]:
        """Everything up to now is settled, and nothing remains; or what the last one says, by itself."""
        horizon = self._horizon()
        with self.chance.choice(self.victims).store.read() as session:
            ends = [(author, session.latest_of(author)[1]) for author in session.frontier()]
        at_ms = self._now() - KEEP_MS_MIN
        heads = [AuthorHead(int.from_bytes(author, "big"), at_ms, 0, entry) for author, entry in ends]
        heads.sort(key=lambda each: each.node)
        own = MoveHorizon(at_ms, None, tuple(heads), (), self.chance.randbytes(32), True)
        payload = own if horizon is None or self.chance.random() < 0.5 else replace(horizon, at_ms=horizon.at_ms + 1)
        return [self._say(payload, self._date())]

    def _set_rule(self) -> list[bytes]:
        what = self.chance.choice((Retained.JOBS, Retained.MESSAGES))
        return [self._say(SetRetention(what, "", KEEP_MS_MIN, None, True, 0), self._date())]

    def _unrevoke(self) -> list[bytes]:
        """It would like to be rid of a delegation that is older than the horizon."""
        with self.victims[0].store.read() as session:
            cids = [each.cid for each in session.delegations()]
        return [self._say(RevokeUcan(self.chance.choice(cids)), self._date())]

    # Notes.

    async def _share_notes(self, up: Up, lines: Lines) -> None:
        clients = {
            victim: Client(up, self.key, lines, up.environment, address(victim.number), None, self.chance.randbytes)
            for victim in self.victims
        }
        lies: list[Callable[[SimNode], list[bytes]]] = [
            self._other_tree,
            self._ahead,
            self._in_the_name_of_others,
            self._about_horizons,
            self._old_notes,
        ]
        while True:
            await asyncio.sleep(self.chance.uniform(*REST_S))
            victim, lie = self.chance.choice(self.victims), self.chance.choice(lies)
            notes = lie(victim)
            question = {"notes": [each.decode() for each in notes]}
            try:
                await clients[victim].meet()
                answer = await clients[victim].share_checkpoints(msgspec.json.encode(question))
            except HocketError:
                continue  # refused, or lost by the network
            if lie == self._other_tree and notes and answer is not None:
                self.lied_to.add(victim.number)

    @property
    def _user(self) -> str:
        return did_key(self.user.public)

    def _note(self, checkpoint: Checkpoint, key: SigningKey | None = None) -> bytes:
        by = key or self.key
        line = signature(checkpoint.text, checkpoint.origin, by.public, by.sign)
        return SignedNote(checkpoint.text, (line,)).encode()

    def _other_tree(self, victim: SimNode) -> list[bytes]:
        """A tree of its own with as many entries as the victim has of it, and none of them; as long as no horizon has
        settled them.
        """
        with victim.store.read() as session:
            rows = session.entries_of_author(self.node.to_bytes(8, "big"), bytes(20), 10_000)
            is_settled = session.horizon() is not None
        if not rows or is_settled:
            return []
        return [self._note(Checkpoint(origin_of(self._user, self.node), len(rows), self.chance.randbytes(32)))]

    def _ahead(self, victim: SimNode) -> list[bytes]:
        """Another tree for each node, of entries that it may write one day."""
        size = len(self.said) + self.chance.randint(1, 50)
        return [self._note(Checkpoint(origin_of(self._user, self.node), size, self.chance.randbytes(32)))]

    def _in_the_name_of_others(self, victim: SimNode) -> list[bytes]:
        other = self.chance.choice(self.victims)
        origin = origin_of(self._user, node_id(other.key.public))
        return [self._note(Checkpoint(origin, self.chance.randint(1, 30), self.chance.randbytes(32)))]

    def _about_horizons(self, victim: SimNode) -> list[bytes]:
        """Cosignatures on a root that nobody has, in everybody's names."""
        with victim.store.read() as session:
            row = session.horizon()
        if row is None:
            return []
        checkpoint = horizon_checkpoint(self._user, row.op, 7, self.chance.randbytes(32))
        return [SignedNote(checkpoint.text, tuple(self._cosigned(checkpoint.text))).encode()]

    def _cosigned(self, text: str) -> Sequence[NoteSignature]:
        """By itself, twice, and by itself for others."""
        names = [self.node, *(node_id(victim.key.public) for victim in self.victims)]
        now_s = self._now() // 1000
        return [
            cosignature(text, origin_of(self._user, name), self.key.public, self.key.sign, now_s + again)
            for name in names[:3]
            for again in range(2)
        ]

    def _old_notes(self, victim: SimNode) -> list[bytes]:
        with self.chance.choice(self.victims).store.read() as session:
            notes = [row.note for row in session.checkpoints() if row.note and row.state != CheckpointState.READ]
        self.chance.shuffle(notes)
        return notes[:5]

    # Snapshots.

    async def snapshot(self, asked: AskedChunk | None) -> Reply:
        """An answer to who asks for its snapshot, which is a victim's, and what it makes of it."""
        victim = self.chance.choice(self.victims)
        reply = ServedSnapshots(Up(victim).log, self._stolen).answer(asked)
        if reply.status == 200:
            self._old.setdefault(asked, reply)
        damage = self._damage()
        if damage == "silent":
            await asyncio.sleep(SILENT_S)
        if damage == "old":
            # It has kept the first of each, so a manifest fits to its chunks for a while.
            return self._old.get(asked, Reply(404))
        if damage == "missing" or reply.status != 200:
            return Reply(404)
        body = reply.body
        if damage == "cut":
            body = body[: self.chance.randrange(len(body))]
        elif damage == "changed":
            at = self.chance.randrange(len(body))
            body = body[:at] + bytes((body[at] ^ self.chance.randrange(1, 256),)) + body[at + 1 :]
        elif asked is None and damage in ("forged", "strangers", "other"):
            body = self._forged(body, damage)
        return reply._replace(body=body)

    def _damage(self) -> str:
        return self.chance.choice(DAMAGES)

    def _forged(self, body: bytes, damage: str) -> bytes:
        manifest = decode_manifest(body)
        if damage == "strangers":
            text = read_note(manifest.note).text if manifest.note else "nothing\n"
            return encode_manifest(replace(manifest, note=SignedNote(text, tuple(self._cosigned(text))).encode()))
        if damage == "other":
            return encode_manifest(replace(manifest, chunks=manifest.chunks[:-1], law=manifest.law[1:]))
        before = decode(manifest.horizon)
        assert isinstance(before.payload, MoveHorizon)
        chunks = manifest.chunks[: max(1, len(manifest.chunks) - 1)]
        cut = replace(manifest, chunks=chunks)
        forged = self._say(replace(before.payload, root=cut.root()), self._date(), before.cited)
        self.said.pop()
        return encode_manifest(replace(cut, horizon=forged))


class HidingGate(LyingGate):
    """It says that it has let go of what a caller lacks, and gives what it likes."""

    _liar: HidingNode

    def _answer(self, caller: Caller, since: Frontier, limit: int) -> Reply:
        if self._liar.chance.random() < SENT_AWAY:
            return Reply(410)
        return super()._answer(caller, since, limit)

    async def _snapshot(self, request: Request) -> Reply:
        async with self._called(request) as caller:
            return self._proved(caller, await self._liar.snapshot(read_snapshot_query(request.query)))
