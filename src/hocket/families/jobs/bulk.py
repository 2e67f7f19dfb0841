"""Cancelling, retrying or postponing many jobs: those of a kind, in a state, of an age. They are read in pages and
changed in transactions of bounded size, oldest first, so that other writers wait only briefly. A job that has ended or
been changed meanwhile is left alone.
"""

from collections.abc import AsyncIterator, Callable, Iterable
from typing import NamedTuple, TypedDict, Unpack

from hocket.errors import Conflict, NotAuthorised, Usage
from hocket.families.access import NodeAccess, decided
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.postponing import StartTime, postpone_pending
from hocket.families.jobs.requests import Result
from hocket.families.jobs.rules import Job, Outcome
from hocket.families.jobs.selection import JobSelection
from hocket.families.jobs.view import JobState
from hocket.kernel.arbitration import Reason
from hocket.kernel.texts import duration_ms
from hocket.log import Transaction
from hocket.store import JobCount, Session

READ_MAX = 5_000
CHANGED_MAX = 200


class BulkChange(NamedTuple):
    """A change of a job, in words, and the states in which a job can have it: all, and those meant by default."""

    verb: str
    done: str
    states: tuple[JobState, ...]
    default: tuple[JobState, ...]
    request: Callable[[Transaction, bytes, str], Result]


class Selection(NamedTuple):
    """The jobs in one of the states that match."""

    states: tuple[JobState, ...]
    jobs: JobSelection = JobSelection()


class Which(TypedDict, total=False):
    """A selection as programs write it, and the reason that goes on the log."""

    kind: str | None
    state: str | None
    older_than: str | float | None
    reason: str


class Changed(NamedTuple):
    """How many jobs were changed, and how many could not be; `why` is the first reason."""

    changed: int
    refused: int = 0
    why: str | None = None


def _cancel(tx: Transaction, job_id: bytes, reason: str) -> Result:
    entry = tx.projection.jobs.entry(job_id)
    if entry is not None and entry.job.outcome is Outcome.CANCELLED:
        return entry.job  # with a job that it comes after
    return jobs.cancel(tx, job_id, reason)


_UNENDED = (JobState.pending, JobState.running)
_WAITING = (JobState.ready, JobState.delayed, JobState.blocked)
CANCEL = BulkChange("cancel", "cancelled", (*_UNENDED, *_WAITING), _UNENDED, _cancel)
RETRY = BulkChange("retry", "retried", (JobState.failed, JobState.cancelled), (JobState.failed,), jobs.retry)


def postponing(start: StartTime) -> BulkChange:
    """Moving the start of pending jobs to that time."""
    request = lambda tx, job_id, reason: postpone_pending(tx, job_id, start, reason)  # noqa: E731
    return BulkChange("postpone", "postponed", (JobState.pending, *_WAITING), (JobState.pending,), request)


def select(
    change: BulkChange,
    now_ms: int,
    *,
    kind: str | None = None,
    state: str | None = None,
    older_than: str | float | None = None,
) -> Selection:
    """The jobs that these options name. Raises Usage if there is no option, or a bad one."""
    if state is None and kind is None and older_than is None:
        raise Usage(f"say which jobs to {change.verb}: by kind, state or age")
    try:
        before_ms = None if older_than is None else now_ms - duration_ms(older_than)
    except ValueError as error:
        raise Usage(f"bad age: {error}") from None
    return selection(change, state, JobSelection(kind=kind, until_ms=before_ms))


def selection(change: BulkChange, state: str | None, jobs: JobSelection) -> Selection:
    """Raises Usage for a state in which no job can have this change."""
    return Selection(change.default if state is None else (state_of(change, state),), jobs)


def state_of(change: BulkChange, text: str) -> JobState:
    """The state that a text names. Raises Usage if no job in it can have the change."""
    known = {each.value: each for each in change.states}
    try:
        return known[JobState(text).value]
    except (ValueError, KeyError):
        named = " and ".join(each for each in change.states if each not in _WAITING)
        raise Usage(f"bad state {text!r}: only {named} jobs can be {change.done}") from None


