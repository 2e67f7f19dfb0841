"""The Merkle trees over the entries of each author, in the author's order. A leaf is an entry in the form that its
author signs: without the signature, which adds nothing to a signed root and would have to be made for every entry.

The trees are not kept by the transactions that write the log. They are read from it afterwards, from where the last
reading ended. The link of the last entry that was read is kept with them: if it is no longer on the log, because ops
were taken off or the log was moved, the trees are read again from the beginning.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from hocket.kernel.checkpoints.merkle import CompactRange, leaf_hash
from hocket.kernel.ids import content_hash
from hocket.kernel.postcard import Malformed
from hocket.kernel.signing import signed_form
from hocket.store import OpRow, Session
from hocket.store.checkpoint_rows import CheckpointRow, CheckpointState

# A tree is stored for good when it has grown by so many entries, so that an earlier root can be computed from there.
ANCHOR_ENTRIES = 65_536
# So many entries are read at a time to compute an earlier root.
LOOK_BACK_STEP = 1_000


class AuthorTree:
    """The tree over the first entries of an author, and the time of the last one."""

    __slots__ = ("hlc", "tree")

    def __init__(self, tree: CompactRange | None = None, hlc: bytes = bytes(20)) -> None:
        self.tree, self.hlc = tree or CompactRange(), hlc

    @classmethod
    def of(cls, row: CheckpointRow) -> "AuthorTree":
        return cls(CompactRange.read(row.size, row.peaks), row.hlc)

    def take(self, row: OpRow) -> None:
        """Appends the author's next entry. Raises Malformed for one that was changed for this node."""
        self.tree.append(leaf_hash(signed_form(row.body, int.from_bytes(row.hlc[12:], "big"))))
        self.hlc = row.hlc

    def copy(self) -> "AuthorTree":
        return AuthorTree(self.tree.copy(), self.hlc)

    def row(self, author: bytes, state: CheckpointState, place: int = 0) -> CheckpointRow:
        return CheckpointRow(author, state, place, self.tree.size, self.hlc, self.tree.encode())


class ReachedTree(NamedTuple):
    """What the tree of an author was at a size at which it is compared with a checkpoint."""

    author: bytes
    at: AuthorTree


class AuthorTrees:
    """All trees, as far as the log was read. `awaited` are the sizes at which a checkpoint of an author waits."""

    def __init__(self) -> None:
        self.by_author: dict[bytes, AuthorTree] = {}
        self.awaited: dict[bytes, set[int]] = {}
        self.seq = 0
        self.link = b""
        self.unsaved = 0
        self.reached: list[ReachedTree] = []
        # The times of the last settled entries of authors, with which trees begin on a pruned log.
        self._settled: dict[bytes, bytes] = {}
        self._changed: set[bytes] = set()
        self._anchors: list[CheckpointRow] = []

    @classmethod
    def load(cls, session: Session, rows: Iterable[CheckpointRow]) -> "AuthorTrees":
        """The trees as they are stored; none if they are of another log, or cannot be read."""
        trees, content = cls(), b""
        for row in rows:
            if row.state == CheckpointState.READ:
                trees.seq, trees.link, content = row.size, row.note, row.peaks
            elif row.state == CheckpointState.TREE:
                try:
                    trees.by_author[row.author] = AuthorTree.of(row)
                except Malformed:
                    return cls._begun(session)
        is_whole = trees.seq == 0 or trees._content() == content
        return trees if is_whole and trees.seq and trees.is_of(session) else cls._begun(session)

    @classmethod
    def _begun(cls, session: Session) -> "AuthorTrees":
        """Trees before any entry was read: on a pruned log those of the settled entries."""
        trees = cls()
        for author, head in settled_trees(session).items():
            trees.by_author[author], trees._settled[author] = head, head.hlc
            trees._changed.add(author)
        return trees

    def _content(self) -> bytes:
        """A hash of all trees. In a store that nodes share, another program can put back the old row of one of them."""
        rows = (author + each.hlc + each.tree.encode() for author, each in sorted(self.by_author.items()))
        return content_hash(b"".join(rows))

    def is_of(self, session: Session) -> bool:
        """Whether the last entry that was read is still on the log."""
        if self.seq == 0:
            return True
        last = session.entry(self.seq)
        return last is not None and last.chain == self.link

    def take(self, rows: Sequence[OpRow], only: bytes | None) -> None:
        """Reads the next entries of the log; those of one author alone if there are gaps in the others."""
        for row in rows:
            author = row.hlc[12:]
            if only is None or author == only:
                self._take(author, row)
            self.seq, self.link = row.seq, row.chain
        self.unsaved += len(rows)

    def _take(self, author: bytes, row: OpRow) -> None:
        if row.hlc <= self._settled.get(author, b""):
            return
        tree = self.by_author.get(author)
        if tree is None:
            tree = self.by_author[author] = AuthorTree()
        try:
            tree.take(row)
        except Malformed:
            return
        self._changed.add(author)
        if tree.tree.size % ANCHOR_ENTRIES == 0:
            self._anchors.append(tree.row(author, CheckpointState.ANCHOR, tree.tree.size))
        if tree.tree.size in self.awaited.get(author, ()):
            self.reached.append(ReachedTree(author, tree.copy()))

    def save(self, session: Session, own: bytes, number: int) -> CheckpointRow:
        """Stores how far the trees go, and returns the row that says so. Each save has another number."""
        for author in self._changed:
            session.put_checkpoint(self.by_author[author].row(author, CheckpointState.TREE))
        for row in self._anchors:
            session.put_checkpoint(row)
        read = CheckpointRow(own, CheckpointState.READ, 0, self.seq, b"", self._content(), self.link, number)
        session.put_checkpoint(read)
        return read

    def saved(self) -> None:
        """What was saved is durable."""
        self._changed.clear()
        self._anchors.clear()
        self.unsaved = 0


