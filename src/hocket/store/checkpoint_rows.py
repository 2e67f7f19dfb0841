"""The Merkle trees over the entries of each author, as far as this node has computed them, and what authors have signed
of their trees.
"""

from enum import StrEnum
from typing import NamedTuple

from hocket.store.statements import Statements

_DROP_TREES = "DELETE FROM checkpoints WHERE of_node = ? AND (state IN ('tree', 'anchor', 'read') OR author = ?)"


class CheckpointState(StrEnum):
    """A row is how far an author's TREE goes; an ANCHOR, which is what the tree was every so many entries; the last
    checkpoint that was SIGNED by the author and has the root of this node's own tree; one that goes AHEAD of the
    entries here; one that is in CONFLICT with what is here. READ is one row: the number of the last entry in the trees.
    The note about a HORIZON has the op that moved it in the place of an author.
    """

    TREE = "tree"
    ANCHOR = "anchor"
    SIGNED = "signed"
    AHEAD = "ahead"
    CONFLICT = "conflict"
    READ = "read"
    HORIZON = "horizon"


class CheckpointRow(NamedTuple):
    """`size` is the number of entries, `hlc` the time of the last one. An anchor's `place` is its size; of the other
    rows an author has one, or several with numbers.
    """

    author: bytes
    state: str
    place: int
    size: int
    hlc: bytes = b""
    peaks: bytes = b""
    note: bytes = b""
    made: int = 0


class CheckpointSession(Statements):
    def checkpoints(self, author: bytes | None = None) -> list[CheckpointRow]:
        """The rows about one author, or about all; those of all without the anchors."""
        if author is None:
            rows = self._own("checkpoints", "AND state <> 'anchor' ORDER BY author, state, place")
        else:
            rows = self._own("checkpoints", "AND author = ? ORDER BY author, state, place", author)
        return [CheckpointRow(*row[:-1]) for row in rows]

    def checkpoint(self, author: bytes, state: str) -> CheckpointRow | None:
        rows = self._own("checkpoints", "AND author = ? AND state = ? ORDER BY place LIMIT 1", author, state)
        return next((CheckpointRow(*row[:-1]) for row in rows), None)

    def put_checkpoint(self, row: CheckpointRow) -> None:
        self._put_own("checkpoints", row)

    def drop_checkpoint(self, author: bytes, state: str) -> None:
        self._put(
            "DELETE FROM checkpoints WHERE of_node = ? AND author = ? AND state = ?", (self._macs.node, author, state)
        )

    def drop_trees(self, author: bytes) -> None:
        """Drops all trees, and what this author, the node itself, has signed of them: ops were taken off the log. The
        row that is left tells every process that those in its memory are of the log before.
        """
        read = self.checkpoint(author, CheckpointState.READ)
        self._put(_DROP_TREES, (self._macs.node, author))
        number = 1 if read is None else read.made + 1
        self.put_checkpoint(CheckpointRow(author, CheckpointState.READ, 0, 0, b"", b"", b"", number))
