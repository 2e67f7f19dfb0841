"""Compares checkpoints with the log: those that are stored, and those that were kept elsewhere. This finds a tail that
was cut off together with the end mark, as soon as a checkpoint that goes beyond it is known.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from hocket.kernel.checkpoints.merkle import CompactRange
from hocket.kernel.checkpoints.notes import (
    Checkpoint,
    SignedNote,
    author_of,
    cosigned_at,
    is_signed_by,
    read_checkpoint,
    read_note,
)
from hocket.kernel.ids import node_text
from hocket.kernel.postcard import Malformed
from hocket.log.audit import AuditFinding, author_keys
from hocket.log.checkpoints.trees import roots, settled_trees
from hocket.store import Session, Store
from hocket.store.checkpoint_rows import CheckpointRow, CheckpointState

NameOf = Callable[[int], str]


class _Claim(NamedTuple):
    """A checkpoint to compare with the log, and what to call it."""

    author: bytes
    checkpoint: Checkpoint
    called: str


def check(
    store: Store,
    node: int,
    user: str,
    notes: Sequence[bytes] = (),
    *,
    is_whole: bool = True,
    name_of: NameOf = node_text,
) -> list[AuditFinding]:
    """What does not fit the log among the stored checkpoints, and among these notes. Without `is_whole`, the entries of
    other authors have gaps here, and only this node's own are compared. Raises Malformed for a note that is none.
    """
    read = [_read(each) for each in notes]
    with store.read() as session:
        return _Comparison(session, node, user, is_whole, name_of).run(read)


def _read(data: bytes) -> tuple[SignedNote, Checkpoint]:
    note = read_note(data)
    return note, read_checkpoint(note.text)


class _Comparison:
    def __init__(self, session: Session, node: int, user: str, is_whole: bool, name_of: NameOf) -> None:
        self._session, self._user, self._is_whole = session, user, is_whole
        self._own = node.to_bytes(8, "big")
        self._name_of = name_of
        self._keys: Mapping[int, bytes] = author_keys(session, user)
        self.findings: list[AuditFinding] = []

    def run(self, notes: Sequence[tuple[SignedNote, Checkpoint]]) -> list[AuditFinding]:
        authors = {row.author for row in self._session.checkpoints()}
        rows = [row for author in authors for row in self._session.checkpoints(author)]
        rows = [row for row in rows if row.state not in (CheckpointState.READ, CheckpointState.HORIZON)]
        claims = [claim for note in notes if (claim := self._given(*note)) is not None]
        claims += [claim for row in rows if row.note and (claim := self._stored(row)) is not None]
        trees = [row for row in rows if row.peaks and self._is_known(row.author)]
        settled = {author: tree.tree.size for author, tree in settled_trees(self._session).items()}
        claims = [claim for claim in claims if claim.checkpoint.size >= settled.get(claim.author, 0)]
        trees = [row for row in trees if row.size >= settled.get(row.author, 0)]
        sizes: dict[bytes, set[int]] = {}
        for claim in claims:
            sizes.setdefault(claim.author, set()).add(claim.checkpoint.size)
        for row in trees:
            sizes.setdefault(row.author, set()).add(row.size)
        if not sizes:
            return self.findings
        found = roots(self._session, sizes)
        for claim in claims:
            self._compare(claim, found[claim.author])
        for row in trees:
            with suppress(Malformed):
                if found[row.author].get(row.size) == CompactRange.read(row.size, row.peaks).root():
                    continue
            if not row.note:
                self._report(f"the stored tree of {self._called(row.author)} is not that of its entries")
        return self.findings

    def _report(self, what: str) -> None:
        self.findings.append(AuditFinding(None, None, what))

    def _is_known(self, author: bytes) -> bool:
        return self._is_whole or author == self._own

    def _called(self, author: bytes) -> str:
        return self._name_of(int.from_bytes(author, "big"))

    def _given(self, note: SignedNote, checkpoint: Checkpoint) -> _Claim | None:
        node = author_of(checkpoint.origin, self._user)
        if node is None or node not in self._keys:
            self._report(f"the checkpoint is of {checkpoint.origin}, which is no node of this mesh")
            return None
        if not is_signed_by(note, checkpoint.origin, self._keys[node]):
            self._report(f"the checkpoint is not signed by {self._name_of(node)}, whose entries it is about")
            return None
        author = node.to_bytes(8, "big")
        if not self._is_known(author):
            self._report(f"the entries of {self._name_of(node)} have gaps on this node, so they cannot be compared")
            return None
        return _Claim(author, checkpoint, f"the checkpoint of {self._name_of(node)}{self._witnesses(note)}")

    def _stored(self, row: CheckpointRow) -> _Claim | None:
        whose = self._called(row.author)
        try:
            note, checkpoint = _read(row.note)
        except Malformed:
            self._report(f"a stored checkpoint of {whose} cannot be read")
            return None
        key = self._keys.get(int.from_bytes(row.author, "big"))
        if key is None or not is_signed_by(note, checkpoint.origin, key) or checkpoint.size != row.size:
            self._report(f"a stored checkpoint of {whose} is not signed by it")
            return None
        if row.state == CheckpointState.CONFLICT:
            self._report(
                f"{whose} has shown two histories: it signed a checkpoint of {row.size} entries that are not those here"
            )
            return None
        # What another node has written, and this one does not have yet, is no fault.
        is_awaited = row.state == CheckpointState.AHEAD and row.author != self._own
        if is_awaited or not self._is_known(row.author):
            return None
        return _Claim(row.author, checkpoint, f"the checkpoint of {whose}{self._witnesses(note)}")

    def _witnesses(self, note: SignedNote) -> str:
        """Who has cosigned a note, as far as the keys are known here."""
        names: list[str] = []
        for each in note.signatures:
            node = author_of(each.name, self._user)
            key = None if node is None else self._keys.get(node)
            if node is not None and key is not None and cosigned_at(each, note.text, key) is not None:
                names.append(self._name_of(node))
        return f", which {', '.join(sorted(names))} cosigned," if names else ""

    def _compare(self, claim: _Claim, found: Mapping[int, bytes]) -> None:
        size, last = claim.checkpoint.size, max(found)
        if size > last:
            self._report(f"the tail is cut: {claim.called} has {size} entries, the log {last}")
        elif found.get(size) != claim.checkpoint.root:
            self._report(f"{claim.called} has {size} entries that are not the first on this log")
