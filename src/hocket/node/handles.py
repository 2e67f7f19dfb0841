"""`Handle`: a submitted job that an async program can wait for, follow and cancel. `node` has the synchronous one."""

from collections.abc import AsyncIterator
from typing import Any, Protocol

from hocket.bus.changes import about
from hocket.errors import Failed, Usage
from hocket.kernel.ids import ulid_text
from hocket.kernel.proof import encode_proof
from hocket.kernel.roster import Outcome
from hocket.kernel.subjects import JOB, Subject
from hocket.mesh.waiting import Waiting
from hocket.store import JobEntry, JobSession, Session, Stage
from hocket.work import jobs, view
from hocket.work.blobs import Blobs
from hocket.work.node_access import NodeAccess
from hocket.work.proofs import need_proof


class JobFailed(Failed):
    """The job failed for good. `traceback` is the handler's, if there is one."""

    def __init__(self, job_id: str, error: str | None, traceback: str | None) -> None:
        super().__init__(f"job {job_id} failed: {error or 'no error was recorded'}")
        self.job_id, self.error, self.traceback = job_id, error, traceback


class JobCancelled(Failed):
    """The job was cancelled."""

    def __init__(self, job_id: str, reason: str | None) -> None:
        super().__init__(f"job {job_id} was cancelled: {reason or 'no reason was given'}")
        self.job_id, self.reason = job_id, reason


def ending_of(session: Session, job_id: bytes) -> tuple[bool, Any]:
    """Whether the job has ended, and its result. Raises if it failed or was cancelled."""
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


def overdue(error: TimeoutError, job_id: bytes, timeout: float | None, waiting: Waiting | None) -> TimeoutError:
    """The error with what the job waits for, unless it already says more than that the time is over."""
    if error.args:
        return error
    why = "" if waiting is None else f": {waiting.sentence}"
    return TimeoutError(f"job {ulid_text(job_id)} has not ended within {timeout or 0:g} seconds{why}")


def _entry(session: JobSession, job_id: bytes) -> JobEntry:
    """The job's entry. Raises Usage if there is no such job."""
    entry = session.job(job_id)
    if entry is None:
        raise Usage(f"no job {ulid_text(job_id)}")
    return entry


def proof_of(session: Session, blobs: Blobs, job_id: bytes) -> bytes:
    return encode_proof(need_proof(session, blobs, _entry(session, job_id).job))


class WaitingNode(NodeAccess, Protocol):
    async def waiting(self, job_id: bytes) -> Waiting | None:
        """What a job waits for, as far as this node knows."""


class Handle:
    """A submitted job. `created` is False if a unique key led to an existing job."""

    def __init__(self, node: WaitingNode, job_id: bytes, created: bool) -> None:
        self._node = node
        self._id = job_id
        self.created = created

    @property
    def job_id(self) -> str:
        return ulid_text(self._id)

    async def status(self) -> dict[str, Any]:
        """The current state of the job."""
        shown = await self._node.read(lambda session: view.full(session, view.find(session, self.job_id)))
        waiting = await self._node.waiting(self._id)
        return shown | {"waits_for": None if waiting is None else waiting.sentence}

    async def result(self, timeout: float | None = None) -> Any:
        """Waits for the job and returns its result. Raises JobFailed, JobCancelled or TimeoutError."""
        look = lambda: self._node.read(lambda session: ending_of(session, self._id))  # noqa: E731
        try:
            return await self._node.until(look, timeout, about(JOB, self._id))
        except TimeoutError as error:
            raise overdue(error, self._id, timeout, await self._node.waiting(self._id)) from None

    async def proof(self) -> bytes:
        """The proof of a command, in the format that `hocket proof verify` reads. Raises Failed if there is none."""
        return await self._node.read(lambda session: proof_of(session, self._node.blobs, self._id))

    async def cancel(self, reason: str = "cancelled by its submitter") -> None:
        """Cancels the job, pending or running. Raises Conflict if it is completed."""
        await self._node.decide(lambda tx: jobs.cancel(tx, self._id, reason))

    async def retry(self, reason: str = "retried by its submitter") -> None:
        """Retries a failed or cancelled job."""
        await self._node.decide(lambda tx: jobs.retry(tx, self._id, reason))

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """Yields the job's ops from the first on, each as it arrives, until the job ends."""
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
