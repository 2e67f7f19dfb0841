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


def ignore(event: Event) -> None:
    """Ignores events."""


def sentences(notice: Callable[[str], None], also: Emit = ignore) -> Emit:
    """Calls `notice` with the sentence of each event that is not routine, and `also` with every event."""

    def emit(event: Event) -> None:
        also(event)
        if not event.routine:
            notice(str(event))

    return emit
