"""What a horizon is on this node's log: the heads of authors, what remains, and the root of the tree over it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from hocket.families.retention.facts import AuthorHead
from hocket.families.retention.rules import RetentionRule
from hocket.kernel.arbitration import UNAUTHORISED, Reason
from hocket.kernel.bundles import last_time, read_facts
from hocket.kernel.checkpoints.merkle import CompactRange, leaf_hash
from hocket.kernel.clock import Hlc, pack, unpack
from hocket.kernel.mesh_rules import Rules
from hocket.kernel.ops import Op, decode
from hocket.kernel.signing import signed_form
from hocket.kernel.snapshots.leaf_contents import (
    PartialBundle,
    SnapshotBase,
    SnapshotHead,
    base_leaf,
    head_leaf,
    partial_leaf,
)
from hocket.kernel.snapshots.leaves import LeafTag
from hocket.log.citations import keyed
from hocket.log.retention.remaining import Remains, remains
from hocket.log.retention.scratch import settled_fold
from hocket.store import OpRow, Session
from hocket.store.horizon_rows import HeadRow
from hocket.store.op_rows import BUNDLE, PRUNED

STEP = 2_000
# Why an op will never count, whatever comes.
NEVER_COUNTS = frozenset((PRUNED, Reason.FORKED, Reason.INTEGRITY, *UNAUTHORISED))


class Settlement(NamedTuple):
    """What remains at a horizon: the root of so many leaves, and the heads with the trees of their authors. `entries`
    and `bytes` are those that can be deleted; `gone_ops` counts the ops that go now.
    """

    root: bytes
    leaves: int
    heads: list[HeadRow]
    remains: Remains
    entries: int
    bytes: int
    gone_ops: int


def heads_at(session: Session, at_ms: int, forks: Mapping[int, Hlc]) -> tuple[int, list[AuthorHead]]:
    """The last entries of authors up to a time, and the time: a millisecond earlier for each bundle that would be cut.
    An author with two histories has a head before they part.
    """
    end = at_ms
    while True:
        found = [_head(session, author, end, forks.get(int.from_bytes(author, "big"))) for author in session.frontier()]
        cut = [begin for _, begin in found if begin is not None]
        if not cut:
            return end, sorted((head for head, _ in found if head is not None), key=lambda each: each.node)
        end = min(cut) - 1


def _head(session: Session, author: bytes, at_ms: int, since: Hlc | None) -> tuple[AuthorHead | None, int | None]:
    """The author's head, or when the bundle begins that this time would cut."""
    until = pack(Hlc(at_ms + 1, 0, 0)) if since is None else min(pack(since), pack(Hlc(at_ms + 1, 0, 0)))
    row = session.last_entry_before(author, until)
    if row is None:
        return None, None
    last = _last(row)
    if last.wall > at_ms:
        return None, unpack(row.hlc).wall
    return AuthorHead(last.node, last.wall, last.logical, row.id[:16]), None


def _last(row: OpRow) -> Hlc:
    if row.variant != BUNDLE:
        return unpack(row.hlc)
    return last_time(decode(row.body))


def settle(
    session: Session,
    heads: Sequence[AuthorHead],
    at_ms: int,
    rules: Iterable[RetentionRule],
    user: str,
    mesh: Rules,
    kept: Sequence[tuple[str, bytes]] = (),
    later: Iterable[Op] = (),
) -> Settlement:
    """Folds the settled part of this log by itself, and tells what of it remains."""
    until = {each.node.to_bytes(8, "big"): each for each in heads}
    times = {author: pack(each.at) for author, each in until.items()}
    with settled_fold(session, times, user, mesh, at_ms) as scratch, scratch.read() as settled:
        decided = remains(settled, rules, at_ms, kept, later)
        entries = _Entries(settled, decided.gone, until, session.heads())
        tree = CompactRange()
        # The trees of authors are complete when all entries were read.
        kept_leaves, partials = list(entries.kept()), entries.partials
        rows = entries.head_rows()
        for head in rows:
            tree.append(head_leaf(SnapshotHead(head.hlc, head.entry, head.size, head.peaks)).hash)
        for base in decided.bases:
            tree.append(base_leaf(SnapshotBase(*base.subject, base.last, base.state)).hash)
        for leaf in kept_leaves:
            tree.append(leaf)
        for partial in sorted(partials, key=lambda each: each.entry):
            tree.append(partial_leaf(partial).hash)
        going = len(decided.gone) - entries.gone_before
    return Settlement(tree.root(), tree.size, rows, decided, entries.dead, entries.dead_bytes, going)


def is_dead(facts: int, gone: int, is_head: bool) -> bool:
    """Whether an entry can be deleted: every fact has gone, and no author's tree ends with it."""
    return facts == gone and not is_head


def entry_leaf(row: OpRow, author: int) -> bytes:
    """The hash of the leaf of an entry."""
    return leaf_hash(bytes((LeafTag.ENTRY,)) + row.id[:16] + signed_form(row.body, author))


class _Entries:
    """Reads the settled entries in the order of their times."""

    def __init__(
        self,
        session: Session,
        gone: set[bytes],
        heads: Mapping[bytes, AuthorHead],
        before: Mapping[bytes, HeadRow],
    ) -> None:
        self._session, self._gone, self._heads, self._before = session, gone, heads, before
        self._trees = {author: CompactRange.read(row.size, row.peaks) for author, row in before.items()}
        self.partials: list[PartialBundle] = []
        self.dead = self.dead_bytes = self.gone_before = 0

    def kept(self) -> Iterator[bytes]:
        """The hashes of the leaves of those that remain."""
        after: dict[bytes, bytes] = {}
        while rows := self._session.entries_since(after, STEP):
            for row in rows:
                if (leaf := self._take(row)) is not None:
                    yield leaf
            # A bundle ends later than it begins.
            after |= {row.hlc[12:]: pack(_last(row)) for row in rows}

    def _take(self, row: OpRow) -> bytes | None:
        author = row.hlc[12:]
        head = self._heads[author]
        before = self._before.get(author)
        if before is None or row.hlc > before.hlc:
            tree = self._trees.setdefault(author, CompactRange())
            tree.append(leaf_hash(signed_form(row.body, head.node)))
        ids = [row.id] if row.variant != BUNDLE else [each.op.id for each in read_facts(row.body)]
        places = tuple(place for place, op_id in enumerate(ids) if op_id in self._gone)
        if is_dead(len(ids), len(places), row.id[:16] == head.entry):
            self.dead += 1
            self.dead_bytes += len(row.body)
            return None
        if places:
            self.partials.append(PartialBundle(row.id[:16], places))
        return entry_leaf(row, head.node)

    def head_rows(self) -> list[HeadRow]:
        """The heads, once all entries were read."""
        rows = []
        for author, head in sorted(self._heads.items()):
            tree = self._trees.get(author, CompactRange())
            rows.append(HeadRow(author, pack(head.at), head.entry, tree.size, tree.encode()))
        return rows


def later_ops(session: Session, heads: Mapping[bytes, bytes]) -> Iterator[Op]:
    """Every op beyond these packed times of authors by which something stays: none that its author may not write, or
    any member could keep anything.
    """
    seq = 0
    while rows := session.ops_after(seq, STEP):
        later = [row for row in rows if row.hlc > heads.get(row.hlc[12:], b"") and row.reason not in NEVER_COUNTS]
        yield from (keyed(row) for row in later)
        seq = rows[-1].seq
