"""Cancelling or retrying many jobs: those of a kind, in a state, of an age. They are read in pages and changed in
transactions of bounded size, oldest first, so that other writers wait only briefly. A job that has ended or been
changed meanwhile is left alone.
"""

from collections.abc import AsyncIterator, Callable, Iterable
from typing import NamedTuple, TypedDict, Unpack

from hocket.errors import Conflict, NotAuthorised, Usage
from hocket.families.access import NodeAccess, decided
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.requests import Result
from hocket.families.jobs.rules import Job, Outcome
from hocket.families.jobs.view import JobState
from hocket.kernel.arbitration import Reason
from hocket.kernel.policy import covers
from hocket.kernel.texts import duration_ms
from hocket.log import Transaction
from hocket.store import JobSession

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
    """Which jobs: in one of the states, of a kind, or of all kinds below one that ends with a dot, and submitted before
    a time.
    """

    states: tuple[JobState, ...]
    kind: str | None = None
    before_ms: int | None = None

    def has(self, job: Job) -> bool:
        kind = self.kind
        of_kind = kind is None or covers(kind, job.kind)
        return of_kind and (self.before_ms is None or job.scheduled.wall < self.before_ms)


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
    named = None if state is None else _state(change, state)
    try:
        before_ms = None if older_than is None else now_ms - duration_ms(older_than)
    except ValueError as error:
        raise Usage(f"bad age: {error}") from None
    return Selection(change.default if named is None else (named,), kind, before_ms)


def _state(change: BulkChange, text: str) -> JobState:
    known = {each.value: each for each in change.states}
    try:
        return known[JobState(text).value]
    except (ValueError, KeyError):
        named = " and ".join(each for each in change.states if each not in _WAITING)
        raise Usage(f"bad state {text!r}: only {named} jobs can be {change.done}") from None


def page(
    session: JobSession, wanted: Selection, state: JobState, beyond: bytes | None
) -> tuple[list[bytes], bytes | None]:
    """The next jobs in one state that match, oldest first, and where the page after them begins; None at the end."""
    exact = None if wanted.kind is None or wanted.kind.endswith(".") else wanted.kind
    rows = session.jobs(state.filter._replace(kind=exact, beyond=beyond, newest_first=False), READ_MAX)
    found = [entry.job.id for entry in rows if wanted.has(entry.job)]
    return found, rows[-1].job.id if len(rows) == READ_MAX else None


def count(session: JobSession, wanted: Selection) -> int:
    """How many jobs match."""
    total = 0
    for state in wanted.states:
        found, beyond = page(session, wanted, state, None)
        total += len(found)
        while beyond is not None:
            found, beyond = page(session, wanted, state, beyond)
            total += len(found)
    return total


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
    changed = refused = visited = 0
    why: str | None = None
    async for some in _steps(access, wanted):
        for decision in await decided(access, lambda tx, some=some: _request(tx, change, some, reason)):  # type: ignore[misc]
            if isinstance(decision, Job):
                changed += 1
            elif decision not in _MEANWHILE:
                refused, why = refused + 1, why or decision.sentence
        visited += len(some)
        progress(visited)
    return Changed(changed, refused, why)


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
