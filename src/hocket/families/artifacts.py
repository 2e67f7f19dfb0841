"""Finding, reading, storing, evicting and deleting artifacts. An artifact's op stays on the log for ever; its content
is available until an EvictArtifact records that it is gone, and a blob is deleted when no artifact needs it. A home's
blobs are moved to their places and deleted only inside write transactions, which exclude each other: so no blob is
deleted while an op that names it is being written. In a store that nodes share, the age of a blob protects it.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from hocket.errors import Conflict, NotAuthorised, NotFound, Unreachable, Usage
from hocket.families.access import NodeAccess
from hocket.families.blobs import GARBAGE_AGE_S, Blobs
from hocket.families.jobs.requests import Content, creation
from hocket.kernel.arbitration import Reason
from hocket.kernel.clock import hlc_text
from hocket.kernel.ids import content_hash, hash_text, node_text, ulid_prefix_range, ulid_text
from hocket.kernel.ops import NO_ID, Op, decode, stamp_json
from hocket.kernel.snapshot import SNAPSHOT_TYPE
from hocket.kernel.vocabulary import CreateArtifact, EvictArtifact, Payload
from hocket.log import Transaction
from hocket.log.permissions import Permissions
from hocket.store import Artifact, ArtifactSession, OpSession, Session, Store
from hocket.store.artifact_rows import ClearedBlobs

if TYPE_CHECKING:
    from hocket.events.troubles import Troubles

AMBIGUOUS_SHOWN = 5
EVICT_MAX = 500
COLLECT_STEP = 500

# Returns the content with that hash and size from another node, or None.
Fetch = Callable[[bytes, int], bytes | None]


def between(session: ArtifactSession, low: bytes, high: bytes, limit: int) -> list[Artifact]:
    """The artifacts whose ids lie between these, inclusive."""
    first = session.artifact(low)
    found = session.artifacts(low, limit)
    return ([first] if first is not None else []) + [each for each in found if each.id <= high]


def find(session: Session, prefix: str) -> Artifact:
    """The one artifact whose id starts with this text. Raises Usage if there is none, or more than one."""
    try:
        low, high = ulid_prefix_range(prefix)
    except ValueError:
        raise Usage(f"{prefix!r} is not an artifact id; `hocket artifacts list` lists them") from None
    found = between(session, low, high, AMBIGUOUS_SHOWN + 1) if prefix else []
    if not found:
        raise NotFound(f"no artifact {prefix!r}; `hocket artifacts list` lists them")
    if len(found) > 1:
        shown = ", ".join(ulid_text(each.id) for each in found[:AMBIGUOUS_SHOWN])
        more = ", …" if len(found) > AMBIGUOUS_SHOWN else ""
        raise Usage(f"{prefix!r} is the beginning of several artifact ids: {shown}{more}; give more of it")
    return found[0]


def ids_like(session: Session, text: str) -> list[bytes]:
    """The artifacts whose ids begin with this text."""
    try:
        low, high = ulid_prefix_range(text)
    except ValueError:
        return []
    return [each.id for each in between(session, low, high, AMBIGUOUS_SHOWN + 1)]


def every(session: ArtifactSession, step: int = COLLECT_STEP, after: bytes = bytes(16)) -> Iterator[Artifact]:
    while found := session.artifacts(after, step):
        yield from found
        after = found[-1].id


def creation_of(session: OpSession, artifact: Artifact) -> tuple[Op, CreateArtifact]:
    row = session.op(artifact.op_id)
    assert row is not None
    op = decode(row.body)
    assert isinstance(op.payload, CreateArtifact)
    return op, op.payload


def brief(session: Session, blobs: Blobs, artifact: Artifact) -> dict[str, Any]:
    """One line of a list. `content` tells where the content is: inline, blob, elsewhere or evicted."""
    op, payload = creation_of(session, artifact)
    return {
        "artifact_id": ulid_text(artifact.id),
        "type": artifact.type,
        "job_id": None if artifact.source_job is None else ulid_text(artifact.source_job),
        "hash": hash_text(artifact.hash),
        "size": payload.size_bytes,
        "content": _where(session, blobs, artifact, payload),
        "created_ms": op.timestamp.wall,
        "expires_ms": artifact.expires,
        "stamp": stamp_json(op),
    }


def full(session: Session, blobs: Blobs, artifact: Artifact) -> dict[str, Any]:
    op, payload = creation_of(session, artifact)
    return brief(session, blobs, artifact) | {
        "op_id": ulid_text(op.id),
        "author": node_text(op.node_id),
        "created": hlc_text(op.timestamp),
        "inputs": [ulid_text(each) for each in payload.inputs_used],
        "cites": [ulid_text(each) for each in op.cited],
        "model_id": payload.model_id,
        "model_version": payload.model_version,
    }


def _where(session: ArtifactSession, blobs: Blobs, artifact: Artifact, payload: CreateArtifact) -> str:
    if session.is_evicted(artifact.id):
        return "evicted"
    if payload.content_inline is not None:
        return "inline"
    return "blob" if blobs.has(artifact.hash) else "elsewhere"


def content(session: Session, blobs: Blobs, artifact: Artifact, fetch: Fetch | None = None) -> bytes:
    """The bytes of an artifact, fetched from another node if they are not here and it can be asked. They always match
    the op's hash.
    """
    name = ulid_text(artifact.id)
    check_kept(session, artifact)
    _, payload = creation_of(session, artifact)
    data = payload.content_inline
    if data is None:
        data = blobs.read(artifact.hash)
    if data is None and fetch is not None:
        data = fetch(artifact.hash, artifact.size)
        if data is not None and content_hash(data) == artifact.hash:
            blobs.keep(blobs.stage(data))
    if data is None:
        raise Unreachable(f"the content of artifact {name} is not here, but on another node")
    if content_hash(data) != artifact.hash:
        raise Unreachable(f"the content received for artifact {name} is not {hash_text(artifact.hash)}")
    return data


def check_kept(session: Session, artifact: Artifact) -> None:
    if artifact.source_job is not None:
        _check_not_erased(session, artifact.source_job)
    if session.is_evicted(artifact.id):
        raise Conflict(f"artifact {ulid_text(artifact.id)} was evicted; its content is gone")


def _check_not_erased(session: Session, job_id: bytes) -> None:
    if session.erasure_ops(job_id):
        from hocket.families.jobs import apart

        apart.check_kept(session, job_id)


def is_readable(session: Session, hash: bytes, may_read: Callable[[Op], bool]) -> bool:
    """Whether another node may have the blob: only while an artifact that it may read has it and is not evicted."""
    found = session.artifacts_of_hash(hash)
    return any(not session.is_evicted(each.id) and may_read(creation_of(session, each)[0]) for each in found)


def put(
    tx: Transaction, blobs: Blobs, type: str, content: Content, ttl_ms: int | None, job_id: bytes | None = None
) -> bytes:
    """Stores an artifact that no run has made. If it is for a job, nodes that may read artifacts of the job's kind may
    read it. Raises Conflict if this is a copy of what was erased.
    """
    for each in tx.session.artifacts_of_hash(content.hash):
        if each.source_job is not None:
            _check_not_erased(tx.session, each.source_job)
    if content.staged is not None:
        blobs.keep(content.staged)
    return _must(tx, creation(NO_ID, type, job_id, (), content, ttl_ms), ()).id


# Eviction.


def evict(tx: Transaction, artifact: Artifact) -> None:
    """Records on the log that the content is gone. Raises NotAuthorised if this node may not do so."""
    if tx.session.is_evicted(artifact.id):
        raise Conflict(f"artifact {ulid_text(artifact.id)} is already evicted")
    _must(tx, EvictArtifact(artifact.id), (artifact.op_id,))


def is_due(session: Session, permissions: Permissions, node: int, now: int) -> bool:
    """Whether this node has something to evict: an artifact has expired, and no other node is the coordinator. Records
    of model calls that other records rely on stay.
    """
    if permissions.coordinators and permissions.coordinators[-1][1] != node:
        return False
    return bool(session.expired_artifacts(now, 1, SNAPSHOT_TYPE))


def evict_due(tx: Transaction, limit: int = EVICT_MAX) -> list[bytes]:
    """Evicts what is due; returns the hashes whose blobs may be deleted after the commit."""
    if not is_due(tx.session, tx.projection.permissions, tx.node, tx.now):
        return []
    freed = []
    for artifact in tx.session.expired_artifacts(tx.now, limit, SNAPSHOT_TYPE):
        if not isinstance(tx.author(EvictArtifact(artifact.id), (artifact.op_id,)), Reason):
            freed.append(artifact.hash)
    return freed


async def maintenance(access: NodeAccess, blobs: Blobs, troubles: "Troubles | None" = None) -> int:
    """Evicts what is due and deletes its blobs; returns the number of artifacts."""
    freed = await access.run(evict_due)
    if freed:
        await access.run(lambda tx: free(tx, blobs, freed, troubles))
    return len(freed)


# Unused blobs.


def collect(
    session: Session, blobs: Blobs, hashes: Iterable[bytes], troubles: "Troubles | None" = None
) -> ClearedBlobs:
    """Deletes those of the blobs that no artifact needs. Only inside a write transaction that writes nothing, so that a
    rollback cannot make it wrong. With `troubles`, a blob that cannot be deleted is reported there, and the others are
    deleted.
    """
    sizes = []
    for each in dict.fromkeys(hashes):
        if not _is_needed(session, each):
            with nullcontext() if troubles is None else troubles.contained(each, f"deleting blob {hash_text(each)}"):
                sizes.append(blobs.remove(each))
    return ClearedBlobs(sum(size > 0 for size in sizes), sum(sizes))


def free(tx: Transaction, blobs: Blobs, hashes: Iterable[bytes], troubles: "Troubles | None" = None) -> ClearedBlobs:
    """Deletes unused blobs inside a transaction that also writes (see `collect`)."""
    tx.projection.flush()
    return collect(tx.session, blobs, hashes, troubles)


def _is_needed(session: ArtifactSession, hash: bytes) -> bool:
    return any(not session.is_evicted(each.id) for each in session.artifacts_of_hash(hash))


def clear(
    store: Store, blobs: Blobs, now: Callable[[], float] = time.time, troubles: "Troubles | None" = None
) -> ClearedBlobs:
    """Deletes leftovers: blobs of evicted artifacts, old blobs that no op names, and staged content of dead processes;
    those of this home, and those in a store that nodes share.
    """
    with store.read() as session:
        unneeded = [hash for hash, written in blobs.all() if _is_garbage(session, hash, now() - written)]
    total = blobs.clear_leftovers()
    for start in range(0, len(unneeded), COLLECT_STEP):
        with store.write() as session:
            cleared = collect(session, blobs, unneeded[start : start + COLLECT_STEP], troubles)
        total = ClearedBlobs(total.blobs + cleared.blobs, total.bytes + cleared.bytes)
    return total


def _is_garbage(session: Session, hash: bytes, age_s: float) -> bool:
    if not session.artifacts_of_hash(hash):
        return age_s > GARBAGE_AGE_S
    return not _is_needed(session, hash)


def _must(tx: Transaction, payload: Payload, deps: tuple[bytes, ...]) -> Op:
    op = tx.author(payload, deps)
    if isinstance(op, Reason):
        raise NotAuthorised(f"this {type(payload).__name__} would not count: {op.sentence}")
    return op
