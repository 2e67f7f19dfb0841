"""Proves a snapshot from its own bytes, as far as that is possible without the ops that went: each chunk belongs to the
root, and the op with that root was signed by who may move the horizon, by the delegations that lead back to the user.
Each entry bears the signature of its author, whose key the user has admitted. As many members as the owner's rules ask
for have computed the same root from a whole log: what the bases say rests on them.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from hocket.errors import Failed
from hocket.families.retention.facts import AuthorHead, MoveHorizon, SetRetention, horizon_end
from hocket.families.retention.rules import RetentionRule, may_move, rule_of
from hocket.kernel.arbitration import Reason
from hocket.kernel.authority import Standing
from hocket.kernel.bundles import read_facts
from hocket.kernel.family import FAMILIES
from hocket.kernel.ids import node_text, ulid_text
from hocket.kernel.mesh_rules import Rules
from hocket.kernel.ops import Op, decode
from hocket.kernel.postcard import Malformed
from hocket.kernel.postcard import decode as decode_value
from hocket.kernel.snapshots.chunks import SnapshotManifest
from hocket.kernel.snapshots.leaf_contents import BASE, HEAD, PARTIAL, PartialBundle, SnapshotBase, SnapshotHead
from hocket.kernel.snapshots.leaves import Leaf, LeafTag
from hocket.kernel.ucan import read as read_ucan
from hocket.kernel.vocabulary import (
    JOB,
    Bundle,
    DelegateUcan,
    DesignateCoordinator,
    ReportFork,
    RevokeRoot,
    RevokeUcan,
)
from hocket.log.author_check import op_fault
from hocket.log.checkpoints.horizon_notes import horizon_checkpoint, witnesses_of
from hocket.log.parallel import Helpers, in_parallel
from hocket.log.permissions import Permissions, PermissionsReader
from hocket.log.snapshots.folder import SnapshotFolder
from hocket.store import MEMORY
from hocket.store import open as open_store

LAW = (DelegateUcan, RevokeUcan, RevokeRoot, DesignateCoordinator, ReportFork)


class SnapshotEntry(NamedTuple):
    op: Op
    raw: bytes


class Part(NamedTuple):
    """What a chunk holds, each in its order."""

    heads: list[SnapshotHead]
    bases: list[SnapshotBase]
    entries: list[SnapshotEntry]
    partials: list[PartialBundle]


class SnapshotHorizon(NamedTuple):
    """The op that moved the horizon, what it says, and the rules that decide at it."""

    op: Op
    payload: MoveHorizon
    rules: tuple[RetentionRule, ...]

    @property
    def witnesses(self) -> int:
        """How many other members must have cosigned the root."""
        return max((each.witnesses for each in self.rules if not each.is_removed), default=0)


class SnapshotAudit(NamedTuple):
    """What a snapshot that holds good has, and who has cosigned it beside the node that moved the horizon."""

    horizon: SnapshotHorizon
    heads: int
    bases: int
    entries: int
    ops: int
    witnesses: tuple[int, ...]


def horizon_in(manifest: SnapshotManifest, mesh: str) -> SnapshotHorizon:
    """What the manifest says of its horizon. Nothing is believed yet but that chunks and op belong together. Raises
    Malformed.
    """
    if manifest.mesh != mesh:
        raise Malformed(f"it is of the mesh of {manifest.mesh}, and not of {mesh}")
    op, law = decode(manifest.horizon), [decode(each) for each in manifest.law]
    if not isinstance(op.payload, MoveHorizon):
        raise Malformed("the op of its manifest moves no horizon")
    if manifest.root() != op.payload.root:
        raise Malformed("its chunks do not have the root that the horizon's op names")
    by_id = {each.id: each for each in law}
    rules: list[RetentionRule] = []
    for dep in op.cited:
        rule = by_id.get(dep)
        if rule is None or not isinstance(rule.payload, SetRetention):
            raise Malformed("a rule of retention that its horizon depends on is missing")
        rules.append(rule_of(rule, rule.payload))
    return SnapshotHorizon(op, op.payload, tuple(rules))


def parts(folder: SnapshotFolder, manifest: SnapshotManifest) -> Iterator[Part]:
    """The contents, chunk by chunk, in the order of the leaves. Raises Malformed for any that does not belong, or is
    out of its order.
    """
    order = _Order()
    for leaves in folder.leaves(manifest):
        yield _part(leaves, order)


def _part(leaves: Iterable[Leaf], order: "_Order") -> Part:
    found = Part([], [], [], [])
    for each in leaves:
        if each.tag is LeafTag.HEAD:
            head = decode_value(HEAD, each.data)
            order.follow(each.tag, head.author)
            found.heads.append(head)
        elif each.tag is LeafTag.BASE:
            base = decode_value(BASE, each.data)
            order.follow(each.tag, (base.family, base.key))
            found.bases.append(base)
        elif each.tag is LeafTag.ENTRY:
            op = decode(each.data)
            order.follow(each.tag, (op.timestamp, op.id))
            found.entries.append(SnapshotEntry(op, each.data))
        else:
            partial = decode_value(PARTIAL, each.data)
            order.follow(each.tag, partial.entry)
            found.partials.append(partial)
    return found


class _Order:
    """Leaves are in one order, and none is there twice."""

    def __init__(self) -> None:
        self._last: tuple[LeafTag, object] | None = None

    def follow(self, tag: LeafTag, key: object) -> None:
        if self._last is not None and not self._last < (tag, key):
            raise Malformed("its leaves are out of order")
        self._last = tag, key


class SnapshotCheck:
    """Checks the parts of a snapshot as they are read. It keeps heads and the law in memory, and no other entry."""

    def __init__(self, manifest: SnapshotManifest, mesh: str, rules: Rules, helpers: Helpers | None = None) -> None:
        """Raises Malformed."""
        if rules.bounds is None:
            raise Malformed("a strict mesh has no snapshots: the ids of its ops are not bound to their content")
        self.horizon = horizon_in(manifest, mesh)
        self._manifest, self._mesh, self._rules, self._helpers = manifest, mesh, rules, helpers
        self._end = horizon_end(self.horizon.payload.at_ms)
        self._heads: dict[int, AuthorHead] = {each.node: each for each in self.horizon.payload.heads}
        self._unseen = dict(self._heads)
        self._last_entries = {each.entry for each in self.horizon.payload.heads}
        self._keys: dict[int, bytes] = {}
        self._law: list[Op] = []
        self._bundles: set[bytes] = set()
        self._bases = self._entries = self._ops = 0

    def take(self, part: Part) -> None:
        """Raises Malformed."""
        for head in part.heads:
            self._take_head(head)
        for base in part.bases:
            if base.family != JOB and base.family not in FAMILIES:
                raise Malformed(f"it has a base of the family {base.family}, which this program does not know; upgrade")
        self._bases += len(part.bases)
        self._take_entries(part.entries)
        for partial in part.partials:
            if partial.entry not in self._bundles or list(partial.gone) != sorted(set(partial.gone)):
                raise Malformed(f"it names facts of {ulid_text(partial.entry)}, which is no bundle in it")

    def _take_head(self, head: SnapshotHead) -> None:
        named = self._unseen.pop(head.at.node, None)
        if named is None or (named.at, named.entry) != (head.at, head.entry):
            raise Malformed(f"its head of {node_text(head.at.node)} is not the one that the horizon names")
        head.tree()

    def _take_entries(self, entries: Sequence[SnapshotEntry]) -> None:
        for each in entries:
            self._learn(each.op)
            self._check_place(each)
        faults = in_parallel(self._helpers, self._faults, entries)
        for each, fault in zip(entries, faults, strict=True):
            if fault is not None:
                raise Malformed(f"op {ulid_text(each.op.id)} does not hold good: {fault.sentence}")
        self._entries += len(entries)

    def _learn(self, op: Op) -> None:
        if isinstance(op.payload, DelegateUcan):
            delegation = read_ucan(op.payload.ucan_bytes)
            self._keys.setdefault(delegation.node, delegation.public)
        if isinstance(op.payload, LAW):
            self._law.append(op)

    def _check_place(self, each: SnapshotEntry) -> None:
        op = each.op
        last = op.timestamp
        if isinstance(op.payload, Bundle):
            facts = read_facts(each.raw)
            self._bundles.add(op.id)
            self._ops += len(facts)
            last = facts[-1].op.timestamp
        else:
            self._ops += 1
        self._last_entries.discard(op.id)
        head = self._heads.get(op.node_id)
        if head is None or last > head.at or last > self._end:
            raise Malformed(f"op {ulid_text(op.id)} lies beyond the head of its author")
        if last == head.at and op.id != head.entry:
            raise Malformed(f"op {ulid_text(op.id)} has the time of its author's head and is another op")

    def _faults(self, entries: Sequence[SnapshotEntry]) -> list[Reason | None]:
        return [op_fault(self._mesh, each.raw, each.op, self._keys.get(each.op.node_id), True) for each in entries]

    def finish(self, now_ms: int) -> SnapshotAudit:
        """Call it after the last part. Raises Malformed if the snapshot is not whole, and Failed if nothing that leads
        back to the user says that its horizon counts, or too few members have cosigned it.
        """
        if self._unseen:
            raise Malformed(f"it lacks the head of {node_text(min(self._unseen))}")
        if self._last_entries:
            raise Malformed(f"it lacks op {ulid_text(min(self._last_entries))}, with which an author's settled ops end")
        permissions = self._judged_law()
        self._check_keys(permissions)
        self._check_mover(permissions)
        witnesses = self._witnesses(permissions, now_ms)
        asked, have = self.horizon.witnesses, len(witnesses)
        if have < asked:
            raise Failed(
                f"the horizon of {self._named} has {have} cosignatures of other members, and the owner's rules ask for"
                f" {asked}; exchange with nodes that have the whole log"
            )
        return SnapshotAudit(self.horizon, len(self._heads), self._bases, self._entries, self._ops, witnesses)

    @property
    def _named(self) -> str:
        return f"{node_text(self.horizon.op.node_id)} ({ulid_text(self.horizon.op.id)})"

    def _judged_law(self) -> Permissions:
        """By the law that is in the snapshot, and what has changed of it since, up to the horizon's op."""
        later: list[SnapshotEntry] = []
        for raw in self._manifest.law:
            op = decode(raw)
            if not isinstance(op.payload, (*LAW, SetRetention)):
                raise Malformed("its manifest has an op that says nothing of who may do what")
            later.append(SnapshotEntry(op, raw))
        for each in sorted(later, key=lambda each: each.op.timestamp):
            if isinstance(each.op.payload, DelegateUcan):
                delegation = read_ucan(each.op.payload.ucan_bytes)
                self._keys.setdefault(delegation.node, delegation.public)
        later.append(SnapshotEntry(self.horizon.op, self._manifest.horizon))
        for each, fault in zip(later, self._faults(later), strict=True):
            if fault is not None:
                raise Malformed(f"op {ulid_text(each.op.id)} of its manifest does not hold good: {fault.sentence}")
        known = {op.id for op in self._law}
        law = [*self._law, *(op for op, _ in later if isinstance(op.payload, LAW) and op.id not in known)]
        return permissions_of(law, self._mesh, self._rules)

    def _check_keys(self, permissions: Permissions) -> None:
        good = {each.node: each.public for each in permissions.delegations if permissions.authority.fault(each) is None}
        ended = {each.node for each in permissions.delegations}
        for node in self._heads:
            if good.get(node) != self._keys.get(node) and node not in ended:
                raise Failed(f"no delegation that leads back to the user admits {node_text(node)}, of which it has ops")

    def _check_mover(self, permissions: Permissions) -> None:
        moved = self.horizon.op
        owners = [decode(each) for each in self._manifest.law]
        rules = [op for op in owners if isinstance(op.payload, SetRetention)]
        if any(permissions.refusal(op, "") is not None for op in rules):
            raise Failed(f"a rule of the horizon of {self._named} was not written by the owner")
        if permissions.refusal(moved, "") is not None or not may_move(moved, permissions):
            raise Failed(f"{node_text(moved.node_id)} may not move the horizon: it was not the coordinator then")

    def _witnesses(self, permissions: Permissions, now_ms: int) -> tuple[int, ...]:
        authority, mover = permissions.authority, self.horizon.op.node_id
        members = {
            node: key
            for node, key in self._keys.items()
            if authority.standing(node, now_ms) is Standing.ACTIVE and node not in permissions.forks
        }
        expected = horizon_checkpoint(self._mesh, self.horizon.op.id, self._manifest.leaves, self.horizon.payload.root)
        return tuple(sorted(witnesses_of(self._manifest.note, expected, self._mesh, members) - {mover}))


def permissions_of(law: Sequence[Op], mesh: str, rules: Rules) -> Permissions:
    """The permissions that these ops make by themselves."""
    store = open_store(MEMORY, create=True)
    try:
        with store.read() as session:
            return PermissionsReader(mesh, rules).of(session, law)
    finally:
        store.close()


def check_snapshot(
    folder: SnapshotFolder, mesh: str | None, rules: Rules, now_ms: int, helpers: Helpers | None = None
) -> SnapshotAudit:
    """Reads a whole snapshot. Raises Failed with what is wrong with it, and Usage if there is none."""
    try:
        manifest = folder.manifest()
        check = SnapshotCheck(manifest, mesh or manifest.mesh, rules, helpers)
        for part in parts(folder, manifest):
            check.take(part)
        return check.finish(now_ms)
    except Malformed as error:
        raise Failed(f"the snapshot in {folder.path} does not hold good: {error}") from None
