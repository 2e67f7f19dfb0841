"""Fetches the snapshot of a peer, and begins anew from it. Chunks that were fetched stay in a folder of the home until
all are there, so a fetch that was interrupted goes on where it ended.
"""

from pathlib import Path

from hocket.errors import Failed
from hocket.families.access import NodeAccess
from hocket.kernel.ids import digest, ulid_text
from hocket.kernel.postcard import Malformed
from hocket.kernel.snapshots.chunks import SnapshotManifest, decode_manifest, read_chunk
from hocket.log import Log
from hocket.log.snapshots.checking import judge_manifest
from hocket.log.snapshots.folder import SnapshotFolder
from hocket.log.snapshots.loading import Loaded, check_need, load_snapshot
from hocket.mesh.client import Client

# The name of the folder in that of the processes' files.
FETCHED = "snapshot.fetched"


def _needed(log: Log, manifest: SnapshotManifest) -> bytes:
    """The op of the horizon, if it counts and this log needs the snapshot. Until then no chunk is fetched."""
    horizon = judge_manifest(manifest, log.user, log.rules, log.physical()).horizon
    with log.store.read() as session:
        check_need(log, session, horizon)
    return horizon.op.id


async def take_snapshot(access: NodeAccess, client: Client, path: Path) -> Loaded:
    """Fetches the snapshot of a peer and puts it into this home. Raises Failed if it does not hold good, Conflict if
    this log does not need it, and what requests to a peer raise.
    """
    # A peer that does not give all of its chunks stands in nobody's way.
    folder, log = SnapshotFolder(path / digest(client.address.encode(), 8).hex()), access.log
    try:
        manifest = decode_manifest(await client.snapshot())
        horizon = await access.call(lambda: _needed(log, manifest))
        await access.call(lambda: folder.keep_chunks(len(manifest.chunks)))
        for number, (first, expected) in enumerate(zip(manifest.firsts(), manifest.chunks, strict=True)):
            if await access.call(lambda number=number, first=first: folder.has_chunk(number, first, manifest)):  # type: ignore[misc]
                continue
            data = await client.snapshot(f"horizon={ulid_text(horizon)}&chunk={number}")
            read_chunk(data, first, expected)
            await access.call(lambda number=number, data=data: folder.put_chunk(number, data))  # type: ignore[misc]
        await access.call(lambda: folder.put_manifest(manifest))
        return await access.call(lambda: load_snapshot(log, folder))
    except Malformed as error:
        raise Failed(f"the snapshot of {client.address} does not hold good: {error}") from None
    finally:
        # What is complete was taken, or is of no use.
        await access.call(lambda: _drop_fetched(path) if folder.is_complete() else None)


def _drop_fetched(path: Path) -> None:
    """Drops what came from any peer."""
    for each in path.iterdir():
        SnapshotFolder(each).remove()
    SnapshotFolder(path).remove()
