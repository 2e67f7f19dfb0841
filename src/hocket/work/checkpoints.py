"""Checkpoints: how far a handler has come, kept on the log for the next worker that runs the job, on whichever node."""

from hocket.kernel.ops import decode
from hocket.kernel.vocabulary import JOB, SaveCheckpoint, Subject, number_of
from hocket.store import Session

# Checkpoints are at least this far apart, and at least a hundredth of the time that the run has taken: a long run then
# leaves hundreds of them on the log and not thousands, and a worker that dies loses about a hundredth of its work.
CHECKPOINT_S = 0.5
CHECKPOINT_SHARE = 0.01

_NUMBER = number_of(SaveCheckpoint)


def interval_s(running_s: float) -> float:
    return max(CHECKPOINT_S, running_s * CHECKPOINT_SHARE)


def last_checkpoint(session: Session, job_id: bytes) -> bytes | None:
    """The newest checkpoint of the job that counts."""
    rows = [row for row in session.ops_about(Subject(JOB, job_id)) if row.variant == _NUMBER and row.reason == 0]
    if not rows:
        return None
    payload = decode(max(rows, key=lambda row: row.hlc).body).payload
    assert isinstance(payload, SaveCheckpoint)
    return payload.state
