"""Jobs in git repositories; `job_id` is a content id."""

from hocket.events.event import Event


class GitUnavailable(Event, frozen=True):
    """The repository cannot be read or written now. `job_id` is None if this concerns every job."""

    error: str
    job_id: str | None = None

    def __str__(self) -> str:
        return f"{'' if self.job_id is None else f'{self.job_id}: '}{self.error}; retrying"


class GitRunFailed(Event, frozen=True):
    job_id: str
    error: str

    def __str__(self) -> str:
        return f"{self.job_id}: {self.error}"
