"""What a transaction can read, and a write transaction also write: the statements of all concerns. And what a store
that nodes share has checked.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

from hocket.kernel.vocabulary import Subject
from hocket.store.artifact_rows import ArtifactSession, ChecksArtifacts
from hocket.store.checkpoint_rows import CheckpointSession
from hocket.store.horizon_rows import HorizonSession
from hocket.store.intake import IntakeSession
from hocket.store.job_rows import ChecksJobs
from hocket.store.local import LocalSession
from hocket.store.message_rows import MessageSession
from hocket.store.op_rows import ChecksOps, NewOp, OpSession
from hocket.store.presence_rows import PresenceSession
from hocket.store.registers import ChecksRegisters, RegisterSession
from hocket.store.roster import JobSession
from hocket.store.subjects import ChecksStates, SubjectSession
from hocket.store.witness_rows import WitnessSession

PROJECTIONS = (
    *("jobs", "finished", "subjects", "after", "cites", "nodes", "routes", "schedules", "artifacts"),
    "arguments",
    *("evictions", "delegations", "revocations", "coordinators", "successions", "forks", "written"),
    *("messages", "deliveries", "group_cursors"),
)


class RowCheck(ChecksOps, ChecksJobs, ChecksStates, ChecksRegisters, ChecksArtifacts, Protocol):
    """What a store that nodes share asks the log before it gives rows: each of these nodes, and every person with
    rights in the database, can change any row. A row that does not stand the check is left out, as if it were not
    there, and reported. A store of one node has no such check.
    """

    wrong: set[Subject]
    """The subjects with rows that were found not to say what the ops say."""
    replays: bool
    """A caller that replays ops takes the rows as they are."""

    def wrote_ops(self, ops: Sequence[NewOp]) -> None:
        """The transaction adds these ops to the log."""

    def committed(self) -> None:
        """The transaction is committed."""


class RowChecks(Protocol):
    def within(self, session: "Session") -> RowCheck:
        """The check of the rows that this session reads. It may read more from it."""


class Session(
    OpSession,
    IntakeSession,
    JobSession,
    SubjectSession,
    MessageSession,
    RegisterSession,
    ArtifactSession,
    PresenceSession,
    CheckpointSession,
    HorizonSession,
    WitnessSession,
    LocalSession,
):
    row_check: RowCheck | None
    """Only in a store that nodes share."""

    def drop_projections(self) -> None:
        """Drops everything that is derived from the ops."""
        # Not TRUNCATE: PostgreSQL's readers would wait for it, and see empty tables in an older view.
        for table in PROJECTIONS:
            self._put(f"DELETE FROM {table}")

    @abstractmethod
    def carry_note(self, note: bytes) -> None:
        """Tells every process that listens on the store, with the commit. A transaction carries its last note. A store
        of one machine carries none: the processes there have their pipes.
        """

    @abstractmethod
    def damage(self) -> list[str]:
        """The faults that the store finds in its own data; normally none."""
