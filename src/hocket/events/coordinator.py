"""The coordinator."""

from hocket.events.event import INFO, Event
from hocket.kernel.plurals import counted


class CoordinatorUnreachable(Event, frozen=True):
    error: str

    def __str__(self) -> str:
        return f"no decision from the coordinator ({self.error}); jobs that need one wait"


class CoordinatorFailed(Event, frozen=True):
    error: str

    def __str__(self) -> str:
        return f"asking the coordinator failed ({self.error}); jobs that need its decision wait"


class CoordinatorReachable(Event, frozen=True):
    level = INFO

    def __str__(self) -> str:
        return "the coordinator decides again"


class CoordinatorUnknown(Event, frozen=True):
    def __str__(self) -> str:
        return "this node does not know the coordinator yet; jobs that need its decision wait"


class CoordinatorSilent(Event, frozen=True):
    node: str

    def __str__(self) -> str:
        return f"the coordinator {self.node} has been silent for long"


class OpsWaiting(Event, frozen=True):
    """Ops of this node that the coordinator does not have, because it cannot be reached. `since_ms` is the time of the
    oldest.
    """

    ops: int
    since_ms: int

    def __str__(self) -> str:
        return f"waiting here for the coordinator: {counted(self.ops, 'op')}, sent in order when it answers"


class OpsDelivered(Event, frozen=True):
    level = INFO

    def __str__(self) -> str:
        return "the coordinator has all ops that waited here"
