"""Writes the snapshot of the horizon in force from a log that follows it: what is settled and has not gone."""

from collections.abc import Iterator
from pathlib import Path

from hocket.errors import Conflict
from hocket.families.retention.facts import MoveHorizon, SetRetention
from hocket.kernel.arbitration import Reason
from hocket.kernel.clock import pack
from hocket.kernel.ids import ulid_text
from hocket.kernel.ops import Op, decode
from hocket.kernel.snapshots.chunks import FORMAT, SnapshotManifest
from hocket.kernel.snapshots.leaf_contents import (
    PartialBundle,
    SnapshotBase,
    SnapshotHead,
    base_leaf,
    head_leaf,
    partial_leaf,
)
from hocket.kernel.snapshots.leaves import Leaf, LeafTag
from hocket.kernel.vocabulary import Bundle, Subject, number_of
from hocket.log import Log
from hocket.log.checkpoints.horizon_notes import horizon_note
from hocket.log.snapshots.checking import LAW
from hocket.log.snapshots.folder import write_folder
from hocket.store import OpRow, Session

STEP = 500
_BUNDLE = number_of(Bundle)
_LAW = tuple(number_of(each) for each in LAW)
_PRUNED = int(Reason.PRUNED)


def write_snapshot(log: Log, path: Path) -> SnapshotManifest:
    """Writes the snapshot into a folder, and gives its manifest. Raises Conflict while the log has none to write."""
    with log.store.read() as session:
        manifest = manifest_of(log, session)
        horizon = decode(manifest.horizon).payload
        assert isinstance(horizon, MoveHorizon)
        return write_folder(path, manifest, horizon.root, remaining(log, session))


def manifest_of(log: Log, session: Session) -> SnapshotManifest:
    """The manifest of the horizon in force, without chunks. Raises Conflict if there is no horizon, or not yet."""
    horizon = session.horizon()
    if horizon is None:
        raise Conflict("this log has no horizon, so no snapshot of it is needed; `hocket log export` writes all of it")
    row = session.op(horizon.op)
    if row is None or row.reason != 0 or not horizon.is_denied:
        raise Conflict(f"this log does not follow the horizon {ulid_text(horizon.op)} yet; try again in a minute")
    op = decode(row.body)
    law = tuple(log.signed(each) for each in _law(session, op))
    return SnapshotManifest(FORMAT, log.user, log.signed(row.body), law, horizon_note(session, op.id), ())


def _law(session: Session, moved: Op) -> Iterator[bytes]:
    """The rules that the horizon's op depends on, and what says who may do what up to that op."""
    until = pack(moved.timestamp)
    for row in session.ops_by_id(list(moved.cited)):
        if row.variant == number_of(SetRetention):
            yield row.body
    for row in session.ops_of_variants(_LAW):
        if row.hlc < until:
            yield row.body


def remaining(log: Log, session: Session) -> Iterator[Leaf]:
    """The leaves of the horizon in force, in their order."""
    heads = {author: row.hlc for author, row in session.heads().items()}
    for _, head in sorted(session.heads().items()):
        yield head_leaf(SnapshotHead(head.hlc, head.entry, head.size, head.peaks))
    after = Subject("", b"")
    while bases := session.bases(after, STEP):
        for base in bases:
            yield base_leaf(SnapshotBase(*base.subject, base.last, base.state))
        after = bases[-1].subject
    partials: list[PartialBundle] = []
    for row in _settled(session, heads):
        gone = _gone(session, row)
        if gone is None:
            continue
        if gone:
            partials.append(PartialBundle(row.id, gone))
        yield Leaf(LeafTag.ENTRY, log.signed(row.body))
    for partial in sorted(partials, key=lambda each: each.entry):
        yield partial_leaf(partial)


def _settled(session: Session, heads: dict[bytes, bytes]) -> Iterator[OpRow]:
    """The entries up to the heads, in the order of their times."""
    at: dict[bytes, bytes] = {}
    ends = session.frontier()
    while True:
        known = {author: at.get(author, bytes(20)) for author in ends}
        done = {author: end for author, end in ends.items() if known[author] >= heads.get(author, b"")}
        rows = session.entries_since(known | done, STEP)
        for row in rows:
            at[row.hlc[12:]] = row.hlc
            if row.hlc <= heads.get(row.hlc[12:], b""):
                yield row
        if len(rows) < STEP:
            return


def _gone(session: Session, row: OpRow) -> tuple[int, ...] | None:
    """The facts of a bundle that have gone, by their places; None if the whole entry has."""
    if row.variant != _BUNDLE:
        return None if row.reason == _PRUNED else ()
    facts = session.facts_of(row.seq)
    gone = tuple(each.place for each in facts if each.reason == _PRUNED and each.place is not None)
    return None if len(gone) == len(facts) else gone
