"""The bytes of artifacts for programs over HTTP: read by artifact or by hash, and stored under a hash that the program
names, so that what is stored is what it has. And what proves a job: its signed ops, and the proof of a command.
"""

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from hocket.api import Service
from hocket.api.artifacts import READ, ArtifactKept, ArtifactText, may_read
from hocket.api.jobs import READ as JOB_READ
from hocket.api.jobs import JobText, found_job
from hocket.api.operation import Download, TokenNeed, Upload, operation
from hocket.errors import Failed, NotFound, Unreachable, Usage
from hocket.families import artifacts
from hocket.families.jobs.requests import Content
from hocket.kernel.ids import content_hash, hash_text, ulid_text
from hocket.kernel.vocabulary import JOB, Subject
from hocket.log import Transaction
from hocket.store import Artifact, Session
from hocket.work.run_outputs import TTL_MS_MAX, TYPE_CHARS_MAX, check_type

if TYPE_CHECKING:
    from hocket.node.node import Node

_READ_BYTES = 1024 * 1024
# Content of other nodes comes whole into memory: so large, and so many at once.
FETCHED_BYTES_MAX = 64 * 1024 * 1024
FETCHES_MAX = 2

_HASH = r"^blake3:[0-9a-f]{64}$"
_fetching: set[object] = set()


@operation("download_artifact", "GET /v1/artifacts/{id}/content", READ)
async def of_artifact(service: Service, node: "Node", id: ArtifactText) -> Download:
    """Read the content of an artifact, or a range of it. The tag of the answer is the content's hash. Content that is
    on another node is fetched first.
    """

    def found(session: Session) -> Artifact:
        artifact = artifacts.find(session, id)
        if not may_read(service, session, artifact):
            service.check("Artifact", "Read")
        return artifact

    return await _download(service, node, await node.read(found))


@operation("download_content", "GET /v1/contents/{hash}", READ)
async def of_hash(
    service: Service,
    node: "Node",
    hash: Annotated[str, Meta(pattern=_HASH, description="The content's BLAKE3 hash, as artifacts have it.")],
) -> Download:
    """Read content by its hash, or a range of it, if an artifact that the token may read has it. Small content that a
    handler made is in the op of its artifact, and has no path but that of the artifact.
    """

    def found(session: Session) -> Artifact:
        every = session.artifacts_of_hash(bytes.fromhex(hash.partition(":")[2]))
        readable = [each for each in every if not session.is_evicted(each.id) and may_read(service, session, each)]
        if not readable:
            raise NotFound(f"no artifact that the token may read has the content {hash}")
        return readable[0]

    return await _download(service, node, await node.read(found))


@operation("upload_content", "PUT /v1/contents/{hash}", TokenNeed("Artifact", "Write"))
def put(
    service: Service,
    hash: Annotated[
        str,
        Meta(
            pattern=r"^(blake3|sha256):[0-9a-f]{64}$",
            description="What the content must hash to: BLAKE3, or SHA-256 for programs that have no BLAKE3.",
        ),
    ],
    upload: Upload,
    type: Annotated[
        str,
        Meta(min_length=1, max_length=TYPE_CHARS_MAX, description="The type of the content, like acme.texture."),
    ],
    job: Annotated[JobText, Meta(description="The job that it belongs to; the token must grant job:read for it.")]
    | None = None,
    ttl_ms: Annotated[int, Meta(ge=1, le=TTL_MS_MAX, description="How long before it may be evicted.")] | None = None,
) -> ArtifactKept:
    """Store content as an artifact. Content that does not match its hash is refused. The same content again with the
    same type and job is the same artifact.
    """
    service.check_writer()
    check_type(type)
    blobs = service.runtime.blobs
    job_id: bytes | None = None
    if job is not None:
        with service.read() as session:
            job_id = found_job(service, session, job, "Read").id
    _check(upload, hash)
    # Also small content is a blob, because only blobs are found by their hash.
    staged = blobs.stage(upload)

    def stored(tx: Transaction) -> bytes:
        for each in tx.session.artifacts_of_hash(staged.hash):
            own = artifacts.creation_of(tx.session, each)[0].node_id == tx.node
            if own and (each.type, each.source_job) == (type, job_id) and not tx.session.is_evicted(each.id):
                blobs.keep(staged)
                return each.id
        return artifacts.put(tx, blobs, type, Content(staged.hash, staged.size, None, staged), ttl_ms, job_id)

    return ArtifactKept(ulid_text(service.runtime.log.run(stored)), hash_text(staged.hash), staged.size)


