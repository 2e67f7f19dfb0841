"""Proves that an entry is among those that its author has signed in a checkpoint: the RFC 6962 proof, in the text form
tlog-proof of C2SP, which public tools check with the author's key and without a node.
"""

from base64 import b64encode
from typing import NamedTuple

from hocket.errors import Conflict
from hocket.kernel.checkpoints.merkle import InclusionProver, leaf_hash
from hocket.kernel.checkpoints.notes import read_checkpoint, read_note
from hocket.kernel.clock import unpack
from hocket.kernel.ids import node_text, ulid_text
from hocket.kernel.postcard import Malformed
from hocket.kernel.signing import signed_form
from hocket.log.checkpoints.trees import LOOK_BACK_STEP, AuthorTree
from hocket.store import OpRow, Session
from hocket.store.checkpoint_rows import CheckpointState

_FORM = "c2sp.org/tlog-proof@v1"
_STARTS = (CheckpointState.ANCHOR, CheckpointState.SIGNED)


class InclusionProof(NamedTuple):
    """`entry` is the id of the op, or of the bundle that it came in, and `number` its index among the `size` entries.
    `text` is the proof, whose extra data are the bytes of the entry that are hashed: what its author has signed.
    """

    entry: bytes
    number: int
    size: int
    text: str


def proof_of(session: Session, op: OpRow) -> InclusionProof:
    """The proof for an op in the newest checkpoint of its author that this node has compared. Raises Conflict if none
    covers it, or the entries before it are not here.
    """
    author, name = op.hlc[12:], ulid_text(op.id[:16])
    signed = session.checkpoint(author, CheckpointState.SIGNED)
    entry = op if op.place is None else session.entry(op.seq)
    assert entry is not None
    if signed is None or signed.hlc < entry.hlc:
        raise Conflict(
            f"no checkpoint of node {node_text(unpack(op.hlc).node)} that is here covers op {name} yet; make one there"
            " with `hocket log checkpoint`"
        )
    starts = [row for row in session.checkpoints(author) if row.state in _STARTS and row.hlc < entry.hlc]
    try:
        start = AuthorTree.of(max(starts, key=lambda row: row.size)) if starts else AuthorTree()
        prover, at, found = InclusionProver(start.tree), start.hlc, b""
        while prover.size < signed.size:
            rows = session.entries_of_author(author, at, min(LOOK_BACK_STEP, signed.size - prover.size))
            if not rows:
                raise Conflict(f"entries of the author of op {name} are not here; prove it on a node that has them")
            for row in rows:
                form = signed_form(row.body, unpack(row.hlc).node)
                is_it = row.id == entry.id
                found = form if is_it else found
                prover.append(leaf_hash(form), is_it)
            at = rows[-1].hlc
        index, hashes = prover.proof()
    except Malformed as error:
        raise Conflict(f"op {name} cannot be proved here: {error}") from None
    if prover.root() != read_checkpoint(read_note(signed.note).text).root:
        raise Conflict(f"the entries of the author of op {name} are not those of its checkpoint; `hocket log verify`")
    lines = [_FORM, f"extra {b64encode(found).decode()}", f"index {index}"]
    lines += [b64encode(each).decode() for each in hashes]
    return InclusionProof(entry.id, index, signed.size, "\n".join(lines) + "\n\n" + signed.note.decode())
