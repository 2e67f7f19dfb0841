"""A submitted job that a program can wait for, follow and change: `Handle` and, for synchronous code, `SyncHandle`."""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec, cast, overload
from typing import TypeVar as AnyTypeVar

from hocket.bus.hints import Changes, about
from hocket.errors import Conflict, Failed, Usage
from hocket.families.blobs import Blobs
from hocket.families.inbox import questions
from hocket.families.inbox.requests import check_agent, default_agent
from hocket.families.jobs import approving, view
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.drafts import Duration
from hocket.families.jobs.parts import Part
from hocket.families.jobs.postponing import postpone_pending, start_time
from hocket.families.jobs.requests import Draft
from hocket.families.jobs.rules import Job, Outcome, State
from hocket.kernel.extension import extensions, loaded
from hocket.kernel.ids import node_text, ulid_text
from hocket.kernel.vocabulary import JOB, Subject
from hocket.node.calls import Blocking, ProgramNode, StreamNews, each, now
from hocket.node.inbox import message_id_of, milliseconds
from hocket.node.runtime import Runtime
from hocket.store import JobEntry, JobSession, Session, Stage
from hocket.store.artifact_rows import ClearedBlobs
from hocket.work.handlers import HandlerSignature, JobType, named_kind

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    # With the default, a bare `Handle` is one of any result.
    R_co = TypeVar("R_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    R_co = TypeVar("R_co", covariant=True)

P = ParamSpec("P")
T = AnyTypeVar("T")
Progress = Callable[[Any], None] | None


class JobFailed(Failed):
    """The job failed for good. `traceback` is the handler's, if there is one."""

    job_id: str
    error: str | None
    traceback: str | None

    def __init__(self, job_id: str, error: str | None, traceback: str | None) -> None:
        super().__init__(f"job {job_id} failed: {error or 'no error was recorded'}")
        self.job_id, self.error, self.traceback = job_id, error, traceback


class JobCancelled(Failed):
    """The job was cancelled."""

    job_id: str
    reason: str | None

    def __init__(self, job_id: str, reason: str | None) -> None:
        super().__init__(f"job {job_id} was cancelled: {reason or 'no reason was given'}")
        self.job_id, self.reason = job_id, reason


class ResultApart(NamedTuple):
    """Stands for a result that is apart from the log, until it is read from the blobs."""

    job: Job


def ending_of(session: Session, job_id: bytes) -> tuple[bool, Any]:
    """Whether the job has ended, and its result as the log has it. Raises if it failed or was cancelled."""
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
    lines = view.op_lines(session, [row for row in session.ops_about(Subject(JOB, job_id)) if row.seq > seen])
    return lines, entry.stage is Stage.DONE


def endings(job_ids: Sequence[bytes]) -> Callable[[Session], tuple[bool, list[Any]]]:
    """Whether all of the jobs have ended, and their results, or what stands for those apart from the log. Raises when
    one of them has failed or was cancelled.
    """
    found: dict[bytes, Any] = {}

    def look(session: Session) -> tuple[bool, list[Any]]:
        for job_id in job_ids:
            if job_id not in found:
                has_ended, value = ending_of(session, job_id)
                if has_ended:
                    job = _entry(session, job_id).job
                    found[job_id] = value if job.policy.content_apart is None else ResultApart(job)
        return len(found) == len(set(job_ids)), [found.get(job_id) for job_id in job_ids]

    return look


def typed(signature: HandlerSignature | None, job_id: bytes, value: Any) -> Any:
    """The result of a job as the type that its handler returns, if the handler is known here."""
    return value if signature is None else signature.result(ulid_text(job_id), value)


def following(job_id: bytes, job: JobType | str, args: tuple[Any, ...], payload: dict[str, Any]) -> Draft:
    """A job to submit that comes after another."""
    return jobs.after(named_kind(job).draft(payload, args), [job_id])


def overdue(runtime: Runtime, job_ids: Sequence[bytes], timeout: float | None) -> TimeoutError:
    """The error that says what the first of the jobs that have not ended waits for."""
    late = f"not ended within {timeout or 0:g} seconds"
    with runtime.read() as session:
        read = runtime.wait_reader(session, is_connected=True)
        for job_id in job_ids:
            if (waiting := read(_entry(session, job_id))) is not None:
                return TimeoutError(f"job {ulid_text(job_id)} has {late}: {waiting.sentence}")
    return TimeoutError(late)


def _entry(session: JobSession, job_id: bytes) -> JobEntry:
    """The job's entry. Raises Usage if there is no such job."""
    entry = session.job(job_id)
    if entry is None:
        raise Usage(f"no job {ulid_text(job_id)}")
    return entry


def proof_of(session: Session, blobs: Blobs, job_id: bytes) -> bytes:
    job = _entry(session, job_id).job
    for extension in extensions():
        if extension.proof:
            proof: bytes = loaded(extension.proof)(session, blobs, job)
            return proof
    raise Failed("this program has no extension that proves what ran")


def _news(progress: Progress) -> StreamNews:
    return StreamNews() if progress is None else StreamNews(progress)


async def results(node: ProgramNode, job_ids: Sequence[bytes], timeout: float | None) -> list[Any]:
    """Waits for all of the jobs. Raises JobFailed, JobCancelled or TimeoutError, and Unreachable if a result is on
    another node that cannot be asked.
    """
    look = endings(job_ids)
    try:
        found = await node.until(lambda: node.read(look), timeout, _topics(job_ids))
    except TimeoutError as error:
        if error.args:
            raise
        raise await node.call(lambda: overdue(node.runtime, job_ids, timeout)) from None
    if not any(isinstance(each, ResultApart) for each in found):
        return found
    fetch = node.fetch

    def read() -> list[Any]:
        with node.runtime.read() as session:
            return [
                view.result(session, each.job, node.blobs, fetch) if isinstance(each, ResultApart) else each
                for each in found
            ]

    return await node.call(read)


def _topics(job_ids: Sequence[bytes]) -> Changes:
    return about(JOB, job_ids[0]) if len(job_ids) == 1 else about(JOB)


class Handle(Generic[R_co]):
    """A submitted job. `created` is False if a unique key led to an existing job."""

    __slots__ = ("_id", "_node", "_signature", "created")

    def __init__(
        self, node: ProgramNode, job_id: bytes, created: bool, signature: HandlerSignature | None = None
    ) -> None:
        self._node = node
        self._id = job_id
        self._signature = signature
        self.created: bool = created

    @property
    def job_id(self) -> str:
        return ulid_text(self._id)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of job {self.job_id}>"

    async def status(self) -> dict[str, Any]:
        """The current state of the job."""
        runtime = self._node.runtime
        shown = await self._node.call(lambda: runtime.show(self.job_id))
        waiting = await self._node.waiting(self._id)
        sentence, reason = (None, None) if waiting is None else (waiting.sentence, waiting.reason.value)
        question = await self._node.peek(self._question) if reason == view.WaitReason.ANSWER else None
        return shown | {"waits_for": sentence, "wait_reason": reason, "question": question}

    def _question(self, session: Session) -> dict[str, Any] | None:
        log = self._node.log
        found = questions.open_question(session, _entry(session, self._id).job, log.physical())
        return None if found is None else found.shown(asks_you=found.to.endswith(f"@{node_text(log.node)}"))

    async def result(self, timeout: float | None = None) -> R_co:
        """Waits for the job and returns its result. Raises JobFailed, JobCancelled or TimeoutError."""
        (ended,) = await results(self._node, [self._id], timeout)
        return cast(R_co, typed(self._signature, self._id, ended))

    @overload
    async def then(self, job: JobType[P, T], /, *args: P.args, **payload: P.kwargs) -> "Handle[T]": ...
    @overload
    async def then(self, job: str, /, **payload: Any) -> "Handle[Any]": ...
    async def then(self, job: JobType[Any, Any] | str, /, *args: Any, **payload: Any) -> "Handle[Any]":
        """Submits a job that starts when this one has succeeded; `ctx.results` has this one's result. If this one fails
        or is cancelled, so is that.
        """
        draft = following(self._id, job, args, payload)
        (made,) = await self._node.run(lambda tx: jobs.submit(tx, [draft]))
        self._node.wrote()
        return Handle(self._node, made.job_id, made.created, named_kind(job).signature)

    async def stream(self, progress: Progress = None) -> AsyncIterator[Part]:
        """Yields the parts of the result as they come, each once and in order, until the job ends. Calls `progress`
        with each new progress note. Raises JobFailed or JobCancelled. A part with `is_restart` is the first of another
        run: the parts before it are void.
        """
        async with aclosing(self._node.parts(self._id, _news(progress))) as parts:
            async for part in parts:
                yield part

    async def proof(self) -> bytes:
        """The proof of a command, in the format that `hocket proof verify` reads. Raises Failed if there is none."""
        return await self._node.read(lambda session: proof_of(session, self._node.blobs, self._id))

    async def cancel(self, reason: str = "cancelled by its submitter") -> None:
        """Cancels the job, pending or running. Raises Conflict if it is completed."""
        await self._node.decide(lambda tx: jobs.cancel(tx, self._id, reason))

    async def retry(self, reason: str = "retried by its submitter") -> None:
        """Retries a failed or cancelled job."""
        await self._node.decide(lambda tx: jobs.retry(tx, self._id, reason))

    async def erase(self, reason: str) -> ClearedBlobs:
        """Erases the content of the job on every node, and cancels it if it has not ended. Returns what of it this node
        has deleted. Raises Conflict if nothing of it is beside the log.
        """
        from hocket.families import erasing

        job = await self._node.run(lambda tx: erasing.erase(tx, self._id, reason))
        if job.state is not State.COMPLETED:
            with suppress(Conflict):  # it has ended meanwhile
                await self.cancel(f"its content was erased: {reason}")
        return await self._node.run(lambda tx: erasing.remove_content(tx, self._node.blobs, self._id))

    async def approve(self, note: str = "", *, agent: str | None = None) -> None:
        """Lets the job start, for the agent whose approval it waits for; default $HOCKET_AGENT, else this machine's
        user. Raises NotAuthorised if the job names another.
        """
        name = check_agent(agent or default_agent())
        await self._node.decide(lambda tx: approving.answer(tx, self._id, name, note, is_approved=True))

    async def refuse(self, note: str = "", *, agent: str | None = None) -> None:
        """Cancels the job, for the agent whose approval it waits for."""
        name = check_agent(agent or default_agent())
        await self._node.decide(lambda tx: approving.answer(tx, self._id, name, note, is_approved=False))

    async def ask(self, question: str, wait: Duration, number: int = 1) -> str:
        """Asks the agent who answers for this job, for its worker, and returns the answer; also one that an earlier
        worker got to this question. `number` tells questions with the same text apart. Raises TimeoutError.
        """
        node, wait_ms = self._node, milliseconds(wait, "wait")
        asked = await node.run(lambda tx: questions.ask(tx, node.blobs, self._id, question, number, wait_ms))
        node.wrote()

        def look(session: Session) -> tuple[bool, str | None]:
            job = _entry(session, self._id).job
            found = questions.asked(session, job, question, number)
            is_over = found is None or found.answer is not None or job.state is not State.CLAIMED
            return is_over, None if found is None else found.answer

        answer, left_ms = asked.answer, asked.until_ms - node.log.physical()
        if answer is None:
            try:
                answer = await node.until(lambda: node.peek(look), max(0, left_ms) / 1000, about(JOB, self._id))
            except TimeoutError:
                raise TimeoutError(f"no answer from {asked.to} to: {question}") from None
        if answer is None:
            raise Conflict(f"the worker does not hold job {self.job_id} any more, so its question is void")
        return answer

    async def answer(self, text: str, *, agent: str | None = None, question: str | None = None) -> None:
        """Answers what the job asks, for the agent of this node that it asks, if no other is named. With a `question`,
        the id of its message, answers only that one. Raises Conflict if the job waits for no answer, and NotAuthorised
        if it asks another agent.
        """
        node, message = self._node, None if question is None else message_id_of(question)
        await node.run(lambda tx: questions.answer(tx, node.blobs, self._id, text, agent, message))
        node.wrote()

    async def postpone(
        self,
        until: int | str | datetime | None = None,
        *,
        delay: Duration | None = None,
        reason: str = "postponed by its submitter",
    ) -> None:
        """Moves the start of a pending job to a time, or by a `delay` from now; 0 lets it start now. Raises Conflict if
        the job runs or has ended.
        """
        start = start_time(until, delay)
        await self._node.decide(lambda tx: postpone_pending(tx, self._id, start, reason))

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


class SyncHandle(Generic[R_co]):
    """A submitted job. `created` is False if a unique key led to an existing job."""

    __slots__ = ("_target",)

    def __init__(self, target: Handle[R_co]) -> None:
        self._target = target

    @property
    def job_id(self) -> str:
        return self._target.job_id

    @property
    def created(self) -> bool:
        return self._target.created

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of job {self.job_id}>"

    status = Blocking(Handle.status)
    proof = Blocking(Handle.proof)
    cancel = Blocking(Handle.cancel)
    retry = Blocking(Handle.retry)
    postpone = Blocking(Handle.postpone)
    approve = Blocking(Handle.approve)
    refuse = Blocking(Handle.refuse)
    ask = Blocking(Handle.ask)
    answer = Blocking(Handle.answer)
    erase = Blocking(Handle.erase)

    def result(self, timeout: float | None = None) -> R_co:
        """Waits for the job and returns its result. Raises JobFailed, JobCancelled or TimeoutError."""
        return now(self._target.result(timeout))

    @overload
    def then(self, job: JobType[P, T], /, *args: P.args, **payload: P.kwargs) -> "SyncHandle[T]": ...
    @overload
    def then(self, job: str, /, **payload: Any) -> "SyncHandle[Any]": ...
    def then(self, job: JobType[Any, Any] | str, /, *args: Any, **payload: Any) -> "SyncHandle[Any]":
        """Submits a job that starts when this one has succeeded, as `Handle.then` does."""
        return SyncHandle(now(self._target.then(job, *args, **payload)))

    def stream(self, progress: Progress = None) -> Iterator[Part]:
        """Yields the parts of the result as they come, as `Handle.stream` does."""
        return each(self._target.stream(progress))

    def events(self) -> Iterator[dict[str, Any]]:
        """Yields the job's ops from the first on, each as it arrives, until the job ends."""
        return each(self._target.events())
