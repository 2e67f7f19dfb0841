"""Snapshots of what remains up to the horizon, in a folder: written, proved and taken by a command."""

import time
from pathlib import Path

from hocket.api import Service, ServiceAnswer
from hocket.kernel.ids import node_text, ulid_text
from hocket.kernel.mesh_rules import HOCKET
from hocket.log.copies import import_ops
from hocket.log.snapshots.checking import SnapshotAudit, check_snapshot
from hocket.log.snapshots.folder import SnapshotFolder
from hocket.log.snapshots.loading import load_snapshot as put_snapshot
from hocket.log.snapshots.writing import write_snapshot as write_folder


class SnapshotShown(ServiceAnswer, frozen=True):
    """What a snapshot has: the authors whose settled ops it stands for, the states in place of ops that have gone, and
    the entries that were kept. `witnesses` are the nodes that have cosigned it beside `moved_by`.
    """

    mesh: str
    horizon: str
    horizon_ms: int
    moved_by: str
    authors: int
    states: int
    entries: int
    ops: int
    witnesses: list[str]


class SnapshotLoaded(ServiceAnswer, frozen=True):
    """What came in with a snapshot, and how many settled ops of this log went. `rewritten` counts late ops of this node
    that were written again, `dropped` those of them that would not count any more. `later` are ops after the horizon
    that came with it, and `rejected` those of them that were not taken.
    """

    horizon_ms: int
    added: int
    deleted: int
    rewritten: int
    dropped: int
    later: int
    rejected: int


def _snapshot_shown(mesh: str, audit: SnapshotAudit) -> SnapshotShown:
    op, at_ms = audit.horizon.op, audit.horizon.payload.at_ms
    counts = audit.heads, audit.bases, audit.entries, audit.ops
    witnesses = [node_text(each) for each in audit.witnesses]
    return SnapshotShown(mesh, ulid_text(op.id), at_ms, node_text(op.node_id), *counts, witnesses)


def write_snapshot(service: Service, path: str | Path) -> SnapshotShown:
    """Writes what remains into a new folder, from which another node can begin: up to the horizon under its root, and
    what has come since.
    """
    write_folder(service.runtime.log, Path(path), with_later=True)
    return verify_snapshot(service, path)


def verify_snapshot(service: Service, path: str | Path) -> SnapshotShown:
    """Proves a snapshot of this node's mesh, or of any mesh without a node."""
    return prove_snapshot(service, Path(path))


def prove_snapshot(service: Service | None, path: Path) -> SnapshotShown:
    """Proves a snapshot from its own bytes. With a node, it must be of its mesh. Raises Failed if it does not hold
    good.
    """
    folder, now_ms = SnapshotFolder(path), round(time.time() * 1000)
    if service is None:
        mesh = folder.mesh()
        return _snapshot_shown(mesh, check_snapshot(folder, mesh, HOCKET, now_ms))
    log = service.runtime.log
    return _snapshot_shown(log.user, check_snapshot(folder, log.user, log.rules, now_ms, log.helpers))


def load_snapshot(service: Service, path: str | Path) -> SnapshotLoaded:
    """Begins this log anew from a snapshot: what is settled is then what the snapshot has."""
    service.check_writer()
    folder = SnapshotFolder(Path(path))
    done = put_snapshot(service.runtime.log, folder)
    later = rejected = 0
    if (file := folder.later()) is not None:
        with file.open("rb") as source:
            admitted = import_ops(service.runtime.log, source)
        later, rejected = admitted.appended, admitted.rejected + admitted.unread
    counts = done.added, done.deleted, done.rewritten, done.dropped
    return SnapshotLoaded(done.audit.horizon.payload.at_ms, *counts, later, rejected)
