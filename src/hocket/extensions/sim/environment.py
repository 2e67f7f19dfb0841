"""The environment of a simulated node: clocks that are wrong in their own way, randomness from the seed, and handlers
as tasks on the one event loop. Hints end with the node's life; locks are entries in a table of its host, which stays,
and they are free when that life has ended.
"""

import asyncio
import random
from collections.abc import Callable
from typing import NamedTuple

from hocket.bus.memory import MemoryBus
from hocket.families.liveness import Liveness, LockLiveness
from hocket.store import Place
from hocket.work.handler_threads import HandlerThreads, ProcessPlan
from hocket.work.presence import Hardware
from hocket.work.runner import Run

EPOCH_S = 1_750_000_000.0


class Clocks:
    """A machine's two clocks. Both run at its own `rate`; the time of day is also off by `skew` seconds."""

    def __init__(self, rate: float, skew: float) -> None:
        self._rate = rate
        self.skew = skew
        self._true = asyncio.get_running_loop().time

    def monotonic(self) -> float:
        return self._true() * self._rate

    def day(self) -> float:
        """This machine's time of day, in seconds since the epoch."""
        return EPOCH_S + self._true() * self._rate + self.skew


class SimHost:
    """A machine's locks. Its nodes come and go; `crash` ends all of them."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._held: dict[str, bool] = {}

    def liveness(self, monotonic: Callable[[], float]) -> Liveness:
        return LockLiveness(self, self.place, 1, monotonic)

    def crash(self) -> None:
        self._held = dict.fromkeys(self._held, False)

    def take(self, name: str) -> "SimLock":
        self._held[name] = True
        return SimLock(self, name)

    def is_held(self, name: str) -> bool | None:
        return self._held.get(name)

    def remove(self, name: str) -> None:
        self._held.pop(name, None)


class SimLock(NamedTuple):
    host: SimHost
    name: str
    fd: None = None

    def close(self) -> None:
        if self.host.is_held(self.name):  # a crash has left it free, and tasks that end because of it remove nothing
            self.host.remove(self.name)


class SimEnvironment:
    """The environment of one life of a node."""

    def __init__(self, clocks: Clocks, chance: random.Random, host: SimHost) -> None:
        self.bus = MemoryBus()
        self.chance = chance
        self.monotonic = clocks.monotonic
        self.liveness = host.liveness(clocks.monotonic)
        self.hardware = Hardware(cpus=1)
        self._clocks = clocks

    def physical_ms(self) -> int:
        return int(self._clocks.day() * 1000)

    def name(self, role: str) -> str:
        return f"{role}-{self.chance.randbytes(4).hex()}"

    def slots(self, count: int, finished: Callable[[Run], None], plan: ProcessPlan | None) -> HandlerThreads:
        return Tasks(count, finished, self.monotonic)


class Tasks(HandlerThreads):
    """Handlers, which must be coroutines, as tasks of the running loop. Tracebacks name files of the real machine, and
    an op's id follows from its content: they are left out, so that a seed replays anywhere.
    """

    def __init__(self, slots: int, finished: Callable[[Run], None], monotonic: Callable[[], float]) -> None:
        def ended(run: Run) -> None:
            run.traceback = ""
            finished(run)

        super().__init__(slots, ended, monotonic)
        self.loop = asyncio.get_running_loop()

    def close(self) -> None:
        self._waiting.clear()

    def _give_up(self, run: Run) -> None:
        self._over(run)
