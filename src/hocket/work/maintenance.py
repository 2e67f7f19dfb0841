"""What a node sees to whether or not it works: leases that have run out, schedules that are due, ops whose time has
come, artifacts whose time is over. Every process that stays up does it; whoever is first has done it for all.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

from hocket.errors import StoreError
from hocket.log import Log, Transaction
from hocket.store import OpSession, Session
from hocket.work import artifacts, jobs
from hocket.work.blobs import Blobs
from hocket.work.environment import Environment
from hocket.work.sweep import Sweep
from hocket.work.troubles import Troubles, described

T = TypeVar("T")

# How often leases, schedules and held ops are looked at.
ROUND_S = 1.0
# How often blobs that nobody needs are looked for.
CLEAR_S = 3600.0
_EVICTING = "evicting artifacts"


class MaintenanceAccess(Protocol):
    @property
    def log(self) -> Log: ...
    async def run(self, request: Callable[[Transaction], T]) -> T: ...
    async def peek(self, query: Callable[[Session], T]) -> T: ...
    async def call(self, work: Callable[[], T]) -> T: ...


class Maintenance:
    def __init__(
        self, access: MaintenanceAccess, environment: Environment, blobs: Blobs, notice: Callable[[str], None]
    ) -> None:
        self._access, self._environment, self._blobs, self._notice = access, environment, blobs, notice
        self._troubles = Troubles(notice, environment.monotonic)
        self._sweep = Sweep(self._troubles, notice)
        self._clear_at = environment.monotonic() + CLEAR_S

    async def run(self) -> None:
        """Goes on until it is cancelled. Each part of a round is tried by itself, so that one that fails does not keep
        the others from their turn.
        """
        parts = (
            ("taking in the ops whose time has come", self._release),
            ("looking after leases and schedules", self._sweep_up),
            (_EVICTING, self._evict),
            ("clearing away blobs", self._clear),
        )
        while True:
            await asyncio.sleep(ROUND_S * self._environment.chance.uniform(0.8, 1.2))
            for name, part in parts:
                try:
                    with self._troubles.contained(name, name):
                        if not self._troubles.is_resting(name):
                            await part()
                except StoreError as error:
                    self._notice(f"{error}; trying again")
                    break  # the other parts would meet the same error

    async def _release(self) -> None:
        log = self._access.log
        await self._access.call(lambda: log.release(jobs.accept))

    async def _sweep_up(self) -> None:
        if not await self._access.peek(lambda session: self._sweep.is_due(session, self._now(session))):
            return
        try:
            await self._access.run(lambda tx: self._sweep(tx, None))
        except StoreError:
            raise
        except Exception as error:
            self._troubles.tell("sweep", f"looking after leases and schedules failed ({described(error)})")
            await self._sweep.one_by_one(self._access, None)

    async def _evict(self) -> None:
        access, node = self._access, self._access.log.node
        if not await access.peek(lambda session: artifacts.is_due(session, node, self._now(session))):
            return
        if not await artifacts.maintenance(access, self._blobs, self._troubles):
            # It stays due, and asking each second would cost a transaction each time.
            self._troubles.tell(
                _EVICTING, "artifacts whose time is over stay: this node may not evict them; grant it artifact:write"
            )

    async def _clear(self) -> None:
        if self._environment.monotonic() >= self._clear_at:
            self._clear_at = self._environment.monotonic() + CLEAR_S
            store, blobs, troubles = self._access.log.store, self._blobs, self._troubles
            await self._access.call(lambda: artifacts.clear(store, blobs, troubles=troubles))

    def _now(self, session: OpSession) -> int:
        return max(session.head().wall, self._environment.physical_ms())
