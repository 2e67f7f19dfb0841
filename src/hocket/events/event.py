"""What every event has, and how events reach their listeners."""

from collections.abc import Callable
from typing import ClassVar

import msgspec

# The levels of `logging`, which a short command does not load.
DEBUG, INFO, WARNING, ERROR = 10, 20, 30, 40


class Event(msgspec.Struct, frozen=True, tag=True, tag_field="type"):
    """Ids are in the form that people see. A `routine` event belongs to the ordinary life of a job or a node: programs
    get it, people only if they ask for it. `logger` and `level` say where and how `logging` shows it.
    """

    routine: ClassVar[bool] = False
    logger: ClassVar[str] = "hocket.node"
    level: ClassVar[int] = WARNING


Emit = Callable[[Event], None]


def listens(emit: Emit, event: type[Event]) -> bool:
    """Whether events of this type reach anyone through `emit`, which may say so by a method `wants`. Ask before making
    an event that comes with every job.
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
