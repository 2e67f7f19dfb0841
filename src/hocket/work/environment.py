"""What a worker depends on: two clocks, randomness, which workers of its node are alive, the bus that wakes it, and the
slots that run its handlers. `MachineEnvironment` is the real one. A simulation passes its own, and the same worker runs
on virtual time, with every choice drawn from a seed.
"""

import functools
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from hocket.bus import Bus
from hocket.work.handler_threads import HandlerThreads
from hocket.work.hardware import Hardware, this_machine
from hocket.work.liveness import Liveness, machine_liveness
from hocket.work.process_plan import ProcessPlan
from hocket.work.runner import Run


class Closing(Protocol):
    def close(self) -> None: ...


class Environment(Protocol):
    """`monotonic` counts seconds and never jumps; `physical_ms` is the machine's time of day. Neither depends on the
    clocks of other nodes.
    """

    @property
    def bus(self) -> Bus:
        """Reports every change that a process of this node commits."""

    @property
    def chance(self) -> random.Random: ...
    @property
    def monotonic(self) -> Callable[[], float]: ...
    @property
    def liveness(self) -> Liveness: ...
    @property
    def hardware(self) -> Hardware:
        """What the machine has."""

    def physical_ms(self) -> int: ...
    def name(self, role: str) -> str:
        """A name that no other process of this node has, or ever had."""

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
