"""What a node sees to whether or not it works: leases that have run out, schedules that are due, ops whose time has
come, artifacts whose time is over. Every process that stays up does it; whoever is first has done it for all.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

from hocket.errors import StoreError
from hocket.log import Log, Transaction
from hocket.store import Session
from hocket.work import artifacts, cron, jobs
from hocket.work.blobs import Blobs
from hocket.work.ground import Ground

T = TypeVar("T")

# How often leases, schedules and held ops are looked at.
ROUND_S = 1.0
# How often blobs that nobody needs are looked for.
CLEAR_S = 3600.0
EXPIRE_MAX = 500


class Access(Protocol):
    @property
    def log(self) -> Log: ...
    async def run(self, request: Callable[[Transaction], T]) -> T: ...
    async def peek(self, query: Callable[[Session], T]) -> T: ...
    async def call(self, work: Callable[[], T]) -> T: ...


class Upkeep:
    def __init__(self, access: Access, ground: Ground, blobs: Blobs, notice: Callable[[str], None]) -> None:
        self._access, self._ground, self._blobs, self._notice = access, ground, blobs, notice
        self._clear_at = ground.monotonic() + CLEAR_S

    async def run(self) -> None:
        """Goes on until it is cancelled."""
        while True:
            await asyncio.sleep(ROUND_S * self._ground.chance.uniform(0.8, 1.2))
            try:
                await self._round()
            except StoreError as error:
                self._notice(f"{error}; trying again")

    async def _round(self) -> None:
        access, log = self._access, self._access.log
        await access.call(lambda: log.release(jobs.accept))
        if await access.peek(self._is_due):
            await access.run(_sweep)
        if await access.peek(lambda session: artifacts.is_due(session, log.node, self._now(session))):
            await artifacts.upkeep(access, self._blobs)
        if self._ground.monotonic() >= self._clear_at:
            self._clear_at = self._ground.monotonic() + CLEAR_S
            await access.call(lambda: artifacts.clear(log.store, self._blobs))

    def _is_due(self, session: Session) -> bool:
        now = self._now(session)
        deadline = session.next_deadline()
        return (deadline is not None and deadline < now) or cron.is_due(session, now)

    def _now(self, session: Session) -> int:
        return max(session.head().wall, self._ground.physical_ms())


def _sweep(tx: Transaction) -> None:
    jobs.expire(tx, EXPIRE_MAX)
    cron.make_due(tx)
