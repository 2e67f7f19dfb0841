"""Jobs and their runs, also those in git repositories, where `job_id` is a content id."""

from hocket.events import DEBUG, ERROR, INFO, WARNING, Event
from hocket.kernel.texts import counted


class _RunEvent(Event):
    """`fence` is the fence of the worker's claim on the job."""

    routine = True
    logger = "hocket.jobs"
    level = INFO
    job_id: str
    kind: str
    fence: int


class JobClaimed(_RunEvent):
    """`waited_s` is the time from the submit, or from when the job could start, to its first claim; None for a later
    claim.
    """

    level = DEBUG
    sentence = "job {job_id}: claimed"
    waited_s: float | None = None


class RunStarted(_RunEvent):
    sentence = "job {job_id}: {kind} started"


class RunFinished(_RunEvent):
    """`run_s` is how long its handler ran, and `cost` what that cost if the worker has a rate card."""

    sentence = "job {job_id}: {kind} succeeded"
    run_s: float = 0.0
    cost: float | None = None


class RunFailed(_RunEvent):
    """`last_line` is the last line of an error that has several, else empty. `is_final` is whether the job has failed
    with this run; if not, a worker tries it again after `retry_s`.
    """

    level = ERROR
    error: str
    last_line: str = ""
    is_final: bool = True
    run_s: float = 0.0
    cost: float | None = None
    retry_s: float | None = None

    @property
    def own_level(self) -> int:
        return ERROR if self.is_final else WARNING

    def __str__(self) -> str:
        retry = "" if self.retry_s is None else f"; it is tried again in {self.retry_s:.1f} seconds"
        return f"job {self.job_id}: {self.kind} failed: {self.error}{retry}"


class RetryPlanned(_RunEvent):
    """The job of a failed run is back in the queue. `failures` counts its failed tries."""

    failures: int
    rest_s: float

    def __str__(self) -> str:
        return f"job {self.job_id}: try {self.failures + 1} in {self.rest_s:.1f} seconds"


class JobHandedBack(_RunEvent):
    sentence = "job {job_id}: returned to the queue"


class JobPostponed(_RunEvent):
    sentence = "job {job_id}: postponed by {delay_s:g} s: {reason}"
    delay_s: float
    reason: str


class JobRescued(_RunEvent):
    """This node returned a job to the queue because its worker is gone."""

    level = WARNING
    sentence = "job {job_id}: rescued: {reason}"
    reason: str


class JobRunsAlone(_RunEvent):
    """`deaths` worker processes of this node died or were lost while they held the job. If it `is_isolated`, it runs in
    a process of its own; otherwise the worker holds no other job meanwhile.
    """

    routine = False
    level = WARNING
    deaths: int
    is_isolated: bool

    def __str__(self) -> str:
        where = "in a process of its own" if self.is_isolated else "and this worker holds no other job meanwhile"
        return f"job {self.job_id}: {self.deaths} worker processes died while they held it; it runs alone, {where}"


class LeaseLost(Event):
    logger = "hocket.jobs"
    sentence = "job {job_id}: handler stopped: {reason}"
    job_id: str
    reason: str


class ResultDiscarded(Event):
    logger = "hocket.jobs"
    sentence = "job {job_id}: result discarded: {reason}"
    job_id: str
    reason: str


class JobSkipped(Event):
    """This worker does not run the job."""

    logger = "hocket.jobs"
    sentence = "job {job_id} skipped: {reason}"
    job_id: str
    reason: str


class JobWaiting(Event):
    """A command waits for this job."""

    sentence = "waiting: {detail}"
    job_id: str
    reason: str
    detail: str


class JobsReclaimed(Event):
    level = INFO
    count: int

    def __str__(self) -> str:
        return f"returned {counted(self.count, 'job')} of a dead worker process to the queue"


class KindsNotDefined(Event):
    kinds: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"this node may not define {', '.join(self.kinds)}: the options priority, ttl, open and claim of these"
            " handlers apply only to jobs that their own programs submit, all other options to every run here; the"
            " owner can grant it with `--worker PREFIX` or `--may job:define:PREFIX`"
        )


class ScheduleSkipped(Event):
    sentence = "schedule {schedule!r} submits no job: {reason}"
    schedule: str
    reason: str


class SecretsNotHandedOver(Event):
    sentence = "job {job_id}: cannot hand over its secrets: {error}"
    job_id: str
    error: str


class GitUnavailable(Event):
    """This worker cannot read or write the repository now. `job_id` is None if this concerns every job."""

    error: str
    job_id: str | None = None

    def __str__(self) -> str:
        return f"{'' if self.job_id is None else f'{self.job_id}: '}{self.error}; retrying"


class GitRunFailed(Event):
    sentence = "{job_id}: {error}"
    job_id: str
    error: str
