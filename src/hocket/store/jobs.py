"""The roster, and the queue that workers take jobs from."""

from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol

from hocket.kernel.roster import Job, Outcome


class Stage(IntEnum):
    """A job's place in the queue: its state, and for a pending job what it waits for."""

    READY = 0
    DELAYED = 1
    BLOCKED = 2
    CLAIMED = 3
    DONE = 4


class JobEntry(NamedTuple):
    """A job in the roster: the fold's result, its place in the queue, and which process of this node holds it. In a
    store that nodes share also the time of the last op about the job, if it is not that of the fold's result.
    """

    job: Job
    stage: Stage
    worker: int | None
    other_last: bytes | None = None


class JobFilter(NamedTuple):
    """Which jobs a list shows: those of these stages (all if none is named), of this outcome, and of the kinds that
    `kind` covers. A page begins `beyond` the last job of the page before.
    """

    stages: tuple[Stage, ...] = ()
    outcome: Outcome | None = None
    kind: str | None = None
    beyond: bytes | None = None
    newest_first: bool = True


IsLeft = Callable[[bytes, int], bool]
"""Whether the job with this id and fence is left to others."""


class JobSession(Protocol):
    def job(self, job_id: bytes) -> JobEntry | None: ...
    def jobs_by_id(self, job_ids: Sequence[bytes]) -> list[JobEntry]: ...
    def put_jobs(self, entries: Sequence[JobEntry]) -> None: ...
    def move_jobs(self, entries: Sequence[JobEntry]) -> None:
        """Puts entries of stored jobs that had not ended, and of which only what a claim or a completion changes has
        changed.
        """

    def drop_job(self, job_id: bytes) -> None: ...
    def job_ids(self, low: bytes, high: bytes, limit: int) -> list[bytes]: ...

    def job_ids_ending(self, ending: bytes) -> list[bytes]:
        """The ids that end with these bytes. It reads every job."""

    def jobs(self, wanted: JobFilter, limit: int) -> list[JobEntry]:
        """A page of a list, in the order of job ids."""

    def job_count(self, wanted: JobFilter) -> int:
        """How many jobs a list has in all, however many pages it takes."""

    def each_job(self) -> Iterator[JobEntry]: ...
    def jobs_of_kinds_since(self, kind: str, hlc: bytes) -> list[bytes]:
        """The jobs of a kind, or of all kinds below a prefix that ends with a dot, with an op after that time."""

    def jobs_since(self, hlc: bytes) -> list[bytes]: ...
    def jobs_by_unique_key(self, key: str) -> list[JobEntry]: ...

    def open_offers(self, reason: int) -> int:
        """How many of the latest ops about unfinished jobs do not count for this reason."""

    def counts(self) -> dict[tuple[Stage, Outcome | None], int]:
        """How many jobs there are of each stage, and outcome if they have one. The cost does not grow with the jobs
        that have ended.
        """

    def counts_by_kind(self) -> dict[tuple[Stage, Outcome | None, str], int]:
        """Counts jobs by stage, outcome and kind. The cost grows with the kinds and the unfinished jobs."""

    def set_after(self, job_id: bytes, dependencies: Sequence[bytes]) -> None: ...
    def has_after(self) -> bool: ...
    def dependents(self, job_id: bytes) -> list[bytes]: ...


class QueueSession(Protocol):
    def promote(self, now: int) -> None:
        """Makes delayed jobs ready whose time has come."""

    def ready_kinds(self) -> list[str]: ...

    def ready(self, kind: str, limit: int, after: JobEntry | None = None) -> list[tuple[JobEntry, bytes | None]]:
        """The most urgent jobs of a kind, each with its ScheduleJob op (None if that is not stored yet)."""

    def take_ready(
        self, kind: str, limit: int, after: JobEntry | None = None, is_left: IsLeft | None = None
    ) -> list[tuple[JobEntry, bytes | None]]:
        """Locks and returns the most urgent jobs of a kind. Leaves out jobs that another transaction has locked, and
        jobs that the caller has left to others: of these it reads no more than id and fence.
        """

    has_skipped: bool
    """Whether `take_ready` found no job of a kind, perhaps because other transactions have locked all."""

    def claimed_count(self, kind: str) -> int: ...
    def claimed(self) -> list[JobEntry]: ...

    def take_claimed(self, node: bytes) -> list[JobEntry]:
        """The jobs that a node holds, locked: leaves out those that another transaction has locked."""

    def overdue(self, now: int, limit: int) -> list[JobEntry]:
        """Claimed jobs past their deadline."""

    def take_overdue(self, now: int, limit: int) -> list[JobEntry]:
        """Locks and returns claimed jobs past their deadline; leaves out jobs that another transaction has locked."""

    def take_unbegun(self, now: int, limit: int) -> list[JobEntry]:
        """Jobs that no worker has claimed and whose time for a first claim is over, locked in the same way."""

    def next_begin_by(self) -> int | None:
        """When the time for a first claim ends next."""

    def blocked(self, limit: int, after: JobEntry | None = None) -> list[JobEntry]:
        """Jobs that wait for others, in an order that pages can follow."""

    def next_ready_at(self) -> int | None: ...
    def next_deadline(self) -> int | None: ...

    def busy_kinds(self) -> set[str]:
        """The kinds with a job that can start, is running, or waits for its next try."""

    def busy(self, kind: str, limit: int) -> list[JobEntry]:
        """Jobs of a kind that can start, or wait for their next try."""

    def rate(self, kind: str) -> int: ...
    def set_rate(self, kind: str, due: int) -> None: ...
