"""What a handler uses. Linux counts processor time and disk for each thread, so those of a plain handler are exact; of
a coroutine the time of its own steps is counted. The memory of a process is shared out among the runs in it. What no
kernel tells, such as seconds of an accelerator, the handler says itself.
"""

import math
import resource
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable
from contextlib import asynccontextmanager, suppress
from types import coroutine
from typing import TYPE_CHECKING, Any

import msgspec

from hocket.errors import Usage
from hocket.extensions.cost.budgets import BudgetGuard, beat_in_force
from hocket.extensions.cost.costs import rates_of, spent_on
from hocket.extensions.cost.rate_card import USAGE_TYPE, RateCard, ResourceUse, UsageRecord, beats_used
from hocket.families.jobs.rules import Job
from hocket.kernel.decoding import convert
from hocket.kernel.policy import RATES_LABEL
from hocket.node.runtime import Runtime
from hocket.work.handlers import JobType
from hocket.work.pacing import Ending, Limit, MakePacer, Pacer
from hocket.work.run_outputs import RunOutputs, RunServices
from hocket.work.runner import Run

if TYPE_CHECKING:
    from hocket.node.local_node import LocalNode
    from hocket.work.environment import WorkerOptions

EXTENSION = "cost"

_GB = 1e9
_HOUR_S = 3600
_PAGE_BYTES = resource.getpagesize()


class RunMeter(Pacer):
    """Measures one run, and keeps it to the budget of its job. In a handler process it only measures: the worker counts
    the beats, and keeps what was used.
    """

    _running = 0

    def __init__(
        self,
        guard: BudgetGuard,
        monotonic: Callable[[], float],
        outputs: Callable[[], RunOutputs],
        is_twin: bool = False,
    ) -> None:
        self._guard, self._monotonic, self._outputs, self._is_twin = guard, monotonic, outputs, is_twin
        self.twin = f"{__name__.removeprefix('hocket.')}:meter_twin", guard.beat_ms
        self._lock = threading.Lock()
        self._began = self._looked_at = 0.0
        self._thread: tuple[int, int] | None = None
        self._cpu_base = 0.0
        self._io_base = 0
        self._cpu_s = self._memory_gb_s = self._storage_gbh = 0.0
        self._disk_bytes = 0
        self._said = ResourceUse()
        self._heard: ResourceUse | None = None

    @property
    def look_at(self) -> float:  # type: ignore[override]
        return self._looked_at + self._guard.look_s if self._guard.measures else math.inf

    def limits(self) -> Iterable[Limit]:
        seconds, error = self._guard.time_cap()
        return () if seconds == math.inf else (self._limit(seconds, error),)

    def _limit(self, seconds: float, error: str) -> Limit:
        return Limit(seconds, lambda state: Ending(None, error + state, may_retry=False), self._guard.stop_s)

    def begin(self, now: float) -> Iterable[Limit]:
        self._began = self._looked_at = now
        RunMeter._running += 1
        return ()

    def enter(self) -> None:
        with self._lock:
            self._thread = threading.get_ident(), threading.get_native_id()
            self._cpu_base, self._io_base = time.thread_time(), _disk_bytes(self._thread[1])

    def leave(self) -> None:
        with self._lock:
            self._count_thread()
            self._thread = None

    def _count_thread(self) -> None:
        if self._thread is None:
            return
        ident, number = self._thread
        self._cpu_s = time.clock_gettime(time.pthread_getcpuclockid(ident)) - self._cpu_base
        self._disk_bytes = _disk_bytes(number) - self._io_base

    def watched(self, awaited: Any) -> Any:
        return _metered(awaited, self)

    def stepped(self, cpu_s: float) -> None:
        self._cpu_s += cpu_s

    def add(self, said: ResourceUse) -> None:
        """What the handler says that it has used."""
        with self._lock:
            self._said += said

    def hear(self, message: ResourceUse) -> None:
        """What the process has measured in which the handler runs."""
        self._heard = message

    def _measure(self) -> ResourceUse:
        """What the run has used until now."""
        now, stored_bytes = self._monotonic(), self._outputs().kept_bytes
        with self._lock:
            self._count_thread()
            passed_s, self._looked_at = now - self._looked_at, now
            self._memory_gb_s += _memory_bytes() / max(1, RunMeter._running) / _GB * passed_s
            self._storage_gbh += stored_bytes / _GB * passed_s / _HOUR_S
            beats = beats_used((now - self._began) * 1000, self._guard.beat_ms)
            own = ResourceUse(0, self._cpu_s, {}, self._memory_gb_s, self._disk_bytes / 1e6, 0.0, self._storage_gbh)
            usage = self._heard or own + self._said
        self.tell(usage)
        return ResourceUse(beats) + usage

    def look(self) -> Limit | None:
        usage = self._measure()
        over = self._guard.over_use(usage, (self._looked_at - self._began) * 1000)
        return None if over is None else self._limit(0.0, over)

    def end(self) -> float | None:
        """What the run used is evidence: it is kept even if the run fails."""
        RunMeter._running -= 1
        usage = self._measure()
        if self._is_twin:
            return None
        record = UsageRecord(self._guard.beat_ms, usage)
        with suppress(Usage):  # the run has ended, or made too many outputs
            self._outputs().evidence(msgspec.json.encode(record), USAGE_TYPE, is_free=True)
        return self._guard.cost(usage)


