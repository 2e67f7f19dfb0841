"""Gives snapshots to peers. A server that has deleted ops which a caller lacks does not answer with what is left of
them, but with 410; the caller then fetches the snapshot, checks it, and goes on from there. Only a node that may read
everything gets one. Each horizon's snapshot is written once, into the folder of the files that the processes of a home
share.
"""

import threading
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl

from msgspec.structs import replace

from hocket.errors import Conflict
from hocket.kernel.ids import parse_ulid, ulid_text
from hocket.kernel.postcard import Malformed
from hocket.kernel.snapshots.chunks import encode_manifest
from hocket.log import Log
from hocket.log.checkpoints.horizon_notes import horizon_note
from hocket.log.snapshots.folder import SnapshotFolder
from hocket.log.snapshots.writing import write_snapshot
from hocket.mesh import wire
from hocket.mesh.wire import Reply

# The name of their folder in that of the processes' files.
SERVED = "snapshots"
# A node may still fetch the snapshot of the horizon before.
KEPT = 2
RETRY_S = 10


class AskedChunk(NamedTuple):
    horizon: bytes
    number: int


def read_snapshot_query(query: str) -> AskedChunk | None:
    """What is asked for: a chunk, or with an empty query the manifest. Raises Malformed."""
    if not query:
        return None
    try:
        values = dict(parse_qsl(query, strict_parsing=True, max_num_fields=2))
        number = values["chunk"]
        if not (number.isascii() and number.isdigit() and len(number) < 9):
            raise ValueError
        return AskedChunk(parse_ulid(values["horizon"]), int(number))
    except (KeyError, ValueError):
        raise Malformed("an unreadable query for a snapshot") from None


class ServedSnapshots:
    """The snapshots of the last horizons, in folders that are named by the horizons' ops. Any thread may use it."""

    def __init__(self, log: Log, path: Path) -> None:
        self._log, self._path = log, path
        self._lock = threading.Lock()

    def answer(self, asked: AskedChunk | None) -> Reply:
        """404 if there is no such snapshot, 503 if it cannot be written yet."""
        try:
            body = self._manifest() if asked is None else self._chunk(asked)
        except Conflict:
            return Reply(503, {"retry-after": str(RETRY_S)})
        except Malformed:
            body = None
        return Reply(404) if body is None else Reply(200, {"content-type": wire.OCTETS}, body)

    def _manifest(self) -> bytes | None:
        with self._log.store.read() as session:
            horizon = session.horizon()
            note = b"" if horizon is None else horizon_note(session, horizon.op)
        if horizon is None:
            return None
        folder = self._folder(horizon.op)
        with self._lock:
            if not folder.is_complete():
                write_snapshot(self._log, folder.path)
                self._drop_old()
        # Others may have cosigned it since it was written.
        return encode_manifest(replace(folder.manifest(), note=note))

    def _chunk(self, asked: AskedChunk) -> bytes | None:
        folder = self._folder(asked.horizon)
        return folder.chunk(asked.number) if folder.is_complete() else None

    def _folder(self, horizon: bytes) -> SnapshotFolder:
        return SnapshotFolder(self._path / ulid_text(horizon))

    def _drop_old(self) -> None:
        """Ids begin with their time."""
        for old in sorted(each for each in self._path.iterdir() if each.is_dir())[:-KEPT]:
            SnapshotFolder(old).remove()
