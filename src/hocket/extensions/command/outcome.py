"""How a command job ended, as a shell reports it: an exit code, and a sentence if the code alone is not enough."""

from typing import NamedTuple

from hocket.errors import HocketError
from hocket.extensions.command.execution import Execution, Stream
from hocket.extensions.command.proof import read_envelope
from hocket.extensions.command.proofs import find_proof
from hocket.families import artifacts
from hocket.families.artifacts import Fetch
from hocket.families.blobs import Blobs
from hocket.families.jobs import view
from hocket.families.jobs.rules import Job
from hocket.families.jobs.rules import Outcome as Ended
from hocket.kernel.ids import ulid_text
from hocket.store import Session, Stage
from hocket.work.output_files import STREAM_TYPES

TIMED_OUT, NOT_STARTED, BY_SIGNAL = 124, 127, 128


class CommandOutcome(NamedTuple):
    code: int
    sentence: str


def plain_ending(job: Job, execution: Execution | None) -> CommandOutcome | None:
    """The ending of a job whose last run is known, without reading the log; None if the log has more to say."""
    if execution is None or execution.fence != job.fence or job.outcome in (None, Ended.CANCELLED):
        return None
    return CommandOutcome(exit_code(execution), "") if _is_plain(execution) else None


def ending(session: Session, blobs: Blobs, job_id: bytes) -> CommandOutcome | None:
    """None while the job has not ended."""
    entry = session.job(job_id)
    if entry is None or entry.stage is not Stage.DONE:
        return None
    job = entry.job
    if job.outcome is not Ended.CANCELLED:
        proof = find_proof(session, blobs, job)
        if proof is not None:
            execution = read_envelope(proof.envelope)
            return CommandOutcome(exit_code(execution), _sentence(session, job, execution))
    verb = "was cancelled" if job.outcome is Ended.CANCELLED else "failed"
    return CommandOutcome(1, f"job {ulid_text(job_id)} {verb}: {_error(session, job)}")


def exit_code(execution: Execution) -> int:
    if execution.timed_out:
        return TIMED_OUT
    if execution.signal is not None:
        return BY_SIGNAL + execution.signal
    return NOT_STARTED if execution.exit_code is None else execution.exit_code


def printed(session: Session, blobs: Blobs, job_id: bytes, stream: str, fetch: Fetch | None) -> bytes | None:
    """What was kept of a stream of the job's last run, as its proof names it; None if it is not available."""
    entry = session.job(job_id)
    proof = None if entry is None else find_proof(session, blobs, entry.job, fetch)
    if proof is None:
        return None
    named: Stream | None = getattr(read_envelope(proof.envelope), stream)
    if named is not None and named.size == 0:
        return b""
    found = [
        each
        for each in session.artifacts_of_job(job_id)
        if named is not None and each.type == STREAM_TYPES[stream] and each.hash == named.hash
    ]
    try:
        return artifacts.content(session, blobs, found[-1], fetch) if found else None
    except HocketError:
        return None


def _sentence(session: Session, job: Job, execution: Execution) -> str:
    return "" if _is_plain(execution) else _error(session, job)


def _is_plain(execution: Execution) -> bool:
    """Whether a command ended on its own, so that its output says everything."""
    is_stopped = execution.charge is not None and bool(execution.charge.over)
    return execution.exit_code is not None and not execution.timed_out and not is_stopped


def _error(session: Session, job: Job) -> str:
    entry = session.job(job.id)
    assert entry is not None
    return str(view.full(session, entry)["error"] or "no reason was recorded")
