"""What a transaction can read, and a write transaction also write: the statements of all concerns."""

from abc import abstractmethod

from hocket.store.artifacts import ArtifactSession
from hocket.store.intake import IntakeSession
from hocket.store.listening import NoteSession
from hocket.store.local import LocalSession
from hocket.store.messages import MessageSession
from hocket.store.ops import OpSession
from hocket.store.presence import PresenceSession
from hocket.store.registers import RegisterSession
from hocket.store.roster import JobSession
from hocket.store.row_check import RowCheck
from hocket.store.subjects import SubjectSession

PROJECTIONS = (
    *("jobs", "finished", "subjects", "after", "cites", "nodes", "routes", "schedules", "artifacts"),
    *("evictions", "delegations", "revocations", "coordinators", "forks", "written"),
    *("messages", "deliveries", "group_cursors"),
)


class Session(
    OpSession,
    IntakeSession,
    JobSession,
    SubjectSession,
    MessageSession,
    RegisterSession,
    ArtifactSession,
    PresenceSession,
    LocalSession,
    NoteSession,
):
    """It has a `row_check` in a store that nodes share."""

    row_check: RowCheck | None

    def drop_projections(self) -> None:
        """Drops everything that is derived from the ops."""
        # Not TRUNCATE: PostgreSQL's readers would wait for it, and see empty tables in an older view.
        for table in PROJECTIONS:
            self._put(f"DELETE FROM {table}")

    @abstractmethod
    def damage(self) -> list[str]:
        """The faults that the store finds in its own data; normally none."""
