"""Writes the snapshot of the horizon in force from a log that follows it: what is settled and has not gone."""

from collections.abc import Iterator
from pathlib import Path

from hocket.errors import Conflict
from hocket.families.retention.facts import MoveHorizon, SetRetention
from hocket.kernel.clock import pack
from hocket.kernel.ids import ulid_text
from hocket.kernel.ops import Op, decode
from hocket.kernel.snapshots.chunks import FORMAT, SnapshotManifest
from hocket.kernel.vocabulary import number_of
from hocket.log import Log
from hocket.log.checkpoints.horizon_notes import horizon_note
from hocket.log.copies import export_later
from hocket.log.retention.proof import remaining_leaves
from hocket.log.snapshots.checking import LAW
from hocket.log.snapshots.folder import SnapshotFolder, write_folder
from hocket.store import Session

_LAW = tuple(number_of(each) for each in LAW)


def write_snapshot(log: Log, path: Path, *, with_later: bool = False) -> SnapshotManifest:
    """Writes the snapshot into a folder, `with_later` also the ops after the horizon, and gives its manifest. Raises
    Conflict while the log has none to write.
    """
    with log.store.read() as session:
        manifest = manifest_of(log, session)
        horizon = decode(manifest.horizon).payload
        assert isinstance(horizon, MoveHorizon)
        manifest = write_folder(path, manifest, horizon.root, remaining_leaves(session, log.signed))
        if with_later:
            SnapshotFolder(path).put_later(lambda out: export_later(log, session, out))
        return manifest


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
