"""What a simulated node stands on: clocks that are wrong in their own way, chance from the seed, and handlers as tasks
on the one event loop. Processes and hints are entries in tables that go with the node's life.
"""

import asyncio
import random
from collections.abc import Callable

from hocket.bus.memory import MemoryBus
from hocket.work.ground import Closing
from hocket.work.runner import Run, Runner

EPOCH_S = 1_750_000_000.0


class Clocks:
    """A machine's two clocks. Both run at its own `rate`; the time of day is off by `skew` seconds as well."""

    def __init__(self, rate: float, skew: float) -> None:
        self._rate = rate
        self.skew = skew
        self._true = asyncio.get_running_loop().time

    def monotonic(self) -> float:
        return self._true() * self._rate

    def day(self) -> float:
        """The time of day as this machine has it, in seconds since the epoch."""
        return EPOCH_S + self._true() * self._rate + self.skew


class SimGround:
    """The ground of one life of a node."""

    def __init__(self, clocks: Clocks, chance: random.Random) -> None:
        self.bus = MemoryBus()
        self.chance = chance
        self.monotonic = clocks.monotonic
        self.process = 1
        self._clocks = clocks
        self._names: set[str] = set()

    def physical_ms(self) -> int:
        return int(self._clocks.day() * 1000)

    def name(self, role: str) -> str:
        return f"{role}-{self.chance.randbytes(4).hex()}"

    def live(self, name: str) -> Closing:
        self._names.add(name)
        return _Closing(lambda: self._names.discard(name))

    def is_alive(self, name: str) -> bool:
        return name in self._names

    def slots(self, count: int, finished: Callable[[Run], None]) -> Runner:
        return Tasks(count, finished, self.monotonic)


class Tasks(Runner):
    """Handlers, which must be coroutines, as tasks of the running loop. Tracebacks name files of the machine that the
    simulation runs on, and an op's id follows from its content: they are left out, so that a seed replays anywhere.
    """

    def __init__(self, slots: int, finished: Callable[[Run], None], monotonic: Callable[[], float]) -> None:
        def ended(run: Run) -> None:
            run.traceback = ""
            finished(run)

        super().__init__(slots, ended, monotonic)
        self.loop = asyncio.get_running_loop()

    def close(self) -> None:
        self._waiting.clear()


class _Closing:
    def __init__(self, close: Callable[[], object]) -> None:
        self._close = close

    def close(self) -> None:
        self._close()
