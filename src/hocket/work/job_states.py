"""The words for the states of a job that users read and write: pending, running, succeeded, failed, cancelled. A
pending job is ready, delayed or blocked. The kernel's own words, and those of earlier versions, are accepted.
"""

from enum import StrEnum

from hocket.families.jobs.rules import Job, Outcome, State
from hocket.store import JobEntry, JobFilter, Stage

_WAITING = (Stage.READY, Stage.DELAYED, Stage.BLOCKED)


class JobState(StrEnum):
    pending = "pending"
    ready = "ready"
    delayed = "delayed"
    blocked = "blocked"
    running = "running"
    succeeded = "succeeded"
    failed = "failed"
    cancelled = "cancelled"
    completed = "completed"
    """Ended, with any outcome."""

    @classmethod
    def _missing_(cls, value: object) -> "JobState | None":
        return {"claimed": cls.running, "waiting": cls.pending}.get(str(value))

    @property
    def filter(self) -> JobFilter:
        """The jobs in this state."""
        if self is JobState.pending:
            return JobFilter(_WAITING)
        if self is JobState.running:
            return JobFilter((Stage.CLAIMED,))
        if self is JobState.completed:
            return JobFilter((Stage.DONE,))
        if self.name.upper() in Outcome.__members__:
            return JobFilter(outcome=Outcome[self.name.upper()])
        return JobFilter((Stage[self.name.upper()],))


# The words that people see; `completed` is an old one.
STATE_WORDS = tuple(each.value for each in JobState if each is not JobState.completed)


def state_of(job: Job) -> str:
    if job.outcome is not None:
        return job.outcome.name.lower()
    return "running" if job.state is State.CLAIMED else "pending"


def stage_of(entry: JobEntry) -> str:
    """Why a pending job waits: ready, delayed or blocked; else its state."""
    return entry.stage.name.lower() if entry.stage in _WAITING else state_of(entry.job)


def counted_as(stage: Stage, outcome: int | None) -> str:
    """The word under which a job is counted."""
    if stage is Stage.DONE and outcome is not None:
        return Outcome(outcome).name.lower()
    return "running" if stage is Stage.CLAIMED else stage.name.lower()


# The words under which jobs are counted, in the order of a job's life.
COUNTED = ("ready", "delayed", "blocked", "running", *(each.name.lower() for each in Outcome))