def metering(rates: RateCard | None) -> MakePacer:
    """Meters runs, and prices them by the card."""

    def make(job: Job, job_type: JobType, services: RunServices, outputs: Callable[[], RunOutputs]) -> Pacer | None:
        if job_type.keeps_budget:
            return None
        beat_ms, budget = beat_in_force(services.beat_ms(), rates), job.policy.budget
        spent = None
        if budget is not None and budget.caps and job.fence > 1:
            now_ms = services.now().wall
            spent = services.read(lambda session: spent_on(session, services.blobs, job, rates, beat_ms, now_ms))
        return RunMeter(BudgetGuard(job.kind, budget, rates, beat_ms, spent), services.monotonic, outputs)

    return make


metered_run = metering(None)
"""The pacer of a job with a budget, in a process without a rate card."""


def meter_twin(
    beat_ms: int, job: Job, job_type: JobType, services: RunServices, outputs: Callable[[], RunOutputs]
) -> Pacer:
    return RunMeter(BudgetGuard(job.kind, None, None, beat_ms), services.monotonic, outputs, is_twin=True)


def used(run: Run, amounts: dict[str, Any]) -> None:
    """What a handler's context offers."""
    try:
        said = convert(amounts, ResourceUse)
    except msgspec.ValidationError as error:
        raise Usage(f"bad amount: {error}") from None
    if isinstance(meter := run.pacers.get(EXTENSION), RunMeter):
        meter.add(said)


@coroutine
def _metered(awaited: Coroutine[Any, Any, Any], meter: RunMeter) -> Generator[Any, Any, Any]:
    """What the coroutine gives. The time of each of its steps counts."""
    value: Any = None
    error: BaseException | None = None
    while True:
        before = time.thread_time()
        try:
            waited = awaited.send(value) if error is None else awaited.throw(error)
        except StopIteration as done:
            return done.value
        finally:
            meter.stepped(time.thread_time() - before)
        try:
            value, error = (yield waited), None
        except BaseException as thrown:
            value, error = None, thrown


def _disk_bytes(thread: int) -> int:
    """What the thread has read from and written to disks; 0 where the system does not tell."""
    with suppress(OSError, ValueError):
        with open(f"/proc/self/task/{thread}/io", "rb") as file:
            told = dict(line.split(b": ") for line in file.read().splitlines())
        return int(told.get(b"read_bytes", 0)) + int(told.get(b"write_bytes", 0))
    return 0


def _memory_bytes() -> int:
    with suppress(OSError, ValueError), open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * _PAGE_BYTES
    return 0


def price(runtime: Runtime, options: "WorkerOptions") -> None:
    """A worker that is made with these options from now on prices its runs, and takes jobs that are capped by their
    price, if this node has a rate card.
    """
    if (rates := rates_of(runtime.home)) is not None:
        options.labels = {*options.labels, RATES_LABEL}
        runtime.pacers[EXTENSION] = metering(rates)


@asynccontextmanager
async def priced(node: "LocalNode", options: "WorkerOptions") -> AsyncIterator[None]:
    """Round a worker: its runs are priced."""
    price(node.runtime, options)
    yield
