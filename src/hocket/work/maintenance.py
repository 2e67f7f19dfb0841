"""Periodic tasks of a node, whether or not it runs jobs: ops whose time has come, expired artifacts, unused blobs, disk
space of the store. Every long-running process does them; the first one has done them for all. `sweep` handles leases
and schedules, which are more urgent.

Compares the clock of a process that stays with the clocks of the other processes of its node, again and again.
"""

import asyncio

from hocket.errors import StoreError
from hocket.events import Emit
from hocket.events.troubles import Troubles
from hocket.events.workers import ClockDisagrees, EvictionNotAllowed, StoreUnavailable
from hocket.families import artifacts
from hocket.families.access import NodeAccess
from hocket.families.jobs import claiming as accepting
from hocket.log.machine_clock import MachineClock
from hocket.store import OpSession
from hocket.work.environment import Environment

# How often held ops and artifacts are checked.
ROUND_S = 1.0
# How often unused blobs are searched for.
CLEAR_S = 3600.0
# How often the store is asked to give back disk space.
TRIM_S = 10.0
_EVICTING = "evicting artifacts"


class Maintenance:
    def __init__(self, access: NodeAccess, environment: Environment, emit: Emit) -> None:
        self._access, self._environment, self._blobs, self._emit = access, environment, access.blobs, emit
        self._troubles = Troubles(emit, environment.monotonic)
        self._clear_at = environment.monotonic() + CLEAR_S
        self._trim_at = environment.monotonic() + TRIM_S

    async def run(self) -> None:
        """Runs until it is cancelled. Each part of a round runs separately, so that a failure does not stop the
        others.
        """
        parts = (
            ("admitting the ops whose time has come", self._release),
            (_EVICTING, self._evict),
            ("deleting unused blobs", self._clear),
            ("giving back disk space", self._trim),
        )
        while True:
            await asyncio.sleep(ROUND_S * self._environment.chance.uniform(0.8, 1.2))
            for name, part in parts:
                try:
                    with self._troubles.contained(name, name):
                        if not self._troubles.is_resting(name):
                            await part()
                except StoreError as error:
                    self._emit(StoreUnavailable(str(error)))
                    break  # the other parts would fail the same way

    async def _release(self) -> None:
        log = self._access.log
        await self._access.call(lambda: log.release(accepting.accept))

    async def _evict(self) -> None:
        access, node = self._access, self._access.log.node
        if not await access.peek(lambda session: artifacts.is_due(session, node, self._now(session))):
            return
        if not await artifacts.maintenance(access, self._blobs, self._troubles):
            # It stays due, and trying each second would cost a transaction each time.
            self._troubles.tell(_EVICTING, EvictionNotAllowed())

    async def _clear(self) -> None:
        if self._environment.monotonic() >= self._clear_at:
            self._clear_at = self._environment.monotonic() + CLEAR_S
            store, blobs, troubles = self._access.log.store, self._blobs, self._troubles
            await self._access.call(lambda: artifacts.clear(store, blobs, troubles=troubles))

    async def _trim(self) -> None:
        if self._environment.monotonic() >= self._trim_at:
            self._trim_at = self._environment.monotonic() + TRIM_S
            await self._access.call(self._access.log.store.trim)

    def _now(self, session: OpSession) -> int:
        return max(session.head().wall, self._environment.physical_ms())


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
