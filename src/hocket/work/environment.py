"""What a worker depends on: two clocks, randomness, which workers of its node are alive, the bus that wakes it, and the
slots that run its handlers, on threads or in processes. `MachineEnvironment` is the real one. A simulation passes its
own, and the same worker runs on virtual time, with every choice drawn from a seed.
"""

import functools
import os
import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from hocket.bus.hints import Bus
from hocket.families.access import NodeAccess
from hocket.families.liveness import Liveness, ProcessEnvironment, machine_liveness
from hocket.work.handler_threads import HandlerThreads, ProcessPlan
from hocket.work.presence import Hardware, this_machine
from hocket.work.run_outputs import RunServices
from hocket.work.runner import Run


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