def settled_trees(session: Session) -> dict[bytes, AuthorTree]:
    """The trees of authors up to the horizon, if there is one. Entries before it may be gone."""
    if session.horizon() is None:
        return {}
    return {
        author: AuthorTree(CompactRange.read(row.size, row.peaks), row.hlc) for author, row in session.heads().items()
    }


def earlier(
    session: Session, author: bytes, size: int, rows: Iterable[CheckpointRow], entries_max: int
) -> AuthorTree | None:
    """The tree of an author when it had this size, from the nearest one that is stored. None if that takes more
    entries, or they are not here.
    """
    stored = (CheckpointState.ANCHOR, CheckpointState.SIGNED, CheckpointState.TREE)
    found = settled_trees(session).get(author, AuthorTree())
    if size < found.tree.size:
        return None
    starts = [row for row in rows if row.state in stored and found.tree.size <= row.size <= size and row.peaks]
    if starts:
        try:
            found = AuthorTree.of(max(starts, key=lambda row: row.size))
        except Malformed:
            return None
    if size - found.tree.size > entries_max:
        return None
    while (left := size - found.tree.size) > 0:
        entries = session.entries_of_author(author, found.hlc, min(left, LOOK_BACK_STEP))
        if not entries:
            return None
        try:
            for row in entries:
                found.take(row)
        except Malformed:
            return None
    return found


def _settled_at(settled: Mapping[bytes, AuthorTree], row: OpRow) -> bytes:
    tree = settled.get(row.hlc[12:])
    return b"" if tree is None else tree.hlc


def roots(session: Session, sizes: Mapping[bytes, Iterable[int]]) -> dict[bytes, dict[int, bytes]]:
    """The roots of the trees of these authors at these sizes, read from the log alone; and at the size of each tree
    itself, which is the greatest. On a pruned log no root from before the horizon can be told.
    """
    settled = settled_trees(session)
    trees = {author: settled[author].copy() if author in settled else AuthorTree() for author in sizes}
    wanted = {author: set(each) for author, each in sizes.items()}
    found: dict[bytes, dict[int, bytes]] = {author: {0: CompactRange().root()} for author in sizes}
    for author, begun in trees.items():
        found[author][begun.tree.size] = begun.tree.root()
    seq = 0
    while rows := session.stored_entries(seq, LOOK_BACK_STEP):
        for row in rows:
            tree = trees.get(row.hlc[12:])
            if tree is not None and (not settled or row.hlc > _settled_at(settled, row)):
                try:
                    tree.take(row)
                except Malformed:
                    continue
                if tree.tree.size in wanted[row.hlc[12:]]:
                    found[row.hlc[12:]][tree.tree.size] = tree.tree.root()
        seq = rows[-1].seq
    for author, ended in trees.items():
        found[author][ended.tree.size] = ended.tree.root()
    return found
