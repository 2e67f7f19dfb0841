"""The bus."""

from hocket.events.event import INFO, Event


class MessagesDropped(Event, frozen=True):
    """A subscription's queue was full for the first time. Its receiver is too slow, or a node sends too much."""

    pattern: str
    capacity: int

    def __str__(self) -> str:
        return (
            f"messages on {self.pattern} come faster than they are read: of more than {self.capacity}, the oldest are"
            " dropped"
        )


class BusConnected(Event, frozen=True):
    """`keeps` is whether the server keeps announcements for those who join later."""

    level = INFO

    server: str
    keeps: bool

    def __str__(self) -> str:
        rest = "" if self.keeps else "; it has no JetStream, so late joiners miss announcements"
        return f"the bus {self.server} is connected{rest}"


class BusAway(Event, frozen=True):
    server: str
    error: str

    def __str__(self) -> str:
        return f"the bus {self.server} is away ({self.error}); work goes on without it"
