"""Cosignatures on the root of a horizon. Each horizon has a note of its own, whose origin names the op that moved it. A
node signs it when it has computed the same root from its own log, and takes signatures of other members only for a note
that it has signed itself. So the notes that it keeps are about what it knows to be right, and there is one a horizon.
"""

from collections.abc import Collection, Iterable, Mapping

from hocket.kernel.authority import Authority, Standing
from hocket.kernel.checkpoints.notes import (
    COSIGNATURES_MAX,
    Checkpoint,
    NoteSignature,
    Sign,
    SignedNote,
    author_of,
    cosignature,
    cosigned_at,
    origin_of,
    read_checkpoint,
    read_note,
)
from hocket.kernel.ids import parse_ulid, ulid_text
from hocket.kernel.postcard import Malformed
from hocket.store import Session
from hocket.store.checkpoint_rows import CheckpointRow, CheckpointState

# The notes of so many horizons are kept: of the last one, and of the one before, which a node may still be fetching.
HORIZONS_KEPT = 2

Keys = Mapping[bytes, tuple[bytes, str]]


def horizon_origin(user: str, op_id: bytes) -> str:
    """The origin of the note about the horizon that an op moved, in the mesh of this user."""
    return f"hocket/{user}/horizon/{ulid_text(op_id)}"


def horizon_of(origin: str, user: str) -> bytes | None:
    """The op that moved the horizon which an origin names; None if it is of another mesh, or of none."""
    try:
        op_id = parse_ulid(origin.removeprefix(f"hocket/{user}/horizon/"))
    except ValueError:
        return None
    return op_id if origin == horizon_origin(user, op_id) else None


def horizon_checkpoint(user: str, op_id: bytes, leaves: int, root: bytes) -> Checkpoint:
    return Checkpoint(horizon_origin(user, op_id), leaves, root)


def members_of(keys: Keys, authority: Authority, forks: Collection[int], now_ms: int) -> dict[int, bytes]:
    """The keys of the nodes whose word on a horizon counts now."""
    known = {int.from_bytes(node, "big"): public for node, (public, _) in keys.items()}
    return {
        node: public
        for node, public in known.items()
        if node not in forks and authority.standing(node, now_ms) is Standing.ACTIVE
    }


def horizon_witnesses(session: Session, op_id: bytes, user: str, members: Mapping[int, bytes]) -> frozenset[int]:
    """The members that have cosigned the root which this node has computed, itself included."""
    note = horizon_note(session, op_id)
    return witnesses_of(note, read_checkpoint(read_note(note).text), user, members) if note else frozenset()


def witnesses_of(note: bytes, checkpoint: Checkpoint, user: str, keys: Mapping[int, bytes]) -> frozenset[int]:
    """The members that have cosigned this checkpoint of a horizon, by their keys. A note about anything else has
    none.
    """
    try:
        signed = read_note(note)
    except Malformed:
        return frozenset()
    if signed.text != checkpoint.text:
        return frozenset()
    found = set[int]()
    for line in signed.signatures:
        node = author_of(line.name, user)
        key = None if node is None else keys.get(node)
        if node is not None and key is not None and cosigned_at(line, signed.text, key) is not None:
            found.add(node)
    return frozenset(found)


def cosign_horizon(
    session: Session, checkpoint: Checkpoint, node: int, user: str, sign: Sign, physical_ms: int
) -> None:
    """Adds this node's cosignature to a checkpoint that it has computed itself. Does nothing if it has one."""
    op_id = horizon_of(checkpoint.origin, user)
    own = session.nodes().get(node.to_bytes(8, "big"))
    if op_id is None or own is None:
        return
    name, row = origin_of(user, node), _row(session, op_id)
    before = None if row is None else read_note(row.note)
    if before is not None and any(each.name == name for each in before.signatures):
        return
    line = cosignature(checkpoint.text, name, own[0], sign, physical_ms // 1000)
    lines = [line] if before is None else [line, *before.signatures]
    _put(session, op_id, checkpoint, lines, physical_ms)


def take_horizon_note(session: Session, data: bytes, user: str, keys: Keys) -> None:
    """Adds the cosignatures of members to the note that this node has signed; leaves out any other note."""
    try:
        signed = read_note(data)
        checkpoint = read_checkpoint(signed.text)
    except Malformed:
        return
    op_id = horizon_of(checkpoint.origin, user)
    row = None if op_id is None else _row(session, op_id)
    if op_id is None or row is None:
        return
    kept = read_note(row.note)
    if kept.text != signed.text:
        return
    good = [each for each in signed.signatures if _is_by_member(each, signed.text, user, keys)]
    _put(session, op_id, checkpoint, [*kept.signatures, *good], row.made)


def horizon_note(session: Session, op_id: bytes) -> bytes:
    """The note about a horizon; empty if this node has not computed its root."""
    row = _row(session, op_id)
    return b"" if row is None else row.note


def is_horizon_note(data: bytes, user: str) -> bool:
    try:
        return horizon_of(read_checkpoint(read_note(data).text).origin, user) is not None
    except Malformed:
        return False


def horizon_notes(session: Session) -> list[CheckpointRow]:
    return [row for row in session.checkpoints() if row.state == CheckpointState.HORIZON]


def _row(session: Session, op_id: bytes) -> CheckpointRow | None:
    return session.checkpoint(op_id, CheckpointState.HORIZON)


def _put(session: Session, op_id: bytes, checkpoint: Checkpoint, lines: Iterable[NoteSignature], made: int) -> None:
    first: dict[str, NoteSignature] = {}
    for line in sorted(lines):
        first.setdefault(line.name, line)
    note = SignedNote(checkpoint.text, tuple(list(first.values())[:COSIGNATURES_MAX]))
    row = CheckpointRow(op_id, CheckpointState.HORIZON, 0, checkpoint.size, bytes(20), b"", note.encode(), made)
    if row != _row(session, op_id):
        session.put_checkpoint(row)
    # Ids begin with their time, so the largest are those of the last horizons.
    for old in sorted(each.author for each in horizon_notes(session))[:-HORIZONS_KEPT]:
        session.drop_checkpoint(old, CheckpointState.HORIZON)


def _is_by_member(line: NoteSignature, text: str, user: str, keys: Keys) -> bool:
    node = author_of(line.name, user)
    key = None if node is None else keys.get(node.to_bytes(8, "big"))
    return key is not None and cosigned_at(line, text, key[0]) is not None
