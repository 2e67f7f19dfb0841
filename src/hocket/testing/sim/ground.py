"""What a simulated node stands on: clocks that are wrong in their own way, chance from the seed, and handlers as tasks
on the one event loop. Bells are entries in a table that goes with the node's life; locks are entries in a table of its
host, which stays, and they are free when that life has ended.
"""

import asyncio
import random
from collections.abc import Callable

from hocket.bus.bells import Wish
from hocket.store import Place
from hocket.testing.sim.loop import Life
from hocket.work.ground import Closing
from hocket.work.liveness import Liveness, LockLiveness
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


class SimHost:
    """A machine's locks. Its nodes come and go; `crash` is the end of all of them."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._held: dict[str, bool] = {}

    def liveness(self, monotonic: Callable[[], float]) -> Liveness:
        return LockLiveness(self, self.place, 1, monotonic)

    def crash(self) -> None:
        self._held = dict.fromkeys(self._held, False)

    def take(self, name: str) -> Callable[[], None]:
        self._held[name] = True

        def close() -> None:
            if self._held.get(name):  # a crash has left it free, and what ends because of it removes nothing
                self.remove(name)

        return close

    def is_held(self, name: str) -> bool | None:
        return self._held.get(name)

    def remove(self, name: str) -> None:
        self._held.pop(name, None)


class SimGround:
    """The ground of one life of a node."""

    def __init__(self, clocks: Clocks, chance: random.Random, life: Life, host: SimHost) -> None:
        self.chance = chance
        self.monotonic = clocks.monotonic
        self.liveness = host.liveness(clocks.monotonic)
        self._clocks = clocks
        self._life = life
        self._bells: dict[str, tuple[Wish, Callable[[], None]]] = {}

    def physical_ms(self) -> int:
        return int(self._clocks.day() * 1000)

    def name(self, role: str) -> str:
        return f"{role}-{self.chance.randbytes(4).hex()}"

    def listen(self, name: str, wish: Wish, rung: Callable[[], None]) -> Closing:
        self._bells[name] = (wish, rung)
        return _Closing(lambda: self._bells.pop(name, None))

    def ring(self, stirring: bool) -> None:
        """Wakes whoever listens, as a commit does."""
        loop = asyncio.get_running_loop()
        for wish, rung in list(self._bells.values()):
            if stirring or wish == "any":
                loop.call_soon(self._rung, rung)

    def _rung(self, rung: Callable[[], None]) -> None:
        if not self._life.is_over:
            rung()

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
