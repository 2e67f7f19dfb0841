"""What a store that nodes share asks the log before it gives rows: each of these nodes, and every person with rights in
the database, can change any row. A store of one node has no such check.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from hocket.kernel.ops import Op
from hocket.kernel.vocabulary import Subject
from hocket.store.artifacts import ChecksArtifacts
from hocket.store.jobs import JobEntry
from hocket.store.ops import ChecksOps
from hocket.store.registers import ChecksRegisters
from hocket.store.subjects import ChecksStates

ReadyJob = tuple[JobEntry, bytes | None]


class BundledOp(NamedTuple):
    """An op that came in a bundle, and the bundle's bytes. The op is None if the bundle has no such one."""

    bundle: bytes
    op: Op | None


class RowChecks(Protocol):
    def within(self, session: Any) -> "RowCheck":
        """The check of the rows that this `Session` reads. It may read more from it."""


class RowCheck(ChecksOps, ChecksStates, ChecksRegisters, ChecksArtifacts, Protocol):
    """A row that does not stand the check is left out, as if it were not there, and reported."""

    def ready(self, jobs: list[ReadyJob], bundled: Mapping[bytes, BundledOp]) -> list[ReadyJob]:
        """The new jobs that are as their ScheduleJob ops say, and that these ops' authors may submit, and other jobs
        whose ScheduleJob ops are good. A job whose op is not stored yet is kept. `bundled` are the ops that came in
        bundles, by their ids.
        """

    def jobs(self, entries: Sequence[JobEntry]) -> list[JobEntry]:
        """The jobs that are as their ScheduleJob ops say, and held by the authors of their claims, if no later op about
        them counts. For a session that folds nothing.
        """

    def knows_job(self, entry: JobEntry) -> bool:
        """Whether this process has written the job so, or folded it, and no op about it is later."""

    def held_jobs(self, job_ids: Iterable[bytes]) -> list[JobEntry]:
        """Those of the jobs that a node holds and that this process knows. The caller must make sure that nothing about
        them is later: then they are as the entries say, whatever their rows say.
        """

    def outdated(self) -> None:
        """The transaction has failed because something is later. The jobs that it got unread are forgotten."""

    def enter_job(self, entry: JobEntry) -> None:
        """The ops about this job, folded, make it what the entry says."""

    def wrote_jobs(self, entries: Sequence[JobEntry]) -> None:
        """The transaction has written these jobs. They are believed when it is committed."""

    def enter_route(self, kind: str, hlc: bytes, node: bytes | None) -> None:
        """The transaction enters a route, by an op that it has yet to store."""

    def refuse(self, table: str, row: str, what: str) -> None:
        """Reports a row that the caller has left out."""

    wrong: set[Subject]
    """The subjects with rows that were found not to say what the ops say."""
    replays: bool
    """A caller that replays ops takes the rows as they are."""

    def committed(self) -> None:
        """The transaction is committed."""
