"""A handle: a job that was submitted, to be waited for, followed and called off by an async program. `node` has the
synchronous one.
"""

from collections.abc import AsyncIterator
from typing import Any

from hocket.bus.changes import about
from hocket.errors import Failed, Usage
from hocket.kernel.ids import ulid_text
from hocket.kernel.proof import encode_proof
from hocket.kernel.roster import Outcome
from hocket.kernel.subjects import JOB, Subject
from hocket.store import JobEntry, JobSession, Session, Stage
from hocket.work import jobs, view
from hocket.work.blobs import Blobs
from hocket.work.node_access import NodeAccess
from hocket.work.proofs import need_proof


class JobFailed(Failed):
    """The job failed for good. `traceback` is the handler's, where there is one."""

    def __init__(self, job_id: str, error: str | None, traceback: str | None) -> None:
        super().__init__(f"job {job_id} failed: {error or 'no error was recorded'}")
        self.job_id, self.error, self.traceback = job_id, error, traceback


class JobCancelled(Failed):
    """The job was cancelled."""

    def __init__(self, job_id: str, reason: str | None) -> None:
        super().__init__(f"job {job_id} was cancelled: {reason or 'no reason was given'}")
        self.job_id, self.reason = job_id, reason


def ending_of(session: Session, job_id: bytes) -> tuple[bool, Any]:
    """Whether the job has ended, and its result; raises when it ended badly."""
    entry = _entry(session, job_id)
    if entry.stage is not Stage.DONE:
        return False, None
    job = entry.job
    if job.outcome is Outcome.SUCCEEDED:
        return True, view.result(session, job)
    shown = view.full(session, entry)
    if job.outcome is Outcome.CANCELLED:
        raise JobCancelled(ulid_text(job_id), shown["error"])
    raise JobFailed(ulid_text(job_id), shown["error"], shown["traceback"])


def news_of(session: Session, job_id: bytes, seen: int) -> tuple[list[dict[str, Any]], bool]:
    """The job's ops after `seen` as lines, and whether it has ended."""
    entry = _entry(session, job_id)
    lines = [view.op_line(row) for row in session.ops_about(Subject(JOB, job_id)) if row.seq > seen]
    return lines, entry.stage is Stage.DONE


def _entry(session: JobSession, job_id: bytes) -> JobEntry:
    """Nobody waits for a job that is not there."""
    entry = session.job(job_id)
    if entry is None:
        raise Usage(f"no job {ulid_text(job_id)}")
    return entry


def proof_of(session: Session, blobs: Blobs, job_id: bytes) -> bytes:
    return encode_proof(need_proof(session, blobs, _entry(session, job_id).job))


class Handle:
    """A job that was submitted. `created` is False when a unique key led to one that was there already."""

    def __init__(self, node: NodeAccess, job_id: bytes, created: bool) -> None:
        self._node = node
        self._id = job_id
        self.created = created

    @property
    def job_id(self) -> str:
        return ulid_text(self._id)

    async def status(self) -> dict[str, Any]:
        """Where the job stands now."""
        return await self._node.read(lambda session: view.full(session, view.find(session, self.job_id)))

    async def result(self, timeout: float | None = None) -> Any:
        """Waits for the job and gives what its handler returned. Raises JobFailed, JobCancelled or TimeoutError."""
        look = lambda: self._node.read(lambda session: ending_of(session, self._id))  # noqa: E731
        return await self._node.until(look, timeout, about(JOB, self._id))

    async def proof(self) -> bytes:
        """The proof of how a command ended, as `hocket proof verify` reads it from a file. Raises Failed when there is
        none.
        """
        return await self._node.read(lambda session: proof_of(session, self._node.blobs, self._id))

    async def cancel(self, reason: str = "cancelled by its submitter") -> None:
        """Calls the job off, pending or running. Raises Conflict when it is completed."""
        await self._node.decide(lambda tx: jobs.cancel(tx, self._id, reason))

    async def retry(self, reason: str = "retried by its submitter") -> None:
        """Tries a failed or cancelled job anew."""
        await self._node.decide(lambda tx: jobs.retry(tx, self._id, reason))

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """The job's ops from the first on, each as it comes, until the job has ended."""
        seen = 0

        async def look() -> tuple[bool, tuple[list[dict[str, Any]], bool]]:
            lines, ended = await self._node.read(lambda session: news_of(session, self._id, seen))
            return bool(lines) or ended, (lines, ended)

        ended = False
        while not ended:
            lines, ended = await self._node.until(look, None, about(JOB, self._id))
            for line in lines:
                seen = line["seq"]
                yield line
