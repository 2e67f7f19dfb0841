"""The states of tasks, and which of them a job is in."""

from enum import StrEnum

from hocket.api.jobs import JobBrief, JobDetails
from hocket.families.jobs.view import WaitReason

# Why CancelTask cancels a job. A job that ended for another reason before it began was rejected.
CANCELLED = "cancelled over A2A"


class TaskState(StrEnum):
    SUBMITTED = "TASK_STATE_SUBMITTED"
    WORKING = "TASK_STATE_WORKING"
    COMPLETED = "TASK_STATE_COMPLETED"
    FAILED = "TASK_STATE_FAILED"
    CANCELED = "TASK_STATE_CANCELED"
    INPUT_REQUIRED = "TASK_STATE_INPUT_REQUIRED"
    REJECTED = "TASK_STATE_REJECTED"
    AUTH_REQUIRED = "TASK_STATE_AUTH_REQUIRED"

    @property
    def is_over(self) -> bool:
        return self in (TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELED, TaskState.REJECTED)

    @property
    def ends_wait(self) -> bool:
        """Whether a message that waits for its task is answered: without its client the task does not go on."""
        return self.is_over or self in (TaskState.AUTH_REQUIRED, TaskState.INPUT_REQUIRED)

    @property
    def ends_stream(self) -> bool:
        """An approval comes outside the protocol, and the stream goes on with it; an answer is another message."""
        return self.is_over or self is TaskState.INPUT_REQUIRED


def state_of_task(job: JobBrief) -> TaskState:
    """Only the details of a job say that it waits for an approval or for an answer."""
    if job.outcome == "succeeded":
        return TaskState.COMPLETED
    if job.outcome == "failed":
        return TaskState.FAILED
    if job.outcome is not None:
        return TaskState.CANCELED if job.fence or job.error == CANCELLED else TaskState.REJECTED
    if isinstance(job, JobDetails) and job.wait_reason is WaitReason.APPROVAL:
        return TaskState.AUTH_REQUIRED
    if isinstance(job, JobDetails) and job.question is not None and job.question.asks_you:
        return TaskState.INPUT_REQUIRED
    return TaskState.WORKING if job.fence else TaskState.SUBMITTED
