"""Jobs and their runs."""

from hocket.events.event import DEBUG, INFO, WARNING, Event
from hocket.kernel.plurals import counted


class _RunEvent(Event, frozen=True):
    """`fence` is the fence of the worker's claim on the job."""

    routine = True
    logger = "hocket.jobs"
    level = INFO

    job_id: str
    kind: str
    fence: int


class JobClaimed(_RunEvent, frozen=True):
    """`waited_s` is the time from the submit, or from when the job could start, to its first claim; None for a later
    claim.
    """

    level = DEBUG

    waited_s: float | None = None

    def __str__(self) -> str:
        return f"job {self.job_id}: claimed"


class RunStarted(_RunEvent, frozen=True):
    def __str__(self) -> str:
        return f"job {self.job_id}: {self.kind} started"


class RunFinished(_RunEvent, frozen=True):
    """`run_s` is how long its handler ran, and `cost` what that cost if the worker has a rate card."""

    run_s: float = 0.0
    cost: float | None = None

    def __str__(self) -> str:
        return f"job {self.job_id}: {self.kind} succeeded"


class RunFailed(_RunEvent, frozen=True):
    """`last_line` is the last line of an error that has several, else empty. `is_final` is whether the job has failed
    with this run; if not, it is tried again after `retry_s`.
    """

    level = WARNING

    error: str
    last_line: str = ""
    is_final: bool = True
    run_s: float = 0.0
    cost: float | None = None
    retry_s: float | None = None

    def __str__(self) -> str:
        more = "" if self.retry_s is None else f"; it is tried again in {self.retry_s:.1f} seconds"
        return f"job {self.job_id}: {self.kind} failed: {self.error}{more}"


class RetryPlanned(_RunEvent, frozen=True):
    """The job of a failed run is back in the queue. `failures` counts its failed tries."""

    failures: int
    rest_s: float

    def __str__(self) -> str:
        return f"job {self.job_id}: try {self.failures + 1} in {self.rest_s:.1f} seconds"


class JobHandedBack(_RunEvent, frozen=True):
    def __str__(self) -> str:
        return f"job {self.job_id}: returned to the queue"


class JobPostponed(_RunEvent, frozen=True):
    delay_s: float
    reason: str

    def __str__(self) -> str:
        return f"job {self.job_id}: postponed by {self.delay_s:g} s: {self.reason}"


class KindsNotDefined(Event, frozen=True):
    kinds: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"this node may not define {', '.join(self.kinds)}: priority, ttl, open and claim of these handlers hold"
            " only for jobs that their own programs submit, all other options for every run here; the owner grants it"
            " with `--worker PREFIX` or `--may job:define:PREFIX`"
        )


class JobRescued(_RunEvent, frozen=True):
    """This node returned a job to the queue because its worker is gone."""

    level = WARNING

    reason: str

    def __str__(self) -> str:
        return f"job {self.job_id}: rescued: {self.reason}"


class JobRunsAlone(_RunEvent, frozen=True):
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


class LeaseLost(Event, frozen=True):
    logger = "hocket.jobs"

    job_id: str
    reason: str

    def __str__(self) -> str:
        return f"job {self.job_id}: handler stopped: {self.reason}"


class ResultDiscarded(Event, frozen=True):
    logger = "hocket.jobs"

    job_id: str
    reason: str

    def __str__(self) -> str:
        return f"job {self.job_id}: result discarded: {self.reason}"


class JobSkipped(Event, frozen=True):
    """A job that this worker does not run. For a job in a git repository, `job_id` is a content id."""

    logger = "hocket.jobs"

    job_id: str
    reason: str

    def __str__(self) -> str:
        return f"job {self.job_id} skipped: {self.reason}"


class JobWaiting(Event, frozen=True):
    """A command waits for this job."""

    job_id: str
    reason: str
    detail: str

    def __str__(self) -> str:
        return f"waiting: {self.detail}"


class JobsReclaimed(Event, frozen=True):
    level = INFO

    count: int

    def __str__(self) -> str:
        return f"returned {counted(self.count, 'job')} of a dead worker process to the queue"


class ScheduleSkipped(Event, frozen=True):
    schedule: str
    reason: str

    def __str__(self) -> str:
        return f"schedule {self.schedule!r} submits no job: {self.reason}"


class SecretsNotHandedOver(Event, frozen=True):
    job_id: str
    error: str

    def __str__(self) -> str:
        return f"job {self.job_id}: cannot hand over its secrets: {self.error}"
