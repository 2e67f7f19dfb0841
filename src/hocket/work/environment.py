"""What a worker is given. Its options; the node that it works for, as it sees it; and what it depends on: two clocks,
randomness, which workers of its node are alive, the bus that wakes it, and the slots that run its handlers, on threads
or in processes. `MachineEnvironment` is the real one. A simulation passes its own, and the same worker runs on virtual
time, with every choice drawn from a seed. `supervised` keeps its background tasks running: a task that fails is
reported and restarted after a pause, which grows while it keeps failing.
"""

import asyncio
import functools
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from hocket.bus.hints import Bus
from hocket.bus.messages import MessageBus
from hocket.cancelling import end_tasks
from hocket.errors import Usage
from hocket.events import Emit, ignore
from hocket.events.workers import BackgroundTaskFailed
from hocket.families.access import NodeAccess
from hocket.families.jobs.claiming import HoldMs, whole_beats
from hocket.families.jobs.rendezvous import WEIGHT_MAX, WEIGHT_MIN, is_weight
from hocket.families.jobs.rules import Job
from hocket.families.liveness import Liveness, ProcessEnvironment, machine_liveness
from hocket.kernel.arbitration import Reason
from hocket.kernel.policy import check_labels
from hocket.kernel.retrying import TASK_RETRIES
from hocket.work.handler_threads import HandlerThreads, ProcessPlan
from hocket.work.handlers import Handlers
from hocket.work.presence import Hardware, Serving, this_machine
from hocket.work.run_outputs import RunServices
from hocket.work.runner import Run

# Jobs that a worker claims by default beyond those that run. They go back when it stops or dies: none has begun.
AHEAD_DEFAULT = 256


class WorkerAccess(NodeAccess, Protocol):
    """A node that can run jobs."""

    def kit(self, kind: str) -> RunServices:
        """What a run of a job of that kind needs."""

    def holding(self, shortest_lease_s: Callable[[], float]) -> AbstractContextManager[None]:
        """While the block runs, a store that fails is tried again well within the shortest lease."""


class Environment(ProcessEnvironment, Protocol):
    """What a worker depends on besides."""

    @property
    def hardware(self) -> Hardware:
        """What the machine has."""

    def slots(self, count: int, finished: Callable[[Run], None], plan: ProcessPlan | None) -> HandlerThreads:
        """The slots that run handlers, `count` at once: in processes if there is a plan for them."""


class MachineEnvironment:
    """This machine, and a home's directory for the lock files of its processes."""

    monotonic = staticmethod(time.monotonic)

    def __init__(self, processes: Path, bus: Bus, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or time.time
        self.liveness: Liveness = machine_liveness(processes, self.monotonic)
        self.bus = bus
        self.chance = random.Random()

    @functools.cached_property
    def hardware(self) -> Hardware:
        return this_machine()

    def physical_ms(self) -> int:
        return int(self._clock() * 1000)

    def name(self, role: str) -> str:
        return f"{role}-{os.getpid()}-{os.urandom(4).hex()}"

    def slots(self, count: int, finished: Callable[[Run], None], plan: ProcessPlan | None) -> HandlerThreads:
        if plan is None:
            return HandlerThreads(count, finished, self.monotonic)
        # It brings `multiprocessing`, and most workers run their handlers on threads.
        from hocket.work.handler_processes import HandlerProcesses

        return HandlerProcesses(plan, count, finished, self.monotonic)


@dataclass
class WorkerOptions:
    """`grace` is how many seconds running handlers may go on after the worker is told to stop. `ahead` is how many jobs
    it may claim beyond those that run, 256 by default. `labels` are what jobs may need, like `gpu` or `gpu=a100`.
    `processes` are the processes that run its handlers; None for threads of this one. `serving` is what it tells others
    about itself, besides its labels; by default the kinds of its handlers. `weight` is its share of the jobs that go by
    rank: a worker of weight 2 gets twice the jobs of one of weight 1. Over `messages` it tells other nodes' workers of
    its claims. `hold_ms` counts leases in beats. Its weight is multiplied by the `reliability` of its node's agents.
    `settings` are those of extensions.
    """

    handlers: Handlers
    concurrency: int = 4
    until_idle: bool = False
    grace: float = 10.0
    ahead: int | None = None
    labels: Iterable[str] = ()
    emit: Emit = ignore
    finished: Callable[[Run, Job | Reason], None] = lambda run, outcome: None
    processes: ProcessPlan | None = None
    serving: Serving | None = None
    weight: float = 1.0
    messages: MessageBus | None = None
    hold_ms: HoldMs = whole_beats
    reliability: Callable[[], float] = lambda: 1.0
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            self.labels = frozenset(check_labels(self.labels))
        except ValueError as error:
            raise Usage(str(error)) from None
        if not is_weight(self.weight):
            raise Usage(f"a worker's weight is between {WEIGHT_MIN} and {WEIGHT_MAX:g}, not {self.weight}")

    @property
    def ahead_max(self) -> int:
        return AHEAD_DEFAULT if self.ahead is None else self.ahead


T = TypeVar("T")

# A task that ran this long before it failed counts as healthy: its next pause is short.
HEALTHY_S = 60.0


async def supervised(name: str, make: Callable[[], Awaitable[T]], emit: Emit, environment: Environment) -> T:
    """Runs what `make` returns until it ends, and returns its result. After an error it emits an event, and the task is
    made again. Cancelling this cancels the task; `name` is its name for the operator ("the sync loop").
    """
    failures = 0
    while True:
        began = environment.monotonic()
        try:
            return await make()
        except Exception as error:
            failures = 1 if environment.monotonic() - began >= HEALTHY_S else failures + 1
            rest = TASK_RETRIES.delay_s(failures, environment.chance.random())
            said = str(error) or "no further detail"
            emit(BackgroundTaskFailed(name, f"{type(error).__name__}: {said}", rest))
        await asyncio.sleep(rest)


@asynccontextmanager
async def supervising(
    name: str, make: Callable[[], Awaitable[Any]], emit: Emit, environment: Environment
) -> AsyncIterator[None]:
    """Runs a supervised task until the block ends."""
    task = asyncio.create_task(supervised(name, make, emit, environment))
    try:
        yield
    finally:
        await end_tasks([task])
