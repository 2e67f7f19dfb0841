"""The rows of the roster: see `roster`."""

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

from hocket.families.jobs.rules import Job, Outcome


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
