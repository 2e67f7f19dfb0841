"""What a write transaction was told when it began. All of this changes only in transactions that are alone."""

from hocket.families.availability.facts import AVAILABILITY
from hocket.families.kinds.facts import KIND
from hocket.kernel.vocabulary import Subject

# The families of subjects that transactions ask for again and again.
FAMILIES = (KIND, AVAILABILITY)


class Told:
    """What a transaction knows since it began. None is for what it has to ask."""

    __slots__ = ("asked", "has_after", "has_routes", "last", "next_ready", "offered", "subjects", "worker")

    def __init__(
        self, last: tuple[bytes | None, bytes], has_after: bool, has_routes: bool, worker: tuple[int, bool]
    ) -> None:
        self.last = last
        """An author, and its last op."""
        self.has_after: bool | None = has_after
        self.has_routes: bool | None = has_routes
        self.worker: tuple[int, bool] | None = worker
        """A worker, and whether it is registered."""
        self.offered: set[bytes] | None = None
        """The jobs with claims that wait for the arbiter, as of the last look at the queue."""
        self.next_ready: tuple[int | None] | None = None
        """When the next delayed job is due, if one is, as of that look."""
        self.subjects: dict[Subject, tuple[bytes | None, bytes | None]] = {}
        """The states of subjects, each with the time of the latest op about it."""
        self.asked: set[Subject] = set()
        """The subjects that the transaction has asked for."""

    def resume(self, last: tuple[bytes, bytes]) -> None:
        """Another transaction begins, and nobody else has written meanwhile. The queue depends on the time, too."""
        self.last = last
        self.offered = self.next_ready = None
        if self.worker is not None and not self.worker[1]:
            self.worker = None

    def forget(self) -> None:
        """The transaction has changed the tables."""
        self.has_after = self.has_routes = self.worker = self.offered = self.next_ready = None
        self.subjects.clear()
