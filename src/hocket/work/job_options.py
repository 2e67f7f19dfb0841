"""The options of a job as type checkers see them, the same for `@job`, `kind` and `using`. `drafts.policy` gives them
their meaning.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from os import PathLike
from typing import Any, Literal, Protocol, TypedDict

from hocket.kernel.policy import Budget, Rate, Score

Duration = str | int | float


class HasJobId(Protocol):
    """A handle on a job."""

    @property
    def job_id(self) -> str: ...


ErrorTypes = type[BaseException] | Iterable[type[BaseException]]


class JobOptions(TypedDict, total=False):
    """The options of `policy`."""

    priority: int
    not_before: int | str | datetime | None
    lease: Duration | None
    timeout: Duration | None
    retries: int | None
    backoff: Duration
    backoff_max: Duration
    after: str | HasJobId | Iterable[str | HasJobId]
    unique: str | None
    unique_for: Duration | None
    concurrency: int | None
    rate: str | Rate | None
    open: bool
    needs: str | Iterable[str]
    ttl: Duration | None
    claim: Literal["first", "rendezvous", "sticky"]
    sticky: str | None
    claim_timeout: Duration
    budget: Budget | Mapping[str, Any] | PathLike[str] | None
    score: Score | Mapping[str, Any] | PathLike[str] | None


class HandlerOptions(JobOptions, total=False):
    """The options of `@job`: those of its jobs, and which errors are retried."""

    retry_on: ErrorTypes
    give_up_on: ErrorTypes