def _check(upload: Upload, hash: str) -> None:
    name, _, expected = hash.partition(":")
    from blake3 import blake3

    hasher = blake3() if name == "blake3" else hashlib.sha256()
    for part in _parts(upload):
        hasher.update(part)
    if hasher.hexdigest() != expected:
        raise Usage(f"the content has the hash {name}:{hasher.hexdigest()}, not {hash}; nothing was stored")


def _parts(upload: Upload) -> Iterator[bytes]:
    upload.seek(0)
    while part := upload.read(_READ_BYTES):
        yield part


@operation("download_job_ops", "GET /v1/jobs/{job}/ops", JOB_READ)
def ops_of_job(service: Service, job: JobText) -> Download:
    """Read the ops of a job as they are signed, in the form of `hocket log export`: a postcard sequence, which any
    Likewise software can check. The ops that made its artifacts are among them if the token grants `artifact:read` for
    its kind. Ops of one bundle are that bundle, with all of its facts.
    """
    from hocket.log.evidence import signed_ops

    with service.read() as session:
        found = found_job(service, session, job, "Read")
        rows = session.ops_about(Subject(JOB, found.id))
        if service.may("Artifact", "Read", found.kind):
            rows += session.ops_by_id([each.op_id for each in session.artifacts_of_job(found.id)])
    return _whole(signed_ops(service.runtime.log, sorted(rows, key=lambda row: row.seq)))


@operation("download_job_proof", "GET /v1/jobs/{job}/proof", READ)
def proof_of_job(service: Service, job: JobText) -> Download:
    """Read the proof of a command's last run, which `hocket proof verify` checks: what ran, where, how it ended and
    what it made, signed by the node that ran it. The token also needs `artifact:read` for the job's kind.
    """
    from hocket.node.handles import proof_of

    with service.read() as session:
        found = found_job(service, session, job, "Read")
        service.check("Artifact", "Read", found.kind)
        try:
            return _whole(proof_of(session, service.runtime.blobs, found.id))
        except Failed as error:
            raise NotFound(str(error)) from None


def _whole(data: bytes) -> Download:
    return Download(content_hash(data), len(data), lambda start, size: data[start : start + size])


async def _download(service: Service, node: "Node", artifact: Artifact) -> Download:
    blobs = service.runtime.blobs

    def here(session: Session) -> bytes | None:
        """The content if it is in the op, empty if it is in a blob here, else None."""
        artifacts.check_kept(session, artifact)
        inline = artifacts.creation_of(session, artifact)[1].content_inline
        return inline if inline is not None else b"" if blobs.has(artifact.hash) else None

    data = await node.read(here)
    if data is None:
        fetched = await _fetch(node, artifact)
        # Checks it against its hash, and keeps it here.
        await node.read(lambda session: artifacts.content(session, blobs, artifact, lambda hash, size: fetched))

    def part(start: int, size: int) -> bytes:
        if data:
            return data[start : start + size]
        found = blobs.part(artifact.hash, start, size)
        if found is None:
            raise Unreachable(f"the content of artifact {ulid_text(artifact.id)} was deleted meanwhile")
        return found

    return Download(artifact.hash, artifact.size, part)


async def _fetch(node: "Node", artifact: Artifact) -> bytes:
    name = ulid_text(artifact.id)
    if artifact.size > FETCHED_BYTES_MAX:
        raise Unreachable(f"the content of artifact {name} is on another node, and too large to fetch; ask that node")
    if len(_fetching) >= FETCHES_MAX:
        raise Unreachable(f"the content of artifact {name} is on another node, and others are fetched now; come back")
    mark = object()
    _fetching.add(mark)
    try:
        return await node.services().exchanges.fetch(artifact.hash, artifact.size)
    finally:
        _fetching.discard(mark)
