"""The progress that handlers report. The newest note of a running job is presence: a row of the store where its worker
runs, and a part of what that node says about itself to others. It counts while the job has the fence of the run that
reported it, so it ends with the lease. Once a minute at most, the newest note also goes on the log, for later readers.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from hocket.families.jobs.rules import Job, State
from hocket.kernel.decoding import decode_json
from hocket.kernel.ids import ulid_text
from hocket.store import ProgressRow, Session

if TYPE_CHECKING:
    from hocket.families.jobs.requests import Held
    from hocket.log import Transaction

# The shortest interval between two notes of a job in the store, and on the log. A run under a minute leaves none there.
STORED_S = 0.5
LOGGED_S = 60.0
# The most that a node tells others, of all its jobs together, the short notes first. Others read the rest on the log.
SHARED_BYTES_MAX = 4_096


class ProgressNote(msgspec.Struct, frozen=True):
    """A note of a running job, as its node tells others. `note` is JSON."""

    job_id: str
    kind: str
    fence: int
    note: str


class _Notes(msgspec.Struct, frozen=True):
    """Of what a node says about itself, the progress of its jobs."""

    progress: tuple[ProgressNote, ...] = ()


class ReportingRun(Protocol):
    """A run. `note` is its newest note that is not in the store yet, `unlogged` its newest one there that is not on the
    log; `noted_at` and `logged_at` are when it last got one into each.
    """

    job: Job
    held: "Held"
    note: bytes | None
    unlogged: bytes | None
    noted_at: float
    logged_at: float


class DueNote(NamedTuple):
    """A note that a worker writes with its next turn, and whether it also goes on the log."""

    run: ReportingRun
    note: bytes
    is_logged: bool


def due_note(run: ReportingRun, now: float) -> DueNote | None:
    """The note of a run that is to be written now. Takes it from the run."""
    is_new = run.note is not None and now - run.noted_at >= STORED_S
    newest = run.note if is_new else run.unlogged
    is_logged = newest is not None and now - run.logged_at >= LOGGED_S
    if newest is None or not (is_new or is_logged):
        return None
    if is_new:
        run.note, run.noted_at = None, now
    run.unlogged = None if is_logged else newest
    if is_logged:
        run.logged_at = now
    return DueNote(run, newest, is_logged)


def put_back(due: DueNote) -> None:
    """The note could not be written: it is due again."""
    run = due.run
    run.note = run.note or due.note
    if due.is_logged:
        run.logged_at -= LOGGED_S


def write(tx: "Transaction", notes: Sequence[DueNote]) -> None:
    """Stores the notes, and puts those on the log that are due there."""
    from hocket.families.jobs.requests import report

    if not notes:
        return
    node = tx.node.to_bytes(8, "big")
    tx.session.put_progress([ProgressRow(run.job.id, node, run.job.fence, note) for run, note, _ in notes])
    for run, note, is_logged in notes:
        tx.announce(run.job.id)
        if is_logged:
            report(tx, run.held, note)


def own_notes(session: Session, node: int) -> tuple[ProgressNote, ...]:
    """What a node tells others about the jobs that it runs."""
    found, left = [], SHARED_BYTES_MAX
    for kind, row in session.progress_of(node.to_bytes(8, "big")):
        left -= len(row.note)
        if left < 0:
            break
        found.append(ProgressNote(ulid_text(row.job), kind, row.fence, row.note.decode()))
    return tuple(found)


def newest_notes(session: Session, jobs: Iterable[Job]) -> dict[bytes, bytes]:
    """The newest note of each of these jobs, if it has one: of a job that runs, as its worker tells, else as the log
    says.
    """
    known = list(jobs)
    found = {job.id: job.progress for job in known if job.progress is not None}
    running = {job.id: job for job in known if job.state is State.CLAIMED}
    if not running:
        return found
    rows = {row.job: row.note for row in session.progress(list(running))}
    elsewhere = {ulid_text(job.id): job for job in running.values() if job.id not in rows}
    claimers = {job.claimer.to_bytes(8, "big") for job in elsewhere.values() if job.claimer is not None}
    for presence in session.presence() if claimers else ():
        for each in _notes(presence.said) if presence.node in claimers else ():
            job = elsewhere.get(each.job_id)
            if job is not None and _is_of(each, job, presence.node):
                rows[job.id] = each.note.encode()
    return found | rows


def _is_of(note: ProgressNote, job: Job, node: bytes) -> bool:
    return note.fence == job.fence and job.claimer is not None and job.claimer.to_bytes(8, "big") == node


def _notes(said: str) -> tuple[ProgressNote, ...]:
    try:
        return decode_json(said, _Notes).progress
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return ()
