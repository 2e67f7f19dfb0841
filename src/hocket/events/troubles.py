"""Failures of one thing among many: one schedule, one job, one artifact. The operator gets one event, and another only
after a while; the thing is skipped for a while, and the rest continues. `work.environment` restarts a task that fails
as a whole.
"""

from collections.abc import Callable, Hashable
from typing import TypeVar

from hocket.errors import StoreError
from hocket.events import Emit, Event
from hocket.events.workers import StepFailed
from hocket.kernel.ids import ulid_text

T = TypeVar("T")

TOLD_AGAIN_S = 600.0
REST_S = 30.0
# How many things are remembered; beyond that the one that failed longest ago is dropped and may be reported again.
REMEMBERED_MAX = 1_000


class Troubles:
    def __init__(self, emit: Emit, monotonic: Callable[[], float]) -> None:
        self._emit = emit
        self._monotonic = monotonic
        self._told: dict[Hashable, float] = {}
        self._failed: dict[Hashable, float] = {}

    def tell(self, thing: Hashable, event: Event) -> None:
        """Records that the thing failed; the event says which one and why."""
        now = self._monotonic()
        self._note(self._failed, thing, now)
        if now - self._told.get(thing, -TOLD_AGAIN_S) >= TOLD_AGAIN_S:
            self._note(self._told, thing, now)
            self._emit(event)

    def _note(self, times: dict[Hashable, float], thing: Hashable, now: float) -> None:
        times.pop(thing, None)
        while len(times) >= REMEMBERED_MAX:
            del times[next(iter(times))]
        times[thing] = now

    def is_resting(self, thing: Hashable) -> bool:
        """Whether the thing failed so recently that it is not worth another try."""
        failed = self._failed.get(thing)
        return failed is not None and self._monotonic() - failed < REST_S

    def failed(self, thing: Hashable, name: str, error: Exception, job: bytes | None = None) -> None:
        """Records that a step about the thing failed, under that name, followed by the job if one is given."""
        text = name if job is None else f"{name} {ulid_text(job)}"
        self.tell(thing, StepFailed(text, described(error)))

    def contained(self, thing: Hashable, name: str, job: bytes | None = None) -> "_Contained":
        """A failure inside the block is reported under that name, followed by the job if one is given, and not raised.
        An error of the store concerns everything, and is raised.
        """
        return _Contained(self, thing, name, job)


class _Contained:
    def __init__(self, troubles: Troubles, thing: Hashable, name: str, job: bytes | None) -> None:
        self._troubles, self._thing, self._name, self._job = troubles, thing, name, job

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if not isinstance(error, Exception) or isinstance(error, StoreError):
            return False
        self._troubles.failed(self._thing, self._name, error, self._job)
        return True


def described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
