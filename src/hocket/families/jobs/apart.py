"""Content of jobs that is apart from their ops: the op has the hash and the size of a blob, which is 32 random bytes,
the salt, and the content behind them. So the content can be erased, and the op's signature stays good; and who sees the
op alone cannot test guesses against the hash.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from hocket.errors import Conflict, Unreachable
from hocket.families.jobs.rules import Job
from hocket.kernel.clock import wall_text
from hocket.kernel.ids import content_hash, hash_text, node_text, ulid_text
from hocket.kernel.ops import decode
from hocket.kernel.policy import ApartContent
from hocket.kernel.vocabulary import CreateArtifact, EraseContent
from hocket.store import Session

SALT_BYTES = 32

# Returns the content with that hash and size from another node, or None.
FetchBlob = Callable[[bytes, int], bytes | None]


class ReadsBlobs(Protocol):
    """What is needed of the blobs of a node."""

    def read(self, hash: bytes) -> bytes | None: ...


class _NoBlobs:
    def read(self, hash: bytes) -> bytes | None:
        return None


NO_BLOBS = _NoBlobs()


class Erased(Conflict):
    """The content is gone for good, by an op of its submitter or of the owner."""


class Erasure(NamedTuple):
    """Which node has erased the content of a job, when by its clock, and why."""

    node: str
    at_ms: int
    reason: str

    def sentence(self, job_id: bytes) -> str:
        when = wall_text(self.at_ms)
        return f"the content of job {ulid_text(job_id)} was erased by node {self.node} at {when}: {self.reason}"


def erasure_of(session: Session, job_id: bytes) -> Erasure | None:
    """The first erasure of the job's content that counts."""
    for op_id in session.erasure_ops(job_id):
        row = session.op(op_id)
        op = None if row is None or row.reason else decode(row.body)
        if op is not None and isinstance(op.payload, EraseContent):
            return Erasure(node_text(op.node_id), op.timestamp.wall, op.payload.reason)
    return None


def check_kept(session: Session, job_id: bytes) -> None:
    """Raises Erased."""
    if (erasure := erasure_of(session, job_id)) is not None:
        raise Erased(erasure.sentence(job_id))


def payload_of(session: Session, blobs: ReadsBlobs, job: Job, inline: bytes, fetch: FetchBlob | None = None) -> bytes:
    """The payload of a job, of which its op has the `inline` bytes. Raises Erased, or Unreachable if it is on another
    node and cannot be fetched. What was fetched is not kept: fewer nodes then have something to erase.
    """
    apart = job.policy.content
    if apart is None:
        return inline
    check_kept(session, job.id)
    blob = blobs.read(apart.digest)
    if blob is None and fetch is not None:
        blob = fetch(apart.digest, apart.size)
    return unsalted(apart, blob, f"the payload of job {ulid_text(job.id)}")


def result_of(blobs: ReadsBlobs, job: Job, made: CreateArtifact, fetch: FetchBlob | None = None) -> bytes | None:
    """The content of the artifact that is the result of a job. Without `fetch` it may be None; otherwise the call
    raises Unreachable. What was fetched is not kept.
    """
    blob = blobs.read(made.content_hash)
    if blob is None and fetch is None:
        return None
    if blob is None and fetch is not None:
        blob = fetch(made.content_hash, made.size_bytes)
    apart = ApartContent(made.content_hash.hex(), made.size_bytes)
    return unsalted(apart, blob, f"the result of job {ulid_text(job.id)}")


def unsalted(apart: ApartContent, blob: bytes | None, what: str) -> bytes:
    if blob is None:
        raise Unreachable(f"{what} is not here, but on another node")
    if content_hash(blob) != apart.digest or len(blob) < SALT_BYTES:
        raise Unreachable(f"what was received as {what} is not {hash_text(apart.digest)}")
    return blob[SALT_BYTES:]
