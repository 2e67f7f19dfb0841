"""Events: what happens while a node works. A program reads an event's type and fields; a person reads its sentence,
`str(event)`. Events are information only: nothing depends on them, and losing one loses no data. The log holds what
must last. `events.event_logging` writes them to Python's `logging`. The modules of this package declare them.
"""

from collections.abc import Callable
from typing import ClassVar, dataclass_transform

from msgspec import Struct
from msgspec.structs import asdict

# The levels of `logging`, which a short command does not load.
DEBUG, INFO, WARNING, ERROR = 10, 20, 30, 40


@dataclass_transform(frozen_default=True)
class Event(Struct, frozen=True, tag=True, tag_field="type"):
    """Ids are in the form that people see. A `routine` event belongs to the ordinary life of a job or a node: programs
    get it, people only if they ask for it. `logging` shows an event under its `logger` with its `own_level`; `level` is
    the highest that events of its type have. `sentence` names fields in braces. A type whose sentence needs more than
    its fields defines `__str__` instead.
    """

    routine: ClassVar[bool] = False
    logger: ClassVar[str] = "hocket.node"
    level: ClassVar[int] = WARNING
    sentence: ClassVar[str]

    @property
    def own_level(self) -> int:
        return self.level

    def __str__(self) -> str:
        return self.sentence.format(**asdict(self))


Emit = Callable[[Event], None]


def listens(emit: Emit, event: type[Event]) -> bool:
    """Whether `emit` passes events of this type on; it may have a method `wants` that says so. Ask before you make an
    event that comes with every job.
    """
    wants: Callable[[type[Event]], bool] | None = getattr(emit, "wants", None)
    return wants is None or wants(event)


class _Ignore:
    def __call__(self, event: Event) -> None:
        """Ignores events."""

    def wants(self, event: type[Event]) -> bool:
        return False


ignore: Emit = _Ignore()


class _Sentences:
    def __init__(self, notice: Callable[[str], None], also: Emit) -> None:
        self._notice, self._also = notice, also

    def __call__(self, event: Event) -> None:
        self._also(event)
        if not event.routine:
            self._notice(str(event))

    def wants(self, event: type[Event]) -> bool:
        return not event.routine or listens(self._also, event)


def sentences(notice: Callable[[str], None], also: Emit = ignore) -> Emit:
    """Calls `notice` with the sentence of each event that is not routine, and `also` with every event."""
    return _Sentences(notice, also)