def page(
    session: Session, wanted: Selection, state: JobState, beyond: bytes | None
) -> tuple[list[bytes], bytes | None]:
    """The next jobs in one state that match, oldest first, and where the page after them begins; None at the end."""
    sought = wanted.jobs._replace(state=state)
    filter = sought.filter._replace(beyond=beyond, newest_first=False)
    found = session.job_page(filter, READ_MAX, sought.passes(session))
    return [entry.job.id for entry in found.entries], found.beyond


def count(session: Session, wanted: Selection) -> JobCount:
    """How many jobs match, as far as a bounded number of rows tells."""
    sought = [wanted.jobs._replace(state=state) for state in wanted.states]
    counts = [session.bounded_count(each.filter, each.passes(session)) for each in sought]
    return JobCount(sum(each.jobs for each in counts), any(each.is_cut for each in counts))


async def change_which(access: NodeAccess, change: BulkChange, **which: Unpack[Which]) -> Changed:
    """Changes all jobs that match. Raises Usage if the options name no jobs."""
    asked = {name: value for name, value in which.items() if name != "reason"}
    wanted = select(change, access.log.reading().wall, **asked)  # type: ignore[arg-type]
    return await change_all(access, change, wanted, which.get("reason") or f"{change.done} with others")


async def change_all(
    access: NodeAccess,
    change: BulkChange,
    wanted: Selection,
    reason: str,
    progress: Callable[[int], None] = lambda visited: None,
) -> Changed:
    """Changes all jobs that match. `progress` is called with how many have been visited."""
    last = Changed(0)
    async for visited, last in changes(access, change, wanted, reason):  # noqa: B007
        progress(visited)
    return last


async def changes(
    access: NodeAccess, change: BulkChange, wanted: Selection, reason: str, limit: int | None = None
) -> AsyncIterator[tuple[int, Changed]]:
    """Changes the jobs that match, at most so many. Tells after each transaction how many have been visited, and how
    many changed.
    """
    changed = refused = visited = 0
    why: str | None = None
    async for found in _steps(access, wanted):
        some = found if limit is None else found[: limit - visited]
        for decision in await decided(access, lambda tx, some=some: _request(tx, change, some, reason)):  # type: ignore[misc]
            if isinstance(decision, Job):
                changed += 1
            elif decision not in _MEANWHILE:
                refused, why = refused + 1, why or decision.sentence
        visited += len(some)
        yield visited, Changed(changed, refused, why)
        if visited == limit:
            return


async def _steps(access: NodeAccess, wanted: Selection) -> AsyncIterator[list[bytes]]:
    """The jobs that match, as many at a time as one transaction changes."""
    for state in wanted.states:
        beyond: bytes | None = None
        is_last = False
        while not is_last:
            found, beyond = await access.read(lambda session, state=state, at=beyond: page(session, wanted, state, at))  # type: ignore[misc]
            for first in range(0, len(found), CHANGED_MAX):
                yield found[first : first + CHANGED_MAX]
            is_last = beyond is None


# Not worth a word: the job has ended, or waits again.
_MEANWHILE = (Reason.COMPLETED, Reason.NOT_FAILED)


def _request(tx: Transaction, change: BulkChange, job_ids: Iterable[bytes], reason: str) -> list[Result]:
    return [_one(tx, change, job_id, reason) for job_id in job_ids]


def _one(tx: Transaction, change: BulkChange, job_id: bytes, reason: str) -> Result:
    try:
        return change.request(tx, job_id, reason)
    except Conflict:
        entry = tx.projection.jobs.entry(job_id)
        is_stuck = change is RETRY and entry is not None and entry.job.outcome in (Outcome.FAILED, Outcome.CANCELLED)
        return Reason.AFTER_UNMET if is_stuck else Reason.COMPLETED
    except NotAuthorised:
        return Reason.UNAUTHORISED
