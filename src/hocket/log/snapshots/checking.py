"""Proves a snapshot from its own bytes, as far as that is possible without the ops that went: each chunk belongs to the
root, and the op with that root was signed by who may move the horizon, by the delegations that lead back to the user.
Each entry bears the signature of its author, whose key the user has admitted. As many members as the owner's rules ask
for have computed the same root from a whole log: what the bases say rests on them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from hocket.errors import Failed
from hocket.families.retention.facts import AuthorHead, MoveHorizon, SetRetention
from hocket.families.retention.rules import RetentionRule, may_move, rule_of
from hocket.kernel.arbitration import Reason
from hocket.kernel.authority import Authority
from hocket.kernel.bundles import read_facts
from hocket.kernel.family import FAMILIES
from hocket.kernel.ids import node_text, ulid_text
from hocket.kernel.mesh_rules import Rules
from hocket.kernel.ops import Op, decode
from hocket.kernel.postcard import Malformed
from hocket.kernel.postcard import decode as decode_value
from hocket.kernel.snapshots.chunks import SnapshotManifest
from hocket.kernel.snapshots.horizon import horizon_end
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
    SetSuccession,
    TakeOver,
)
from hocket.log.author_check import op_fault
from hocket.log.checkpoints.horizon_notes import horizon_checkpoint, members_of, witnesses_of
from hocket.log.parallel import Helpers, in_parallel
from hocket.log.permissions import Permissions, PermissionsReader
from hocket.log.snapshots.folder import SnapshotFolder
from hocket.store import MEMORY
from hocket.store import open as open_store

LAW = (DelegateUcan, RevokeUcan, RevokeRoot, DesignateCoordinator, SetSuccession, TakeOver, ReportFork)


class SnapshotEntry(NamedTuple):
    op: Op
    raw: bytes


class SnapshotPart(NamedTuple):
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

    def __str__(self) -> str:
        return f"{node_text(self.op.node_id)} ({ulid_text(self.op.id)})"


class JudgedManifest(NamedTuple):
    """A manifest whose horizon counts, by the law that comes with it: the keys of authors, the ops that are this law,
    and which members have cosigned the root beside the node that moved the horizon.
    """

    manifest: SnapshotManifest
    horizon: SnapshotHorizon
    keys: dict[int, bytes]
    law: dict[bytes, Op]
    witnesses: tuple[int, ...]


class SnapshotAudit(NamedTuple):
    """What a snapshot that holds good has."""

    horizon: SnapshotHorizon
    heads: int
    bases: int
    entries: int
    ops: int
    witnesses: tuple[int, ...]


def judge_manifest(manifest: SnapshotManifest, mesh: str, rules: Rules, now_ms: int) -> JudgedManifest:
    """Judges a manifest before any chunk is read. Raises Malformed for one that does not fit together, and Failed if
    nothing that leads back to the user says that its horizon counts, or too few members have cosigned its root.
    """
    if rules.bounds is None:
        raise Malformed("a strict mesh has no snapshots: the ids of its ops are not bound to their content")
    horizon = _horizon_in(manifest, mesh)
    law = [SnapshotEntry(decode(raw), raw) for raw in manifest.law]
    keys: dict[int, bytes] = {}
    for op, _ in law:
        if not isinstance(op.payload, (*LAW, SetRetention)):
            raise Malformed("its manifest has an op that says nothing of who may do what")
        if isinstance(op.payload, DelegateUcan):
            delegation = read_ucan(op.payload.ucan_bytes)
            keys.setdefault(delegation.node, delegation.public)
    for each in (*law, SnapshotEntry(horizon.op, manifest.horizon)):
        fault = op_fault(mesh, each.raw, each.op, keys.get(each.op.node_id), True)
        if fault is not None:
            raise Malformed(f"op {ulid_text(each.op.id)} of its manifest does not hold good: {fault.sentence}")
    ops = {op.id: op for op, _ in law if isinstance(op.payload, LAW)}
    permissions = permissions_of(list(ops.values()), mesh, rules)
    _check_keys(permissions, mesh, horizon)
    _check_mover(permissions, horizon, [op for op, _ in law if isinstance(op.payload, SetRetention)])
    witnesses = _witnesses(permissions, horizon, manifest, keys, now_ms)
    if len(witnesses) < horizon.witnesses:
        raise Failed(
            f"the horizon of {horizon} has {len(witnesses)} cosignatures of other members, and the owner's rules ask"
            f" for {horizon.witnesses}; exchange with nodes that have the whole log"
        )
    return JudgedManifest(manifest, horizon, keys, ops, witnesses)


def _horizon_in(manifest: SnapshotManifest, mesh: str) -> SnapshotHorizon:
    if manifest.mesh != mesh:
        raise Malformed(f"it is of the mesh of {manifest.mesh}, and not of {mesh}")
    op, law = decode(manifest.horizon), {each.id: each for each in map(decode, manifest.law)}
    if not isinstance(op.payload, MoveHorizon):
        raise Malformed("the op of its manifest moves no horizon")
    if manifest.root() != op.payload.root:
        raise Malformed("its chunks do not have the root that the horizon's op names")
    rules: list[RetentionRule] = []
    for dep in op.cited:
        rule = law.get(dep)
        if rule is None or not isinstance(rule.payload, SetRetention):
            raise Malformed("a rule of retention that its horizon depends on is missing")
        rules.append(rule_of(rule, rule.payload))
    return SnapshotHorizon(op, op.payload, tuple(rules))


def _check_keys(permissions: Permissions, mesh: str, horizon: SnapshotHorizon) -> None:
    # Also one that was revoked since has led back to the user.
    authority = Authority(mesh, permissions.delegations, ())
    admitted = {each.node for each in permissions.delegations if authority.fault(each) is None}
    for head in horizon.payload.heads:
        if head.node not in admitted:
            raise Failed(
                f"no delegation that leads back to the user admits {node_text(head.node)}, of which it has ops"
            )


def _check_mover(permissions: Permissions, horizon: SnapshotHorizon, rules: Sequence[Op]) -> None:
    if any(permissions.refusal(op, "") is not None for op in rules):
        raise Failed(f"a rule of the horizon of {horizon} was not written by the owner")
    moved = horizon.op
    if permissions.refusal(moved, "") is not None or not may_move(moved, permissions):
        raise Failed(f"{node_text(moved.node_id)} may not move the horizon: it was not the coordinator then")


def _witnesses(
    permissions: Permissions,
    horizon: SnapshotHorizon,
    manifest: SnapshotManifest,
    keys: Mapping[int, bytes],
    now_ms: int,
) -> tuple[int, ...]:
    named = {node.to_bytes(8, "big"): (key, "") for node, key in keys.items()}
    members = members_of(named, permissions.authority, permissions.forks, now_ms)
    expected = horizon_checkpoint(manifest.mesh, horizon.op.id, manifest.leaves, horizon.payload.root)
    return tuple(sorted(witnesses_of(manifest.note, expected, manifest.mesh, members) - {horizon.op.node_id}))


def permissions_of(law: Sequence[Op], mesh: str, rules: Rules) -> Permissions:
    """The permissions that these ops make by themselves."""
    store = open_store(MEMORY, create=True)
    try:
        with store.read() as session:
            return PermissionsReader(mesh, rules).of(session, law)
    finally:
        store.close()


def parts(folder: SnapshotFolder, manifest: SnapshotManifest) -> Iterator[SnapshotPart]:
    """The contents, chunk by chunk, in the order of the leaves. Raises Malformed for any that does not belong, or is
    out of its order.
    """
    order = _Order()
    for leaves in folder.leaves(manifest):
        yield _part(leaves, order)


def _part(leaves: Iterable[Leaf], order: "_Order") -> SnapshotPart:
    found = SnapshotPart([], [], [], [])
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
    """Checks the parts of a snapshot as they are read. Of the entries it keeps none."""

    def __init__(self, judged: JudgedManifest, helpers: Helpers | None = None) -> None:
        self._judged, self._helpers = judged, helpers
        heads = judged.horizon.payload.heads
        self._end = horizon_end(judged.horizon.payload.at_ms)
        self._heads: dict[int, AuthorHead] = {each.node: each for each in heads}
        # What must still come: heads, the entries that they name, and the settled part of the law.
        self._unseen = dict(self._heads)
        self._awaited = {each.entry for each in heads}
        self._awaited.update(op.id for op in judged.law.values() if self._is_settled(op))
        # Entries of which a part can have gone: bundles, and heads.
        self._partial = {each.entry for each in heads}
        self._bases = self._entries = self._ops = 0

    def _is_settled(self, op: Op) -> bool:
        head = self._heads.get(op.node_id)
        return head is not None and op.timestamp <= head.at

    def take(self, part: SnapshotPart) -> None:
        """Raises Malformed."""
        for head in part.heads:
            self._take_head(head)
        for base in part.bases:
            if base.family != JOB and base.family not in FAMILIES:
                raise Malformed(f"it has a base of the family {base.family}, which this program does not know; upgrade")
        self._bases += len(part.bases)
        self._take_entries(part.entries)
        for partial in part.partials:
            has_gone = bool(partial.gone) and list(partial.gone) == sorted(set(partial.gone))
            if not has_gone or partial.entry not in self._partial:
                raise Malformed(f"it names facts of {ulid_text(partial.entry)}, of which none can have gone")

    def _take_head(self, head: SnapshotHead) -> None:
        named = self._unseen.pop(head.at.node, None)
        if named is None or (named.at, named.entry) != (head.at, head.entry):
            raise Malformed(f"its head of {node_text(head.at.node)} is not the one that the horizon names")
        head.tree()

    def _take_entries(self, entries: Sequence[SnapshotEntry]) -> None:
        for each in entries:
            self._check_place(each)
        for each, fault in zip(entries, in_parallel(self._helpers, self._faults, entries), strict=True):
            if fault is not None:
                raise Malformed(f"op {ulid_text(each.op.id)} does not hold good: {fault.sentence}")
        self._entries += len(entries)

    def _check_place(self, each: SnapshotEntry) -> None:
        op = each.op
        last = op.timestamp
        if isinstance(op.payload, Bundle):
            facts = read_facts(each.raw)
            self._partial.add(op.id)
            self._ops += len(facts)
            last = facts[-1].op.timestamp
        else:
            self._ops += 1
        if isinstance(op.payload, LAW) and op.id not in self._judged.law:
            raise Malformed(f"its manifest lacks op {ulid_text(op.id)}, which says who may do what")
        self._awaited.discard(op.id)
        head = self._heads.get(op.node_id)
        if head is None or last > head.at or last > self._end:
            raise Malformed(f"op {ulid_text(op.id)} lies beyond the head of its author")
        if last == head.at and op.id != head.entry:
            raise Malformed(f"op {ulid_text(op.id)} has the time of its author's head and is another op")

    def _faults(self, entries: Sequence[SnapshotEntry]) -> list[Reason | None]:
        mesh, keys = self._judged.manifest.mesh, self._judged.keys
        return [op_fault(mesh, each.raw, each.op, keys.get(each.op.node_id), True) for each in entries]

    def finish(self) -> SnapshotAudit:
        """Call it after the last part. Raises Malformed if the snapshot is not whole."""
        if self._unseen:
            raise Malformed(f"it lacks the head of {node_text(min(self._unseen))}")
        if self._awaited:
            raise Malformed(f"it lacks op {ulid_text(min(self._awaited))}, which no horizon lets go")
        counts = len(self._heads), self._bases, self._entries, self._ops
        return SnapshotAudit(self._judged.horizon, *counts, self._judged.witnesses)


def check_snapshot(
    folder: SnapshotFolder, mesh: str, rules: Rules, now_ms: int, helpers: Helpers | None = None
) -> SnapshotAudit:
    """Reads a whole snapshot, which must be of this user's mesh. Raises Failed with what is wrong with it, and Usage if
    there is none.
    """
    try:
        manifest = folder.manifest()
        check = SnapshotCheck(judge_manifest(manifest, mesh, rules, now_ms), helpers)
        for part in parts(folder, manifest):
            check.take(part)
        return check.finish()
    except Malformed as error:
        raise Failed(f"the snapshot in {folder.path} does not hold good: {error}") from None
