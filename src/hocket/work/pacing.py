"""What keeps a run to more than its lease and its timeout, such as the beats of a score or the caps of a budget: a
`Pacer`, which an extension makes for the runs that it paces. Any other run has none.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from hocket.families.jobs.rules import Job
from hocket.kernel.extension import extensions, loaded
from hocket.work.handlers import JobType
from hocket.work.run_outputs import RunOutputs, RunServices


class Ending(NamedTuple):
    """How a handler ended. `may_retry` says whether its error lets the job be retried at all, `later_ms` for how long
    it asked to postpone the job.
    """

    result: bytes | None
    error: str | None = None
    traceback: str = ""
    may_retry: bool = True
    later_ms: int | None = None


class RunEnded(BaseException):
    """Raised inside a handler whose run is over. Catch it only to raise it again."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.error or "the job ends with its fallback")
        self.ending = ending


class Limit(NamedTuple):
    """A run may take so many seconds. If it takes longer, its handler has `stop_s` to stop, and `ending` says how the
    job ends; it gets what became of the handler.
    """

    seconds: float
    ending: Callable[[str], Ending]
    stop_s: float = math.inf


class Pacer:
    """Paces one run. Any thread may call it. In a handler process the run has a twin of it: `twin` is its place and
    what it is made of, and what the twin passes to `tell` comes to `hear`.
    """

    twin: tuple[str, Any] | None = None
    look_at = math.inf
    """When it has to look at the run next."""
    tell: Callable[[Any], None] = staticmethod(lambda message: None)

    def hear(self, message: Any) -> None: ...

    def limits(self) -> Iterable[Limit]:
        """Those that are known before the run begins."""
        return ()

    def begin(self, now: float) -> Iterable[Limit]:
        """The handler starts now."""
        return ()

    def enter(self) -> None:
        """A plain handler begins in this thread."""

    def leave(self) -> None: ...

    def watched(self, awaited: Any) -> Any:
        """The coroutine of an async handler, or another one that runs it."""
        return awaited

    def look(self) -> Limit | None:
        """The limit that the run has passed, if any."""
        return None

    def note(self, note: bytes) -> None:
        """The handler has reported its progress, as JSON."""

    def may_save(self) -> bool:
        """Whether a checkpoint may go on the log now."""
        return True

    def end(self) -> float | None:
        """The run is over. Returns what it cost, if that is known."""
        return None


MakePacer = Callable[[Job, JobType, RunServices, Callable[[], RunOutputs]], Pacer | None]
"""Makes the pacer of a run from its job, its handler, the services and what gives its outputs."""


def pacers_of(
    job: Job, job_type: JobType, services: RunServices, outputs: Callable[[], RunOutputs]
) -> Mapping[str, Pacer]:
    """By extension: those that pace every run of this process, and those that a member of the job's policy needs."""
    makers: dict[str, MakePacer] = dict(services.pacers)
    for extension in extensions():
        for member, place in extension.pacers.items():
            if getattr(job.policy, member) is not None and extension.name not in makers:
                makers[extension.name] = loaded(place)
    made = {name: make(job, job_type, services, outputs) for name, make in makers.items()}
    return {name: pacer for name, pacer in made.items() if pacer is not None}
