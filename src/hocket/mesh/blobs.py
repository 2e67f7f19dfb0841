"""Blobs across the mesh. Artifact content that is too large for its op stays on the node that made it until another
node asks for it. A node gives it, part by part, to any node that may read the artifact unsanitised. The other node
joins the parts and keeps them only if they match the op.
"""

import asyncio
from collections.abc import Sequence
from urllib.parse import parse_qsl

from hocket.errors import Unreachable
from hocket.kernel.ids import content_hash, hash_text
from hocket.kernel.ops import Op
from hocket.log import Log
from hocket.mesh import wire
from hocket.mesh.client import Client, Refused
from hocket.mesh.outgoing import JobKinds, PeerReader, Undecided, kind_of
from hocket.mesh.wire import Reply
from hocket.work import artifacts
from hocket.work.blobs import BLOB_BYTES_MAX, Blobs

BLOB_PART_BYTES = 4 * 1024 * 1024
# How long a peer may take for one part.
PART_S = 30.0


def answer_blob(log: Log, blobs: Blobs, to: PeerReader, query: str) -> Reply:
    """Part of a blob. A caller that may not have the blob gets the same answer as if it were not here."""
    asked = _asked_part(query)
    if asked is None:
        return Reply(400)
    hash, start = asked

    if not to.reads_everything:
        # The kind of a job decides who may read its artifacts, so the roster must be up to date.
        log.settle()
    with log.store.read() as session:

        def may_read(op: Op) -> bool:
            try:
                kind = kind_of(session, to, op.payload, JobKinds())
            except Undecided:
                return False
            return to.authority.reading(to.node, op.payload, op.timestamp.wall, kind, to.now_ms) == ()

        readable = artifacts.is_readable(session, hash, may_read)
    part = blobs.part(hash, start, BLOB_PART_BYTES) if readable else None
    return Reply(404) if part is None else Reply(200, {"content-type": wire.OCTETS}, part)


def _asked_part(query: str) -> tuple[bytes, int] | None:
    try:
        values = dict(parse_qsl(query, max_num_fields=4))
        start = values.get("from", "0")
        hash = bytes.fromhex(values.get("hash", ""))
    except ValueError:
        return None
    if len(hash) != 32 or not (start.isascii() and start.isdigit() and len(start) < 16):
        return None
    return hash, int(start)


async def fetch_blob(clients: Sequence[Client], hash: bytes, size: int) -> bytes:
    """Fetches a whole blob from the first client that has it. Raises Unreachable if none does."""
    for client in clients:
        try:
            parts = await _blob_parts(client, hash, min(size, BLOB_BYTES_MAX))
        except (Unreachable, Refused, TimeoutError):
            continue
        if parts is not None and content_hash(parts) == hash:
            return parts
    raise Unreachable(f"no reachable node has {hash_text(hash)}")


async def _blob_parts(client: Client, hash: bytes, size: int) -> bytes | None:
    data = bytearray()
    await client.meet()
    while True:
        async with asyncio.timeout(PART_S):
            part = await client.blob(hash, len(data))
        if part is None:
            return None
        data += part
        if not part or len(data) >= size:
            return bytes(data)
