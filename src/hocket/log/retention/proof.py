"""What remains of the settled part of a pruned log, as the leaves of a tree whose root the horizon's op names. The
leaves are what a new node gets as a snapshot, and the root shows that nothing else has gone.
"""

from collections.abc import Callable, Iterator

from hocket.families.retention.facts import MoveHorizon
from hocket.kernel.bundles import last_time
from hocket.kernel.checkpoints.merkle import CompactRange
from hocket.kernel.clock import pack
from hocket.kernel.ops import decode
from hocket.kernel.postcard import Malformed
from hocket.kernel.snapshots.leaf_contents import (
    PartialBundle,
    SnapshotBase,
    SnapshotHead,
    base_leaf,
    head_leaf,
    partial_leaf,
)
from hocket.kernel.snapshots.leaves import Leaf, LeafTag
from hocket.kernel.vocabulary import Payload, Subject
from hocket.log.citations import keyed
from hocket.store import OpRow, Session
from hocket.store.op_rows import BUNDLE, PRUNED

STEP = 500
# The node's key of the op of the horizon with which it has taken a snapshot.
_TAKEN = "snapshot"


def remaining_leaves(session: Session, signed: Callable[[bytes], bytes] = lambda op: op) -> Iterator[Leaf]:
    """The leaves of what remains at the horizon in force, once every subject follows it. `signed` gives entries their
    signatures, if they leave the node. Raises Malformed for an entry that cannot be read.
    """
    heads = session.heads()
    for _, end in sorted(heads.items()):
        yield head_leaf(SnapshotHead(end.hlc, end.entry, end.size, end.peaks))
    after = Subject("", b"")
    while bases := session.bases(after, STEP):
        yield from (base_leaf(SnapshotBase(*base.subject, base.last, base.state)) for base in bases)
        after = bases[-1].subject
    partials: list[PartialBundle] = []
    ends = {end.entry for end in heads.values()}
    frontier: dict[bytes, bytes] = {author: bytes(20) for author in heads}
    others = {author: last for author, last in session.frontier().items() if author not in heads}
    while rows := session.entries_since(frontier | others, STEP):
        for row in rows:
            author, head = row.hlc[12:], heads[row.hlc[12:]]
            if row.hlc > head.hlc:
                frontier[author] = b"\xff" * 20
                continue
            frontier[author] = max(frontier[author], pack(last_time(decode(row.body))))
            places, facts = gone_places(session, row)
            if len(places) < facts or row.id[:16] in ends:
                yield Leaf(LeafTag.ENTRY, signed(row.body))
                if places:
                    partials.append(PartialBundle(row.id[:16], places))
    yield from (partial_leaf(each) for each in sorted(partials, key=lambda each: each.entry))


def gone_places(session: Session, row: OpRow) -> tuple[tuple[int, ...], int]:
    """The places of the facts of an entry that have gone, and how many facts it has."""
    if row.variant != BUNDLE:
        return ((0,) if row.reason == PRUNED else ()), 1
    facts = session.facts_of(row.seq)
    return tuple(place for place, each in enumerate(facts) if each.reason == PRUNED), len(facts)


def note_taken(session: Session, moved: bytes) -> None:
    """Keeps the op of a horizon that came with a snapshot: on the log it comes after what its author wrote before."""
    session.set_own_meta(_TAKEN, moved)


def _taken_with(session: Session, op_id: bytes) -> Payload | None:
    kept = session.own_meta(_TAKEN)
    op = decode(kept) if kept else None
    return None if op is None or op.id != op_id else op.payload


def check_remains(session: Session) -> list[str]:
    """What is wrong with what remains, if anything."""
    row = session.horizon()
    if row is None or not row.is_denied:
        return []
    stored = session.op(row.op)
    payload = _taken_with(session, row.op) if stored is None else keyed(stored).payload
    if (stored is not None and stored.reason) or not isinstance(payload, MoveHorizon):
        return ["the op that moved the horizon is not on the log, or does not count"]
    tree = CompactRange()
    try:
        for leaf in remaining_leaves(session):
            tree.append(leaf.hash)
    except (Malformed, KeyError) as error:
        return [f"what remains before the horizon cannot be read: {error}"]
    if tree.root() != payload.root:
        return ["what remains before the horizon is not what its op names: entries or states are missing or others"]
    return []
