"""Handles: a job that was submitted, to be waited for, followed and called off, from async and from synchronous
programs.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Protocol, TypeVar

from hocket.bus.changes import ANYTHING, JOB, Changes, about
from hocket.errors import Failed, Usage
from hocket.kernel.ids import ulid_text
from hocket.kernel.proof import encode_proof
from hocket.kernel.roster import Job, Outcome
from hocket.log import Transaction
from hocket.node.runtime import Runtime
from hocket.store import JobEntry, JobSession, Session, Stage
from hocket.work import jobs, view
from hocket.work.blobs import Blobs
from hocket.work.jobs import Result
from hocket.work.proofs import need_proof

T = TypeVar("T")


class HandleNode(Protocol):
    """What a handle asks of its node."""

    @property
    def runtime(self) -> Runtime: ...
    async def read(self, query: Callable[[Session], T]) -> T: ...
    async def until(
        self, look: Callable[[], Awaitable[tuple[bool, T]]], timeout: float | None, topics: Changes = ANYTHING
    ) -> T: ...
    async def decide(self, request: Callable[[Transaction], Result]) -> Job: ...


class HandleSyncNode(Protocol):
    @property
    def runtime(self) -> Runtime: ...
    def until(
        self, look: Callable[[Session], tuple[bool, T]], timeout: float | None = None, topics: Changes = ANYTHING
    ) -> T: ...
    def decide(self, request: Callable[[Transaction], Result]) -> Job: ...


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


def _ending(session: Session, job_id: bytes) -> tuple[bool, Any]:
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


def _news(session: Session, job_id: bytes, seen: int) -> tuple[list[dict[str, Any]], bool]:
    """The job's ops after `seen` as lines, and whether it has ended."""
    entry = _entry(session, job_id)
    lines = [view.op_line(row) for row in session.ops_of_job(job_id) if row.seq > seen]
    return lines, entry.stage is Stage.DONE


def _entry(session: JobSession, job_id: bytes) -> JobEntry:
    """Nobody waits for a job that is not there."""
    entry = session.job(job_id)
    if entry is None:
        raise Usage(f"no job {ulid_text(job_id)}")
    return entry


def _proof(session: Session, blobs: Blobs, job_id: bytes) -> bytes:
    return encode_proof(need_proof(session, blobs, _entry(session, job_id).job))


class Handle:
    """A job that was submitted. `created` is False when a unique key led to one that was there already."""

    def __init__(self, node: HandleNode, job_id: bytes, created: bool) -> None:
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
        look = lambda: self._node.read(lambda session: _ending(session, self._id))  # noqa: E731
        return await self._node.until(look, timeout, about(JOB, self._id))

    async def proof(self) -> bytes:
        """The proof of how a command ended, as `hocket proof verify` reads it from a file. Raises Failed when there is
        none.
        """
        runtime = self._node.runtime
        return await self._node.read(lambda session: _proof(session, runtime.blobs, self._id))

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
            lines, ended = await self._node.read(lambda session: _news(session, self._id, seen))
            return bool(lines) or ended, (lines, ended)

        ended = False
        while not ended:
            lines, ended = await self._node.until(look, None, about(JOB, self._id))
            for line in lines:
                seen = line["seq"]
                yield line


class SyncHandle:
    """A job that was submitted. `created` is False when a unique key led to one that was there already."""

    __slots__ = ("_id", "_node", "created")

    def __init__(self, node: HandleSyncNode, job_id: bytes, created: bool) -> None:
        self._node = node
        self._id = job_id
        self.created = created

    @property
    def job_id(self) -> str:
        return ulid_text(self._id)

    def status(self) -> dict[str, Any]:
        """Where the job stands now."""
        return self._node.runtime.show(self.job_id)

    def result(self, timeout: float | None = None) -> Any:
        """Waits for the job and gives what its handler returned. Raises JobFailed, JobCancelled or TimeoutError."""
        return self._node.until(lambda session: _ending(session, self._id), timeout, about(JOB, self._id))

    def proof(self) -> bytes:
        """The proof of how a command ended, as `hocket proof verify` reads it from a file. Raises Failed when there is
        none.
        """
        runtime = self._node.runtime
        with runtime.read() as session:
            return _proof(session, runtime.blobs, self._id)

    def cancel(self, reason: str = "cancelled by its submitter") -> None:
        """Calls the job off, pending or running. Raises Conflict when it is completed."""
        self._node.decide(lambda tx: jobs.cancel(tx, self._id, reason))

    def retry(self, reason: str = "retried by its submitter") -> None:
        """Tries a failed or cancelled job anew."""
        self._node.decide(lambda tx: jobs.retry(tx, self._id, reason))

    def events(self) -> Iterator[dict[str, Any]]:
        """The job's ops from the first on, each as it comes, until the job has ended."""
        seen, ended = 0, False

        def look(session: Session) -> tuple[bool, tuple[list[dict[str, Any]], bool]]:
            lines, ended = _news(session, self._id, seen)
            return bool(lines) or ended, (lines, ended)

        while not ended:
            lines, ended = self._node.until(look, None, about(JOB, self._id))
            for line in lines:
                seen = line["seq"]
                yield line
