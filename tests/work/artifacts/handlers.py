"""Running a function as a handler on a node in memory, and reading what it left on the log."""

from collections.abc import Callable
from typing import Any

from hocket.families import artifacts
from hocket.families.jobs.rules import Outcome
from hocket.kernel.ops import Op, decode
from hocket.kernel.vocabulary import CompleteJob, CreateArtifact
from hocket.node.handles import SyncHandle
from hocket.node.node import SyncNode
from hocket.store import Artifact
from hocket.testing import MemorySyncNode
from hocket.work.handlers import JobType


def run(node: MemorySyncNode, function: Callable[..., Any], **payload: Any) -> SyncHandle:
    """Submits one job with that handler and runs it."""
    job_type = JobType("t.made", function=function)
    handle = node.submit(job_type, **payload)
    node.drain([job_type])
    return handle


def succeeded(node: SyncNode, handle: SyncHandle) -> bool:
    return handle.status()["outcome"] == Outcome.SUCCEEDED.name.lower()


def of_job(node: SyncNode, handle: SyncHandle, type: str | None = None) -> list[Artifact]:
    with node.runtime.read() as session:
        found = session.artifacts_of_job(node.runtime.find(handle.job_id))
    return [each for each in found if type in (None, each.type)]


def ops(node: SyncNode) -> list[Op]:
    """Every op that counts, in the log's order."""
    with node.runtime.read() as session:
        return [decode(row.body) for row in session.ops_after(0, 100_000) if row.reason == 0]


def creation(node: SyncNode, artifact: Artifact) -> tuple[Op, CreateArtifact]:
    with node.runtime.read() as session:
        return artifacts.creation_of(session, artifact)


def completion(node: SyncNode, handle: SyncHandle) -> tuple[Op, CompleteJob]:
    job_id = node.runtime.find(handle.job_id)
    op = next(op for op in ops(node) if isinstance(op.payload, CompleteJob) and op.payload.job_id == job_id)
    assert isinstance(op.payload, CompleteJob)
    return op, op.payload


def content(node: SyncNode, artifact: Artifact) -> bytes:
    with node.runtime.read() as session:
        return artifacts.content(session, node.runtime.blobs, artifact)
