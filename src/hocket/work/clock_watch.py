"""Compares the clock of a process that stays with the clocks of the other processes of its node, again and again."""

import asyncio

from hocket.events import Emit
from hocket.events.workers import ClockDisagrees
from hocket.log.machine_clock import MachineClock
from hocket.work.environment import Environment
from hocket.work.node_access import NodeAccess

COMPARE_S = 5.0


class ClockWatch:
    """`clock` is None where time is simulated: then there is nothing to compare."""

    def __init__(self, access: NodeAccess, environment: Environment, clock: MachineClock | None, emit: Emit) -> None:
        self._access, self._environment, self._clock, self._emit = access, environment, clock, emit

    async def run(self) -> None:
        """Runs until it is cancelled. A clock that is off at two looks in a row is reported: when the machine's clock
        is set, the other processes may notice a moment later.
        """
        clock = self._clock
        was_off = has_told = False
        while clock is not None:
            off_ms = await self._access.call(lambda: clock.compare(vouch=True))
            if off_ms and was_off and not has_told:
                self._emit(ClockDisagrees(off_ms))
            has_told = bool(off_ms) and (has_told or was_off)
            was_off = bool(off_ms)
            await asyncio.sleep(COMPARE_S * self._environment.chance.uniform(0.8, 1.2))
